"""Which guess of what paused points would have reached is nearest to the truth: on the recorded curves, no surrogate.

`--runs` times 36 of a table's recorded points, a seed each, are halved as `pruner: asha` would: a third of those at a
rung goes on. What is guessed of all is held against the mean over the recorded seeds of what each reached.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmarks.curves.surrogate import Floats, Table, load_table
from benchmarks.quality import recorded
from search.space.space import Space
from search.study import sampler_view as guesses
from search.study.pruners import EARLIEST
from search.study.rungs import rungs
from search.study.sampler_view import distribution, label
from search.study.samplers import Point

POINTS, BEST, REDUCTION = 36, 6, 3
Guess = Callable[[Sequence[FrozenTrial], Space], Sequence[float]]


def run(runs: int) -> dict[str, Any]:
    """A row per table and guess."""
    rows = []
    for table in recorded():
        rows += of_table(table, load_table(table), runs)
        print(*rows[-len(GUESSES) :], sep="\n", file=sys.stderr, flush=True)
    return {"rows": rows}


def of_table(name: str, table: Table, runs: int) -> list[dict[str, Any]]:
    """Means over the halvings: the rank correlation of guess and truth over all points and over their better half, and
    by how many points of Spearman the six best by the guess are worse than the best recorded one."""
    groups = table.by_point()
    truth = np.array([table.curves[rows].max(1).mean() for rows in groups])
    rng, found = np.random.default_rng(0), {guess: list[tuple[float, float, float]]() for guess in GUESSES}
    for _ in range(runs):
        picked = rng.permutation(len(groups))[:POINTS]
        rows = [int(rng.choice(groups[g])) for g in picked]
        trials = halved(table.space, [table.points[i] for i in rows], table.curves[rows])
        true = truth[picked]
        better = true >= np.median(true)
        for guess, of in GUESSES.items():
            values = np.array(of(trials, table.space))
            best = true[np.argsort(-values)[:BEST]].mean()
            ranks = (_ranks(values, true), _ranks(values[better], true[better]))
            found[guess].append((*ranks, float(100 * (truth.max() - best))))
    names = ("rank correlation", "of the better half", "regret of the best six, points")
    return [
        {"table": name, "guess": guess} | dict(zip(names, np.array(values).mean(0).round(3).tolist(), strict=True))
        for guess, values in found.items()
    ]


def halved(space: Space, points: Sequence[Point], curves: Floats) -> list[FrozenTrial]:
    """Points with what they show until they pause. curves: (points, evaluations)."""
    count = curves.shape[1]
    last, left = np.full(len(points), count), np.arange(len(points))
    for rung in takewhile(lambda rung: rung < count, rungs(-(-count // EARLIEST), count, REDUCTION)):
        ranked = left[np.argsort(-curves[left, rung - 1], kind="stable")]
        left, paused = np.split(ranked, [max(1, len(ranked) // REDUCTION)])
        last[paused] = rung
    return [
        create_trial(
            state=TrialState.COMPLETE if end == count else TrialState.PRUNED,
            value=float(curve.max() if end == count else curve[end - 1]),
            params={name: label(value) for name, value in point.items()},
            distributions={name: distribution(space.params[name]) for name in point},
            intermediate_values={k + 1: float(value) for k, value in enumerate(curve[:end])},
        )
        for point, curve, end in zip(points, curves, last, strict=True)
    ]


def latest(trials: Sequence[FrozenTrial], space: Space) -> list[float]:  # noqa: ARG001
    """What it showed last."""
    return [float(t.value) for t in trials if t.value is not None]


def capped(trials: Sequence[FrozenTrial], space: Space) -> list[float]:
    """The guess before: the best so far plus the completed points' median gain, at most the best of those."""
    completed = [t for t in trials if t.state == TrialState.COMPLETE]
    most = max(latest(completed, space))

    def value(trial: FrozenTrial) -> float:
        last, best = max(trial.intermediate_values), max(trial.intermediate_values.values())
        gains = [
            value - max(v for step, v in t.intermediate_values.items() if step <= last)
            for t, value in zip(completed, latest(completed, space), strict=True)
        ]
        return min(most, best + statistics.median(gains))

    return [value(trial) for trial in trials]


def ours(trials: Sequence[FrozenTrial], space: Space) -> list[float]:
    """What samplers are shown."""
    return latest(guesses.guessed(trials, space.params, StudyDirection.MAXIMIZE), space)


def one_gain(trials: Sequence[FrozenTrial], space: Space) -> list[float]:
    """The same with one gain for all between two rungs."""
    learnt, guesses.regressed = guesses.regressed, guesses.constant
    try:
        return ours(trials, space)
    finally:
        guesses.regressed = learnt


GUESSES: dict[str, Guess] = {"latest": latest, "median, capped": capped, "one gain a rung": one_gain, "ours": ours}


def _ranks(a: Floats, b: Floats) -> float:
    """Spearman's correlation (of distinct values)."""
    first, second = (np.argsort(np.argsort(v)) for v in (a, b))
    return float(np.corrcoef(first, second)[0, 1])
