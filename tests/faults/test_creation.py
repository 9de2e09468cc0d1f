"""A study exists from its first byte or not at all, and a signal at any moment ends with a line and its exit code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from driver_sessions import Study

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(3000)]
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS = int(os.environ.get("KILL_MOMENTS", "10"))  # of each signal, from 0 s to the first trial
TAKEN_UP = max(1, MOMENTS // 3)  # of all, resumed to the end


def seconds_to_first_trial(root: Path) -> float:
    study = Study(root, trials=1)
    began = time.monotonic()
    process = study.run()
    study.wait_until(lambda events: any(e["e"] == "start" for e in events), process)
    took = time.monotonic() - began
    process.communicate(timeout=120)
    return took


def test_a_signal_at_any_moment(tmp_path: Path) -> None:
    (tmp_path / "timing").mkdir()
    whole = seconds_to_first_trial(tmp_path / "timing")
    resumed = 0
    for number in SIGNALS:
        for moment in range(MOMENTS):
            root = tmp_path / f"{number.name}{moment}"
            root.mkdir()
            study = Study(root, name="s", trials=1)
            process = study.run()
            time.sleep(whole * moment / (MOMENTS - 1))
            process.send_signal(number)
            text, _ = process.communicate(timeout=120)
            where = f"{number.name} after {moment}/{MOMENTS - 1} of {whole:.1f} s: {text}"
            if number != signal.SIGKILL and process.returncode != 0:
                assert process.returncode in (128 + number, -number), where
                # Python itself, still importing, has no handler yet; nothing has been made by then
                assert process.returncode == 128 + number or not study.folder.exists(), where
                assert "Aborted" not in text, where
            exists = study.folder.exists()
            if exists:
                assert study.events()[0]["e"] == "space", where
                code, said = study.command("run", str(study.file), "--name", "s")
                assert code == 2, where
                assert "exists" in said, where
                code, said = study.command("status", "s")
                assert code == 0, where + said
            if exists and resumed < TAKEN_UP and moment >= MOMENTS // 2:
                code, said = study.command("resume", "s")
                assert code == 0, where + said
                assert set(study.ends().values()) == {"completed"}, where
                assert set(study.mlflow_states()) == {"FINISHED"}, where
                resumed += 1
    assert resumed == TAKEN_UP
