"""Trial folders as a trial leaves them, with weights that differ from the encoder's, made in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.contract.config import build
from trainables.contract.registry import declared
from trainables.contract.trial import TrialSpec
from trainables.encoders.load import load_source, revision
from trainables.methods.method import load_method
from trainables.training.checkpoint import TrialFiles

TINY_GCLSR = {"region_sizes": [1, 2, 3], "filters": 8, "max_words": 16}


def trial_folder(
    folder: Path,
    method: str = "simcse",
    language: str = "en",
    params: dict[str, Any] | None = None,
    seed: int = 3,
    prompts: dict[str, str] | None = None,
    encoder: str | None = None,
) -> Path:
    """A finished trial's folder: the method's network on the builtin or a given encoder, moved away from its start."""
    family = declared(method).encoders
    encoder = encoder or family.builtin
    spec = TrialSpec(
        method=method,
        encoder=encoder,
        data={"train": "builtin", "dev": ["builtin"], "language": language, "prompts": prompts},
        metric="builtin_dev",
        params=params or {},
        seed=seed,
        folder=str(folder),
    )
    config = build(declared(method).config, spec.params)
    source = load_source(family, encoder, language)
    network: Any = load_method(method).network(config, source, seed)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: w + (0.02 * torch.rand(w.shape, generator=generator) if w.is_floating_point() else 0)
        for name, w in network.state_dict().items()
    }  # upwards only: a batch-norm's variance stays positive
    at = {"examples": 500, "value": 0.4, "metrics": {"builtin_dev": 0.4}}
    about = {"spec": spec.to_dict(), "revisions": {"builtin": "builtin"}, "packing_note": "", "best": at}
    about["encoder"] = revision(source)
    TrialFiles(str(folder)).save_best(weights, about, {"builtin_dev": np.linspace(0, 1, 5, dtype=np.float32)})
    return folder
