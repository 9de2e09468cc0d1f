"""Which search returns the best point for the training it spends: recorded learning curves, simulated time.

Every search plays `--runs` times on every table with 1, 4 and 16 workers, for 5, 10, 20 and 40 full-length trials'
training each (ours gets it as `search.budget`). Regret: the best true value there is, less that of the point that would
be returned. `QUALITY="key=value;..."` narrows: `tables=simcse+edacse;workers=1+4;budgets=10+20;searches=ours+random`.
`first=300`: the seed of the first search. `seed_sd=0.79` (x 100): by how much a seed moves a trial, in tables of one
seed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curves.peers import Optuna, Random, RayAsha, SyneTune
from benchmarks.curves.play import Ours, Played, Searcher, play
from benchmarks.curves.surrogate import Surrogate, load_table, summary
from benchmarks.curves.tables import TABLES

BUDGETS, WORKERS = (5, 10, 20, 40), (1, 4, 16)
APART = 10  # between the seeds of two searches: further seeds of a point are the next ones

Make = Callable[[Surrogate, int, int, Path, float], Searcher]  # seed, workers, folder for studies, full-length trials


def ours(sampler: str, pruner: str, **search: Any) -> Make:
    settings = {"search": {"sampler": sampler, **search}, "pruner": {"kind": pruner}}
    return lambda surrogate, *args: Ours(surrogate, settings, *args)


def with_memory(surrogate: Surrogate, seed: int, workers: int, root: Path, budget: float) -> Searcher:
    """TPE and asha, started from a search of 20 full-length trials on every other table."""
    settings: dict[str, Any] = {"search": {"sampler": "tpe"}, "pruner": {"kind": "asha"}}
    names = []
    for table in TABLES:
        other = _surrogate(table)
        if other.space.name != surrogate.space.name:
            names.append(f"{table}-{seed}")
            if (root / names[-1]).exists():
                continue
            make = partial(Ours, other, settings, 1000 + seed, 1, root, 20, names[-1])
            play(other, make, 1, 20)
    return Ours(surrogate, settings | {"search": {"sampler": "tpe", "start": names}}, seed, workers, root, budget)


@cache
def _surrogate(table: str) -> Surrogate:
    return Surrogate(load_table(table))


def peer(kind: Callable[..., Searcher], *what: str) -> Make:
    return lambda surrogate, seed, *_: kind(surrogate, *what, seed=seed)


SEARCHES: dict[str, Make] = {
    "ours: tpe, hyperband": ours("tpe", "hyperband"),
    "ours: tpe, asha": ours("tpe", "asha"),
    "ours: tpe, asha, memory": with_memory,
    "ours: tpe, asha, 3 seeds": ours("tpe", "asha", repeats=3),
    "ours: gp, asha, 3 seeds": ours("gp", "asha", repeats=3),
    "ours: gp, asha, baseline, 3 seeds": ours("gp", "asha", repeats=3, baseline="paper"),
    "optuna: tpe, none": peer(Optuna, "tpe", "none"),
    "optuna: tpe, hyperband": peer(Optuna, "tpe", "hyperband"),
    "optuna: gp, none": peer(Optuna, "gp", "none"),
    "ray: OptunaSearch, ASHA": peer(RayAsha),
    "syne tune: ASHA, promotion": peer(SyneTune, "promotion"),
    "syne tune: PASHA": peer(SyneTune, "pasha"),
    "syne tune: BOHB": peer(SyneTune, "bohb"),
    "random": peer(Random),
}


def regret(surrogate: Surrogate, played: Played, budget: float) -> float:
    """Spearman x 100 between the best true value and the returned point's, after this much training."""
    return 100 * (surrogate.optimum - surrogate.true_value(played.at(budget)))


def run(runs: int) -> dict[str, Any]:
    """Play everything. Rows: one per table, number of workers and search."""
    wanted = dict(part.split("=") for part in os.environ.get("QUALITY", "").split(";") if part)
    tables = wanted.get("tables", "+".join(TABLES)).split("+")
    workers = [int(n) for n in wanted.get("workers", "+".join(map(str, WORKERS))).split("+")]
    budgets = [int(n) for n in wanted.get("budgets", "+".join(map(str, BUDGETS))).split("+")]
    names = [name for name in SEARCHES if any(part in name for part in wanted.get("searches", "").split("+"))]
    if importlib.util.find_spec("syne_tune") is None:
        print("syne tune is not installed, its rows are left out (benchmarks/curves/peers.py)", file=sys.stderr)
        names = [name for name in names if not name.startswith("syne tune")]
    first = int(wanted.get("first", 0))
    seeds, rows, sheets = range(first, first + APART * runs, APART), [], {}
    for table in tables:
        surrogate = Surrogate(load_table(table), float(wanted.get("seed_sd", 0)) / 100)
        sheets[table] = summary(surrogate)
        for count in workers:
            for name in names:
                rows.append(_row(surrogate, table, count, name, seeds, budgets))
                print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "tables": sheets}


def _row(
    surrogate: Surrogate, table: str, workers: int, name: str, seeds: Sequence[int], budgets: Sequence[int]
) -> dict[str, Any]:
    began, found, trials, runs = time.process_time(), [], [], len(seeds)
    with tempfile.TemporaryDirectory() as root:
        for seed in seeds:
            make = partial(SEARCHES[name], surrogate, seed, workers, Path(root))
            played = {budget: play(surrogate, partial(make, budget), workers, budget) for budget in budgets}
            found.append([regret(surrogate, played[budget], budget) for budget in budgets])
            trials.append(played[max(budgets)].trials)
    row: dict[str, Any] = {"table": table, "workers": workers, "search": name, "runs": runs}
    for budget, values in zip(budgets, np.array(found).T, strict=True):
        error = float(values.std(ddof=1) / np.sqrt(runs)) if runs > 1 else float("nan")
        row |= {f"regret at {budget}": round(float(values.mean()), 3), f"se {budget}": round(error, 3)}
    row |= {"trials": round(float(np.mean(trials)), 1)}
    return row | {"seconds a search": round((time.process_time() - began) / runs, 2)}
