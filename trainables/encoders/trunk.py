"""The forward pass of BERT-like encoders on packed batches: one function for four families.

BERT, RoBERTa, MPNet and DistilBERT compute the same thing (post-norm blocks) under different names; `trunk_of` maps the
names, `Trunk.states` runs it with the modules and weights of the Hugging Face model. What this saves against the
library's own forward: padding; in the last layer everything but the first tokens when pooling reads only them; dropout
noise at a quarter of the price; a third of the operator calls. `encoder.load_encoder` compares both, once per encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainables.encoders import attention
from trainables.encoders.adapters import added
from trainables.encoders.attention import keep_noise
from trainables.encoders.joined import joined
from trainables.encoders.packing import Packed

ChangeEmbeddings = Callable[[Tensor], Tensor]  # (T, H) output of the embedding layer in packed order -> (T, H)


@dataclass(frozen=True)
class Layer:
    """The parts of one transformer block: attention projections, its norm, feed-forward, its norm."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    out_dropout: bool
    attention_norm: nn.LayerNorm
    widen: nn.Linear
    activation: Callable[[Tensor], Tensor]
    narrow: nn.Linear
    norm: nn.LayerNorm


@dataclass(frozen=True)
class Trunk:
    """A BERT-like encoder taken apart; its modules stay those of the model it came from.

    Attributes:
        words, positions: embeddings; token_types: (types, H) weights of which row 0 is used, or None.
        first_position: position id of a sentence's first token (RoBERTa counts from 2).
        heads: attention heads.
        relative: None, or the function that gives MPNet's (heads, L, L) score bias for L tokens.
        checkpointing: compute blocks again in backward.
    """

    words: nn.Embedding
    positions: nn.Embedding
    token_types: nn.Embedding | None
    norm: nn.LayerNorm
    layers: Sequence[Layer]
    first_position: int
    heads: int
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
            wanted: numbers of the states to give (0 = embedding layer).
            dropout: p of the hidden and the attention-probability dropout; 0 outside training.
            first_tokens_only: give the last state of the first tokens only, (N, H); it must be the only one wanted.
            change: what is done to the embedding layer's output before the first block (cutoff, a vector put in).
        Returns: number -> (T, H), or (N, H) as said; in the weights' type, also under autocast.
        """
        last = len(self.layers)
        assert not first_tokens_only or tuple(wanted) == (last,), wanted
        kind = packed.ids.device.type
        lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        filler = (
            0
            if lower is None or attention.few_launches(packed.ids.device)
            else -len(packed.ids) % _quantum(len(packed.ids))
        )
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
                given = (layer, x, packed, dropout, bias, first_tokens_only and number == last, lower)
                again = self.checkpointing and torch.is_grad_enabled()
                x = checkpoint(self._block, *given, use_reentrant=False) if again else self._block(*given)
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
        x = layer.attention_norm(_drop_add(out(context), x, dropout if layer.out_dropout else 0.0))
        wide = layer.activation(widen(x.to(low.dtype)))
        return cast(Tensor, layer.norm(_drop_add(narrow(wide), x, dropout)))


@dataclass(frozen=True)
class _Product:
    """Layers that read the same input as one matrix product, and what their adapters add."""

    layers: Sequence[nn.Linear]
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        more = [added(layer, x) for layer in self.layers]
        if all(part is None for part in more):
            return out
        none = [x.new_zeros(1).expand(len(x), len(layer.weight)) for layer in self.layers]
        return out + torch.cat([none[n] if part is None else part for n, part in enumerate(more)], 1)


def _quantum(tokens: int) -> int:
    """Rows are filled up to a multiple of this, at most a sixteenth of them (bf16 on a CPU).

    oneDNN compiles a kernel for every new shape, which takes longer than the product itself; so shapes must repeat.
    """
    return 1 << max(3, tokens.bit_length() - 5)


def _drop(x: Tensor, p: float) -> Tensor:
    if attention.few_launches(x.device):
        return F.dropout(x, p)
    return x * keep_noise(x.shape, p, x) if p else x


def _drop_add(x: Tensor, residual: Tensor, p: float) -> Tensor:
    """Residual sum in the residual's type. A noise kept in bf16 would be off by 0.2 % in its factor 1 / (1 - p)."""
    if attention.few_launches(x.device):
        return residual + F.dropout(x, p)  # one kernel each; the factor is float32 inside
    x = x.to(residual.dtype)
    return torch.addcmul(residual, x, keep_noise(x.shape, p, x)) if p else x + residual


def trunk_of(model: Any) -> Trunk | None:
    """The model taken apart, or None when it is not of a family known here (then padding is used)."""
    config = model.config
    if getattr(config, "is_decoder", False) or getattr(model, "embeddings_project", None) is not None:
        return None
    if config.model_type in ("bert", "roberta", "xlm-roberta", "camembert", "electra"):
        layers = [_bert_layer(layer) for layer in model.encoder.layer]
    elif config.model_type == "mpnet":
        layers = [_mpnet_layer(layer) for layer in model.encoder.layer]
    elif config.model_type == "distilbert":
        layers = [_distilbert_layer(layer) for layer in model.transformer.layer]
    else:
        return None
    parts = model.embeddings
    padding = parts.position_embeddings.padding_idx
    return Trunk(
        words=parts.word_embeddings,
        positions=parts.position_embeddings,
        token_types=getattr(parts, "token_type_embeddings", None),
        norm=parts.LayerNorm,
        layers=layers,
        first_position=0 if padding is None else padding + 1,
        heads=config.num_attention_heads,
        relative=_MpnetBias(model.encoder) if config.model_type == "mpnet" else None,
        checkpointing=any(getattr(part, "gradient_checkpointing", False) for part in model.modules()),
    )


@dataclass(frozen=True)
class _MpnetBias:
    encoder: Any

    def __call__(self, length: int) -> Tensor:
        grid = torch.empty(1, length, 0, device=self.encoder.relative_attention_bias.weight.device)
        return cast(Tensor, self.encoder.compute_position_bias(grid)[0])


def _bert_layer(layer: Any) -> Layer:
    inner, out = layer.attention.self, layer.attention.output
    return Layer(
        query=inner.query,
        key=inner.key,
        value=inner.value,
        out=out.dense,
        out_dropout=True,
        attention_norm=out.LayerNorm,
        **_bert_feed_forward(layer),
    )


def _mpnet_layer(layer: Any) -> Layer:
    inner = layer.attention.attn
    return Layer(
        query=inner.q,
        key=inner.k,
        value=inner.v,
        out=inner.o,
        out_dropout=True,
        attention_norm=layer.attention.LayerNorm,
        **_bert_feed_forward(layer),
    )


def _bert_feed_forward(layer: Any) -> dict[str, Any]:
    return {
        "widen": layer.intermediate.dense,
        "activation": layer.intermediate.intermediate_act_fn,
        "narrow": layer.output.dense,
        "norm": layer.output.LayerNorm,
    }


def _distilbert_layer(layer: Any) -> Layer:
    inner = layer.attention
    return Layer(
        query=inner.q_lin,
        key=inner.k_lin,
        value=inner.v_lin,
        out=inner.out_lin,
        out_dropout=False,  # DistilBERT drops attention probabilities and the feed-forward output only
        attention_norm=layer.sa_layer_norm,
        widen=layer.ffn.lin1,
        activation=layer.ffn.activation,
        narrow=layer.ffn.lin2,
        norm=layer.output_layer_norm,
    )
