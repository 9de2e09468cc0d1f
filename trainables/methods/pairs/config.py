"""The hyperparameters of `pairs`, its preset and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, Unused, hyperparameter
from trainables.contract.declaration import Declaration, Preset


@dataclass(frozen=True, kw_only=True)
class PairsConfig(EncoderConfig):
    """InfoNCE on pairs, such as queries and passages; the defaults are sentence-transformers' recipe."""

    batch_size: int = 16
    batches: str = "no_duplicates"
    learning_rate: float = 2e-5
    warmup_share: float = 0.1
    pooling: str = "avg"
    head: str = "none"
    max_length: int = 128  # ours: the recipe cuts at what the encoder was trained on, 256 or 512
    direction: str = hyperparameter(
        "one_way", "anchors find their positives, or both find each other", choices=("one_way", "both")
    )
    hard_negatives: int | None = hyperparameter(
        None, "hard negatives used of a row, null = all that the data have", kind="int", low=0
    )
    false_negatives: str = hyperparameter(
        "keep",
        "in-batch candidates that are no negatives: keep = none; same_text = the anchor's own texts, and positives of "
        "an equal anchor; margin = those more similar than the positive plus `margin` (GISTEmbed, arXiv:2402.16829)",
        choices=("keep", "same_text", "margin"),
    )
    guide: str | None = hyperparameter(
        None, "frozen encoder (name or folder) whose cosines false_negatives margin compares, null = the trained one's",
        kind="str",
    )  # fmt: skip
    margin: float = hyperparameter(0.0, "added to the positive's cosine, for false_negatives margin", low=-2, high=2)

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v))
        if v["false_negatives"] != "margin":
            found |= dict.fromkeys(("margin", "guide"), ("false_negatives", v["false_negatives"]))
        return found


PAIRS = Declaration(
    name="pairs",
    paper="Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks, arXiv:1908.10084",
    config=PairsConfig,
    columns="pairs",
    code="trainables.methods.pairs.method:METHOD",
    presets={
        "sentence_transformers": Preset(
            ("*",), {}, "sentence-transformers' documentation, Training Overview (MultipleNegativesRankingLoss)"
        ),
    },
)
