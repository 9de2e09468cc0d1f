"""SimCSE (arXiv:2104.08821): unsupervised, dropout augments; supervised, NLI gives positives and negatives."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trainables.encoders.network import Encoded, Views
from trainables.methods.losses import info_nce, info_nce_both_rows, info_nce_hard, nt_xent
from trainables.methods.method import (
    Batch,
    Examples,
    Method,
    all_columns,
    is_negative,
    negatives,
    sentence_twice,
    tokenised_triplets,
)
from trainables.methods.simcse.config import SIMCSE, SIMCSE_SUP, SimcseConfig, SimcseSupConfig


def views(examples: Examples, batch: Batch, config: SimcseConfig, rng: np.random.Generator) -> Views:
    """Every sentence twice. Under one dropout mask both would be the same vectors: it is encoded once."""
    found = sentence_twice(examples, batch, config, rng)
    return {"anchor": found["anchor"]} if config.same_mask else found


def supervised_views(examples: Examples, batch: Batch, config: SimcseSupConfig, rng: np.random.Generator) -> Views:
    """Premise and entailed hypothesis (Sec. 4), with any number of hard negatives; `in_batch` leaves them out."""
    found = all_columns(examples, batch, config, rng)
    return {role: rows for role, rows in found.items() if not is_negative(role) or config.loss_form != "in_batch"}


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


UNSUPERVISED = Method(declaration=SIMCSE, views=views, loss=loss)
SUPERVISED = Method(declaration=SIMCSE_SUP, prepare=tokenised_triplets, views=supervised_views, loss=supervised_loss)
