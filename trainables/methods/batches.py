"""How examples become batches: arrays in, arrays out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray


def text_numbers(texts: Iterable[str | bytes], n: int) -> NDArray[np.int64]:
    """(n,) hashes, equal for equal texts; among a million others two are equal once in 10^7 corpora."""
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
