"""SimCSE (arXiv:2104.08821): unsupervised, dropout augments; supervised, NLI gives positives and negatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainables.configs import SimcseConfig, SimcseSupConfig
from trainables.defaults import adamw, sentence_network, shuffled_epochs, tokenised_sentences, tokenised_triplets
from trainables.losses import info_nce, info_nce_both_rows, info_nce_hard, nt_xent
from trainables.method import Encoded, Examples, Method, Views


def views(examples: Examples, batch: NDArray[np.int64], config: SimcseConfig, rng: np.random.Generator) -> Views:
    """Every sentence twice in one forward pass; the two copies draw their own dropout masks (Sec. 3)."""
    del config, rng
    sentences = examples.columns["sentence"].take(batch)
    return {"anchor": sentences, "positive": sentences}


def loss(z: Encoded, config: SimcseConfig) -> Tensor:
    """Eq. 4 one-way, or the symmetric NT-Xent of the reproductions (D04)."""
    form = info_nce if config.loss_form == "one_way" else nt_xent
    return form(z["anchor"], z["positive"], config.temperature)


def triplet_views(
    examples: Examples, batch: NDArray[np.int64], config: object, rng: np.random.Generator
) -> Views:  # also SelfCCL's
    """Premise, entailed and contradicted hypothesis (Sec. 4)."""
    del config, rng
    return {role: examples.columns[role].take(batch) for role in ("anchor", "positive", "negative")}


def supervised_loss(z: Encoded, config: SimcseSupConfig) -> Tensor:
    """Eq. 5 with w = ln alpha on the own hard negative, or zh-SimCSE's variant with positives as rows too."""
    if config.loss_form == "both_rows":
        return info_nce_both_rows(z["anchor"], z["positive"], z["negative"], config.temperature)
    return info_nce_hard(z["anchor"], z["positive"], z["negative"], config.temperature, config.hard_negative_weight)


UNSUPERVISED = Method(
    "simcse", SimcseConfig, tokenised_sentences, shuffled_epochs, views, loss, sentence_network, adamw
)
SUPERVISED = Method(
    "simcse_sup",
    SimcseSupConfig,
    tokenised_triplets,
    shuffled_epochs,
    triplet_views,
    supervised_loss,
    sentence_network,
    adamw,
)
