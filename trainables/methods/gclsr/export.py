"""A trained GCLSR network as a folder with its own loader (`gclsr_loader.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from trainables.encoders.word_vectors import WordVectors
from trainables.methods.gclsr import gclsr_loader
from trainables.methods.gclsr.config import GclsrConfig


def export(network: nn.Module, config: GclsrConfig, source: WordVectors, language: str, folder: Path) -> None:
    """All words of the vector file go along: which ones a user's sentences need is not known here."""
    state = network.state_dict()
    tensors = {name.removeprefix("backbone."): t for name, t in state.items() if name.startswith("backbone.")}
    tensors |= {"padding": state["padding"], "vectors": torch.from_numpy(source.matrix)}
    # Not by `save_file`, which makes a file that only its owner reads.
    (folder / "model.safetensors").write_bytes(save({k: t.detach().cpu().contiguous() for k, t in tensors.items()}))
    (folder / "words.txt").write_text("\n".join(source.words), encoding="utf-8")
    content = {
        "model_type": "gclsr",
        "language": language,
        "region_sizes": list(config.region_sizes),
        "filters": config.filters,
        "max_words": config.max_words,
        "attention_at_eval": config.self_attention and config.attention_at_eval,
        "vector_seed": int(state["vector_seed"]),
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.copy(Path(gclsr_loader.__file__), folder / "gclsr_loader.py")
