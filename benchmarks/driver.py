"""What the driver costs per trial and whether its memory stays flat: studies of trials that do nothing.

Each size is a process of its own. Seconds per trial are wall seconds of the whole study divided by its trials, Ray's
start-up included; with two trials at a time. TPE proposes, the median rule prunes, MLflow gets everything.
"""

from __future__ import annotations

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
FAKES = Path(__file__).parents[1] / "tests" / "search"  # holds the trial that does nothing


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` processes per size."""
    rows = []
    for trials in SIZES:
        results = [in_a_process(trials) for _ in range(runs)]
        medians = {key: statistics.median(r[key] for r in results) for key in results[0]}
        rows.append({"trials": trials, **medians})
    return {"rows": rows}


def in_a_process(trials: int) -> dict[str, float]:
    """`measure` in a fresh interpreter."""
    code = f"import json; from benchmarks.driver import measure; print(json.dumps(measure({trials})))"
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
