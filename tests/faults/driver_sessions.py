"""Sessions of a study as processes: the real command, real Ray, real signals; only the training is a formula."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from orders import orders

HERE = Path(__file__).parent
SEARCH = HERE.parent / "search"  # where fake_trial lies
ROOT = HERE.parents[1]


class Study:
    """A study in a storage of its own, and the commands on it.

    Attributes:
        name: the study's; trials: points of its random search; sleep: seconds of every evaluation (six a trial).
        environment: further variables of the commands.
        program: what runs the commands; [python, "-m", "search"] for real trials.
        output: where what they print goes.
    """

    def __init__(
        self, root: Path, *, name: str = "study", trials: int = 12, sleep: float = 0.05, **changes: Any
    ) -> None:
        self.root, self.name, self.storage = root, name, root / "runs"
        self.environment: dict[str, str] = {}
        self.output: Any = subprocess.PIPE
        self.program = [sys.executable, str(HERE / "fake_search.py")]
        self.file = root / "space.yaml"
        space: dict[str, Any] = {
            "name": name,
            "method": "simcse",
            "encoder": "builtin:tiny",
            "preset": "none",
            "data": {"train": "builtin", "dev": ["builtin"], "language": "en", "columns": orders(sleep=sleep)},
            "metric": {"name": "builtin_dev"},
            "params": {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"choice": [16, 32, 64]}},
            "search": {"sampler": "random", "trials": trials, "seed": 3, "baseline": "none"},
            "pruner": {"kind": "none"},
            "resources": {"cpus": 1},
            "train": {"eval_examples": 100},
        }
        self.file.write_text(yaml.safe_dump(space | changes), encoding="utf-8")

    @property
    def folder(self) -> Path:
        return self.storage / self.name

    def start(self, *words: str, group: bool = False) -> subprocess.Popen[str]:
        """The command, running; `group`: in a process group of its own, as a scheduler starts it."""
        env = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")}
        env |= {"PYTHONPATH": f"{SEARCH}:{ROOT}", "OMP_NUM_THREADS": "1"} | self.environment
        return subprocess.Popen(
            [*self.program, *words, "--storage", str(self.storage)],
            cwd=self.root, env=env, text=True, start_new_session=group,
            stdout=self.output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.Popen[str]:
        return self.start("run", str(self.file), "--name", self.name, *words)

    def command(self, *words: str) -> tuple[int, str]:
        """(exit code, all that was printed) of a command run to its end."""
        process = self.start(*words)
        text, _ = process.communicate(timeout=240)
        return process.returncode, text

    def events(self) -> list[dict[str, Any]]:
        """Whole lines of the journal."""
        path = self.folder / "tracking.jsonl"
        if not path.exists():
            return []
        return [
            json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"
        ]

    def wait_until(self, done: Callable[[list[dict[str, Any]]], bool], process: subprocess.Popen[str]) -> None:
        """Until the journal has it."""
        until = time.monotonic() + 180
        while not done(self.events()):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until, "it takes too long"
            time.sleep(0.02)

    def ends(self, stage: str = "search") -> dict[str, str]:
        """Trial id -> how it ended."""
        started = {e["id"]: e for e in self.events() if e["e"] == "start" and e["stage"] == stage}
        ended = [e for e in self.events() if e["e"] == "end" and e["id"] in started]
        assert len({e["id"] for e in ended}) == len(ended), "a trial ended twice"
        keys = [(json.dumps(e["point"], sort_keys=True), e["seed"]) for e in started.values()]
        assert len(set(keys)) == len(keys), "a point ran twice on one seed"
        return {e["id"]: e["stop"] for e in ended}

    def mlflow_states(self) -> dict[str, int]:
        """How many MLflow runs of the storage are in which state."""
        import sqlite3

        with sqlite3.connect(f"file:{self.storage / 'mlflow.db'}?mode=ro", uri=True) as database:
            return dict(database.execute("select status, count(*) from runs group by status").fetchall())


def ended(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    """The journal holds so many ended trials."""
    return lambda events: sum(e["e"] == "end" for e in events) >= count


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
