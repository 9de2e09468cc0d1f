"""How an encoder runs on a packed batch: as a `Trunk`, behind transformers' attention interface, or padded.

A model of a family that calls the attention interface passes query, key and value of whatever is in its batch to a
registered function. Here the batch is one row that holds all sentences end to end, with position ids that restart at
each sentence, and the function lets every sentence attend to its own tokens: causal where the module is, within its
sliding window, with fewer key heads than query heads. Whatever else a family mixes between tokens would leak from
sentence to sentence, so `packing_note` compares packed and padded passes, once per encoder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.contract.errors import EncoderError
from trainables.encoders.attention import attend_masked
from trainables.encoders.packing import Packed, pack
from trainables.encoders.trunk import ChangeEmbeddings, Trunk, trunk_of

log = logging.getLogger(__name__)
NAME = "contrastive_packed"  # of our attention in transformers' registry
UNSUPPORTED = ("softcap", "position_bias", "s_aux", "cache", "block_table")  # arguments of other attentions
MOST_TOKENS = 512
CHECKED = 16  # parameters whose gradients are compared, from the embeddings on
TOLERANCE = 1e-5  # packed against padded, largest difference relative to the largest value (at least 1), float32


@dataclass(frozen=True)
class Interface:
    """A model that runs the library's forward pass on packed batches."""

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
        """Hidden states as `Trunk.states` returns them. `dropout` is ignored: the model's modules hold it.

        Raises: EncoderError for a change of the embeddings in a family that keeps them under another name.
        """
        del dropout
        every = tuple(wanted) != (self.model.config.num_hidden_layers,)
        with _changed_embeddings(self.model, change and (lambda row: change(row[0])[None])), our_attention(self.model):
            out = self.model(
                input_ids=packed.ids[None],
                position_ids=packed.positions[None] + self.first_position,
                output_hidden_states=every,
                return_dict=True,
                packed_sentences=packed,
            )
        states = {n: (out.hidden_states[n] if every else out.last_hidden_state)[0] for n in wanted}
        return {n: s.index_select(0, packed.first) for n, s in states.items()} if first_tokens_only else states


def packed_encoder(model: Any) -> Trunk | Interface | None:
    """The model for packed batches: a `Trunk`, which is faster, or behind the interface; None = neither fits."""
    if (trunk := trunk_of(model)) is not None or not getattr(model, "_supports_attention_backend", False):
        return trunk
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return Interface(model, 0 if padding is None else padding + 1)


def padded_states(
    model: Any, packed: Packed, wanted: Sequence[int], change: ChangeEmbeddings | None = None
) -> dict[int, Tensor]:
    """Hidden states as `Trunk.states` returns them, by the library's padded forward pass in the model's current mode.

    Raises: EncoderError for a change of the embeddings in a family that keeps them under another name.
    """

    def changed(grid: Tensor) -> Tensor:
        assert change is not None
        return packed.pad(change(grid.flatten(0, 1).index_select(0, packed.slots)))

    ids, mask = packed.pad(packed.ids, model.config.pad_token_id or 0), packed.mask.long()
    every = tuple(wanted) != (model.config.num_hidden_layers,)
    with _changed_embeddings(model, change and changed):
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=every, return_dict=True)
    states = {n: out.hidden_states[n] if every else out.last_hidden_state for n in wanted}
    return {n: s.flatten(0, 1).index_select(0, packed.slots) for n, s in states.items()}


def _changed_embeddings(model: Any, change: Callable[[Tensor], Tensor] | None) -> Any:
    """A context in which `change` is applied to the output of the embedding layer; None = nothing is changed."""
    if change is None:
        return nullcontext()
    embeddings = getattr(model, "embeddings", None)
    if embeddings is None:
        raise EncoderError(f"family {model.config.model_type}: its embedding layer is not known, so not changed")
    return embeddings.register_forward_hook(lambda _, __, out: change(out))  # the handle removes the hook at the end


def enable_checkpointing(model: Any, packed: bool) -> None:
    """Recompute a model's layers in the backward pass, which runs outside of `our_attention`."""
    options = {"context_fn": lambda: (nullcontext(), our_attention(model))} if packed else {}
    model.gradient_checkpointing_enable({"use_reentrant": False, **options})


@contextmanager
def our_attention(model: Any) -> Iterator[None]:
    """Have a model's configuration name our attention. No mask function has that name, so the library makes no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


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
    """Attention of every packed sentence over its own tokens, with the signature that transformers calls.

    Args:
        query: (1, heads, T, d); key, value: (1, key heads, T, d), key heads dividing heads.
        scaling: of the scores, None = 1/sqrt(d); dropout: p of the probabilities, 0 outside training.
        sliding_window: tokens more than `sliding_window` - 1 apart do not attend to each other (as flash attention
            counts).
    Returns: (1, T, heads, d), and no probabilities.
    Raises: NotImplementedError for an attention that computes something else; the encoder is then padded.
    """
    named = [name for name in UNSUPPORTED if others.get(name) is not None]
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
    if sliding_window is not None and sliding_window >= packed_sentences.longest:
        sliding_window = None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, heads, d)
    context = attend_masked(q, k, v, packed_sentences, dropout, causal, sliding_window)
    return context.view(1, tokens, heads, width), None


def packing_note(model: Any, prefix: Sequence[int], suffix: Sequence[int]) -> str:
    """Why an encoder cannot be packed, "" when packed and padded passes agree on vectors and gradients.

    Runs a few random sentences in evaluation mode. Compares the last state and the gradients of the embeddings and the
    first block, through which all others pass.
    """
    encoder = packed_encoder(model)
    if encoder is None:
        return f"packing does not support the family {model.config.model_type}: batches are padded"
    window = getattr(model.config, "sliding_window", None) or 0
    lengths = (5, 2, 9, 5, *((window + 12,) if 0 < window < MOST_TOKENS // 2 else ()))  # one beyond a small window
    packed = pack(random_sentences(model, lengths), MOST_TOKENS, prefix, suffix)
    last = model.config.num_hidden_layers  # only this one: asking the library for others leaves hooks behind
    checked = [p for name, p in model.named_parameters() if "pooler" not in name][:CHECKED]
    try:
        ours = _value_and_gradients(lambda: encoder.states(packed, (last,))[last], checked)
        theirs = _value_and_gradients(lambda: padded_states(model, packed, (last,))[last], checked)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        log.debug("packing check failed", exc_info=error)
        return f"the packing check failed with {type(error).__name__}: batches are padded"
    worst = max(float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in zip(ours, theirs, strict=True))
    return "" if worst <= TOLERANCE else f"packed and padded passes differ by {worst:.1e}: batches are padded"


def random_sentences(model: Any, lengths: Sequence[int]) -> list[Any]:
    """Sentences of random ids, the same ones every time, without the padding id (RoBERTa counts positions by it)."""
    words = np.arange(model.get_input_embeddings().num_embeddings, dtype=np.int32)
    words = words[words != model.config.pad_token_id]
    rng = np.random.default_rng(0)
    return [rng.choice(words, n) for n in lengths]


def _value_and_gradients(states: Callable[[], Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    with torch.enable_grad():
        value = states()
        total = (value * torch.cos(torch.arange(value.numel()).view(value.shape))).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [value.detach(), *(g for g in gradients if g is not None)]
