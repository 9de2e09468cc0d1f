"""What the driver costs per trial and whether its memory stays flat: a study of trials that do nothing.

    python benchmarks/driver.py [--trials 1000] [--sampler tpe]

Prints one JSON object: wall and CPU seconds of the driver per trial, its resident memory after 20 % and after all of
the trials, seconds of Optuna's proposal at the end, and whether MLflow has every trial.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "search"))
os.environ["PYTHONPATH"] = sys.path[0]  # trial processes find the fake trial by it

from fake_trial import FakeTrial  # see the path above

from search.runner import Options, run_study
from search.space import space_from


class Memory(Console):
    """A quiet console that notes the driver's memory as ended trials are printed."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.megabytes: list[float] = []

    def print(self, *objects: Any, **style: Any) -> None:  # noqa: ARG002  # the console's interface
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.megabytes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--sampler", default="tpe")
    args = parser.parse_args()
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
            "search": {"sampler": args.sampler, "trials": args.trials, "keep_best": 3},
            "pruner": {"kind": "median"},
            "train": {"eval_examples": 100},
        }
    )
    console = Memory()
    with tempfile.TemporaryDirectory() as root:
        wall, cpu = time.perf_counter(), time.process_time()
        result = run_study(space, root, options=Options(console=console, trainable=FakeTrial, handle_signals=False))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            json.dumps(
                {
                    "trials": result.ledger.ended(),
                    "status": result.status,
                    "wall_s_per_trial": round(wall / args.trials, 4),
                    "driver_cpu_s_per_trial": round(cpu / args.trials, 4),
                    "memory_mb_at_20_percent": round(console.megabytes[len(console.megabytes) // 5]),
                    "memory_mb_at_the_end": round(console.megabytes[-1]),
                    "tracker": result.trouble or "up to date",
                    "load": os.getloadavg()[0],
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
