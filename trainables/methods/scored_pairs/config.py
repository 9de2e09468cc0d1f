"""The hyperparameters of `scored_pairs`, its preset and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset


@dataclass(frozen=True, kw_only=True)
class ScoredPairsConfig(EncoderConfig):
    """Pairs with a score, such as STS: the cosine follows the score; the defaults are sentence-transformers' recipe."""

    batch_size: int = 16
    learning_rate: float = 5e-5
    warmup_share: float = 0.1
    epochs: int = 4
    pooling: str = "avg"
    head: str = "none"
    max_length: int = 128  # ours: the recipe cuts at what the encoder was trained on
    loss: str = hyperparameter(
        "cosent",
        "cosent, angle: pairs in the order of their scores, by cosine or angle (doi:10.1109/TASLP.2024.3402087, "
        "arXiv:2309.12871); cosine: squared difference of cosine and score",
        choices=("cosent", "angle", "cosine"),
    )

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(v, "loss", "cosine", "temperature")


SCORED_PAIRS = Declaration(
    name="scored_pairs",
    paper="Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks, arXiv:1908.10084",
    config=ScoredPairsConfig,
    columns="scored_pairs",
    code="trainables.methods.scored_pairs.method:METHOD",
    presets={
        "sentence_transformers": Preset(
            ("*",), {"loss": "cosine"}, "sentence-transformers' example training_stsbenchmark.py (CosineSimilarityLoss)"
        ),
    },
)
