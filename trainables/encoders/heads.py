"""Heads on sentence vectors (methods 1.4) and on tokens (the MLM term, 1.6), and the MLM head of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.contract.errors import first_line

log = logging.getLogger(__name__)

# Names of the MLM head's parts in checkpoints, per library class: name in `MlmHead` -> names there.
_DENSE = (
    "cls.predictions.transform.dense", "lm_head.dense", "vocab_transform", "predictions.dense",
    "generator_predictions.dense", "head.dense",
)  # fmt: skip
_NORM = (
    "cls.predictions.transform.LayerNorm", "lm_head.layer_norm", "vocab_layer_norm", "predictions.LayerNorm",
    "generator_predictions.LayerNorm", "head.norm",
)  # fmt: skip
_NAMES = {
    "dense.weight": tuple(f"{name}.weight" for name in _DENSE),
    "dense.bias": tuple(f"{name}.bias" for name in _DENSE),
    "norm.weight": (*(f"{name}.weight" for name in _NORM), "cls.predictions.transform.LayerNorm.gamma"),
    "norm.bias": (*(f"{name}.bias" for name in _NORM), "cls.predictions.transform.LayerNorm.beta"),
    "bias": (
        "cls.predictions.bias", "cls.predictions.decoder.bias", "lm_head.bias", "vocab_projector.bias",
        "predictions.bias", "predictions.decoder.bias", "generator_lm_head.bias", "decoder.bias",
    ),
}  # fmt: skip


def make_head(kind: str, width: int, seed: int, std: float = 0.02) -> nn.Module | None:
    """A new head with random weights, or None for kind "none".

    linear_tanh (SimCSE): Linear(H, H), tanh. mlp_bn (DiffCSE's projector, D20): Linear(H, 2H), BatchNorm, ReLU,
    Linear(2H, H), BatchNorm without affine; no biases.

    Args:
        kind: "linear_tanh", "mlp_bn" or "none"; width: H.
        seed: decides the weights, alone; std: of the normal draws (BERT's `initializer_range`).
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
    missing parts get new weights from `seed`.
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


def mlm_weights(folder: Path, hidden: int, embeddings: tuple[int, int]) -> dict[str, Tensor]:
    """The tensors of a checkpoint's MLM head that have the expected shapes.

    Args:
        hidden: H, width of the states; embeddings: (V, E), the shape of the word embeddings.
    """
    words, width = embeddings
    shapes = {"dense.weight": (width, hidden), "bias": (words,)}
    stored = _stored_tensors(folder, {name for names in _NAMES.values() for name in names})
    found = {part: next((stored[n] for n in names if n in stored), None) for part, names in _NAMES.items()}
    return {
        part: tensor.float()
        for part, tensor in found.items()
        if tensor is not None and tuple(tensor.shape) == shapes.get(part, (width,))
    }


def _stored_tensors(folder: Path, names: set[str]) -> dict[str, Tensor]:
    """Those of the named tensors that the weight files hold."""
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            found.update({name: tensors.get_tensor(name) for name in names.intersection(tensors.keys())})
    for file in () if found else sorted(folder.glob("pytorch_model*.bin")):
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a dozen kinds; the encoder's weights were read from another file
            log.warning("%s: cannot be read (%s): its masked-language-model head is not used", file, first_line(error))
            continue
        found.update({name: tensors[name] for name in names.intersection(tensors)})
    return found
