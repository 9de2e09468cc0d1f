"""What the driver costs per trial and whether its memory stays flat: studies of trials that do nothing.

Each size is a process of its own. Seconds per trial are wall seconds of the whole study divided by its trials, Ray's
start-up included; with two trials at a time. TPE proposes, the median rule prunes, MLflow gets everything.
"""

from __future__ import annotations

import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = (100, 300, 1000)
SLOTS, EVERY_S, LENGTH, SECONDS = 200, 10.0, 10, 40.0  # of the simulated cluster: 20 evaluations and 2 starts a second
KNOWN = 300  # points that the Gaussian process is shown
FAKES = Path(__file__).parents[1] / "tests" / "search"  # holds the trial that does nothing


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` processes per size."""
    rows = []
    for trials in SIZES:
        results = [in_a_process(f"measure({trials})") for _ in range(runs)]
        medians = {key: statistics.median(r[key] for r in results) for key in results[0]}
        rows.append({"trials": trials, **medians})
    waits = [in_a_process(f"loop({ahead})") for ahead in (False, True) for _ in range(runs)]
    return {"rows": rows, "loop of 200 slots": waits}


def in_a_process(call: str) -> dict[str, float]:
    """`measure` or `loop` in a fresh interpreter."""
    code = f"import json; from benchmarks.driver import loop, measure; print(json.dumps({call}))"
    environment = os.environ | {"PYTHONPATH": f"{FAKES}:{FAKES.parents[1]}"}  # trial processes find the fake by it
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=environment)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(trials: int) -> dict[str, float]:
    """Seconds per trial and resident memory of the driver in MiB, in this process."""
    from fake_trial import FakeTrial  # type: ignore[import-not-found]  # see FAKES
    from rich.console import Console

    from search.running.runner import Options, run_study
    from search.space import space_from

    megabytes: list[float] = []

    class Memory(Console):
        """A quiet console that notes the driver's memory as ended trials are printed."""

        def print(self, *objects: Any, **style: Any) -> None:  # noqa: ARG002  # the console's interface
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            megabytes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    space = space_from(
        {
            "name": "bench",
            "method": "simcse",
            "encoder": "builtin:tiny",
            "data": {"train": "builtin", "dev": ["stsb"]},
            "metric": {"name": "stsb_dev"},
            "params": {
                "learning_rate": {"float": [1e-6, 1e-3], "log": True},
                "dropout": {"float": [0.0, 0.5]},
                "temperature": {"float": [0.01, 0.2], "log": True},
                "batch_size": {"choice": [16, 32, 64, 128]},
            },
            "search": {"sampler": "tpe", "trials": trials, "keep_best": 3},
            "pruner": {"kind": "median"},
            "train": {"eval_examples": 100},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        options = Options(console=Memory(quiet=True), trainable=FakeTrial, handle_signals=False)
        result = run_study(space, folder, options=options)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    assert result.ledger.ended() == trials, result.reason
    assert not result.trouble, result.trouble
    return {
        "wall s per trial": round(wall / trials, 4),
        "driver's processor s per trial": round(processor / trials, 4),
        "MiB at a fifth": round(megabytes[len(megabytes) // 5]),
        "MiB at the end": round(megabytes[-1]),
    }


def loop(ahead: bool) -> dict[str, float]:
    """How long evaluations wait for their decisions, with 200 slots of trials that exist by name only, in real time.

    Each evaluates every ten seconds and ends with its tenth; a Gaussian process that has 300 points proposes the next.

    Args: ahead: propose points ahead.
    """
    import numpy as np
    import torch  # noqa: F401  # which the first proposal would import, in two seconds
    from harness import EVALUATIONS, RUNG, World, curve, make_space  # type: ignore[import-not-found]  # see FAKES

    from search.store.journal import Journal
    from search.store.ledger import Ledger
    from search.study import search_plan
    from search.study.driver import Driver
    from trainables.contract.trial import Evaluation, Outcome

    search_plan.AHEAD_FROM = SLOTS if ahead else SLOTS + 1
    params = {
        "learning_rate": {"float": [1e-6, 1e-3], "log": True},
        "dropout": {"float": [0.0, 0.5]},
        "temperature": {"float": [0.01, 0.2], "log": True},
        "batch_size": {"choice": [16, 32, 64, 128]},
    }

    def space(sampler: str, trials: int) -> Any:
        return make_space({"sampler": sampler, "trials": trials, "baseline": "none"}, params=params)

    with tempfile.TemporaryDirectory() as folder:
        world = World(space("random", KNOWN), Path(folder))
        world.session(concurrency=1)
        world.space = space("random", KNOWN + SLOTS)
        world.session(concurrency=SLOTS, interrupt_at=world.evaluations + 1)  # leaves as many trials open as fit
        world.space = space("gp", 100_000)
        journal = Journal(world.folder.journal, Ledger())
        journal.append("session", stage="search")
        driver = Driver(
            world.space, world.folder, journal, world.plan(journal),
            stage="search", capacity=lambda: SLOTS, observe=lambda _: None,
        )  # fmt: skip
        due: list[tuple[float, int, Any]] = []
        while len(due) < SLOTS and (trial := driver.next_trial()):
            heapq.heappush(due, (len(due) / SLOTS * EVERY_S, len(due), (trial, len(due) % LENGTH + 1)))
        began, waited, started, step = time.perf_counter() + 1.0, [], 0, 0
        while due[0][0] < SECONDS:
            step += 1
            now = time.perf_counter() - began
            if now < due[0][0]:
                time.sleep(min(0.01, due[0][0] - now))
            else:
                at, _, (trial, k) = heapq.heappop(due)
                value = curve(trial, min(k, EVALUATIONS))
                driver.on_evaluation(trial.id, Evaluation(
                    rung=k * RUNG, examples=k * RUNG, value=value, metrics={"stsb_dev": value}, best=value,
                    best_at=k * RUNG, seconds=k * EVERY_S, planned=LENGTH * RUNG,
                ))  # fmt: skip
                waited.append(time.perf_counter() - began - at)
                if k < LENGTH:
                    heapq.heappush(due, (at + EVERY_S, SLOTS + step, (trial, k + 1)))
                else:
                    driver.on_trial_end(trial.id, Outcome("completed", value, k * RUNG, k * RUNG, k * EVERY_S))
            driver.tick()
            if len(due) < SLOTS and (trial := driver.next_trial()):
                started += 1
                heapq.heappush(due, (time.perf_counter() - began + EVERY_S, SLOTS + step, (trial, 1)))
        driver.plan.close()
    return {
        "ahead": ahead,
        "starts a second": round(started / SECONDS, 2),
        "evaluations a second": round(len(waited) / SECONDS, 1),
        "median wait ms": round(1000 * float(np.median(waited)), 1),
        "wait ms, 99 %": round(1000 * float(np.quantile(waited, 0.99)), 1),
    }
