"""Measuring an encoder on a few sentences instead of trusting its configuration; setting and counting dropout.

BERT's family keeps the dropout probability in `nn.Dropout` modules. Newer families copy it from the configuration into
float attributes of their attention modules (`attention_dropout`). So p is set in every place, and then measured
(`DropoutCounter`), since the next family may have yet another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainables.contract.errors import EncoderError, first_line
from trainables.encoders.adapters import blocks, has_weights_above, linear_layers, sharing_copy, without_numbers
from trainables.encoders.facts import EncoderFacts
from trainables.encoders.forward import MOST_TOKENS, packing_note, padded_states, random_sentences
from trainables.encoders.packing import Packed, pack
from trainables.encoders.tokenizing import Template

PROBED = 0.3  # a probability that no family has by itself
SAME = 1e-4  # padded against alone, largest difference relative to the largest value (at least 1), float32
LENGTHS = (7, 3, 7, 5, 12, 6)  # words of the probed sentences
SIGMAS = 6.0  # how far a measured share may lie from p: one false alarm in 5e8 counted dropouts
_NOT_ENCODING = ("classifier", "summary", "layerdrop", "layer_drop", "drop_path", "path_drop")


def probe(source: str, model: Any, template: Template, mask_token: bool) -> EncoderFacts:
    """Run an encoder (in evaluation mode, float32, on the CPU) and measure what it honours. Its weights do not change.

    Raises: EncoderError if it returns no sentence vectors.
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
                other = sharing_copy(model).requires_grad_()
                set_bidirectional(other)
                bidirectional = sees(other, template) == (True, True)
                note = note or (packing_note(other, template.prefix, template.suffix) if bidirectional else "")
    except EncoderError:
        raise
    except Exception as error:  # whatever a family's forward pass raises when its other inputs are missing
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
        pooler=not isinstance(getattr(model, "pooler", None), nn.Identity | None),
        mask_token=mask_token,
        bidirectional=bidirectional,
        packing_note=note,
        end_token=template.end_token,
        linear=linear,
        blocks=len(blocks(model)),
        above=has_weights_above(model),
        width=int(model.config.hidden_size),
        checkpointing=bool(model.supports_gradient_checkpointing),
    )


def longest_sentence(model: Any) -> int:
    """Most tokens of a sentence that the encoder has positions for, special tokens included."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        configured = int(getattr(model.config, "max_position_embeddings", None) or 0)
        return configured if configured > 0 else MOST_TOKENS  # XLNet and Mamba have unlimited positions
    return int(table.num_embeddings) - (0 if table.padding_idx is None else table.padding_idx + 1)


def set_bidirectional(model: Any) -> None:
    """Let every token of a decoder attend to the whole sentence, where the family's masks follow the configuration."""
    for part in model.modules():
        if getattr(part, "is_causal", None) is True:
            part.is_causal, part.inclusive_window = False, True  # as the library's masks of such decoders count
    if hasattr(model.config, "use_bidirectional_attention"):
        model.config.use_bidirectional_attention = True
    model.config.is_causal = False


def _last(model: Any, sentences: Sequence[Any], template: Template) -> tuple[Tensor, Packed]:
    packed, last = pack(sentences, 64, template.prefix, template.suffix), model.config.num_hidden_layers
    return padded_states(model, packed, (last,))[last], packed


@torch.no_grad()
def _check_padding(source: str, model: Any, template: Template) -> None:
    """Check that a sentence's states do not depend on the length of its neighbours in the batch."""
    sentences = random_sentences(model, LENGTHS)
    together, packed = _last(model, sentences, template)
    if not bool(together.isfinite().all()):
        raise EncoderError(f"encoder {source!r}: its states are not finite numbers")
    at = packed.order.tolist().index(1)
    alone, _ = _last(model, sentences[1:2], template)
    start = int(packed.starts[at])
    among = together[start : start + int(packed.lengths[at])]
    worst = float((among - alone).abs().max() / alone.abs().max().clamp_min(1))
    if worst > SAME:
        raise EncoderError(
            f"encoder {source!r}: the vectors of {model.config.model_type} depend on the padding of their batch (by "
            f"{worst:.1e}), which no evaluation can reproduce; use another encoder"
        )


@torch.no_grad()
def _linear_that_run(model: Any, template: Template) -> tuple[str, ...]:
    """Names without numbers of linear layers that are called as modules: elsewhere an adapter would be ignored."""
    ran: dict[str, None] = {}
    hooks = [
        part.register_forward_hook(lambda *_, name=name: ran.setdefault(without_numbers(name)))
        for name, part in linear_layers(model).items()
        if "pooler" not in name  # copies have no pooler, unless it is the pooling
    ]
    try:
        _last(model, random_sentences(model, LENGTHS[:2]), template)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(ran)


@torch.no_grad()
def sees(model: Any, template: Template) -> tuple[bool, bool]:
    """Whether the first and the last token's states depend on every word of a sentence."""
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


@torch.no_grad()
def _dropout(model: Any, template: Template) -> tuple[tuple[str, ...], str]:
    """Where dropout acts, and why p is not honoured ("" when it is): two views at p differ and drop p, at 0 neither."""
    sentences = random_sentences(model, LENGTHS)
    model.train()
    try:
        set_dropout(model, 0.0)
        first, second = (_last(model, sentences, template)[0] for _ in range(2))
        if not torch.equal(first, second):
            return (), "two views differ at dropout 0: the family draws random numbers that no hyperparameter controls"
        set_dropout(model, PROBED)
        with DropoutCounter() as counter:
            first, second = (_last(model, sentences, template)[0] for _ in range(2))
    finally:
        model.eval()
        set_dropout(model, 0.0)
    counted = {kind: [c for c in counter.counts if c.kind == kind] for kind in ("attention", "hidden")}
    drops = tuple(kind for kind, counts in counted.items() if any(c.dropped for c in counts))
    if drops and torch.equal(first, second):
        return drops, f"two views are equal at dropout {PROBED}"
    for kind in drops:
        for number, count in enumerate(counted[kind]):
            if not count.fits(PROBED):
                return drops, f"{kind} dropout {number} drops {count.share:.2f}, not {PROBED}"
    return drops, ""


def set_dropout(model: nn.Module, p: float) -> None:
    """Make p the probability of every dropout of a model: modules, float attributes of modules, configurations."""
    holders: list[Any] = []
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = p
        holders += [part, getattr(part, "config", None)]
    for holder in {id(holder): holder for holder in holders if hasattr(holder, "__dict__")}.values():
        for name in dropout_keys(holder):
            setattr(holder, name, p)


def dropout_keys(holder: Any) -> list[str]:
    """Names of the dropout probabilities that a module or a configuration holds as plain numbers."""
    return [
        name
        for name, value in vars(holder).items()
        if "drop" in name
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not any(other in name for other in _NOT_ENCODING)
    ]


@dataclass(frozen=True)
class DropoutCount:
    """One dropout that ran: its kind ("attention" or "hidden"), its nonzero inputs, how many of them it zeroed."""

    kind: str
    values: int
    dropped: int

    @property
    def share(self) -> float:
        return self.dropped / max(self.values, 1)

    def fits(self, p: float) -> bool:
        """Whether the measured share is p, within what so many draws can tell."""
        return abs(self.share - p) <= SIGMAS * math.sqrt(p * (1 - p) / max(self.values, 1)) + 2**-15


@dataclass
class DropoutCounter(TorchFunctionMode):
    """While entered, counts every dropout that runs. One inside a fused attention is drawn a second time."""

    counts: list[DropoutCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            before = args[0] if args else kwargs["input"]
            alive, kind = before != 0, "attention" if _is_attention(before) else "hidden"
            out = func(*args, **kwargs)
            self.counts.append(DropoutCount(kind, int(alive.sum()), int((alive & (out == 0)).sum())))
            return out
        if func is F.scaled_dot_product_attention:
            self.counts.append(_inside(*args, **kwargs))
        return func(*args, **kwargs)


def _inside(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> DropoutCount:
    """What a fused attention drops: with the identity for values, its output is the attention probabilities."""
    del value
    length = key.shape[-2]
    unit = torch.eye(length, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], length, length)
    given = dict(zip(("attn_mask", "dropout_p", "is_causal", "scale"), args, strict=False)) | kwargs
    p = given.pop("dropout_p", 0.0)
    with torch.no_grad():
        probs = F.scaled_dot_product_attention(query, key, unit, **given)
        left = F.scaled_dot_product_attention(query, key, unit, dropout_p=p, **given)
    alive = probs > 0
    return DropoutCount("attention", int(alive.sum()), int((alive & (left == 0)).sum()))


def _is_attention(values: Tensor) -> bool:
    """Whether the rows sum to one, as probabilities do."""
    if values.dim() < 3 or not values.is_floating_point():
        return False
    sums = values.detach().float().sum(-1)
    return bool((values >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
