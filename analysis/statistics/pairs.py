"""What the choice of pairs or queries does to a score, to the difference of two points, and to the gain on test sets.

Influence values stand in for a bootstrap over pairs, at a thousandth of its cost. Two configurations are compared on
the same pairs: what makes a set hard or easy cancels. On test sets they are paired over seeds, too, where both have
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from analysis.statistics.empirical_bayes import Floats
from analysis.statistics.selection import NORMAL, TAIL
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.trial import QUERIES_SUFFIX, at_width, retrieval_measure

Arrays = Mapping[str, NDArray[np.float32]]
Lookup = Callable[[str], Arrays | None]  # run id -> cosines and gold scores per dev set, None if not stored


def spearman_influence(x: ArrayLike, y: ArrayLike) -> tuple[float, Floats]:
    """Spearman's rho in [-1, 1] and its influence values psi, (n,) of mean 0: how much each pair moves it.

    `sum(w * psi) / n` is to first order the change of the tie-corrected rho when pair i gets weight 1 + w[i] (Efron
    1982, ch. 6). So var(psi) / n is the sampling variance of rho, var(psi_a - psi_b) / n that of a difference on the
    same pairs.

    Args: x, y: (n,) model similarities and gold scores; ties allowed.
    Raises: ValueError if the lengths differ or one side is constant.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"expected two vectors of one length, got shapes {x.shape} and {y.shape}")
    a, group_a = _levels(x)
    b, group_b = _levels(y)
    product, var_a, var_b = float(np.mean(a * b)), float(np.var(a)), float(np.var(b))
    if not (var_a > 0 and var_b > 0):
        raise ValueError("Spearman's correlation needs two values at least on each side, got a constant one")
    rho = (product - 0.25) / np.sqrt(var_a * var_b)  # midranks have mean 1/2 exactly
    # Adding mass at x0 moves the product by its own term and by shifting the rank of everything above x0.
    moved_product = (a * b - product) + (_mass_above(group_a, b) - product) + (_mass_above(group_b, a) - product)
    square_a, square_b = var_a + 0.25, var_b + 0.25
    moved_a = (a**2 - square_a) + 2 * (_mass_above(group_a, a) - square_a)
    moved_b = (b**2 - square_b) + 2 * (_mass_above(group_b, b) - square_b)
    psi = moved_product / np.sqrt(var_a * var_b) - rho / 2 * (moved_a / var_a + moved_b / var_b)
    return float(rho), psi


def _levels(x: NDArray[np.generic]) -> tuple[Floats, NDArray[np.intp]]:
    """Midranks scaled to (0, 1), mean exactly 1/2, and the tie group of each value in ascending order."""
    _, group, count = np.unique(x, return_inverse=True, return_counts=True)
    level = (np.cumsum(count) - count / 2) / len(x)
    return level[group], group


def _mass_above(group: NDArray[np.intp], values: Floats) -> Floats:
    """(n,) mean over j of values[j] * (1 if j's group is above i's, 1/2 if equal, else 0)."""
    mass = np.bincount(group, weights=values)
    above = np.cumsum(mass[::-1])[::-1] - mass / 2
    return above[group] / len(values)


@dataclass(frozen=True)
class PairNoise:
    """Variances of a metric over the choice of dev pairs. own: of one point's score. between: of the difference of two
    points, beyond what a change of seed explains. pairs: dev pairs and queries of all sets; what: what they are."""

    own: float
    between: float
    pairs: int
    what: str = "dev pairs"


def pair_noise(
    first: Sequence[str], second: Sequence[str], parts: Sequence[str], similarities: Lookup
) -> PairNoise | None:
    """Sampling variances over dev pairs of two points, each given by the run ids of its seeds.

    With influence values psi (of a query: its value less the mean) averaged over the m seeds of a point: own =
    var(psi_1) / n, between = var(psi_1 - psi_2) / n less w (1/m_1 + 1/m_2), w the part that differs between seeds of
    one point, which is in the seed noise already. Where no point has two seeds, `between` is an upper bound. Sets are
    independent; of several measures of one set the influences are added up query by query.

    Returns: None if the similarities or the gold scores of either point are missing, or the sets differ in length.
    """
    loaded = [[found for run in runs if (found := similarities(run)) is not None] for runs in (first, second)]
    if not all(loaded):
        return None
    own = between = 0.0
    pairs = 0
    for measures in _by_set(parts):
        a, b = (_added(seeds, measures) for seeds in loaded)
        if a is None or b is None or a.shape[1] != b.shape[1]:
            return None
        n = a.shape[1]
        own += float(np.var(a.mean(0))) / n
        between += max(float(np.var(a.mean(0) - b.mean(0))) / n - _seed_part(a, b) * (1 / len(a) + 1 / len(b)), 0.0)
        pairs += n
    kinds = dict.fromkeys("queries" if retrieval_measure(part) else "dev pairs" for part in parts)
    return PairNoise(own / len(parts) ** 2, between / len(parts) ** 2, pairs, " and ".join(kinds))


def _by_set(parts: Sequence[str]) -> list[list[str]]:
    """The parts of a metric that are measured on the same pairs or queries, together."""
    sets: dict[str, list[str]] = {}
    for part in parts:
        whole = at_width(part)[0]
        measured = whole.rpartition("_")[0]  # nfcorpus_ndcg10_dev -> nfcorpus_ndcg10
        name = f"queries of {measured.rpartition('_')[0]}" if retrieval_measure(part) else whole
        sets.setdefault(name, []).append(part)
    return list(sets.values())


def _added(seeds: Sequence[Arrays], measures: Sequence[str]) -> Floats | None:
    """(m, n) influence values of the sum of some measures of one set."""
    found = [_influences(seeds, measure) for measure in measures]
    shapes = {None if one is None else one.shape for one in found}
    return None if None in shapes or len(shapes) > 1 else np.sum([one for one in found if one is not None], axis=0)


def _influences(seeds: Sequence[Arrays], part: str) -> Floats | None:
    """(m, n) influence values of one dev set; None if it is not stored, differs in length, or a model has collapsed."""
    whole = at_width(part)[0]
    name = whole.removesuffix(DEV_SUFFIX)
    queries, gold = name + QUERIES_SUFFIX + part.removeprefix(whole), name + GOLD_SUFFIX
    try:
        if all(queries in arrays for arrays in seeds):
            return _scored([arrays[queries] for arrays in seeds], None)[1]
        return np.stack([_scored([arrays[part]], arrays[gold])[1][0] for arrays in seeds])
    except (KeyError, ValueError):
        return None


def _seed_part(a: Floats, b: Floats) -> float:
    """Variance over pairs, per seed, of what differs between seeds of one point; 0 where no point has two seeds."""
    squares = sum(float(((x - x.mean(0)) ** 2).mean(1).sum()) for x in (a, b))
    degrees = len(a) + len(b) - 2
    return squares / degrees / a.shape[1] if degrees else 0.0


@dataclass(frozen=True)
class PairedGain:
    """First minus second configuration on one set, or on the mean of several; means over their seeds. low, high: 95 %
    interval over pairs, and over seeds where `seeds` > 1. seeds: common ones that it is paired over, 0 = none.
    over: "pairs" or "queries"."""

    name: str
    first: float
    second: float
    gain: float
    low: float
    high: float
    pairs_low: float
    pairs_high: float
    seeds: int
    over: str


def paired_gains(
    first: Mapping[int, Arrays], second: Mapping[int, Arrays], gold: Mapping[str, NDArray[np.floating]] | None = None
) -> list[PairedGain]:
    """The gain per set; of cosines also on the mean of several sets.

    Args: first, second: seed -> set -> cosines (n,), or without `gold` values of queries whose mean is a set's score;
        gold: set -> gold scores (n,) of the same pairs.
    Raises: ValueError if a set's arrays differ in length, or if cosines or gold scores are constant.
    """
    common = sorted(first.keys() & second.keys())
    sides = [[side[seed] for seed in common or sorted(side)] for side in (first, second)]
    found, measured = [], []  # measured, per set: scores (m,) of both sides, variance of their difference
    for name in sides[0][0] if gold is None else gold:
        (one, one_psi), (other, other_psi) = (
            _scored([seed[name] for seed in side], None if gold is None else gold[name]) for side in sides
        )
        measured.append((one, other, float(np.var(one_psi.mean(0) - other_psi.mean(0))) / one_psi.shape[1]))
        found.append(_gain(name, *measured[-1], len(common), "queries" if gold is None else "pairs"))
    if gold and len(measured) > 1:
        ours, theirs, variances = zip(*measured, strict=True)
        variance = sum(variances) / len(variances) ** 2  # sets are independent
        found.append(_gain("mean", np.mean(ours, axis=0), np.mean(theirs, axis=0), variance, len(common)))
    return found


def _scored(values: Sequence[NDArray[np.floating]], gold: NDArray[np.floating] | None) -> tuple[Floats, Floats]:
    """(m,) scores of models on a set and their (m, n) influence values: Spearman's of cosines, means of queries."""
    if gold is None:
        queries = np.stack(values).astype(np.float64)
        return queries.mean(1), queries - queries.mean(1, keepdims=True)
    scores, psi = zip(*(spearman_influence(cosines, gold) for cosines in values), strict=True)
    return np.array(scores), np.stack(psi)


def _gain(name: str, first: Floats, second: Floats, pairs: float, common: int, over: str = "pairs") -> PairedGain:
    """With `common` seeds the differences are taken seed by seed; without, the two sides' variances add.

    Args: first, second: (m,) correlations per seed; pairs: variance of the difference of the means over pairs.
    """
    gain, whole = float(first.mean() - second.mean()), (half := NORMAL * float(np.sqrt(pairs)))
    parts = [first - second] if common else [first, second]
    if all(len(x) > 1 for x in parts):
        seeds = [float(x.var(ddof=1)) / len(x) for x in parts]
        variance = pairs + sum(seeds)
        # Satterthwaite 1946; the variance over pairs counts as known.
        squares = sum(v**2 / (len(x) - 1) for v, x in zip(seeds, parts, strict=True))
        reach = float(stdtrit(variance**2 / squares, 1 - TAIL)) if squares > 0 else NORMAL
        whole = max(half, reach * float(np.sqrt(variance)))
    means = float(first.mean()), float(second.mean())
    return PairedGain(name, *means, gain, gain - whole, gain + whole, gain - half, gain + half, common, over)
