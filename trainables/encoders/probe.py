"""Running an encoder on a few sentences to see what it does, instead of believing its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainables.contract.errors import EncoderError, first_line
from trainables.encoders.adapters import linear_layers, without_numbers
from trainables.encoders.depth import blocks, has_weights_above
from trainables.encoders.dropout import Watch, set_dropout
from trainables.encoders.facts import EncoderFacts
from trainables.encoders.packing import pack
from trainables.encoders.packing_check import packing_note, padded_states, random_sentences
from trainables.encoders.tokenizing import Template

PROBED = 0.3  # a probability that no family has by itself
SAME = 1e-4  # padded against alone, largest difference relative to the largest value (at least 1), float32
MOST_TOKENS = 512
LENGTHS = (7, 3, 7, 5, 12, 6)  # words of the probed sentences


def probe(source: str, model: Any, template: Template, mask_token: bool) -> EncoderFacts:
    """Run an encoder (in evaluation mode, float32, on the CPU) and see what it honours. Its weights stay as they are.

    Raises: EncoderError if it gives no vectors of sentences.
    """
    family = model.config.model_type
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _check_padding(source, model, template)
            first_sees, last_sees = sees(model, template)
            drops, problem = _dropout(model, template)
            note = packing_note(model, template.prefix, template.suffix)
            linear = _linear_that_run(model, template)
            bidirectional = False
            if not first_sees:
                with _both_ways(model):
                    bidirectional = sees(model, template) == (True, True)
                    note = note or (packing_note(model, template.prefix, template.suffix) if bidirectional else "")
    except EncoderError:
        raise
    except Exception as error:  # whatever a family's forward pass raises without its other inputs
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise EncoderError(f"encoder {source!r}: {family} gives no sentence vectors here: {reason}") from error
    if not first_sees and not last_sees:
        raise EncoderError(f"encoder {source!r}: no token of {family} sees the whole sentence")
    return EncoderFacts(
        family=family,
        longest=longest_sentence(model),
        first_sees=first_sees and bool(template.prefix),
        last_sees=last_sees,
        drops=drops,
        dropout_problem=problem,
        pooler=not isinstance(getattr(model, "pooler", None), torch.nn.Identity | None),
        mask_token=mask_token,
        bidirectional=bidirectional,
        packing_note=note,
        end_token=template.end_token,
        linear=linear,
        blocks=len(blocks(model)),
        above=has_weights_above(model),
        checkpointing=bool(model.supports_gradient_checkpointing),
    )


def longest_sentence(model: Any) -> int:
    """Most tokens of a sentence that the encoder has positions for, special tokens included."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, torch.nn.Embedding):
        said = int(getattr(model.config, "max_position_embeddings", None) or 0)
        return said if said > 0 else MOST_TOKENS  # XLNet and Mamba have positions without end
    return int(table.num_embeddings) - (0 if table.padding_idx is None else table.padding_idx + 1)


def set_bidirectional(model: Any) -> None:
    """Let every token of a decoder see the whole sentence, where the family's masks follow the configuration."""
    for part in model.modules():
        if getattr(part, "is_causal", None) is True:
            part.is_causal, part.inclusive_window = False, True  # the masks of made-bidirectional decoders count so
    if hasattr(model.config, "use_bidirectional_attention"):
        model.config.use_bidirectional_attention = True
    model.config.is_causal = False


def _last(model: Any, sentences: Sequence[Any], template: Template) -> tuple[Tensor, Any]:
    packed = pack(sentences, 64, template.prefix, template.suffix)
    return padded_states(model, packed, (model.config.num_hidden_layers,))[model.config.num_hidden_layers], packed


@torch.no_grad()
def _check_padding(source: str, model: Any, template: Template) -> None:
    """A sentence's vector is its own, however long its neighbours in the batch are."""
    sentences = random_sentences(model, LENGTHS)
    together, packed = _last(model, sentences, template)
    if not bool(together.isfinite().all()):
        raise EncoderError(f"encoder {source!r}: its states are not finite numbers")
    place = packed.order.tolist().index(1)
    alone, _ = _last(model, sentences[1:2], template)
    start = int(packed.starts[place])
    among = together[start : start + int(packed.lengths[place])]
    worst = float((among - alone).abs().max() / alone.abs().max().clamp_min(1))
    if worst > SAME:
        raise EncoderError(
            f"encoder {source!r}: the vectors of {model.config.model_type} depend on the padding of their batch (by "
            f"{worst:.1e}), which no evaluation can reproduce; use another encoder"
        )


@torch.no_grad()
def _linear_that_run(model: Any, template: Template) -> tuple[str, ...]:
    """Linear layers that are called as modules, without numbers: an adapter beside another one would be ignored."""
    ran: dict[str, None] = {}
    hooks = [
        part.register_forward_hook(lambda *_, name=name: ran.setdefault(without_numbers(name)))
        for name, part in linear_layers(model).items()
        if "pooler" not in name  # taken out of a copy, unless it is what pools
    ]
    try:
        _last(model, random_sentences(model, LENGTHS[:2]), template)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(ran)


@torch.no_grad()
def sees(model: Any, template: Template) -> tuple[bool, bool]:
    """Whether the first and the last token's states change with every word of a sentence."""
    (base,) = random_sentences(model, (5,))
    others = [w for w in random_sentences(model, (64,))[0] if w not in base]
    changed = [base]
    for i in range(len(base)):
        other = base.copy()
        other[i] = others[i % len(others)] if others else (base[i] + 1) % model.get_input_embeddings().num_embeddings
        changed.append(other)
    states, _ = _last(model, changed, template)
    rows = states.view(len(changed), -1, states.shape[-1])
    moved = [(rows[1:, token] - rows[0, token]).abs().amax(-1) for token in (0, -1)]
    first, last = (bool((m > 0).all()) for m in moved)
    return first, last


@contextmanager
def _both_ways(model: Any) -> Iterator[None]:
    """A decoder whose tokens see the whole sentence, as far as `set_bidirectional` goes; afterwards as it was."""
    causal = [part for part in model.modules() if getattr(part, "is_causal", None) is True]
    before = dict(vars(model.config))
    set_bidirectional(model)
    try:
        yield
    finally:
        for part in causal:
            part.is_causal, part.inclusive_window = True, False
        for name in ("use_bidirectional_attention", "is_causal"):
            if name in before:
                setattr(model.config, name, before[name])
            elif name in vars(model.config):
                delattr(model.config, name)


@torch.no_grad()
def _dropout(model: Any, template: Template) -> tuple[tuple[str, ...], str]:
    """What dropout reaches, and why it is not honoured ("" when it is): two views at p differ and drop p, at 0 not."""
    sentences = random_sentences(model, LENGTHS)
    model.train()
    try:
        set_dropout(model, 0.0)
        first, second = (_last(model, sentences, template)[0] for _ in range(2))
        if not torch.equal(first, second):
            return (), "two views differ at dropout 0: the family draws at random what no hyperparameter says"
        set_dropout(model, PROBED)
        with Watch() as watch:
            first, second = (_last(model, sentences, template)[0] for _ in range(2))
    finally:
        model.eval()
        set_dropout(model, 0.0)
    placed = {
        kind: [p for p in watch.places if p.attention is (kind == "attention")] for kind in ("attention", "hidden")
    }
    drops = tuple(kind for kind, places in placed.items() if any(p.dropped for p in places))
    if drops and torch.equal(first, second):
        return drops, f"two views are equal at dropout {PROBED}"
    for kind in drops:
        for number, place in enumerate(placed[kind]):
            if not place.fits(PROBED):
                share = place.dropped / max(place.values, 1)
                return drops, f"asked for {PROBED}, {kind} dropout {number} drops {share:.2f}"
    return drops, ""
