"""SNCSE (arXiv:2201.05979): SimCSE, and the negated sentence as a soft negative.

The positive's lead over the soft negative is held between alpha and beta: a negation is near, but not the same.
Negations are our NEG (methods 4.2, 4.3). Sentences are pooled as in SimCSE; their code reads a prompt's mask token.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded, Views
from trainables.methods.baselines.config import SNCSE, SncseConfig
from trainables.methods.losses import info_nce
from trainables.methods.method import Batch, Examples, Method, TextTools, all_columns, share_changed
from trainables.methods.sda.edits import NEGATION, NO_EDIT, edited_texts


def prepare(texts: Texts, config: SncseConfig, seed: int, tools: TextTools) -> Examples:
    """Columns "anchor" and "negation", both from the parser's tokens (D21). Fact: coverage_neg in [0, 1].

    Raises: ParserError.
    """
    del seed
    parses = tools.parse(texts["sentence"])
    anchor, negation = (
        edited_texts(parses, edit, config.rule_set, tools.language, tools.cached) for edit in (NO_EDIT, NEGATION)
    )
    columns = {"anchor": tools.tokenise(anchor, "query"), "negation": tools.tokenise(negation, "query")}
    return Examples(columns, facts={"coverage_neg": share_changed(anchor, negation)})


def views(examples: Examples, batch: Batch, config: SncseConfig, rng: np.random.Generator) -> Views:
    """The sentence twice, and its negation."""
    found = all_columns(examples, batch, config, rng)
    return {"anchor": found["anchor"], "positive": found["anchor"], "negation": found["negation"]}


def bidirectional_margin(anchor: Tensor, positive: Tensor, negation: Tensor, alpha: float, beta: float) -> Tensor:
    """Mean of relu(d + alpha) + relu(-d - beta), d = cos(anchor, negation) - cos(anchor, positive) (Eq. 2-3).

    Args: anchor, positive, negation: (N, D); 0 <= alpha <= beta, in cosine.
    Returns: () scalar; 0 where every d lies in [-beta, -alpha].
    """
    near, soft = (torch.cosine_similarity(anchor, other, eps=1e-8) for other in (positive, negation))
    difference = soft - near
    return ((difference + alpha).relu() + (-difference - beta).relu()).mean()


def loss(z: Encoded, config: SncseConfig) -> Tensor:
    """InfoNCE + lambda * bidirectional margin loss (Eq. 4)."""
    pairs = info_nce(z["anchor"], z["positive"], config.temperature)
    soft = bidirectional_margin(z["anchor"], z["positive"], z["negation"], config.alpha, config.beta)
    return pairs + config.soft_weight * soft


METHOD = Method(declaration=SNCSE, prepare=prepare, views=views, loss=loss, prepared_from=("rule_set",))
