"""The masked-language-model head that a checkpoint of an encoder holds beside it."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from trainables.contract.errors import first_line

log = logging.getLogger(__name__)

# Where checkpoints keep the parts of the head: name in `heads.MlmHead` -> names there, per library class.
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


def mlm_weights(folder: Path, hidden: int, embeddings: tuple[int, int]) -> dict[str, Tensor]:
    """The head's tensors that the checkpoint has in the expected shapes.

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
        except Exception as error:  # a dozen kinds; the weights themselves were read, from a file beside it
            log.warning(
                "%s: cannot be read (%s): no masked-language-model head is taken from it", file, first_line(error)
            )
            continue
        found.update({name: tensors[name] for name in names.intersection(tensors)})
    return found
