"""Heads on sentence vectors (methods 1.4) and on tokens (the MLM term, 1.6)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_head(kind: str, width: int, seed: int, std: float = 0.02) -> nn.Module | None:
    """A new head with random weights, or None for kind "none".

    linear_tanh (SimCSE): Linear(H, H), tanh. mlp_bn (DiffCSE's projector, D20): Linear(H, 2H), BatchNorm, ReLU,
    Linear(2H, H), BatchNorm without affine; no biases.

    Args:
        kind: "linear_tanh", "mlp_bn" or "none"; width: H.
        seed: the weights depend on it and on nothing else; std: of the normal draws (BERT's `initializer_range`).
    Raises: ValueError for another kind.
    """
    if kind == "none":
        return None
    if kind == "linear_tanh":
        head = nn.Sequential(nn.Linear(width, width), nn.Tanh())
    elif kind == "mlp_bn":
        head = nn.Sequential(
            nn.Linear(width, 2 * width, bias=False),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width, bias=False),
            nn.BatchNorm1d(width, affine=False),
        )
    else:
        raise ValueError(f"head: expected one of linear_tanh, mlp_bn, none, got {kind!r}")
    _initialise(head, torch.Generator().manual_seed(seed), std)
    return head


class MlmHead(nn.Module):
    """BERT's masked-language-model head: dense, GELU, layer norm, then the tied word embeddings as decoder.

    width: H of the states; words: (V, E), shape of the word embeddings (E < H in ALBERT, ELECTRA-small, RemBERT).
    `pretrained` holds the checkpoint's own head ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias");
    what it lacks gets new weights from `seed`.
    """

    def __init__(
        self,
        width: int,
        words: tuple[int, int],
        pretrained: Mapping[str, Tensor],
        seed: int,
        eps: float = 1e-12,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, words[1])
        self.norm = nn.LayerNorm(words[1], eps=eps)
        self.bias = nn.Parameter(torch.zeros(words[0]))
        _initialise(self, torch.Generator().manual_seed(seed), std)
        self.load_state_dict(dict(pretrained), strict=False)

    def forward(self, hidden: Tensor, decoder: Tensor) -> Tensor:
        """Logits (M, V) of hidden states (M, H); decoder: (V, E) word embeddings."""
        return F.linear(self.norm(F.gelu(self.dense(hidden))), decoder, self.bias)


def _initialise(module: nn.Module, generator: torch.Generator, std: float) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
