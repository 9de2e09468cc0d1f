"""The share of the dev set in the uncertainty: would other pairs or queries have ranked two models otherwise?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.statistics.correlation import Floats, spearman_influence
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.trial import QUERIES_SUFFIX, retrieval_measure

Arrays = Mapping[str, NDArray[np.float32]]
Lookup = Callable[[str], Arrays | None]  # run id -> cosines and gold scores per dev set, None if not stored


@dataclass(frozen=True)
class PairNoise:
    """Variances of a metric over the choice of dev pairs, in squared units of the metric.

    own: of one point's score alone. between: of the difference of two points scored on the same pairs, beyond what a
    change of seed explains. pairs: dev pairs and queries behind it, over all sets. what: what they are.
    """

    own: float
    between: float
    pairs: int
    what: str = "dev pairs"


def pair_noise(
    first: Sequence[str], second: Sequence[str], parts: Sequence[str], similarities: Lookup
) -> PairNoise | None:
    """Sampling variances over dev pairs of two points, each given by the run ids of its seeds.

    With influence values psi (`spearman_influence`; of a mean over queries, a query's value less it) averaged over the
    m seeds of a point: own = var(psi_1) / n and
    between = var(psi_1 - psi_2) / n, less w (1/m_1 + 1/m_2), where w is the part that differs between seeds of one
    point: that is in the seed noise already. Where no point has two seeds, w is unknown and `between` an upper bound.
    A metric that is the mean of k parts has the sum of the sets' variances over k squared, sets being independent; of
    several measures of one set, which are not, the influences are added up query by query first.

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
        measured = part.rpartition("_")[0]  # nfcorpus_ndcg10_dev -> nfcorpus_ndcg10
        name = f"queries of {measured.rpartition('_')[0]}" if retrieval_measure(part) else part
        sets.setdefault(name, []).append(part)
    return list(sets.values())


def _added(seeds: Sequence[Arrays], measures: Sequence[str]) -> Floats | None:
    """(m, n) influence values of the sum of some measures of one set."""
    found = [_influences(seeds, measure) for measure in measures]
    shapes = {None if one is None else one.shape for one in found}
    return None if None in shapes or len(shapes) > 1 else np.sum([one for one in found if one is not None], axis=0)


def _influences(seeds: Sequence[Arrays], part: str) -> Floats | None:
    """(m, n) influence values of one dev set."""
    queries = part.removesuffix(DEV_SUFFIX) + QUERIES_SUFFIX
    if all(queries in arrays for arrays in seeds):
        values = [np.asarray(arrays[queries], dtype=np.float64) for arrays in seeds]
        return np.stack([v - v.mean() for v in values]) if len({v.shape for v in values}) == 1 else None
    gold = part.removesuffix(DEV_SUFFIX) + GOLD_SUFFIX
    if not all(part in arrays and gold in arrays for arrays in seeds):
        return None
    if len({arrays[part].shape for arrays in seeds}) != 1:
        return None
    try:
        return np.stack([spearman_influence(arrays[part], arrays[gold])[1] for arrays in seeds])
    except ValueError:  # a collapsed model: all cosines equal
        return None


def _seed_part(a: Floats, b: Floats) -> float:
    """Variance over pairs, per seed, of what differs between seeds of one point; 0 where no point has two seeds."""
    squares = sum(float(((x - x.mean(0)) ** 2).mean(1).sum()) for x in (a, b))
    degrees = len(a) + len(b) - 2
    return squares / degrees / a.shape[1] if degrees else 0.0
