"""Whether an encoder's sentences may be packed: both ways of batching are run and compared."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from trainables.contract.errors import EncoderError
from trainables.encoders.packing import Packed, pack
from trainables.encoders.trunk import ChangeEmbeddings, trunk_of

log = logging.getLogger(__name__)
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
        embeddings = getattr(model, "embeddings", None)
        if embeddings is None:
            raise EncoderError(f"family {model.config.model_type}: its embedding layer is not known, so not changed")
        hook = embeddings.register_forward_hook(
            lambda _, __, grid: packed.pad(change(grid.flatten(0, 1).index_select(0, packed.slots)))
        )
    with hook:  # torch's handle removes the hook at the end
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=every, return_dict=True)
    states = {n: out.hidden_states[n] if every else out.last_hidden_state for n in wanted}
    return {n: s.flatten(0, 1).index_select(0, packed.slots) for n, s in states.items()}


def packing_note(model: Any, prefix: Sequence[int], suffix: Sequence[int]) -> str:
    """Why an encoder cannot be packed, "" when packed and padded passes agree on vectors and gradients.

    Four short random sentences, evaluation mode. Compared are the last state and the gradients of the embedding norm
    and the first block, through which all others pass.
    """
    trunk = trunk_of(model)
    if trunk is None:
        return f"packing does not know the family {model.config.model_type}: batches are padded"
    packed = pack(random_sentences(model, (5, 2, 9, 5)), 16, prefix, suffix)
    layers = (len(trunk.layers),)  # not the others: asking the library for them leaves hooks in the model for good
    parts = [part for part in vars(trunk.layers[0]).values() if isinstance(part, (nn.Linear, nn.LayerNorm))]
    checked = [trunk.norm.weight, *(part.weight for part in parts)]
    try:
        packed_values = _values_and_gradients(trunk.states, packed, layers, checked)
        padded_values = _values_and_gradients(lambda p, w: padded_states(model, p, w), packed, layers, checked)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        log.warning("packing check failed", exc_info=error)
        return f"the packing check failed with {type(error).__name__}: batches are padded"
    worst = max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1))
        for a, b in zip(packed_values, padded_values, strict=True)
    )
    return "" if worst <= AGREEMENT else f"packed and padded passes differ by {worst:.1e}: batches are padded"


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
        gradients = torch.autograd.grad(cast(Tensor, total), parameters)
    return [*(v.detach() for v in values.values()), *gradients]
