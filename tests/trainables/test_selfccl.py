"""SelfCCL: scores against plain loops, the order that they decide, and the batches that pacing decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from trainables.data.tokens import TokenColumn
from trainables.methods.losses import info_nce_hard
from trainables.methods.selfccl import method as selfccl
from trainables.methods.selfccl.config import SelfcclConfig
from trainables.methods.selfccl.method import (
    cosine_distances,
    difficulty_order,
    paced_epochs,
    paced_steps,
    triplet_classes,
)

N = 24
CONFIG = SelfcclConfig(batch_size=4, epochs=4)
TEXTS = {role: [f"{role} {i}" for i in range(N)] for role in ("anchor", "positive", "negative")}


class Desk:
    """Tools where a text's only token is its number and role, and its vector lies on the unit circle."""

    language = "en"

    def tokenise(self, texts: Sequence[str], prompt: str = "") -> TokenColumn:
        del prompt
        roles = ["anchor", "positive", "negative"]
        ids = [100 * roles.index(text.split()[0]) + int(text.split()[1]) for text in texts]
        return TokenColumn(np.array(ids, np.int32), np.arange(len(ids) + 1))

    def embed(self, column: TokenColumn, config: SelfcclConfig) -> np.ndarray:
        assert config.pooling == "avg_first_last"  # D31: that of training
        role, number = np.divmod(column.flat, 100)
        angle = np.choose(role, [0 * number, 0.1 + 0.08 * (7 * number % N), np.ones(len(number))])
        return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)

    cached = parse = None


def test_triplets_are_ordered_by_difficulty_with_shares_as_facts() -> None:
    examples = selfccl.prepare(TEXTS, CONFIG, 0, Desk())
    assert examples.order is not None
    near = 1 - np.cos(0.1 + 0.08 * (7 * np.arange(N) % N))
    far = 1 - np.cos(1.0)
    assert examples.order.tolist() == np.argsort(near).tolist()
    assert examples.facts["share_easy"] == np.mean(near + 0.2 < far)
    assert examples.facts["share_hard"] == np.mean(near >= far)
    assert abs(examples.facts["mean_negative_distance"] - far) < 1e-6


def test_of_several_negatives_the_nearest_counts() -> None:
    examples = selfccl.prepare({**TEXTS, "negative_2": TEXTS["positive"]}, CONFIG, 0, Desk())
    near = 1 - np.cos(0.1 + 0.08 * (7 * np.arange(N) % N))
    assert abs(examples.facts["mean_negative_distance"] - np.minimum(near, 1 - np.cos(1.0)).mean()) < 1e-6


def test_the_plan_starts_with_the_easy_ones() -> None:
    examples = selfccl.prepare(TEXTS, CONFIG, 0, Desk())
    batches = list(selfccl.plan(examples, CONFIG, 0))
    assert [len(b) for b in batches] == [4] * (1 + 3 + 4 + 6)
    assert [b.epoch for b in batches] == [0] + [1] * 3 + [2] * 4 + [3] * 6
    assert list(batches[0]) == examples.order[:4].tolist()
    unpaced = list(selfccl.plan(examples, replace(CONFIG, pacing=False), 0))
    equal = list(selfccl.plan(examples, replace(CONFIG, equal_steps=True), 0))
    by_step = list(selfccl.plan(examples, replace(CONFIG, pacing_unit="step"), 0))
    assert len(unpaced) == len(equal) == len(by_step) == 24
    assert set(by_step[0]) == set(examples.order[:4].tolist())


def test_a_sample_keeps_the_order() -> None:
    config = replace(CONFIG, sample_size=9)
    examples = selfccl.prepare(TEXTS, config, 0, Desk())
    last = list(selfccl.plan(examples, config, 0))[-2:]
    place = {int(i): rank for rank, i in enumerate(examples.order)}
    ranks = [place[int(i)] for batch in last for i in batch]
    assert ranks == sorted(ranks)
    assert len(ranks) == 8


def test_the_loss_is_infonce_with_hard_negatives() -> None:
    draw = torch.Generator().manual_seed(0)
    z = {role: torch.randn(5, 3, generator=draw, dtype=torch.float64) for role in ("anchor", "positive", "negative")}
    assert selfccl.loss(z, CONFIG) == info_nce_hard(z["anchor"], z["positive"], z["negative"], 0.05)


def test_distance_of_a_zero_vector_is_one() -> None:
    assert cosine_distances(np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)).tolist() == [1.0]


def test_borders_belong_to_the_harder_class() -> None:
    positive = np.array([0.25, 0.25, 0.25, 0.25, 0.25])
    negative = np.array([0.76, 0.75, 0.26, 0.25, 0.0])
    classes = triplet_classes(positive, negative, 0.5)
    assert classes.tolist() == ["easy", "semi_hard", "semi_hard", "hard", "hard"]


def test_orders_keep_ties_in_file_order() -> None:
    difficulty = np.array([0.1, -0.2, 0.1, 0.3, -0.2])
    rng = np.random.default_rng(0)
    assert difficulty_order(difficulty, "ascending", rng).tolist() == [1, 4, 0, 2, 3]
    assert difficulty_order(difficulty, "descending", rng).tolist() == [3, 0, 2, 1, 4]
    drawn = [difficulty_order(difficulty, "random", np.random.default_rng(s)).tolist() for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[2]) == list(range(5))


def test_pacing_by_epoch_grows_and_equal_steps_repeat() -> None:
    order = np.arange(20)[::-1].copy()
    paced = [b.tolist() for _, b in paced_epochs(order, 5, 4, 1.0, equal_steps=False)]
    assert len(paced) == 1 + 2 + 3 + 4
    assert paced[0] == paced[1] == paced[3] == paced[6] == [19, 18, 17, 16, 15]
    assert paced[9] == [4, 3, 2, 1, 0]
    equal = [b.tolist() for _, b in paced_epochs(order, 5, 4, 1.0, equal_steps=True)]
    unpaced = [b.tolist() for _, b in paced_epochs(order, 5, 4, 0.0, equal_steps=False)]
    assert len(equal) == len(unpaced) == 16
    assert equal[:4] == [paced[0]] * 4
    assert equal[4:8] == paced[1:3] * 2
    assert equal[12:] == unpaced[:4] == paced[6:]


def test_pacing_by_step_draws_from_the_easiest() -> None:
    order = np.random.default_rng(3).permutation(40)
    batches = list(paced_steps(order, 4, 20, 1.0, np.random.default_rng(0)))
    assert len(batches) == 20
    for t, batch in enumerate(batches, 1):
        assert len(set(batch.tolist())) == 4
        assert set(batch.tolist()) <= set(order[: max(4, 2 * t)].tolist())
    assert set(batches[0].tolist()) == set(order[:4].tolist())
    assert not {int(i) for b in batches for i in b} <= set(order[:20].tolist())
