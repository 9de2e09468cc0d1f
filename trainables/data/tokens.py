"""Token sequences: what texts become before they meet a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Texts = Mapping[str, Sequence[str]]  # column name -> texts: {"sentence"} or {"anchor", "positive", "negative"}
PROMPTS = ("query", "document")  # what a text is to a prompted encoder
Tokens = NDArray[np.int32]  # one sentence: token (or word) ids without special tokens, not truncated


class StoredTexts(Sequence[str]):
    """Texts that lie on the disk, so that nobody copies them into memory.

    identity: changes when their content does; stands for them in the keys of caches.
    """

    identity: str


@dataclass(frozen=True)
class TokenColumn:
    """Token sequences of a corpus column, laid end to end (possibly memory-mapped and shared between processes).

    flat: (total,) int32 ids; starts: (n + 1,) int64 offsets; sequence i is flat[starts[i]:starts[i + 1]].
    """

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def take(self, index: Iterable[int]) -> list[Tokens]:
        """The sequences at `index`, in that order."""
        return [self[int(i)] for i in index]
