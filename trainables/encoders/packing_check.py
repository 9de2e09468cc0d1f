"""Whether an encoder's sentences may be packed: both ways of batching are run and compared."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trainables.encoders.interface import Interface, embedding_layer, interface_of
from trainables.encoders.packing import Packed, pack
from trainables.encoders.trunk import ChangeEmbeddings, Trunk, trunk_of

log = logging.getLogger(__name__)
MOST_TOKENS = 512
CHECKED = 16  # parameters, from the embeddings on
AGREEMENT = 1e-5  # packed against padded, largest difference relative to the largest value (at least 1), float32


def padded_states(
    model: Any, packed: Packed, wanted: Sequence[int], change: ChangeEmbeddings | None = None
) -> dict[int, Tensor]:
    """What `Trunk.states` gives, by the library's own padded forward pass (in whatever mode the model is).

    Raises: EncoderError for a change of the embeddings in a family that keeps them under another name.
    """
    ids, mask = packed.pad(packed.ids, model.config.pad_token_id or 0), packed.mask.long()
    every = tuple(wanted) != (model.config.num_hidden_layers,)
    hook: Any = contextlib.nullcontext()
    if change is not None:
        hook = embedding_layer(model).register_forward_hook(
            lambda _, __, grid: packed.pad(change(grid.flatten(0, 1).index_select(0, packed.slots)))
        )
    with hook:  # torch's handle removes the hook at the end
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=every, return_dict=True)
    states = {n: out.hidden_states[n] if every else out.last_hidden_state for n in wanted}
    return {n: s.flatten(0, 1).index_select(0, packed.slots) for n, s in states.items()}


def packing_note(model: Any, prefix: Sequence[int], suffix: Sequence[int]) -> str:
    """Why an encoder cannot be packed, "" when packed and padded passes agree on vectors and gradients.

    A few random sentences, evaluation mode. Compared are the last state and the gradients of the embeddings and the
    first block, through which all others pass.
    """
    way = packed_way(model)
    if way is None:
        return f"packing does not know the family {model.config.model_type}: batches are padded"
    packed = pack(random_sentences(model, _lengths(model)), MOST_TOKENS, prefix, suffix)
    layers = (model.config.num_hidden_layers,)  # not the others: asking the library for them leaves hooks for good
    checked = [p for name, p in model.named_parameters() if "pooler" not in name][:CHECKED]
    try:
        packed_values = _values_and_gradients(way.states, packed, layers, checked)
        padded_values = _values_and_gradients(lambda p, w: padded_states(model, p, w), packed, layers, checked)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        log.debug("packing check failed", exc_info=error)
        return f"the packing check failed with {type(error).__name__}: batches are padded"
    worst = max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1))
        for a, b in zip(packed_values, padded_values, strict=True)
    )
    return "" if worst <= AGREEMENT else f"packed and padded passes differ by {worst:.1e}: batches are padded"


def packed_way(model: Any) -> Trunk | Interface | None:
    """How a model runs on packed batches: taken apart by hand, which is faster, or behind the library's interface."""
    return trunk_of(model) or interface_of(model)


def _lengths(model: Any) -> tuple[int, ...]:
    """Words of the compared sentences: some short ones, and one beyond the family's window where it has a small one."""
    window = max((w for w in (getattr(model.config, "sliding_window", None) or 0,) if w < MOST_TOKENS // 2), default=0)
    return (5, 2, 9, 5, *((window + 12,) if window else ()))


def random_sentences(model: Any, lengths: Sequence[int]) -> list[Any]:
    """Sentences of random ids, the same ones every time; none is the padding (RoBERTa counts positions by it)."""
    words = np.arange(model.get_input_embeddings().num_embeddings, dtype=np.int32)
    words = words[words != model.config.pad_token_id]
    rng = np.random.default_rng(0)
    return [rng.choice(words, n) for n in lengths]


def _values_and_gradients(
    states: Callable[[Packed, Sequence[int]], dict[int, Tensor]],
    packed: Packed,
    wanted: Sequence[int],
    parameters: Sequence[Tensor],
) -> list[Tensor]:
    with torch.enable_grad():
        values = states(packed, wanted)
        total = sum(
            (values[n] * torch.cos(torch.arange(values[n].numel()).view(values[n].shape))).sum() for n in wanted
        )
        gradients = torch.autograd.grad(cast(Tensor, total), parameters, allow_unused=True)
    return [*(v.detach() for v in values.values()), *(g for g in gradients if g is not None)]
