"""Dev pairs in two parts: one selects, the other only reports, so that it tells what selecting has overtuned.

A trial's value is the best of its evaluations, and the best trial the best of many, all on the same pairs: both maxima
hold some luck of these pairs. Pairs that no choice was made by hold none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainables.contract.trial import HELD
from trainables.data.sets import Pairs

DRAW = 2**32  # of the numbers that pairs are drawn by


def held_out(sets: Iterable[Pairs], share: float) -> tuple[Pairs, ...]:
    """Every set as its selecting part, under its own name, and its held-out part, `<name>_held`; as they are for 0.

    Pairs are drawn by a hash of their sentences: the same ones whatever their order, for every trial and study, and a
    pair that stands twice is on one side.

    Args: share: of the pairs that are held out, in [0, 1).
    Raises: ValueError if a part has fewer than two pairs.
    """
    sets = tuple(sets)
    return tuple(part for pairs in sets for part in _parts(pairs, share)) if share else sets


def _parts(pairs: Pairs, share: float) -> tuple[Pairs, Pairs]:
    drawn = [_number(a, b) < share * DRAW for a, b in zip(pairs.first, pairs.second, strict=True)]
    held = np.array(drawn, dtype=bool)
    if min(held.sum(), (~held).sum()) < 2:
        raise ValueError(f"metric.holdout: {pairs.name} has too few pairs ({len(pairs)}) for two parts")
    return _taken(pairs, ~held, pairs.name), _taken(pairs, held, pairs.name + HELD)


def _number(first: str, second: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{first}\t{second}".encode()).digest()[:4], "big")


def _taken(pairs: Pairs, rows: NDArray[np.bool_], name: str) -> Pairs:
    at = np.flatnonzero(rows).tolist()
    return replace(
        pairs,
        name=name,
        first=[pairs.first[i] for i in at],
        second=[pairs.second[i] for i in at],
        gold=pairs.gold[rows],
        subset=None if pairs.subset is None else [pairs.subset[i] for i in at],
        revision=f"{pairs.revision}, {len(at)} of {len(pairs)} pairs",
    )
