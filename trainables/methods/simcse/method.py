"""SimCSE (arXiv:2104.08821): unsupervised, dropout augments; supervised, NLI gives positives and negatives."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trainables.encoders.network import Encoded, Views
from trainables.methods.losses import info_nce, info_nce_both_rows, info_nce_hard, nt_xent
from trainables.methods.method import Batch, Examples, Method
from trainables.methods.shared import (
    PLAIN_ENCODER,
    adamw,
    is_negative,
    negatives,
    sentence_network,
    shuffled_epochs,
    tokenised_sentences,
    tokenised_triplets,
    triplet_views,
)
from trainables.methods.simcse.config import SIMCSE, SIMCSE_SUP, SimcseConfig, SimcseSupConfig


def views(examples: Examples, batch: Batch, config: SimcseConfig, rng: np.random.Generator) -> Views:
    """Every sentence twice in one forward pass; the two copies draw their own dropout masks (Sec. 3).

    Under one mask the copies would be the same vectors: then it is encoded once (`loss` takes it for both).
    """
    del rng
    sentences = examples.columns["sentence"].take(batch)
    return {"anchor": sentences} if config.same_mask else {"anchor": sentences, "positive": sentences}


def supervised_views(examples: Examples, batch: Batch, config: SimcseSupConfig, rng: np.random.Generator) -> Views:
    """Premise, entailed and contradicted hypothesis (Sec. 4); without hard negatives these are not encoded."""
    views = triplet_views(examples, batch, config, rng)
    return {role: rows for role, rows in views.items() if not is_negative(role) or config.loss_form != "in_batch"}


def loss(z: Encoded, config: SimcseConfig) -> Tensor:
    """Eq. 4 one-way, or the symmetric NT-Xent of the reproductions (D04)."""
    form = info_nce if config.loss_form == "one_way" else nt_xent
    return form(z["anchor"], z["anchor" if config.same_mask else "positive"], config.temperature)


def supervised_loss(z: Encoded, config: SimcseSupConfig) -> Tensor:
    """Eq. 5 with w = ln alpha on the own hard negative, zh-SimCSE's variant with positives as rows too, or without."""
    if config.loss_form == "in_batch":
        return info_nce(z["anchor"], z["positive"], config.temperature)
    if config.loss_form == "both_rows":
        return info_nce_both_rows(z["anchor"], z["positive"], negatives(z), config.temperature)
    return info_nce_hard(z["anchor"], z["positive"], negatives(z), config.temperature, config.hard_negative_weight)


UNSUPERVISED = Method(
    declaration=SIMCSE,
    prepare=tokenised_sentences,
    plan=shuffled_epochs,
    views=views,
    loss=loss,
    network=sentence_network,
    optimiser=adamw,
    untrained=PLAIN_ENCODER,
)
SUPERVISED = Method(
    declaration=SIMCSE_SUP,
    prepare=tokenised_triplets,
    plan=shuffled_epochs,
    views=supervised_views,
    loss=supervised_loss,
    network=sentence_network,
    optimiser=adamw,
    untrained=PLAIN_ENCODER,
)
