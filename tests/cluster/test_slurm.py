"""docs/cluster/slurm.sbatch on a real SLURM of two nodes: time limit, requeue, confirm, `analysis best`.

pytest -m slow tests/cluster/test_slurm.py      # as root; about 5 minutes on two idle cores
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import minislurm
import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "cluster" / "slurm.sbatch"
TRIALS, EVERY, EVALUATIONS = 6, 5000, 10
SPACE = f"""
extends: {ROOT}/spaces/quickstart.yaml
name: slurm
pruner: {{kind: none}}
resources: {{cpus: 1}}
search: {{trials: {TRIALS}}}
train: {{max_examples: {EVERY * EVALUATIONS}, epochs: 30, eval_examples: {EVERY}, checkpoint_seconds: 0.5}}
"""
# What torchrun or a site's profile leaves in the environment; sbatch hands it to the job.
CONFUSING = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    if minislurm.missing().startswith("not installed") and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for line in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *minislurm.PACKAGES]):
            subprocess.run(["apt-get", *line], env=env, capture_output=True, check=False)
    if lacking := minislurm.missing():
        pytest.skip(f"SLURM: {lacking}")
    with minislurm.slurm(nodes=2) as env:
        own = {"VENV": sys.prefix, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        yield {k: v for k, v in env.items() if k not in ("SEARCH_STORAGE", "MLFLOW_TRACKING_URI")} | own | CONFUSING


class Job:
    """A job of the script, in a folder that both nodes share."""

    def __init__(self, folder: Path, env: dict[str, str], options: list[str], words: list[str]) -> None:
        self.folder, self.env = folder, env
        command = ["sbatch", "--parsable", "--chdir", str(folder), "--cpus-per-task=1", "--gpus-per-node=0"]
        self.id = minislurm.call(env, *command, *options, str(SCRIPT), *words)

    @property
    def log(self) -> str:
        logs = sorted(self.folder.glob(f"search-{self.id}*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs)

    def events(self, study: str) -> list[dict[str, Any]]:
        path = self.folder / "runs" / study / "tracking.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def show(self, field: str) -> str:
        words = minislurm.call(self.env, "scontrol", "show", "job", self.id).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{field}="))

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 420) -> None:
        until = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < until, f"{what}: not in {seconds:g} s\n{self.log[-6000:]}"
            state = self.show("JobState")
            assert state not in ("FAILED", "TIMEOUT", "NODE_FAIL"), self.log[-6000:]
            # checked first: the awaited state may have come with the end
            assert ready() or state != "COMPLETED", f"{what}: the job ended before\n{self.log[-6000:]}"
            time.sleep(0.5)

    def ended(self) -> bool:
        return self.show("JobState") == "COMPLETED"


@pytest.fixture(scope="module")
def job(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A study whose job comes near its time limit, then is requeued without a warning, then ends."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "space.yaml").write_text(SPACE)
    job = Job(folder, environment, ["--nodes=2", "--time=10", "--signal=B:USR1@30"], ["run", "space.yaml"])
    study = f"search-{job.id}"

    def evaluations(since: int = 0) -> int:
        return sum(e["e"] == "eval" for e in job.events(study)[since:])

    def paused() -> bool:
        """SLURM checks its limits twice a minute; if most is done by then, the same signal is sent directly."""
        if evaluations() > 0.6 * TRIALS * EVALUATIONS and not by_hand:
            by_hand.append(minislurm.call(environment, "scancel", "--batch", "--signal=USR1", job.id))
        return any(e["e"] == "close" and e["status"] == "interrupted" for e in job.events(study))

    by_hand: list[str] = []
    job.wait("the first evaluations", lambda: evaluations() >= 2)
    hours, minutes, seconds = map(int, job.show("RunTime").split(":"))
    limit = (3600 * hours + 60 * minutes + seconds + 35) // 60 + 1  # SLURM counts minutes; the signal is half of one
    minislurm.call(environment, "scontrol", "update", f"JobId={job.id}", f"TimeLimit={limit}")
    job.wait("paused before the time limit", paused)
    # SLURM may give its signal a minute early: with the same limit a slow machine would do nothing but start and pause.
    minislurm.call(environment, "scontrol", "update", f"JobId={job.id}", "TimeLimit=30")
    at = len(job.events(study))
    job.wait("evaluations in the next allocation", lambda: evaluations(since=at) >= 4)
    minislurm.call(environment, "scontrol", "requeue", job.id)
    job.wait("the end", job.ended)
    return job


def test_every_trial_ends_once_and_nothing_is_doubled(job: Job) -> None:
    events = job.events(f"search-{job.id}")
    assert Counter(e["stop"] for e in events if e["e"] == "end") == {"completed": TRIALS}
    started = [e["id"] for e in events if e["e"] == "start"]
    assert sorted(started) == sorted(e["id"] for e in events if e["e"] == "end")
    assert len(set(started)) == TRIALS
    for trial in started:
        examples = [e["examples"] for e in events if e["e"] == "eval" and e["id"] == trial]
        numbers = [round(n / EVERY) for n in examples]  # they are whole batches
        assert numbers == list(range(1, EVALUATIONS + 1)), "an evaluation is lost or written twice"


def test_paused_before_the_limit_and_resumed_from_saved_states(job: Job) -> None:
    events = job.events(f"search-{job.id}")
    paused = {e["id"] for e in events if e["e"] == "pause"}
    assert paused
    assert paused <= {e["id"] for e in events if e["e"] == "again"}
    assert any(e["resumed_from"] > 0 for e in events if e["e"] == "eval" and e["id"] in paused)
    assert int(job.show("Restarts")) >= 2
    assert job.show("ExitCode") == "0:0"
    assert "requeueing job" in job.log
    assert "not requeued" not in job.log
    assert [e["status"] for e in events if e["e"] == "close"][-1] == "finished"


def test_both_nodes_trained(job: Job) -> None:
    logs = {log.name for log in job.folder.glob(f"search-{job.id}-ray-*.log")}
    assert logs == {f"search-{job.id}-ray-{node}.log" for node in ("n1", "n2")}


def test_analysis_and_confirm_on_one_node(job: Job) -> None:
    study = f"search-{job.id}"
    confirm = Job(job.folder, job.env, ["--nodes=1", "--time=10"], ["confirm", study, "--top", "1", "--seeds", "2"])
    confirm.wait("the end", confirm.ended)
    confirmed = [e for e in confirm.events(study) if e["e"] == "start" and e["stage"] == "confirm"]
    assert len(confirmed) >= 2
    assert {e["id"] for e in confirmed} <= {e["id"] for e in confirm.events(study) if e["e"] == "end"}
    best = [str(Path(sys.prefix) / "bin" / "analysis"), "best", study, "--metric", "builtin_dev"]
    done = subprocess.run(best, cwd=job.folder, env=job.env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "confirmed" in done.stdout


def test_nothing_of_ray_is_left(job: Job) -> None:
    left = [
        p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if f"search-{job.id}-" in str(p.info["cmdline"])
    ]
    assert left == []
    assert list(Path("/tmp").glob(f"search-{job.id}-*")) == []
