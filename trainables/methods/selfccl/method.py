"""SelfCCL (Appl. Sci. 2023, 13, 1913): curriculum over NLI triplets, scored by the untouched encoder itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from trainables.contract.streams import SAMPLE, SHUFFLE
from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded
from trainables.methods.losses import info_nce_hard
from trainables.methods.method import Batch, Examples, Method, TextTools
from trainables.methods.selfccl.config import SELFCCL, SelfcclConfig
from trainables.methods.selfccl.curriculum import (
    class_shares,
    cosine_distances,
    difficulty_order,
    paced_epochs,
    paced_steps,
    triplet_classes,
)
from trainables.methods.shared import (
    PLAIN_ENCODER,
    adamw,
    is_negative,
    negatives,
    sampled,
    sentence_network,
    tokenised_triplets,
    triplet_views,
)


def prepare(texts: Texts, config: SelfcclConfig, seed: int, tools: TextTools) -> Examples:
    """Phase 1 (5.2): score every triplet with the untouched encoder, pooled as in training (D31), and order them.

    The facts are the shares of the classes and the mean distances; all triplets of the file are scored, so that the
    scores are computed once for every trial and seed. Of several hard negatives the nearest counts.
    """
    columns = tokenised_triplets(texts, config, seed, tools).columns
    anchor, positive = (tools.embed(columns[r], config) for r in ("anchor", "positive"))
    near = cosine_distances(anchor, positive)
    far = np.min([cosine_distances(anchor, tools.embed(columns[r], config)) for r in columns if is_negative(r)], axis=0)
    order = difficulty_order(near - far, config.order, np.random.default_rng([seed, SAMPLE]))
    facts = class_shares(triplet_classes(near, far, config.margin))
    facts |= {"mean_positive_distance": float(near.mean()), "mean_negative_distance": float(far.mean())}
    return Examples(columns, order=order, facts=facts)


def plan(examples: Examples, config: SelfcclConfig, seed: int) -> Iterator[Batch]:
    """Phase 2 (5.3): batches from the easiest triplets first, more of them as training goes on."""
    assert examples.order is not None
    chosen = sampled(len(examples), config, seed)
    order = examples.order[np.isin(examples.order, chosen)]
    exponent = config.pacing_exponent if config.pacing else 0.0  # (t / T)^0 = 1: all triplets from the start
    if config.pacing_unit == "step":
        steps = config.epochs * max(1, len(order) // config.batch_size)
        rng = np.random.default_rng([seed, SHUFFLE])
        return (Batch(numbers) for numbers in paced_steps(order, config.batch_size, steps, exponent, rng))
    epochs = paced_epochs(order, config.batch_size, config.epochs, exponent, equal_steps=config.equal_steps)
    return (Batch(numbers, epoch) for epoch, numbers in epochs)


def loss(z: Encoded, config: SelfcclConfig) -> Tensor:
    """Every anchor against all positives and all hard negatives of the batch (5.4)."""
    return info_nce_hard(z["anchor"], z["positive"], negatives(z), config.temperature)


METHOD = Method(
    declaration=SELFCCL,
    prepare=prepare,
    plan=plan,
    views=triplet_views,
    loss=loss,
    network=sentence_network,
    optimiser=adamw,
    prepared_from=(*PLAIN_ENCODER.reads, "order", "margin", "seed"),
    untrained=PLAIN_ENCODER,
)
