"""Training only the rows of a large table of word embeddings that a study's sentences use.

Under AdamW a row without gradient changes only by weight decay, a factor per step, so the result is exactly that of
the whole table. The other rows (nine tenths of a multilingual encoder's quarter million, in one language) need no
gradient, optimiser state, clipping or checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

LARGE = 0.25  # share of an encoder's weights from which its word embeddings are large beside the rest
MOST_USED = 0.5  # share of the rows in use up to which training only those pays


class WordsInUse(nn.Module):
    """Replaces an encoder's word embeddings (V, E); takes the same ids.

    Attributes:
        table: a module like the replaced one, of the n rows in use; rows: (n,) their ids, ascending.
        decayed: () float64, the factor of weight decay on the other rows so far.
        whole: (V, E) the pre-trained rows, not part of the state, never written.
    """

    rows: Tensor
    decayed: Tensor
    row_of: Tensor

    def __init__(self, words: nn.Embedding, whole: Tensor, used: NDArray[np.bool_]) -> None:
        super().__init__()
        self.whole, self.padding = whole, words.padding_idx
        self.table = copy.copy(words)
        self.table._parameters = {}
        rows = torch.from_numpy(np.flatnonzero(used)).to(words.weight.device)
        self.table.weight = nn.Parameter(words.weight.detach()[rows], requires_grad=words.weight.requires_grad)
        self.register_buffer("rows", rows)
        self.register_buffer("decayed", torch.ones((), dtype=torch.float64, device=rows.device))
        self.register_buffer("row_of", torch.empty(0, dtype=torch.long), persistent=False)
        self._index_rows()
        self.register_load_state_dict_pre_hook(_take_rows)  # type: ignore[no-untyped-call]  # torch's own

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings of ids; those not in use occur in evaluations only, which have sentences of their own."""
        at = self.row_of[ids]
        if not self.training and bool((at < 0).any()):
            others = torch.unique(ids[at < 0])
            more = self.whole[others.to(self.whole.device)].to(self.table.weight) * self.decayed
            grown = torch.cat([self.table.weight, more.to(self.table.weight.dtype)])
            at = at.masked_scatter(at < 0, len(self.rows) + torch.searchsorted(others, ids[at < 0]))
            found: Tensor = torch.func.functional_call(self.table, {"weight": grown}, (at,))
        else:
            found = self.table(at)
        return found

    @property
    def weight(self) -> Tensor:
        """(n, E) the rows in use."""
        return self.table.weight

    def covers(self, sentences: Iterable[NDArray[Any]]) -> bool:
        """Whether all tokens of these sentences are in use."""
        parts = list(sentences)
        return bool(self.in_use[np.concatenate(parts)].all()) if parts else True

    @torch.no_grad()
    def widen(self, optimiser: Optimizer | None) -> None:
        """Train all rows from now on, as if they had been trained from the start."""
        param, rows = self.table.weight, self.rows
        every = (self.whole.to(param.device, torch.float64) * self.decayed).to(param.dtype)
        state = optimiser.state.get(param, {}) if optimiser is not None else {}
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape:
                state[name] = torch.zeros_like(every).index_copy_(0, rows, value)
        param.data = every.index_copy_(0, rows, param)
        self.rows = torch.arange(len(every), device=rows.device)
        self._index_rows()

    def _index_rows(self) -> None:
        self.row_of = torch.full((len(self.whole),), -1, device=self.rows.device)
        self.row_of[self.rows] = torch.arange(len(self.rows), device=self.rows.device)
        padding = -1 if self.padding is None else int(self.row_of[self.padding])
        self.table.padding_idx = None if padding < 0 else padding
        self.table.num_embeddings = len(self.rows)
        self.in_use = (self.row_of >= 0).cpu().numpy()


def used_ids(size: int, columns: Iterable[NDArray[Any]], ids: Sequence[int]) -> NDArray[np.bool_]:
    """(size,) which token ids occur. columns: ids laid end to end, as in a `TokenColumn`; ids: further ones."""
    used = np.zeros(size, bool)
    for column in columns:
        used[column[(column >= 0) & (column < size)]] = True
    used[[i for i in ids if 0 <= i < size]] = True
    return used


def keep_words(model: Any, whole: Tensor, used: NDArray[np.bool_]) -> bool:
    """Let a model train the rows in use only, if its table is large and mostly unused. Returns whether it does.

    Args: whole: the table of the pre-trained encoder.
    """
    words = model.get_input_embeddings()
    total = sum(p.numel() for p in model.parameters())
    if not isinstance(words, nn.Embedding) or words.weight.numel() < LARGE * total or used.mean() > MOST_USED:
        return False
    names = [name for name, part in model.named_modules(remove_duplicate=False) if part is words]
    if len(names) != 1 or len(used) != len(words.weight):
        return False
    parent, _, own = names[0].rpartition(".")
    setattr(model.get_submodule(parent), own, WordsInUse(words, whole, used))
    return True


def follow_decay(network: nn.Module, optimiser: Optimizer) -> None:
    """Accumulate AdamW's weight decay for the rows that are not in use, at every step."""
    tables = {id(w.table.weight): w for w in network.modules() if isinstance(w, WordsInUse)}

    def count(*_: object) -> None:
        for group in optimiser.param_groups:
            if group["weight_decay"]:
                for param in group["params"]:
                    if id(param) in tables:
                        tables[id(param)].decayed *= 1 - group["lr"] * group["weight_decay"]

    if tables:
        optimiser.register_step_post_hook(count)


def take_whole_state(model: Any, state: MutableMapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before a model with a whole table loads a state of rows in use: fill in the rest, decayed."""
    words = model.get_input_embeddings()
    for name, part in model.named_modules():
        key = f"{prefix}{name}."
        if part is not words or isinstance(words, WordsInUse) or f"{key}table.weight" not in state:
            continue
        rows, decayed = state.pop(f"{key}rows"), state.pop(f"{key}decayed")
        whole = (words.weight.detach().cpu().double() * decayed.cpu()).to(words.weight.dtype)
        state[f"{key}weight"] = whole.index_copy_(0, rows.cpu(), state.pop(f"{key}table.weight").cpu())


def _take_rows(words: WordsInUse, state: MutableMapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before a state is loaded: take over its rows. In one of a whole table all rows are in use."""
    if f"{prefix}weight" in state:
        state[f"{prefix}table.weight"] = state.pop(f"{prefix}weight")
        state[f"{prefix}rows"] = torch.arange(len(words.whole))
        state[f"{prefix}decayed"] = torch.ones((), dtype=torch.float64)
    rows = state.get(f"{prefix}rows")
    if rows is None:
        return  # strict loading raises
    weight = words.table.weight
    if len(rows) != len(weight):
        weight.data = weight.new_empty(len(rows), weight.shape[1])
    words.rows = rows.to(words.rows.device, copy=True)
    words._index_rows()
