"""How much a score moves by the seed alone. Without that number no difference between two trials means anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

Source = Literal["repeats", "neighbours", "prior"]

# 50 seeds of unsupervised SimCSE on BERT-base ranged over 76.70 - 73.16 = 3.54 points (D08); the expected range of 50
# normal values is 4.498 standard deviations (Tippett 1925), which gives 0.79 points.
PRIOR_SD = 0.0079
PRIOR_DF = 50.0
MIN_REPEATS = 3  # degrees of freedom below which repeats say less than the next best source
MIN_POINTS = 16  # points below which neither neighbours nor the spread of all say anything
MIN_PAIRS = 8
NEAR = 0.1  # mean over the parameters of the distance in rank share; a tenth of the range of each
MAX_MATCHED = 400  # points that are matched; distances grow with their square
PRUNED_SHARE = 0.1  # above it the completed trials are a selection whose spread understates the noise
STEEP = 1.5  # neighbours that differ this much more than the upper part of all values do not estimate noise
FLOOR = 1e-5  # equal values to the last digit are a frozen seed, not a noiseless training


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of one trial's value over seeds, in the metric's own unit.

    df: degrees of freedom of the estimate. source: "repeats" of one point, "neighbours" (near-identical points), or the
    stated "prior".
    """

    sd: float
    df: float
    source: Source


def seed_noise(trials: pd.DataFrame, parameters: Sequence[str], sign: float = 1.0) -> SeedNoise:
    """The best available estimate, in this order: repeats, near-identical points, prior.

    Repeats: pooled variance within (point, stage) of completed trials, the error mean square of a one-way layout.
    Selecting points by their means does not bias it, since mean and variance of normal values are independent.

    Args:
        trials: table of `analysis.tables.trials_table` with its `value` column.
        parameters: names of the searched parameters, columns `params.<name>`; only neighbours need them.
        sign: 1 if larger values are better, else -1.
    """
    done = trials[(trials["stop"] == "completed") & trials["value"].notna()]
    repeats = _within(done)
    if repeats is not None and repeats.df >= MIN_REPEATS:
        return repeats
    neighbours = _neighbours(done, parameters)
    pruned = int((trials["stop"] == "pruned").sum())
    spread = _upper_spread(done, sign, pruned)
    # Pruning keeps the lucky ones, alike by that alone: what neighbours differ by is then a lower bound.
    least = PRIOR_SD if pruned > PRUNED_SHARE * len(trials) else 0.0
    if neighbours is None or not least <= neighbours.sd <= STEEP * spread:
        return SeedNoise(min(PRIOR_SD, spread), PRIOR_DF, "prior")
    return neighbours


def _within(done: pd.DataFrame) -> SeedNoise | None:
    group = pd.factorize(done["point"] + "\0" + done["stage"])[0]
    value = done["value"].to_numpy(dtype=float)
    size = np.bincount(group)
    df = len(done) - len(size)
    if df <= 0:
        return None
    residual = value - (np.bincount(group, value) / size)[group]
    return SeedNoise(max(float(np.sqrt((residual**2).sum() / df)), FLOOR), float(df), "repeats")


def _upper_spread(done: pd.DataFrame, sign: float, pruned: int) -> float:
    """A bound on the noise from the upper part of all values, which holds it along with what the points differ by.

    Its quantiles are scaled as for a normal distribution; infinite where there are too few points to tell. Pruned
    points count as lower than all others. The pruner saw noisier values than those at the end, so that near the lowest
    completed ones there are some missing: the lower quantile keeps away from there.
    """
    values = sign * done.drop_duplicates("point")["value"].to_numpy(dtype=float)
    if len(values) < MIN_POINTS // (2 if pruned else 1):
        return float("inf")
    stopped = pruned / (pruned + len(values))
    low = max(0.6, 1 - 0.7 * (1 - stopped))
    high = 1 - (1 - low) / 4
    middle, upper = np.quantile(values, [max(0.0, 1 - (1 - q) / (1 - stopped)) for q in (low, high)])
    return max(float(upper - middle) / float(ndtri(high) - ndtri(low)), FLOOR)


def _neighbours(done: pd.DataFrame, parameters: Sequence[str]) -> SeedNoise | None:
    """Spread within matched pairs of near-identical points (difference-based variance: Rice 1984).

    Points are matched greedily, nearest first; the nearer half of the pairs counts, as far as they are NEAR. What
    differs between two near points adds to the spread, so the estimate errs upwards. Differences beyond three robust
    standard deviations (one of the two collapsed) are pulled in to there.
    """
    columns = [c for c in (f"params.{name}" for name in parameters) if c in done]
    points = done.drop_duplicates("point")
    points = points.iloc[:: max(1, -(-len(points) // MAX_MATCHED))]
    if not columns or len(points) < MIN_POINTS:
        return None
    distances = _distances(points[columns])
    pairs = _matching(distances)
    nearest = np.asarray([(i, j) for i, j in pairs[: len(pairs) // 2] if distances[i, j] <= NEAR])
    if len(nearest) < MIN_PAIRS:
        return None
    values = points["value"].to_numpy(dtype=float)
    differences = np.abs(values[nearest[:, 0]] - values[nearest[:, 1]])
    limit = 3 * float(np.median(differences)) / 0.6745
    sd = float(np.sqrt(np.mean(np.minimum(differences, limit) ** 2) / 2))
    return SeedNoise(max(sd, FLOOR), float(len(nearest)), "neighbours")


def _distances(parameters: pd.DataFrame) -> NDArray[np.float64]:
    """(n, n) mean over parameters of the difference in rank share (numbers) or of being different (the rest)."""
    n = len(parameters)
    total = np.zeros((n, n))
    for column in (parameters[name] for name in parameters):
        numbers = pd.to_numeric(column, errors="coerce")
        if numbers.notna().all() and not pd.api.types.is_bool_dtype(column):
            share = numbers.rank().to_numpy(dtype=float) / n
            total += np.abs(share[:, None] - share[None, :])
        else:
            codes = pd.factorize(column.astype(str))[0]
            total += codes[:, None] != codes[None, :]
    return np.asarray(total / parameters.shape[1])


def _matching(distances: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Disjoint pairs, nearest first."""
    rows, columns = np.triu_indices(len(distances), k=1)
    order = np.argsort(distances[rows, columns], kind="stable")
    free = np.ones(len(distances), dtype=bool)
    pairs: list[tuple[int, int]] = []
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if free[i] and free[j]:
            free[i] = free[j] = False
            pairs.append((i, j))
    return pairs
