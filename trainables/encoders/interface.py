"""Packed batches for every family that calls transformers' attention interface: the library's forward, our attention.

A model of such a family hands query, key and value of whatever lies in its batch to a registered function. Here the
batch is one row that holds all sentences end to end, with position ids that start again at each, and the function lets
every sentence attend to its own tokens: causal where the module says so, within its sliding window, with fewer heads of
keys than of queries. What else a family mixes between tokens would leak; `packing_check` compares, per encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainables.contract.errors import EncoderError
from trainables.encoders.attention import attend
from trainables.encoders.packing import Packed
from trainables.encoders.trunk import ChangeEmbeddings

NAME = "contrastive_packed"
_ELSE = (
    "softcap",
    "position_bias",
    "s_aux",
    "cache",
    "block_table",
)  # parts of an attention that are not computed here


@dataclass(frozen=True)
class Interface:
    """A model run through the library's forward on packed batches; `states` as in `trunk.Trunk`."""

    model: Any
    first_position: int

    def states(
        self,
        packed: Packed,
        wanted: Sequence[int],
        dropout: float = 0.0,
        first_tokens_only: bool = False,
        change: ChangeEmbeddings | None = None,
    ) -> dict[int, Tensor]:
        """Hidden states of a packed batch. `dropout` is not used: the model's own modules hold it, by its mode.

        Raises: EncoderError for a change of the embeddings in a family that keeps them under another name.
        """
        del dropout
        every = tuple(wanted) != (self.model.config.num_hidden_layers,)
        hook: Any = nullcontext()
        if change is not None:
            hook = embedding_layer(self.model).register_forward_hook(lambda _, __, row: change(row[0])[None])
        with hook, through(self.model):
            out = self.model(
                input_ids=packed.ids[None],
                position_ids=packed.positions[None] + self.first_position,
                output_hidden_states=every,
                return_dict=True,
                packed_sentences=packed,
            )
        states = {n: (out.hidden_states[n] if every else out.last_hidden_state)[0] for n in wanted}
        return {n: s.index_select(0, packed.first) for n, s in states.items()} if first_tokens_only else states


def compute_again(model: Any, packed: bool) -> None:
    """Have a model's layers computed again in backward (gradient checkpointing), which is outside of `through`."""
    how = {"context_fn": lambda: (nullcontext(), through(model))} if packed else {}
    model.gradient_checkpointing_enable({"use_reentrant": False, **how})


def embedding_layer(model: Any) -> Any:
    """The module whose output enters the first block.

    Raises: EncoderError for a family that keeps it under another name.
    """
    embeddings = getattr(model, "embeddings", None)
    if embeddings is None:
        raise EncoderError(f"family {model.config.model_type}: its embedding layer is not known, so not changed")
    return embeddings


def interface_of(model: Any) -> Interface | None:
    """The model behind the interface, or None when its family does not call it."""
    if not getattr(model, "_supports_attention_backend", False):
        return None
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return Interface(model, 0 if padding is None else padding + 1)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    packed_sentences: Packed | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of every packed sentence over its own tokens, as transformers calls it.

    Args:
        query: (1, heads, T, d); key, value: (1, key heads, T, d), key heads dividing heads.
        scaling: of the scores, None = 1/sqrt(d); dropout: p of the probabilities, 0 outside training.
        sliding_window: tokens more than `sliding_window` - 1 apart do not see each other (flash attention's counting).
    Returns: (1, T, heads, d), and no probabilities.
    Raises: NotImplementedError for an attention that computes something else; the encoder is then padded.
    """
    named = [name for name in _ELSE if others.get(name) is not None]
    if packed_sentences is None or attention_mask is not None or named or value.shape[-1] != query.shape[-1]:
        raise NotImplementedError(f"packed attention with {', '.join(named) or 'a mask, or values of another width'}")
    heads, tokens, width = query.shape[1:]
    if key.shape[1] != heads:
        key, value = (x.repeat_interleave(heads // key.shape[1], dim=1) for x in (key, value))
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    if sliding_window is not None and getattr(module, "inclusive_window", False):
        sliding_window += 1
    flat_query, flat_key, flat_value = (x[0].transpose(0, 1).reshape(tokens, -1) for x in (query, key, value))
    context = attend(
        flat_query,
        torch.cat([flat_key, flat_value], 1),
        packed_sentences,
        heads,
        dropout,
        _bias(packed_sentences, causal, sliding_window, query),
    )
    return context.view(1, tokens, heads, width), None


def _bias(packed: Packed, causal: bool, window: int | None, like: Tensor) -> Tensor | None:
    """(1, longest, longest) 0 where a token sees another and -inf elsewhere; None where all see all."""
    longest = packed.longest
    if window is not None and window >= longest:
        window = None
    if not causal and window is None:
        return None
    place = torch.arange(longest, device=like.device)
    back = place[:, None] - place[None]  # how far the other token lies before
    hidden = back < 0 if causal else torch.zeros_like(back, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (back.abs() >= window)
    return torch.zeros(1, longest, longest, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)


@contextmanager
def through(model: Any) -> Iterator[None]:
    """Around a packed pass: the model's configuration names our attention.

    Without a mask function of that name the library makes no mask.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
