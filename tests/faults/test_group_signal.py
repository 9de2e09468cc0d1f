"""A signal to the whole process group, as SLURM, Kubernetes and a closing terminal send it."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from driver_sessions import Study
from processes import below

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
SOON_S = 15.0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_group_pauses_the_study(number: signal.Signals, tmp_path: Path) -> None:
    study = Study(tmp_path, trials=6, sleep=0.3)
    process = study.start("run", str(study.file), "--name", study.name, group=True)
    study.wait_until(lambda events: sum(e["e"] == "eval" for e in events) >= 3, process)
    began = time.monotonic()
    os.killpg(process.pid, number)
    text, _ = process.communicate(timeout=120)
    took = time.monotonic() - began
    assert process.returncode == 128 + number, text
    assert took < SOON_S, text
    events = study.events()
    assert events[-1]["e"] == "close"
    assert events[-1]["status"] == "interrupted"
    assert "search resume" in text
    running = [e["id"] for e in events if e["e"] in ("start", "again")]
    assert {e["id"] for e in events if e["e"] in ("pause", "end")} == set(running)
    assert "RUNNING" not in study.mlflow_states()
    before = sum(e["e"] == "eval" for e in events)
    code, text = study.command("resume", study.name)
    assert code == 0, text
    assert set(study.ends().values()) == {"completed"}
    assert len(study.ends()) == 6
    evaluations = sum(e["e"] == "eval" for e in study.events())
    assert evaluations <= 36 + 2, f"states were saved: {before} evaluations before, {evaluations} in all"


LEFT_BEHIND = """
import pathlib, sys, time
from search.running.private_ray import handled
received = []
with handled(received.append):
    print("ready", flush=True)
    while not received:
        time.sleep(0.01)
    for _ in range(100):
        print("closing the study", flush=True)
        print("and so on", file=sys.stderr, flush=True)
    pathlib.Path(sys.argv[1]).write_text(received[0].name)
"""


def test_closed_terminal_is_not_written_to(tmp_path: Path) -> None:
    """Else the first line after SIGHUP raises, and the study is never closed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", LEFT_BEHIND, str(tmp_path / "signal")])
    while b"ready" not in os.read(terminal, 1024):
        pass
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "signal").read_text() == "SIGHUP"


@pytest.mark.slow
def test_ray_folders_of_a_killed_driver_are_removed(tmp_path: Path) -> None:
    study = Study(tmp_path, trials=2)
    process = study.run()
    study.wait_until(lambda events: any(e["e"] == "eval" for e in events), process)
    raylet = below(process.pid, "raylet")[0]
    folder = next(Path(a) for word in raylet.cmdline() for a in [word.partition("=")[2]] if "/session_" in a)
    scratch = next(p for p in folder.parents if p.name == "ray").parent
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    psutil.wait_procs([raylet], timeout=30)
    assert not raylet.is_running()
    assert scratch.exists()
    assert scratch.parent.stat().st_mode & 0o777 == 0o700
    hour_ago = time.time() - 3600
    os.utime(scratch, (hour_ago, hour_ago))
    assert study.command("resume", study.name)[0] == 0
    assert not scratch.exists()
