"""What a confirmation spends and what it comes to: the adaptive plan against fixed ones, on studies of known truth.

Worlds are those of tests/analysis/simulate.py; the plans are the real ones, one trial at a time, and `analysis` judges
what they leave. Both plans confirm the same searches. Error: the best true value less that of the point that is named,
points of Spearman. False and right: claims of a gain, of a point no better than the baseline and of the best one.
`CONFIRMING=0.5+1` narrows to worlds whose name has one of the parts. The second table is the level of the race.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from search.space import Space, space_from
from search.store.ledger import Ledger
from search.study.confirm_plan import RACE_LEVEL, RACE_SEEDS, ConfirmPlan
from search.study.plan import Plan, make_trial

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "analysis"))
from simulate import METRIC, SimulatedStudy, World, _Bank  # type: ignore[import-not-found]  # of the tests

WORLDS = {
    "30 points, sd 0.5, no gain": World(sd=0.5),
    "30 points, sd 0.5, one better by 1": World(sd=0.5, best=1.0),
    "30 points, sd 0.5, spread, best +0.5": World(sd=0.5, shape="spread", best=0.5),
    "30 points, sd 1, spread, best +0.5": World(sd=1.0, shape="spread", best=0.5),
}
PLANS: dict[str, Callable[[Space, Ledger], Plan]] = {
    "top 3, 5 seeds": lambda space, ledger: ConfirmPlan(space, ledger, top=3, seeds=5),
    "adaptive, 20": lambda space, ledger: ConfirmPlan(space, ledger, trials=20),
    "adaptive, 12": lambda space, ledger: ConfirmPlan(space, ledger, trials=12),
}


def run(runs: int) -> dict[str, Any]:
    """`runs` studies of every world."""
    narrow = os.environ.get("CONFIRMING", "").split("+")
    rows = []
    for name, world in WORLDS.items():
        if any(part in name for part in narrow):
            rows += _rows(name, world, runs)
    return {"rows": rows, "race": [race(rivals, seeds) for rivals in (3, 10) for seeds in (5, 8, 10, 20)]}


def _rows(name: str, world: World, runs: int) -> list[dict[str, Any]]:
    from analysis.statistics.verdict import judged

    bank = _Bank(world.pairs)
    found: dict[str, list[tuple[float, ...]]] = {plan: [] for plan in PLANS}
    for seed in range(runs):
        searched = SimulatedStudy(world, np.random.default_rng(seed))
        for plan, make in PLANS.items():
            study = copy.deepcopy(searched)
            spent = confirm(study, make)
            pool, values = study.arrays()
            verdict = judged(pool, values, METRIC, bank.noise, looks=1)
            truth, named = study.truth, int(verdict.best)
            claimed = verdict.gain is not None and verdict.gain.significant
            found[plan].append((
                spent, truth.max() - truth[named], claimed and truth[named] <= truth[0],
                claimed and truth[named] == truth.max() > truth[0],
            ))  # fmt: skip
    rows = []
    for plan, outcomes in found.items():
        table = np.array(outcomes, dtype=float)
        trials, error, false, right = (float(v) for v in table.mean(0))
        se = table.std(0, ddof=1) / np.sqrt(runs)
        rows.append({
            "world": name, "plan": plan, "studies": runs, "trials": round(trials, 2), "error": round(error, 3),
            "se": round(float(se[1]), 3), "false %": round(100 * false, 1), "right %": round(100 * right, 1),
        })  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def confirm(study: SimulatedStudy, make: Callable[[Space, Ledger], Plan]) -> int:
    """Confirm a searched study by a plan, in place; the trials that it took."""
    space, ledger = _space(), Ledger()
    ledger.apply({"e": "session", "t": 0})
    for point, _, seed, value, stop in list(study.rows):
        start = make_trial(space, {"learning_rate": 1e-5 * (1 + point)}, number=point, repeat=seed, seed=seed,
                           stage="search", baseline="paper" if point == 0 else "")  # fmt: skip
        _end(ledger, start, value / 100, stop)
    plan, spent = make(space, ledger), 0
    while (trial := plan.next()) is not None:
        _end(ledger, trial, study.train(trial.number, "confirm", trial.seed) / 100, "completed")
        spent += 1
    assert plan.exhausted()
    return spent


def _end(ledger: Ledger, trial: Any, value: float, stop: str) -> None:
    ledger.apply({"e": "start", "t": 0, **vars(trial)})
    ledger.apply({
        "e": "end", "t": 0, "id": trial.id, "stop": stop, "best": value, "best_at": 1, "examples": 1, "seconds": 1.0,
        "reason": "",
    })  # fmt: skip


def _space() -> Space:
    return space_from({
        "name": "confirming", "method": "simcse", "encoder": "builtin:tiny", "preset": "none",
        "data": {"train": "builtin", "dev": ["stsb"], "language": "en"}, "metric": {"name": "stsb_dev"},
        "params": {"learning_rate": {"float": [1e-5, 1e-2]}}, "search": {"sampler": "random", "trials": 30},
    })  # fmt: skip


def race(rivals: int, seeds: int, races: int = 10_000) -> dict[str, Any]:
    """Share of races of `rivals` + 1 equal points over `seeds` seeds that give one up, whichever leads at the time."""
    values = np.random.default_rng(rivals * 1000 + seeds).standard_normal((races, rivals + 1, seeds))
    given_up = np.zeros(races, dtype=bool)
    for n in range(RACE_SEEDS, seeds + 1):
        seen = values[:, :, :n]
        leader = seen[np.arange(races), seen.mean(2).argmax(1)][:, None]
        gaps = leader - seen  # of the leader itself: 0, and no t
        spread = np.maximum(gaps.std(2, ddof=1), 1e-300)
        given_up |= (student.sf(gaps.mean(2) / spread * np.sqrt(n), n - 1) < RACE_LEVEL / rivals).any(1)
    return {"rivals": rivals, "seeds": seeds, "races": races, "given up %": round(100 * float(given_up.mean()), 1)}
