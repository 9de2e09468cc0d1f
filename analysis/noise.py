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
MIN_NEIGHBOURS = 16  # points below which no pair is near enough to call it the same configuration
MAX_NEIGHBOURS = 400  # points that are matched; distances grow with their square
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
    neighbours = _neighbours(done, parameters, sign)
    if neighbours is None:
        return SeedNoise(PRIOR_SD, PRIOR_DF, "prior")
    if (trials["stop"] == "pruned").sum() > PRUNED_SHARE * len(trials) and neighbours.sd < PRIOR_SD:
        return SeedNoise(PRIOR_SD, PRIOR_DF, "prior")  # pruning kept the lucky ones, alike by that alone
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


def _neighbours(done: pd.DataFrame, parameters: Sequence[str], sign: float) -> SeedNoise | None:
    """Spread within matched pairs of near-identical points (difference-based variance: Rice 1984).

    Points are matched greedily, nearest first; the nearer half of the pairs counts. What differs between two near
    points adds to the spread, so the estimate errs upwards. Differences beyond three robust standard deviations (one of
    the two collapsed) are pulled in to there. Where points differ much even when near (a steep slope), the upper part
    of all values gives a clearly smaller bound: its quantiles, scaled as for a normal distribution, hold the noise too.
    """
    columns = [c for c in (f"params.{name}" for name in parameters) if c in done]
    points = done.drop_duplicates("point")
    points = points.iloc[:: max(1, -(-len(points) // MAX_NEIGHBOURS))]
    if not columns or len(points) < MIN_NEIGHBOURS:
        return None
    pairs = _matching(_distances(points[columns]))
    values = points["value"].to_numpy(dtype=float)
    nearest = np.asarray(pairs[: max(len(pairs) // 2, MIN_NEIGHBOURS // 4)])
    differences = np.abs(values[nearest[:, 0]] - values[nearest[:, 1]])
    limit = 3 * float(np.median(differences)) / 0.6745
    sd = float(np.sqrt(np.mean(np.minimum(differences, limit) ** 2) / 2))
    middle, upper = np.quantile(sign * values, [0.6, 0.9])
    spread = float(upper - middle) / (ndtri(0.9) - ndtri(0.6))
    return SeedNoise(max(sd if sd < STEEP * spread else spread, FLOOR), float(len(nearest)), "neighbours")


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
