"""The forward pass of BERT-like encoders on packed batches: one function for BERT, RoBERTa, MPNet and DistilBERT.

These families compute the same thing (post-norm blocks) under different names. `trunk_of` maps the names and
`Trunk.states` runs the modules of the Hugging Face model. Against the library's own forward this saves the padding, in
the last layer everything but the first tokens when pooling reads only them, three quarters of the time for dropout
noise, and two thirds of the operator calls. `forward.packing_note` compares both, once per encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainables.encoders import attention
from trainables.encoders.adapters import adapter_output
from trainables.encoders.attention import keep_noise
from trainables.encoders.packing import Packed

ChangeEmbeddings = Callable[[Tensor], Tensor]  # (T, H) output of the embedding layer in packed order -> (T, H)
Linear = tuple[Tensor, Tensor]  # (out, in) weights and (out,) biases

_FEED_FORWARD = ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense", "output.LayerNorm")
_BERT = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", *_FEED_FORWARD,
)  # fmt: skip
_NAMES = {  # family -> names of the parts of a `Layer` in its blocks
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "mpnet": (*(f"attention.attn.{name}" for name in "qkvo"), "attention.LayerNorm", *_FEED_FORWARD),
    "distilbert": (
        *(f"attention.{name}_lin" for name in ("q", "k", "v", "out")), "sa_layer_norm",
        "ffn.lin1", "ffn.activation", "ffn.lin2", "output_layer_norm",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """The parts of one transformer block: attention projections, its norm, feed-forward, its norm."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    attention_norm: nn.LayerNorm
    widen: nn.Linear
    activation: Callable[[Tensor], Tensor]
    narrow: nn.Linear
    norm: nn.LayerNorm


@dataclass(frozen=True)
class Trunk:
    """A BERT-like encoder; its modules are those of the Hugging Face model.

    Attributes:
        words, positions: embeddings; token_types: (types, H) weights of which row 0 is used, or None.
        first_position: position id of a sentence's first token (RoBERTa counts from 2).
        heads: attention heads.
        attention_out_dropout: dropout also on attention's output (not in DistilBERT).
        relative: None, or the function that gives MPNet's (heads, L, L) score bias for L tokens.
        checkpointing: recompute blocks in the backward pass.
    """

    words: nn.Embedding
    positions: nn.Embedding
    token_types: nn.Embedding | None
    norm: nn.LayerNorm
    layers: Sequence[Layer]
    first_position: int
    heads: int
    attention_out_dropout: bool
    relative: Callable[[int], Tensor] | None = None
    checkpointing: bool = False

    def states(
        self,
        packed: Packed,
        wanted: Sequence[int],
        dropout: float = 0.0,
        first_tokens_only: bool = False,
        change: ChangeEmbeddings | None = None,
    ) -> dict[int, Tensor]:
        """Hidden states of a packed batch.

        Args:
            wanted: numbers of the states to return (0 = embedding layer).
            dropout: p of the hidden and the attention-probability dropout; 0 outside training.
            first_tokens_only: return the last state of the first tokens only; it must be the only one wanted.
            change: applied to the embedding layer's output before the first block (cutoff, an inserted vector).
        Returns: number -> (T, H), or (N, H) of the first tokens; in the weights' type, also under autocast.
        """
        last = len(self.layers)
        assert not first_tokens_only or tuple(wanted) == (last,), wanted
        kind = packed.ids.device.type
        lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        fill = lower is not None and not attention.few_launches(packed.ids.device)
        filler = -len(packed.ids) % _quantum(len(packed.ids)) if fill else 0
        bias = None if self.relative is None else self.relative(packed.longest)
        with torch.autocast(kind, enabled=False):
            ids, positions = packed.ids, packed.positions + self.first_position
            if filler:
                ids, positions = F.pad(ids, (0, filler)), F.pad(positions, (0, filler), value=self.first_position)
            x = self.words(ids) + self.positions(positions)
            if self.token_types is not None:
                x = x + self.token_types.weight[0]
            x = _drop(self.norm(x), dropout)
            if change is not None:
                x = F.pad(change(x[: len(packed.ids)]), (0, 0, 0, filler)) if filler else change(x)
            found = {0: x}
            for number, layer in enumerate(self.layers, 1):
                args = (layer, x, packed, dropout, bias, first_tokens_only and number == last, lower)
                recompute = self.checkpointing and torch.is_grad_enabled()
                x = checkpoint(self._block, *args, use_reentrant=False) if recompute else self._block(*args)
                if number in wanted:
                    found[number] = x
        return {n: found[n][: len(packed.ids)] if filler else found[n] for n in wanted}

    def _block(
        self,
        layer: Layer,
        x: Tensor,
        packed: Packed,
        dropout: float,
        bias: Tensor | None,
        first_only: bool,
        lower: torch.dtype | None,
    ) -> Tensor:
        low = x if lower is None else x.to(lower)
        together = attention.few_launches(x.device) and not first_only
        projections = [[layer.query, layer.key, layer.value]] if together else [[layer.query], [layer.key, layer.value]]
        groups = [*projections, [layer.out], [layer.widen], [layer.narrow]]
        *inner, out, widen, narrow = [
            _Product(group, *weights) for group, weights in zip(groups, joined(groups, low.dtype), strict=True)
        ]
        if together:
            context = attention.attend_joint(inner[0](low), packed, self.heads, dropout, bias)
        else:
            key_value = inner[1](low)
            if first_only:
                x, low = x.index_select(0, packed.first), low.index_select(0, packed.first)
            context = attention.attend(inner[0](low), key_value, packed, self.heads, dropout, bias)
        x = layer.attention_norm(_drop_add(out(context), x, dropout if self.attention_out_dropout else 0.0))
        wide = layer.activation(widen(x.to(low.dtype)))
        return cast(Tensor, layer.norm(_drop_add(narrow(wide), x, dropout)))


@dataclass(frozen=True)
class _Product:
    """Layers that read the same input as one matrix product, plus the output of their adapters."""

    layers: Sequence[nn.Linear]
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        added = [adapter_output(layer, x) for layer in self.layers]
        if all(part is None for part in added):
            return out
        zeros = [x.new_zeros(1).expand(len(x), len(layer.weight)) for layer in self.layers]
        return out + torch.cat([zeros[n] if part is None else part for n, part in enumerate(added)], 1)


def _quantum(tokens: int) -> int:
    """Rows are filled up to a multiple of this, at most a sixteenth of them (bf16 on a CPU).

    oneDNN compiles a kernel for every new shape, which takes longer than the product itself, so shapes must repeat.
    """
    return 1 << max(3, tokens.bit_length() - 5)


def _drop(x: Tensor, p: float) -> Tensor:
    if attention.few_launches(x.device):
        return F.dropout(x, p)
    return x * keep_noise(x.shape, p, x) if p else x


def _drop_add(x: Tensor, residual: Tensor, p: float) -> Tensor:
    """Residual sum in the residual's type. Noise in bf16 would be off by 0.2 % in its factor 1 / (1 - p)."""
    if attention.few_launches(x.device):
        return residual + F.dropout(x, p)  # one kernel each; the factor is float32 inside
    x = x.to(residual.dtype)
    return torch.addcmul(residual, x, keep_noise(x.shape, p, x)) if p else x + residual


def joined(groups: Sequence[Sequence[nn.Linear]], dtype: torch.dtype) -> list[Linear]:
    """Weights and biases of each group's layers, one below the other, in `dtype`, by one operator in each direction.

    Layer by layer they would be sixteen casts each way per block, a third of the kernels that a training step launches
    on a GPU (tests/trainables/launches.py).

    Args:
        groups: layers that read the same input; a single layer whose weights have the type already is not copied.
    Returns: per group (sum of out, in) weights and (sum of out,) biases. Gradients have the parameters' type.
    """
    wanted = [
        [cast(Tensor, getattr(layer, kind)) for layer in group] for group in groups for kind in ("weight", "bias")
    ]
    copied = [n for n, parts in enumerate(wanted) if len(parts) > 1 or parts[0].dtype != dtype]
    found = [parts[0] for parts in wanted]
    if copied:
        sizes = tuple(len(wanted[n]) for n in copied)
        made = _Joined.apply(dtype, sizes, *(part for n in copied for part in wanted[n]))  # type: ignore[no-untyped-call]
        for n, whole in zip(copied, made, strict=True):
            found[n] = whole
    return list(zip(found[::2], found[1::2], strict=True))


class _Joined(torch.autograd.Function):
    """`torch.cat` of several groups of tensors at once, to another type."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, sizes: tuple[int, ...], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.parts = sizes, [(len(part), part.dtype) for part in parts]
        wholes: list[Tensor] = []
        slots: list[Tensor] = []
        first = 0
        for size in sizes:
            rows = [len(part) for part in parts[first : first + size]]
            wholes.append(parts[first].new_empty((sum(rows), *parts[first].shape[1:]), dtype=dtype))
            slots += torch.split(wholes[-1], rows)
            first += size
        torch._foreach_copy_(slots, list(parts))
        return tuple(wholes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for size, grad in zip(ctx.sizes, grads, strict=True):
            rows = [length for length, _ in ctx.parts[len(found) : len(found) + size]]
            found += [None] * size if grad is None else torch.split(grad, rows)
        found = [grad if needed else None for grad, needed in zip(found, ctx.needs_input_grad[2:], strict=True)]
        casts = [n for n, grad in enumerate(found) if grad is not None and grad.dtype != ctx.parts[n][1]]
        if casts:
            given = [cast(Tensor, found[n]) for n in casts]
            made = [torch.empty_like(g, dtype=ctx.parts[n][1]) for n, g in zip(casts, given, strict=True)]
            torch._foreach_copy_(made, given)
            for n, grad in zip(casts, made, strict=True):
                found[n] = grad
        return None, None, *found


def trunk_of(model: Any) -> Trunk | None:
    """The model as a `Trunk`, or None when its family is not one of the above."""
    config, family = model.config, model.config.model_type
    projected = getattr(model, "embeddings_project", None) is not None
    if family not in _NAMES or projected or getattr(config, "is_decoder", False):
        return None
    blocks = model.transformer.layer if family == "distilbert" else model.encoder.layer
    embeddings = model.embeddings
    padding = embeddings.position_embeddings.padding_idx
    return Trunk(
        words=embeddings.word_embeddings,
        positions=embeddings.position_embeddings,
        token_types=getattr(embeddings, "token_type_embeddings", None),
        norm=embeddings.LayerNorm,
        layers=[Layer(*(attrgetter(name)(block) for name in _NAMES[family])) for block in blocks],
        first_position=0 if padding is None else padding + 1,
        heads=config.num_attention_heads,
        attention_out_dropout=family != "distilbert",
        relative=partial(_mpnet_bias, model.encoder) if family == "mpnet" else None,
        checkpointing=any(getattr(part, "gradient_checkpointing", False) for part in model.modules()),
    )


def _mpnet_bias(encoder: Any, length: int) -> Tensor:
    grid = torch.empty(1, length, 0, device=encoder.relative_attention_bias.weight.device)
    return cast(Tensor, encoder.compute_position_bias(grid)[0])
