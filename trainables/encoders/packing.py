"""Batches without padding: sentences laid end to end, sorted by length.

Everything that works token by token (linear layers, layer norms, dropout) sees T real tokens instead of N x L slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.tokens import Tokens

Index = NDArray[np.int64]


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device, copied to a GPU without waiting for the kernels queued there.

    The copy goes through page-locked memory, which torch caches: a copy from other memory can wait for all earlier
    kernels, even a non-blocking one that is larger than the driver's own buffer (64 KiB).
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class Group:
    """Neighbouring sentences of equal length: number and first token of the first one, how many, how long."""

    sentence: int
    token: int
    count: int
    length: int


@dataclass(frozen=True, eq=False)
class Packed:
    """N sentences end to end, shortest first. Tensors are on the device of `ids`.

    ids: (T,) int64 token ids, special tokens included.
    lengths: (N,) tokens of each sentence; order: (N,) position of each sentence in the input.
    left_out: (N,) first tokens of each sentence that no average counts, fewer than it has; None = none.
    """

    ids: Tensor
    lengths: Index
    order: Index
    left_out: Index | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Index:
        """(N,) number of each sentence's first token."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def groups(self) -> list[Group]:
        """Sentences of equal length, which are neighbours."""
        lengths, first, counts = np.unique(self.lengths, return_index=True, return_counts=True)
        columns = zip(first.tolist(), self.starts[first].tolist(), counts.tolist(), lengths.tolist(), strict=True)
        return [Group(*column) for column in columns]

    @cached_property
    def first(self) -> Tensor:
        """(N,) number of each sentence's first token."""
        return self._tensor(self.starts)

    @cached_property
    def last(self) -> Tensor:
        """(N,) number of each sentence's last token."""
        return self._tensor(self.starts + self.lengths - 1)

    @cached_property
    def sentence(self) -> Tensor:
        """(T,) the sentence each token belongs to."""
        return self._tensor(np.repeat(np.arange(len(self)), self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """(T,) position of each token in its sentence, from 0."""
        return self._tensor(np.arange(len(self.ids)) - np.repeat(self.starts, self.lengths))

    @cached_property
    def averaged(self) -> Tensor:
        """Numbers of the tokens that averages count."""
        within = np.arange(len(self.ids)) - np.repeat(self.starts, self.lengths)
        first = 0 if self.left_out is None else np.repeat(self.left_out, self.lengths)
        return self._tensor(np.flatnonzero(within >= first))

    @cached_property
    def lengths_tensor(self) -> Tensor:
        """(N,) `lengths`."""
        return self._tensor(self.lengths)

    @cached_property
    def ends(self) -> Tensor:
        """(N + 1,) int32: 0, then the number of the token after each sentence."""
        return self._tensor(np.append(0, np.cumsum(self.lengths)).astype(np.int32))

    @cached_property
    def ends_of_first(self) -> Tensor:
        """(N + 1,) int32 `ends` of sentences cut to their first token."""
        return self._tensor(np.arange(len(self) + 1, dtype=np.int32))

    @cached_property
    def slots(self) -> Tensor:
        """(T,) slot of each token in a padded (N, longest) grid laid out flat."""
        return self.sentence * self.longest + self.positions

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sentence."""
        return int(self.lengths[-1])

    @cached_property
    def mask(self) -> Tensor:
        """(N, longest) True where the padded grid holds a token."""
        return torch.arange(self.longest, device=self.ids.device)[None] < self.lengths_tensor[:, None]

    def pad(self, values: Tensor, fill: float = 0) -> Tensor:
        """(T, ...) values as a padded (N, longest, ...) grid."""
        grid = values.new_full((len(self) * self.longest, *values.shape[1:]), fill)
        return grid.index_copy(0, self.slots, values).view(len(self), self.longest, *values.shape[1:])

    def restore(self, rows: Tensor) -> Tensor:
        """(N, ...) rows of the packed order in the order of the input."""
        return rows.index_select(0, self._tensor(_inverse(self.order)))

    def head_rows(self, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers that bring (T, heads) rows into groups of (sentence, head, token), and back.

        Returns: (T heads) rows of a (T, heads) table in the grouped order; (2 T heads) the same for a (T, 2, heads)
            table, first of the keys, then of the values; (T heads) the inverse of the first.
        """
        if heads not in self._head_rows:
            sizes = self.lengths * heads
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            length = np.repeat(self.lengths, sizes)
            head = within // length
            token = np.repeat(self.starts, sizes) + within - head * length
            keys = token * 2 * heads + head
            rows = token * heads + head
            found = (rows, np.concatenate([keys, keys + heads]), _inverse(rows))
            self._head_rows[heads] = cast(tuple[Tensor, Tensor, Tensor], tuple(map(self._tensor, found)))
        return self._head_rows[heads]

    @cached_property
    def _head_rows(self) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
        return {}

    def _tensor(self, values: Index) -> Tensor:
        return to_device(values, self.ids.device)


def pack(
    sequences: Sequence[Tokens],
    max_length: int,
    prefix: Sequence[int],
    suffix: Sequence[int],
    device: torch.device | str = "cpu",
) -> Packed:
    """Truncated sentences with their special tokens, end to end, shortest first (stable).

    Args:
        sequences: N >= 1 token sequences without special tokens, possibly empty.
        max_length: tokens per sentence at most, special tokens included.
        prefix, suffix: ids of the tokenizer's single-sentence template, such as [CLS] and [SEP].
    Raises: ValueError if there is no sentence or the special tokens leave none for the text.
    """
    most = max_length - len(prefix) - len(suffix)
    if not sequences or most < 1:
        raise ValueError(f"expected at least one sentence and room for a token, got {len(sequences)} and {most}")
    kept = np.minimum(np.fromiter(map(len, sequences), np.int64, len(sequences)), most)
    order = np.argsort(kept, kind="stable")
    lengths = kept[order] + len(prefix) + len(suffix)
    ends = np.cumsum(lengths)
    ids = np.empty(int(ends[-1]), np.int64)
    special = np.zeros(len(ids), bool)
    for columns, tokens in (
        ((ends - lengths)[:, None] + np.arange(len(prefix)), prefix),
        ((ends - len(suffix))[:, None] + np.arange(len(suffix)), suffix),
    ):
        ids[columns] = tokens
        special[columns] = True
    ids[~special] = np.concatenate([sequences[i][:most] for i in order.tolist()])
    return Packed(to_device(ids, torch.device(device)), lengths, order)


def _inverse(permutation: Index) -> Index:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse
