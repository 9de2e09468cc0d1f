"""From token states to one vector per sentence (methods 1.3). Sentences lie end to end, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainables.encoders.packing import Packed

FROM_FIRST_TOKEN = ("cls", "cls_before_pooler", "pretrained_pooler")
AVERAGES = ("avg", "avg_first_last", "avg_top2")


def wanted_states(pooling: str, layers: int) -> tuple[int, ...]:
    """Numbers of the hidden states that a pooling reads (0 = embedding layer, `layers` = last layer).

    The first of `avg_first_last` is the first transformer layer, not the embedding layer (D01).

    Raises: ValueError for an unknown pooling.
    """
    if pooling in FROM_FIRST_TOKEN or pooling in ("avg", "last"):
        return (layers,)
    if pooling == "avg_first_last":
        return (1, layers)
    if pooling == "avg_top2":
        return (layers - 1, layers)
    raise ValueError(f"pooling: expected one of {', '.join((*FROM_FIRST_TOKEN, 'last', *AVERAGES))}, got {pooling!r}")


def average(states: Mapping[int, Tensor], packed: Packed) -> Tensor:
    """Mean over layers, then over each sentence's tokens, special tokens included (D02).

    Args:
        states: layer number -> (T, H), the `wanted_states`.
        packed: where each of its N sentences lies in the T tokens.
    Returns: (N, H) float32 (or float64), in the packed order.
    """
    layers = [s if s.dtype == torch.float64 else s.float() for s in states.values()]
    tokens = layers[0] if len(layers) == 1 else torch.stack(layers).mean(0)
    sums = tokens.new_zeros(len(packed), tokens.shape[1]).index_add(0, packed.sentence, tokens)
    return sums / packed.lengths_tensor.to(tokens.dtype)[:, None]


def pretrained_pooler(encoder: Any, vectors: Tensor) -> Tensor:
    """(N, H) states of first tokens through the pooler that the encoder came with.

    BERT's reads the first of (N, T, H) states. Those of ALBERT and BigBird are bare linear layers, with tanh elsewhere.
    """
    if isinstance(encoder.pooler, nn.Linear):
        return torch.tanh(encoder.pooler(vectors))
    return cast(Tensor, encoder.pooler(vectors[:, None]))
