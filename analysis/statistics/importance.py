"""Which parameter moved the score: fANOVA and PED-ANOVA through Optuna. Choices that decide what the numbers mean:

- One row per point, its value the mean over its completed seeds, so that a confirmed point does not count five times.
- A parameter searched on the logarithm is measured on the logarithm. (Optuna's fANOVA takes raw values, under which a
  range of 1e-6 to 1e-2 is nearly all between 1e-3 and 1e-2.)
- Pruned points are left out of fANOVA: their value is from fewer examples, another quantity. PED-ANOVA uses ranks only,
  and a pruned point was stopped for being worse: it counts as worse than every completed one.
- A conditional parameter is measured among the points in which it existed.
- Intervals: 90 %, percentile bootstrap over points (Efron 1979).
- A forest finds structure in noise: with the values shuffled among the points, the largest share of all parameters is
  what chance alone gives (Altmann et al. 2010), by forests of one size. Important: a p-value of at most LEVEL.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator
from optuna.trial import create_trial

from analysis.errors import AnalysisError
from analysis.statistics.empirical_bayes import Floats
from analysis.statistics.seed_noise import SeedValues
from analysis.tables.axes import Axis, study_axes
from analysis.tables.optuna_study import created
from analysis.tables.study import Study
from analysis.tables.trials import PARAM

DRAWS = 20  # bootstrap draws; the ends of an interval are then about its second values
TREES = 64  # Optuna's default
BOOTSTRAP_TREES = 16
SHUFFLES = 39  # the second largest of 40 shares, the observed one included, is at 5 %
MIN_POINTS = 8
MIN_REPEATS = 3  # degrees of freedom of repeats before their share is given
FEW_POINTS = 20  # below it shares and their ranking change from one bootstrap draw to the next
LEVEL = 0.05
TOP_SHARE = 0.25  # PED-ANOVA measures what makes a point one of the best quarter; at least TOP_POINTS of them
TOP_POINTS = 5


@dataclass(frozen=True)
class Share:
    """A share of variance in [0, 1] with its 90 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ParamImportance:
    """fanova: share of the variance of the score that this parameter alone explains. ped_anova: how much it decides
    whether a point is among the best (all parameters sum to 1); None where there are too few points. points: completed
    ones behind it. p_value: of as large a share by chance, the largest of all parameters in shuffled studies."""

    name: str
    fanova: Share
    ped_anova: Share | None
    points: int
    conditional: bool
    p_value: float

    @property
    def important(self) -> bool:
        """Whether the share is larger than chance gives."""
        return self.p_value <= LEVEL


@dataclass(frozen=True)
class Importance:
    """params: largest first. seed: share of the variance between trials that the seed alone makes; None where no point
    was run on several seeds. completed, pruned: points behind the figures."""

    params: tuple[ParamImportance, ...]
    seed: Share | None
    completed: int
    pruned: int

    @property
    def note(self) -> str:
        """What was counted, in one line."""
        lines = [
            f"{self.completed} completed points (mean over seeds); {self.pruned} pruned ones count in PED-ANOVA only, "
            "as worse than all completed. Intervals: 90 % bootstrap over points."
        ]
        named = [p.name for p in self.params if p.important]
        whose = f"shares larger than chance allows (values shuffled among the points, {100 * LEVEL:g} %)"
        lines.append(f"Parameters with {whose}: {', '.join(named) or 'none'}.")
        if self.completed < FEW_POINTS:
            lines.append(f"Caution: {self.completed} points are few; the order of the parameters may be chance.")
        return " ".join(lines)


def importance(study: Study, rng: np.random.Generator, draws: int = DRAWS) -> Importance:
    """Importance of the searched parameters.

    Raises: AnalysisError with fewer than MIN_POINTS completed points, equal values, or nothing searched.
    """
    axes = study_axes(study)
    points = study.points
    done = points[(points["stop"] == "completed") & points["all_value"].notna()].reset_index(drop=True)
    pruned = points[(points["stop"] == "pruned") & points["value"].notna()].reset_index(drop=True)
    if not axes:
        raise AnalysisError("nothing was searched, so nothing has an importance")
    if len(done) < MIN_POINTS:
        raise AnalysisError(f"importance needs at least {MIN_POINTS} completed points, got {len(done)}")
    if done["all_value"].nunique() < 2:
        raise AnalysisError("all completed points have the same value, so nothing has an importance")
    always = [axis for axis in axes if not axis.when]
    found: list[ParamImportance] = []
    # One fit gives all unconditional parameters; each conditional one is measured with these where it existed.
    for group in ([always] if always else []) + [[*always, axis] for axis in axes if axis.when]:
        active = _active(done, group)
        if len(active) >= MIN_POINTS and active["all_value"].nunique() > 1:
            measured = _measure(active, _active(pruned, group), group, study.metric.sign, rng, draws)
            found += measured if group is always else measured[-1:]
    params = tuple(sorted(found, key=lambda p: -p.fanova.value))
    return Importance(params, seed_share(study, rng, draws), len(done), len(pruned))


def seed_share(study: Study, rng: np.random.Generator, draws: int = DRAWS) -> Share | None:
    """Variance within points, over all repeats, by the variance of single trials of the search, one of each point; at
    most 1, None without repeats. Resampled are points, with all their seeds."""
    done = study.trials[(study.trials["stop"] == "completed") & study.trials["value"].notna()]
    groups = [group for _, group in done.groupby("point")]

    def share(picked: Sequence[pd.DataFrame]) -> float | None:
        table = pd.concat([g.assign(point=f"{i}") for i, g in enumerate(picked)])
        squares, df = SeedValues.of(table, 1.0).within()
        first = table[table["stage"] == "search"].drop_duplicates("point")["value"]
        total = float(first.var(ddof=1)) if len(first) > 1 else 0.0
        return min(1.0, squares / df / total) if df >= MIN_REPEATS and total > 0 else None

    if not groups or (whole := share(groups)) is None:
        return None
    picks = (rng.integers(0, len(groups), len(groups)) for _ in range(draws))
    return _interval(whole, [s for pick in picks if (s := share([groups[i] for i in pick])) is not None])


def rebuilt(rows: pd.DataFrame, values: Floats, axes: Sequence[Axis]) -> optuna.Study:
    """An in-memory Optuna study of points over the axes' positions, larger values better; a point run outside the space
    counts at its edge."""
    space: dict[str, BaseDistribution] = {
        axis.name: FloatDistribution(*axis.bounds) if axis.numeric else CategoricalDistribution(axis.values)
        for axis in axes
    }
    columns: dict[str, list[Any]] = {}
    for axis in axes:
        places = np.clip(axis.positions(rows[PARAM + axis.name]), *axis.bounds).tolist()
        columns[axis.name] = places if axis.numeric else [axis.values[int(at)] for at in places]
    points = (dict(zip(columns, point, strict=True)) for point in zip(*columns.values(), strict=True))
    pairs = zip(points, values.tolist(), strict=True)
    return created([create_trial(params=p, distributions=space, value=v) for p, v in pairs], larger=True)


def _active(table: pd.DataFrame, axes: Sequence[Axis]) -> pd.DataFrame:
    """The rows in which every axis has a value."""
    keep = np.ones(len(table), dtype=bool)
    for axis in axes:
        keep &= ~np.isnan(axis.positions(table[PARAM + axis.name])) if PARAM + axis.name in table else False
    return table[keep].reset_index(drop=True)


def _measure(
    done: pd.DataFrame, pruned: pd.DataFrame, axes: Sequence[Axis], sign: float, rng: np.random.Generator, draws: int
) -> list[ParamImportance]:  # fmt: skip
    """Of every axis, in their order."""
    ranked = pd.concat([done, pruned], ignore_index=True)
    values = sign * done["all_value"].to_numpy(dtype=float)
    below = sign * pruned["value"].to_numpy(dtype=float)
    shift = float(values.min() - below.max()) - 1e-6 if len(below) else 0.0
    ordered = np.concatenate([values, below + min(shift, 0.0)])

    def fanova(pick: NDArray[np.intp], trees: int, scores: Floats = values) -> dict[str, float]:
        return _evaluated(FanovaImportanceEvaluator(n_trees=trees, seed=0), done.iloc[pick], scores[pick], axes)

    def ped(pick: NDArray[np.intp], _: int) -> dict[str, float]:
        top = max(TOP_SHARE, TOP_POINTS / len(pick))
        if top >= 1:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental": optuna is pinned to one major version
            evaluator = PedAnovaImportanceEvaluator(target_quantile=top)
            found = _evaluated(evaluator, ranked.iloc[pick], ordered[pick], axes)
        total = sum(found.values())
        return {name: v / total for name, v in found.items()} if total > 0 else {}

    everyone = np.arange(len(done))
    plain = fanova(everyone, BOOTSTRAP_TREES)
    shuffled = [fanova(everyone, BOOTSTRAP_TREES, rng.permutation(values)) for _ in range(SHUFFLES)]
    null = np.array([max(found.values(), default=0.0) for found in shuffled])
    alone = _shares(fanova, len(done), rng, draws)
    best = _shares(ped, len(ranked), rng, draws)
    chance = {name: p_value(plain.get(name, 0.0), null) for name in alone}
    return [
        ParamImportance(a.name, alone[a.name], best.get(a.name), len(done), bool(a.when), chance[a.name])
        for a in axes if a.name in alone
    ]  # fmt: skip


def p_value(share: float, null: Floats) -> float:
    """One more than the shuffles with as large a share, by one more than all of them (Phipson and Smyth 2010)."""
    return (1 + int((null >= share).sum())) / (1 + len(null))


def _evaluated(evaluator: Any, rows: pd.DataFrame, values: Floats, axes: Sequence[Axis]) -> dict[str, float]:
    try:
        return dict(evaluator.evaluate(rebuilt(rows, values, axes), params=[a.name for a in axes]))
    except (RuntimeError, ValueError):  # a resample in which every value is the same
        return {}


def _shares(
    measure: Callable[[NDArray[np.intp], int], dict[str, float]], n: int, rng: np.random.Generator, draws: int
) -> dict[str, Share]:
    whole = measure(np.arange(n), TREES)
    resampled = [measure(rng.integers(0, n, n), BOOTSTRAP_TREES) for _ in range(draws)]
    return {name: _interval(value, [r[name] for r in resampled if name in r]) for name, value in whole.items()}


def _interval(value: float, resampled: Sequence[float]) -> Share:
    if not resampled:
        return Share(value, value, value)
    low, high = np.quantile(resampled, [0.05, 0.95])
    return Share(value, min(float(low), value), max(float(high), value))
