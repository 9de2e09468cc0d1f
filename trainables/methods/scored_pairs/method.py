"""Pairs of sentences with a score: CoSENT, AnglE, or regression of the cosine."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trainables.data.scores import COSINE, score_scale
from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded
from trainables.methods.losses import angle, cosent, cosine_regression
from trainables.methods.method import Examples, Method, TextTools, all_columns
from trainables.methods.scored_pairs.config import SCORED_PAIRS, ScoredPairsConfig


def prepare(texts: Texts, config: ScoredPairsConfig, seed: int, tools: TextTools) -> Examples:
    """Both columns, and the scores on the cosine's scale: their own scale becomes 0 to 1; -1 to 1 stays."""
    del config, seed
    low, high = score_scale(texts["score"])
    scores = np.array(texts["score"], np.float64)
    target = scores if (low, high) == COSINE else (scores - low) / (high - low)
    return Examples(
        {role: tools.tokenise(texts[role], "query") for role in ("first", "second")},
        numbers={"score": target.astype(np.float32)},
        facts={"score_scale_low": low, "score_scale_high": high},
    )


def loss(z: Encoded, config: ScoredPairsConfig) -> Tensor:
    """The batch's pairs against their scores."""
    pairs = z["first"], z["second"], z["score"]
    if config.loss == "cosine":
        return cosine_regression(*pairs)
    return (cosent if config.loss == "cosent" else angle)(*pairs, config.temperature)


METHOD = Method(declaration=SCORED_PAIRS, prepare=prepare, views=all_columns, loss=loss)
