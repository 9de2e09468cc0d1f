"""Correlations, cosine, alignment and uniformity of arrays (methods 7.1, 7.5). Imports NumPy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.contract.trial import metric_parts

SMALLEST_NORM = 1e-8  # norms are clamped from below, so the cosine with a zero vector is 0 (methods 1.1, 7.1)
NO_SPREAD = 1e-6  # cosines closer together than this differ by float32 rounding only
UNIFORMITY_SENTENCES = 1024  # more than this and uniformity is taken on a fixed sample of so many vectors

Floats = NDArray[np.floating]


def ranks(values: Floats) -> NDArray[np.float64]:
    """(n,) ranks 1..n of (n,) values without NaN; ties share their mean rank (methods 7.1, D60).

    `scipy.stats.rankdata` returns the same numbers, but its import would add 0.9 s to a worker process.
    """
    _, distinct, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[distinct])


def standardised(values: Floats) -> NDArray[np.float64]:
    """(n,) values minus their mean, scaled to Euclidean norm 1; all NaN when they are all equal."""
    centred = values - np.mean(values, dtype=np.float64)
    norm = float(np.linalg.norm(centred))
    return centred / norm if norm > 0 and np.ptp(values) > 0 else np.full(len(values), math.nan)


def pearson(x: Floats, y: Floats) -> float:
    """Pearson correlation in [-1, 1]; NaN if either side is constant or holds a NaN.

    Raises: ValueError if the shapes differ or there are fewer than two values.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ValueError(f"expected two arrays of one length >= 2, got shapes {x.shape} and {y.shape}")
    return float(np.clip(standardised(x) @ standardised(y), -1, 1))


def spearman(x: Floats, y: Floats) -> float:
    """Spearman correlation with tie correction: Pearson of the average ranks (D60). NaN as in `pearson`."""
    x, y = np.asarray(x), np.asarray(y)
    if np.isnan(x).any() or np.isnan(y).any():
        return math.nan
    return pearson(ranks(x), ranks(y))


def normalised(vectors: Floats) -> Floats:
    """(n, D) rows scaled to norm 1; a zero row stays zero."""
    result: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST_NORM)
    return result


def cosines(first: Floats, second: Floats) -> Floats:
    """(n,) cosine of each row of `first` with the same row of `second`, both (n, D); 0 where one is a zero vector."""
    result: Floats = np.einsum("nd,nd->n", normalised(first), normalised(second))
    return result


def aggregate(similarity: Floats, gold: Floats, subset: Sequence[str] | None = None) -> dict[str, float]:
    """Spearman of a set in the three settings of SentEval (methods 7.1).

    Args:
        similarity, gold: (n,). subset: (n,) part of each pair, None = one part.
    Returns: "all": one correlation over all pairs (the papers' setting); with parts also "mean" and "wmean", the mean
        of the parts' correlations and the mean weighted by their sizes.
    """
    scores = {"all": spearman(similarity, gold)}
    if subset is not None:
        names = np.asarray(subset)
        parts = [names == name for name in dict.fromkeys(subset)]
        each = [spearman(similarity[part], gold[part]) for part in parts]
        scores["mean"] = float(np.mean(each))
        scores["wmean"] = float(np.average(each, weights=[part.sum() for part in parts]))
    return scores


def percent(correlation: float) -> float:
    """A correlation as the papers print it: x 100, two decimals."""
    return round(100 * correlation, 2)


def sts_average(correlations: Sequence[float]) -> float:
    """Avg of the papers: mean of the rounded percentages, rounded again (methods 7.1)."""
    return round(float(np.mean([percent(c) for c in correlations])), 2)


def alignment(first: Floats, second: Floats, power: float = 2.0) -> float:
    """Mean distance^power of positive pairs on the unit sphere, in [0, 2^power]; lower is better (methods 7.5).

    Args:
        first, second: (n, D), any norm.
    """
    distance = np.linalg.norm(normalised(first) - normalised(second), axis=1)
    return float(np.mean(distance**power))


def uniformity_sample(rows: NDArray[Any], limit: int = UNIFORMITY_SENTENCES) -> NDArray[Any]:
    """The rows for uniformity: all, or always the same sample of `limit` rows."""
    if len(rows) < 2:
        raise ValueError(f"expected at least two vectors, got {len(rows)}")
    return rows if len(rows) <= limit else rows[np.random.default_rng(0).choice(len(rows), limit, replace=False)]


def uniformity(vectors: Floats, t: float = 2.0, limit: int = UNIFORMITY_SENTENCES) -> float:
    """log of the mean over distinct pairs of exp(-t |x - y|^2) on the unit sphere, in [-4t, 0]; lower is better (7.5).

    Args:
        vectors: (n, D), any norm, n >= 2.
        limit: see `uniformity_sample`.
    """
    x = normalised(uniformity_sample(vectors, limit))
    squares = np.einsum("nd,nd->n", x, x)  # 1, or 0 of a zero vector
    distances = np.maximum(squares[:, None] + squares - 2 * (x @ x.T), 0)
    kernel = np.exp(-t * distances)
    np.fill_diagonal(kernel, 0)  # every other pair is in there twice
    return float(np.log(np.sum(kernel, dtype=np.float64) / (len(x) * (len(x) - 1))))


def selecting_value(metric: str, metrics: dict[str, float]) -> float:
    """The value of a selecting metric: a measured one or a plain mean of several.

    Raises: ValueError naming what was measured if a part is missing.
    """
    parts = metric_parts(metric)
    if missing := [part for part in parts if part not in metrics]:
        raise ValueError(f"metric: {missing[0]!r} was not measured; measured: {', '.join(metrics)}")
    return float(np.mean([metrics[part] for part in parts]))
