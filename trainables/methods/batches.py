"""How examples become batches: arrays in, arrays out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def text_numbers(texts: Iterable[str | bytes], n: int) -> NDArray[np.int64]:
    """(n,) 64-bit hashes, salted per process: only equality within a process counts.

    A corpus of a million distinct texts has a collision with probability of about 3e-8.
    """
    return np.fromiter(map(hash, texts), np.int64, n)


def cut(order: NDArray[np.int64], size: int, texts: NDArray[np.int64] | None = None) -> Iterator[NDArray[np.int64]]:
    """Batches of `size` examples in this order, each example once; the last may be smaller.

    Args: texts: of all examples, see `text_rows`: an example that repeats a text of the batch waits for the next ones
        (sentence-transformers' NoDuplicatesBatchSampler); of many repeated texts several last batches are smaller.
    """
    if texts is None:
        yield from (order[start : start + size] for start in range(0, len(order), size))
        return
    rows = iter(zip(order.tolist(), map(frozenset, texts[order].tolist()), strict=True))
    waiting: deque[tuple[int, frozenset[int]]] = deque()
    while True:
        batch, held, again = list[int](), set[int](), deque[tuple[int, frozenset[int]]]()
        while len(batch) < size and (row := waiting.popleft() if waiting else next(rows, None)):
            if held.isdisjoint(row[1]):
                batch.append(row[0])
                held |= row[1]
            else:
                again.append(row)
        if not batch:
            return
        waiting.extendleft(reversed(again))
        yield np.array(batch)


def one_set_each(
    chosen: NDArray[np.int64],
    sets: NDArray[np.int64],
    how: str,
    weights: Sequence[int] | None,
    size: int,
    rng: np.random.Generator,
    texts: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Batches of an epoch, each of one training set and of at least 2 examples.

    With equal weights they are those of sentence-transformers' ProportionalBatchSampler and RoundRobinBatchSampler.

    Args:
        chosen: (n,) example numbers; sets: number of the set of all examples, from 0.
        how: proportional: in random order, about as many batches as all sets have in total; a set's share is
            proportional to its number of batches times its weight. round_robin: in turn `weight` batches of each set,
            until one has no more.
        weights: >= 0, one for each set, not all 0; None = 1. A set that runs out begins again, in a new order.
        texts: as `cut` takes them.
    """
    counts = np.ones(int(sets.max()) + 1, np.int64) if weights is None else np.array(weights)
    rows = [chosen[sets[chosen] == number] for number in range(len(counts))]

    def batches(number: int) -> deque[NDArray[np.int64]]:
        return deque(batch for batch in cut(rng.permutation(rows[number]), size, texts) if len(batch) > 1)

    waiting = [batches(number) for number in range(len(counts))]
    have = np.array(list(map(len, waiting)))
    counts = np.where(have > 0, counts, 0)
    if not counts.any():
        return
    if how == "round_robin":
        rounds = max(1, int((have[counts > 0] // counts[counts > 0]).min()))
        turns = np.tile(np.repeat(np.arange(len(counts)), counts), rounds)
    else:
        ends = np.cumsum(counts * have) / (counts @ have) * have.sum()
        turns = rng.permutation(np.repeat(np.arange(len(counts)), np.diff(np.rint(ends).astype(int), prepend=0)))
    drawn = 0
    for number in turns.tolist():
        waiting[number] = waiting[number] or batches(number)
        drawn += len(waiting[number][0])
        if drawn > len(chosen):  # sets with full batches stood in for one with smaller ones
            return
        yield waiting[number].popleft()
