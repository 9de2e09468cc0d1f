"""Pairs of an anchor and its positive, with any number of hard negatives: InfoNCE over the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded, Views
from trainables.methods.batches import text_numbers
from trainables.methods.losses import cosines, multiple_negatives, same_text
from trainables.methods.method import (
    PLAIN_ENCODER,
    TEXT,
    Batch,
    Examples,
    Method,
    TextTools,
    all_columns,
    is_negative,
    tokenised_triplets,
)
from trainables.methods.pairs.config import PAIRS, PairsConfig

GUIDE = "guide of "  # before a role: the guide's vectors of its texts


def prepare(texts: Texts, config: PairsConfig, seed: int, tools: TextTools) -> Examples:
    """The token columns, numbers by which equal texts are known, and the guide's vectors, (n, D) for each column."""
    numbers: dict[str, NDArray[Any]] = {
        TEXT + role: text_numbers(column, len(column)) for role, column in texts.items()
    }
    if config.false_negatives == "margin" and config.guide:
        assert tools.tools_for is not None
        guide = tools.tools_for(config.guide)
        guided = tokenised_triplets(texts, config, seed, guide).columns
        numbers |= {GUIDE + role: guide.embed(column, config) for role, column in guided.items()}
    return replace(tokenised_triplets(texts, config, seed, tools), numbers=numbers)


def views(examples: Examples, batch: Batch, config: PairsConfig, rng: np.random.Generator) -> Views:
    """Anchors, positives and the first `hard_negatives` of each row."""
    found = all_columns(examples, batch, config, rng)
    used = [role for role in found if is_negative(role)][: config.hard_negatives]  # [:None] = all
    return {role: rows for role, rows in found.items() if role in used or not is_negative(role)}


def loss(z: Encoded, config: PairsConfig) -> Tensor:
    """Each anchor against all positives and hard negatives of the batch but the false ones."""
    hard = [role for role in z if is_negative(role)]

    def roles(before: str = "") -> tuple[Tensor, Tensor, Tensor | None]:
        negative = torch.cat([z[before + role] for role in hard]) if hard else None
        return z[before + "anchor"], z[before + "positive"], negative

    excluded = same_text(*roles(TEXT)) if config.false_negatives == "same_text" else None
    margin = config.margin if config.false_negatives == "margin" else None
    guide = None
    if margin is not None and config.guide:
        anchor, positive, negative = roles(GUIDE)
        guide = cosines(anchor, positive if negative is None else torch.cat([positive, negative]))
    return multiple_negatives(*roles(), config.temperature, config.direction, excluded, margin, guide)


METHOD = Method(
    declaration=PAIRS,
    prepare=prepare,
    views=views,
    loss=loss,
    prepared_from=("false_negatives", "guide", *PLAIN_ENCODER.reads),
)
