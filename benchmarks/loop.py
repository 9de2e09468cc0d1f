"""Tune's loop with our driver: evaluations a second that it takes, and how long a trial waits for its verdict.

A real study of `TRIALS` trials at once, each a process of its own in a real Ray (on a machine of pretended CPUs): our
driver, searcher and scheduler, the trial process's own class, journal, retention, MLflow on SQLite. Only the training
is a sleep. When all processes are up they report `OFFERED` evaluations a second in all for `PACED_S` seconds, each at
its own pace, then for `FLAT_OUT_S` as fast as verdicts come. A wait is what a trial loses: from handing an evaluation
to Tune to its verdict, as the process's own clock has it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from trainables.contract.trial import Evaluation, Outcome, TrialSpec, Verdict
from trainables.on_ray.messages import Message, evaluation_message, outcome_message
from trainables.on_ray.trainable import TrialJob

TRIALS = (64, 128, 256)  # of these what fits into memory
PROCESS_BYTES = 120 * 2**20  # that a trial's process has for itself, without torch
OFFERED, PACED_S, PAUSE_S, FLAT_OUT_S = 40.0, 60.0, 10.0, 20.0
CPUS, SHARE = 4, 0.01  # of the pretended machine, and of a trial: a process is small
METRICS = 8  # numbers in an evaluation
STEP = 100  # examples between two evaluations
AT_ONCE = "BENCHMARK_TRIALS_AT_ONCE"  # in the environment of the trials' processes


def run(runs: int) -> dict[str, Any]:
    """A row for every size and run, each in a fresh interpreter."""
    rows = []
    for trials in TRIALS:
        if trials * PROCESS_BYTES > psutil.virtual_memory().available:
            print(f"{trials} processes do not fit into this machine's memory", file=sys.stderr)
            continue
        code = f"import json; from benchmarks.loop import measure; print(json.dumps(measure({trials})))"
        for _ in range(runs):
            done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "offered a second": OFFERED, "for s": PACED_S, "flat out for s": FLAT_OUT_S}


class Sleeper:
    """A host of trials (`on_ray.host.Host`) that do nothing."""

    def begin(self, spec: TrialSpec) -> None:
        self._spec, self._count, self._waits = spec, 0, list[tuple[float, float]]()
        self._handed: float | None = None
        self._all, self._random = int(os.environ[AT_ONCE]), random.Random(spec.folder)
        here = Path(spec.folder)
        here.mkdir(parents=True, exist_ok=True)
        (here / "ready").touch()
        up = here.parents[1] / "up"
        if len(list(here.parent.glob("*/ready"))) == self._all:
            (here / "up").write_text(str(time.monotonic()))
            (here / "up").rename(up)
        while not up.exists():
            time.sleep(0.5)
        self._began = float(up.read_text())

    def receive(self) -> Message:
        since = time.monotonic() - self._began
        if since < PACED_S:
            time.sleep(self._all / OFFERED * self._random.uniform(0.5, 1.5))
        elif since < PACED_S + PAUSE_S:
            time.sleep(PACED_S + PAUSE_S - since)
        elif since > PACED_S + PAUSE_S + FLAT_OUT_S:
            (Path(self._spec.folder) / "waits.json").write_text(json.dumps(self._waits))
            return outcome_message(Outcome("completed", 0.5, STEP, self._count * STEP, since))
        self._count += 1
        examples = self._count * STEP
        metrics = {self._spec.metric: 0.5, **{f"other_{k}": random.random() for k in range(1, METRICS)}}
        self._handed = time.monotonic()
        return evaluation_message(Evaluation(examples, examples, 0.5, metrics, 0.5, STEP, since), "", {})

    def answer(self, verdict: Verdict) -> None:
        assert verdict == "go"
        assert self._handed is not None
        self._waits.append((self._handed - self._began, time.monotonic() - self._handed))

    def close(self) -> None:
        """Nothing is left."""


class SleepingTrial(TrialJob):
    """The trial's process as it is, around a host that does nothing."""

    def setup(self, config: dict[str, Any]) -> None:
        self._host = Sleeper()
        self._begin(TrialSpec.from_dict(config["spec"]), config)


def measure(trials: int) -> dict[str, float]:
    """One study of `trials` trials at once, in this process."""
    import numpy as np
    import ray
    from rich.console import Console

    from search.running.runner import Options, run_study
    from search.space import space_from

    space = space_from(
        {
            "name": "bench", "method": "simcse", "encoder": "builtin:tiny",
            "data": {"train": "builtin", "dev": ["stsb"]}, "metric": {"name": "stsb_dev"},
            "params": {"learning_rate": {"float": [1e-6, 1e-3], "log": True}},
            "search": {"sampler": "random", "trials": trials, "concurrent": trials},
            "pruner": {"kind": "median"}, "resources": {"cpus": SHARE, "gpus": 0}, "train": {"eval_examples": STEP},
        }
    )  # fmt: skip
    os.environ |= {AT_ONCE: str(trials), "PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        ray.init(
            "local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
            object_store_memory=256 * 2**20, _temp_dir=f"{root}/ray",
        )  # fmt: skip
        began, processor = time.monotonic(), time.process_time()
        console = Console(quiet=True)
        result = run_study(space, root, options=Options(console=console, trainable=SleepingTrial, handle_signals=False))
        processor = time.process_time() - processor
        ray.shutdown()
        assert result.ledger.ended() == trials, result.reason
        up = float((result.folder.local / "up").read_text())
        found = [json.loads(file.read_text()) for file in result.folder.local.glob("trials/*/waits.json")]
    assert len(found) == trials, "a process died meanwhile"
    moment, wait = np.array([pair for waits in found for pair in waits]).T
    flat = moment > PACED_S + PAUSE_S
    paced, full = 1000 * wait[moment < PACED_S], 1000 * wait[flat]
    return {
        "trials at once": trials,
        "s until all were up": round(up - began, 1),
        "evaluations/s": round(len(paced) / PACED_S, 1),
        "wait p50 ms": round(float(np.percentile(paced, 50)), 1),
        "p99 ms": round(float(np.percentile(paced, 99)), 1),
        "longest ms": round(float(paced.max()), 1),
        "flat out, evaluations/s": round(len(full) / float(np.ptp(moment[flat])), 1),
        "flat out, wait p50 ms": round(float(np.percentile(full, 50)), 1),
        "driver's processor s": round(processor, 1),
    }
