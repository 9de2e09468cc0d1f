"""SelfCCL (Appl. Sci. 2023, 13, 1913): curriculum over NLI triplets, scored by the untouched encoder (methods 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.trial import SAMPLE, SHUFFLE
from trainables.data.tokens import Texts
from trainables.encoders.network import Encoded
from trainables.methods.batches import cut
from trainables.methods.losses import info_nce_hard
from trainables.methods.method import (
    PLAIN_ENCODER,
    Batch,
    Examples,
    Method,
    TextTools,
    all_columns,
    is_negative,
    negatives,
    sampled,
    texts_apart,
    tokenised_triplets,
)
from trainables.methods.selfccl.config import SELFCCL, SelfcclConfig

Floats = NDArray[np.float64]
CLASSES = ("easy", "semi_hard", "hard")


def prepare(texts: Texts, config: SelfcclConfig, seed: int, tools: TextTools) -> Examples:
    """Phase 1 (5.2): score every triplet with the untouched encoder, pooled as in training (D31), and order them.

    The facts are the shares of the classes in [0, 1], which pooling decides (D31), and the mean distances. All triplets
    of the file are scored, so that scores are computed once for every trial and seed. Of several hard negatives the
    nearest counts.
    """
    columns = tokenised_triplets(texts, config, seed, tools).columns
    anchor, positive = (tools.embed(columns[r], config) for r in ("anchor", "positive"))
    near = cosine_distances(anchor, positive)
    far = np.min([cosine_distances(anchor, tools.embed(columns[r], config)) for r in columns if is_negative(r)], axis=0)
    order = difficulty_order(near - far, config.order, np.random.default_rng([seed, SAMPLE]))
    classes = triplet_classes(near, far, config.margin)
    facts = {f"share_{name}": float(np.mean(classes == name)) for name in CLASSES}
    facts |= {"mean_positive_distance": float(near.mean()), "mean_negative_distance": float(far.mean())}
    return Examples(columns, order=order, facts=facts)


def plan(examples: Examples, config: SelfcclConfig, seed: int) -> Iterator[Batch]:
    """Phase 2 (5.3): batches from the easiest triplets first, more of them as training goes on."""
    assert examples.order is not None
    chosen = sampled(len(examples), config, seed)
    order = examples.order[np.isin(examples.order, chosen)]
    texts = texts_apart(examples, config)
    exponent = config.pacing_exponent if config.pacing else 0.0  # (t / T)^0 = 1: all triplets from the start
    if config.pacing_unit == "step":
        steps = config.epochs * max(1, len(order) // config.batch_size)
        rng = np.random.default_rng([seed, SHUFFLE])
        return (Batch(numbers) for numbers in paced_steps(order, config.batch_size, steps, exponent, rng, texts))
    epochs = paced_epochs(order, config.batch_size, config.epochs, exponent, texts, equal_steps=config.equal_steps)
    return (Batch(numbers, epoch) for epoch, numbers in epochs)


def loss(z: Encoded, config: SelfcclConfig) -> Tensor:
    """Every anchor against all positives and all hard negatives of the batch (5.4)."""
    return info_nce_hard(z["anchor"], z["positive"], negatives(z), config.temperature)


def cosine_distances(first: NDArray[np.floating], second: NDArray[np.floating]) -> Floats:
    """(n,) 1 - cosine of the rows of two (n, H) arrays, in [0, 2]; norms are clamped from below by 1e-8 (1.1)."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = np.maximum(np.linalg.norm(a, axis=1), 1e-8) * np.maximum(np.linalg.norm(b, axis=1), 1e-8)
    distances: Floats = 1.0 - np.einsum("nh,nh->n", a, b) / norms
    return distances


def triplet_classes(positive: Floats, negative: Floats, margin: float) -> NDArray[np.str_]:
    """(n,) class of every triplet from its distances d+ and d- (5.2 point 3).

    easy: d+ + margin < d-; semi_hard: d+ < d- and not easy, the border d- = d+ + margin included; hard: d- <= d+ (D32).
    """
    return np.select([positive + margin < negative, positive < negative], ["easy", "semi_hard"], "hard")


def difficulty_order(difficulty: Floats, order: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """(n,) triplet numbers in the order of training (5.2 point 5); ties stay in file order (D33).

    Args:
        difficulty: d+ - d-, higher is harder.
        order: "ascending" (curriculum), "descending" (anti-curriculum) or "random" (one permutation from `rng`).
    """
    if order == "random":
        return rng.permutation(len(difficulty))
    return np.argsort(difficulty if order == "ascending" else -difficulty, kind="stable")


def paced_size(t: int, total: int, exponent: float, k: int) -> int:
    """g(t) = ceil((t / T)^lambda * k), the number of triplets in use at t = 1..T (5.3).

    Rounding to 9 digits first, so that 0.3 * 10 = 3.0000000000000004 does not become 4.
    """
    return min(k, math.ceil(round(math.pow(t / total, exponent) * k, 9)))


def consecutive_batches(
    order: NDArray[np.int64], size: int, texts: NDArray[np.int64] | None = None
) -> list[NDArray[np.int64]]:
    """Batches `cut` from `order` without shuffling; smaller ones are dropped unless there is no other (D34)."""
    batches = list(cut(order, size, texts))
    return [batch for batch in batches if len(batch) == size] or batches[:1]


def paced_epochs(
    order: NDArray[np.int64],
    size: int,
    epochs: int,
    exponent: float,
    texts: NDArray[np.int64] | None = None,
    *,
    equal_steps: bool,
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(t - 1, batch): epoch t trains over the first g(t) triplets (pacing by epoch, D34).

    Args:
        size: batch size N.
        exponent: lambda of g; 0 uses all triplets in every epoch.
        texts: as `cut` takes them.
        equal_steps: every epoch lasts floor(k / N) steps, its batches repeated in order as often as needed, so that
            any pacing makes the same number of steps (D35).
    """
    steps = max(1, len(order) // size)
    for t in range(1, epochs + 1):
        batches = consecutive_batches(order[: paced_size(t, epochs, exponent, len(order))], size, texts)
        yield from ((t - 1, batches[i % len(batches)]) for i in range(steps if equal_steps else len(batches)))


def paced_steps(
    order: NDArray[np.int64],
    size: int,
    steps: int,
    exponent: float,
    rng: np.random.Generator,
    texts: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Step t draws its batch without replacement from the first max(g(t), N) triplets (pacing by step, D34)."""
    for t in range(1, steps + 1):
        pool = max(paced_size(t, steps, exponent, len(order)), min(size, len(order)))
        if texts is not None:
            yield next(cut(rng.permutation(order[:pool]), size, texts))
        else:
            yield order[rng.choice(pool, min(size, pool), replace=False)]


METHOD = Method(
    declaration=SELFCCL,
    prepare=prepare,
    plan=plan,
    views=all_columns,
    loss=loss,
    prepared_from=(*PLAIN_ENCODER.reads, "order", "margin", "seed"),
)
