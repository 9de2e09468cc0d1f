"""Which parameter moved the score: fANOVA and PED-ANOVA through Optuna, pair interactions, and the share of the seed.

The Optuna study is rebuilt in memory from the tracked table and the space file; nothing of the search's own storage is
read. Choices that decide what the numbers mean:

- One row per point, its value the mean over its completed seeds, so that a confirmed point does not count five times.
- A parameter searched on the logarithm is measured on the logarithm. (Optuna's fANOVA takes raw values, under which a
  range of 1e-6 to 1e-2 is nearly all between 1e-3 and 1e-2.)
- Pruned points are left out of fANOVA and interactions: their value is from fewer examples, another quantity. PED-ANOVA
  looks at ranks only, and a pruned point was stopped for being worse: it counts as worse than every completed one.
- A conditional parameter is measured among the points in which it existed.
- Intervals: 90 %, percentile bootstrap over points (Efron 1979).
- A forest finds structure in noise: with the values shuffled among the points, the largest share of all parameters is
  what chance alone gives (permutation null: Altmann et al. 2010). What does not exceed its 95 % quantile is not called
  important. How much of the scores the forest predicts at all is its out-of-bag R2 (Breiman 2001).
"""

from __future__ import annotations

import itertools
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
from scipy.stats import qmc
from sklearn.ensemble import RandomForestRegressor

from analysis.errors import AnalysisError
from analysis.statistics.evaluated import SeedValues
from analysis.tables.axes import Axis, study_axes
from analysis.tables.study import Study
from analysis.tables.trials import PARAM

Floats = NDArray[np.float64]
DRAWS = 20  # bootstrap and shuffles; the ends of an interval are then about its second values
TREES = 64  # Optuna's default
BOOTSTRAP_TREES = 16
R2_TREES = 200  # so that every point is out of bag for some
SOBOL_POINTS = 4096  # a power of two; share of an interaction to about 0.01
MIN_POINTS = 8
MIN_REPEATS = 3  # degrees of freedom of repeats before their share is given
FEW_POINTS = 20  # below it shares and their ranking change from one bootstrap draw to the next
NULL_LEVEL = 0.95
TOP_SHARE = 0.25  # PED-ANOVA asks what makes a point one of the best quarter; at least TOP_POINTS of them
TOP_POINTS = 5


@dataclass(frozen=True)
class Share:
    """A share of variance in [0, 1] with its 90 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ParamImportance:
    """fanova: share of the variance of the score that this parameter alone explains.

    ped_anova: how much it decides whether a point is among the best (shares of all parameters sum to 1); None where
    there are too few points. points: completed points behind it, fewer for a conditional parameter. null: the share
    that the largest of all parameters stays below in NULL_LEVEL of shuffled studies.
    """

    name: str
    fanova: Share
    ped_anova: Share | None
    points: int
    conditional: bool
    null: float

    @property
    def important(self) -> bool:
        """Whether the share is larger than chance gives."""
        return self.fanova.value > self.null


@dataclass(frozen=True)
class Interaction:
    """Share of the variance that two parameters explain together beyond what each explains alone."""

    first: str
    second: str
    share: Share


@dataclass(frozen=True)
class Importance:
    """params and interactions: largest first. seed: share of the variance between trials that the seed alone makes.

    seed is None where no point was run on several seeds. completed, pruned: points behind the figures. r2: share of the
    variance that a forest on all unconditional parameters predicts for points it has not seen; negative if it does
    worse than their mean, NaN without such parameters.
    """

    params: tuple[ParamImportance, ...]
    interactions: tuple[Interaction, ...]
    seed: Share | None
    completed: int
    pruned: int
    r2: float

    @property
    def note(self) -> str:
        """What was counted, in one line."""
        lines = [
            f"{self.completed} completed points (mean over seeds); {self.pruned} pruned ones count in PED-ANOVA only, "
            "as worse than all completed. Intervals: 90 % bootstrap over points."
        ]
        named = [p.name for p in self.params if p.important]
        chance = f"what shuffled values give in {1 - NULL_LEVEL:.0%} of cases".replace("%", " %")
        lines.append(f"More than {chance}: {', '.join(named)}." if named else f"No parameter has more than {chance}.")
        if self.r2 == self.r2:
            lines.append(
                f"The forest predicts {max(self.r2, 0):.0%} of the variance of unseen points.".replace("%", " %")
            )
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
    sign = study.metric.sign
    found: dict[str, ParamImportance] = {}
    for axis in axes:
        shown = always if axis in always else [*always, axis]
        if axis in always and found:  # one fit gives all unconditional ones
            continue
        subsets = [_active(table, shown) for table in (done, pruned)]
        if len(subsets[0]) < MIN_POINTS or subsets[0]["all_value"].nunique() < 2:
            continue
        measured = _measure(subsets[0], subsets[1], shown, sign, rng, draws)
        found.update({a.name: measured[a.name] for a in (shown if axis in always else [axis])})
    pairs = _interactions(_active(done, always), always, rng, draws) if len(always) > 1 else []
    return Importance(
        tuple(sorted(found.values(), key=lambda p: -p.fanova.value)),
        tuple(sorted(pairs, key=lambda pair: -pair.share.value)),
        seed_share(study, rng, draws),
        len(done),
        len(pruned),
        _r2(_active(done, always), always),
    )


def seed_share(study: Study, rng: np.random.Generator, draws: int = DRAWS) -> Share | None:
    """Variance within points over the variance of single trials of the search, at most 1; None without repeats.

    The within variance is the error mean square of a one-way layout over all repeats (`SeedValues.within`); the total
    is that of the completed search trials, one of each point. Resampled are points, with all their seeds.
    """
    done = study.trials[(study.trials["stop"] == "completed") & study.trials["value"].notna()]
    groups = [group for _, group in done.groupby("point")]

    def share(picked: Sequence[pd.DataFrame]) -> float | None:
        table = pd.concat([g.assign(point=f"{i}") for i, g in enumerate(picked)])
        squares, df = SeedValues.of(table, 1.0).within()
        first = table[table["stage"] == "search"].drop_duplicates("point")["value"]
        total = float(first.var(ddof=1)) if len(first) > 1 else 0.0
        return min(1.0, squares / df / total) if df >= MIN_REPEATS and total > 0 else None

    whole = share(groups) if groups else None
    if whole is None:
        return None
    picks = (rng.integers(0, len(groups), len(groups)) for _ in range(draws))
    resampled = [s for pick in picks if (s := share([groups[i] for i in pick])) is not None]
    return _interval(whole, resampled)


def rebuilt(rows: pd.DataFrame, values: Floats, axes: Sequence[Axis]) -> optuna.Study:
    """An in-memory Optuna study of completed trials, larger values better."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    space = {axis.name: _distribution(axis) for axis in axes}
    columns = {axis.name: axis.positions(rows[PARAM + axis.name]) for axis in axes}
    trials = []
    for i, value in enumerate(values):
        given: dict[str, Any] = {}
        for axis in axes:
            low, high = axis.bounds
            at = float(np.clip(columns[axis.name][i], low, high))  # a point run outside the space counts at its edge
            given[axis.name] = at if axis.numeric else axis.values[int(at)]
        trials.append(create_trial(params=given, distributions=space, value=float(value)))
    study.add_trials(trials)
    return study


def _distribution(axis: Axis) -> BaseDistribution:
    return FloatDistribution(*axis.bounds) if axis.numeric else CategoricalDistribution(axis.values)


def _active(table: pd.DataFrame, axes: Sequence[Axis]) -> pd.DataFrame:
    """The rows in which every axis has a value."""
    keep = np.ones(len(table), dtype=bool)
    for axis in axes:
        keep &= ~np.isnan(axis.positions(table[PARAM + axis.name])) if PARAM + axis.name in table else False
    return table[keep].reset_index(drop=True)


def _measure(
    done: pd.DataFrame,
    pruned: pd.DataFrame,
    axes: Sequence[Axis],
    sign: float,
    rng: np.random.Generator,
    draws: int,
) -> dict[str, ParamImportance]:
    ranked = pd.concat([done, pruned], ignore_index=True)
    values = sign * done["all_value"].to_numpy(dtype=float)
    below = sign * pruned["value"].to_numpy(dtype=float)
    shift = float(values.min() - below.max()) - 1e-6 if len(below) else 0.0
    ordered = np.concatenate([values, below + min(shift, 0.0)])

    def fanova(pick: NDArray[np.intp], trees: int, scores: Floats = values) -> dict[str, float]:
        evaluator = FanovaImportanceEvaluator(n_trees=trees, seed=0)
        return _evaluated(evaluator, done.iloc[pick], scores[pick], axes)

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
    shuffled = [fanova(everyone, BOOTSTRAP_TREES, rng.permutation(values)) for _ in range(max(draws, DRAWS))]
    null = float(np.quantile([max(found.values()) for found in shuffled if found], NULL_LEVEL))
    alone = _shares(fanova, len(done), [a.name for a in axes], rng, draws)
    best = _shares(ped, len(ranked), [a.name for a in axes], rng, draws)
    return {
        a.name: ParamImportance(a.name, alone[a.name], best.get(a.name), len(done), bool(a.when), null)
        for a in axes
        if a.name in alone
    }


def _evaluated(evaluator: Any, rows: pd.DataFrame, values: Floats, axes: Sequence[Axis]) -> dict[str, float]:
    try:
        found: dict[str, float] = evaluator.evaluate(rebuilt(rows, values, axes), params=[a.name for a in axes])
    except (RuntimeError, ValueError):  # a resample in which every value is the same
        return {}
    return found


def _shares(
    measure: Callable[[NDArray[np.intp], int], dict[str, float]],
    n: int,
    names: Sequence[str],
    rng: np.random.Generator,
    draws: int,
) -> dict[str, Share]:
    whole = measure(np.arange(n), TREES)
    resampled = [measure(rng.integers(0, n, n), BOOTSTRAP_TREES) for _ in range(draws)]
    return {name: _interval(whole[name], [r[name] for r in resampled if name in r]) for name in names if name in whole}


def _interval(value: float, resampled: Sequence[float]) -> Share:
    if not resampled:
        return Share(value, value, value)
    low, high = np.quantile(resampled, [0.05, 0.95])
    return Share(value, min(float(low), value), max(float(high), value))


def _interactions(done: pd.DataFrame, axes: Sequence[Axis], rng: np.random.Generator, draws: int) -> list[Interaction]:
    """Second-order Sobol' indices of a random forest over the space.

    The forest's mean prediction stands in for the score (fANOVA's surrogate: Hutter et al. 2014). For parameters u,
    V_u = Cov(f(x), f(x')) where x and x' share the values of u and nothing else (Sobol' 1993), on a scrambled Sobol'
    sequence; the interaction is (V_ij - V_i - V_j) / V, floored at 0.
    """
    positions = np.column_stack([axis.positions(done[PARAM + axis.name]) for axis in axes])
    values = done["all_value"].to_numpy(dtype=float)
    unit = qmc.Sobol(2 * len(axes), seed=rng).random(SOBOL_POINTS)
    a, b = (_spread(half, axes) for half in np.hsplit(unit, 2))
    pairs = list(itertools.combinations(range(len(axes)), 2))
    whole = _pair_shares(positions, values, axes, a, b, pairs, TREES)
    resampled = []
    for _ in range(max(draws // 3, 1)):  # each is a forest and a prediction per pair: a third of the draws will do
        pick = rng.integers(0, len(values), len(values))
        resampled.append(_pair_shares(positions[pick], values[pick], axes, a, b, pairs, BOOTSTRAP_TREES))
    return [
        Interaction(axes[i].name, axes[j].name, _interval(whole[k], [r[k] for r in resampled]))
        for k, (i, j) in enumerate(pairs)
    ]


def _pair_shares(
    positions: Floats,
    values: Floats,
    axes: Sequence[Axis],
    a: Floats,
    b: Floats,
    pairs: Sequence[tuple[int, int]],
    trees: int,
) -> list[float]:
    forest = RandomForestRegressor(n_estimators=trees, random_state=0).fit(_encoded(positions, axes), values)
    base: Floats = forest.predict(_encoded(a, axes))

    def closed(shared: Sequence[int]) -> float:
        mixed = b.copy()
        mixed[:, list(shared)] = a[:, list(shared)]
        other = forest.predict(_encoded(mixed, axes))
        return float(np.mean(base * other) - ((base + other).mean() / 2) ** 2)

    total = float(base.var())
    if total <= 0:
        return [0.0] * len(pairs)
    alone = [closed([i]) for i in range(len(axes))]
    return [float(np.clip((closed(pair) - alone[pair[0]] - alone[pair[1]]) / total, 0, 1)) for pair in pairs]


def _r2(done: pd.DataFrame, axes: Sequence[Axis]) -> float:
    """Out-of-bag R2 of a forest of R2_TREES on these parameters; NaN without any."""
    if not axes or len(done) < MIN_POINTS:
        return float("nan")
    positions = np.column_stack([axis.positions(done[PARAM + axis.name]) for axis in axes])
    forest = RandomForestRegressor(n_estimators=R2_TREES, random_state=0, oob_score=True)
    return float(forest.fit(_encoded(positions, axes), done["all_value"].to_numpy(dtype=float)).oob_score_)


def _spread(unit: Floats, axes: Sequence[Axis]) -> Floats:
    """(n, d) positions from values uniform in [0, 1)."""
    columns = []
    for axis, u in zip(axes, unit.T, strict=True):
        low, high = axis.bounds
        columns.append(low + u * (high - low) if axis.numeric else np.floor(u * len(axis.values)))
    return np.column_stack(columns)


def _encoded(positions: Floats, axes: Sequence[Axis]) -> Floats:
    """Numbers as they are, categories one-hot."""
    columns = [
        column[:, None] if axis.numeric else np.eye(len(axis.values))[column.astype(int)]
        for axis, column in zip(axes, positions.T, strict=True)
    ]
    return np.hstack(columns)
