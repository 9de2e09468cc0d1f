"""Scoring and pacing of triplets against plain loops and their borders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainables.methods.selfccl.curriculum import (
    class_shares,
    consecutive_batches,
    cosine_distances,
    difficulty_order,
    paced_epochs,
    paced_size,
    paced_steps,
    triplet_classes,
)


def test_distances_equal_plain_loops_and_clamp_the_norm() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 5, 4)).astype(np.float32)
    a[4] = 0
    for got, x, y in zip(cosine_distances(a, b), a.tolist(), b.tolist(), strict=True):
        norms = max(math.sqrt(sum(v * v for v in x)), 1e-8) * max(math.sqrt(sum(v * v for v in y)), 1e-8)
        assert got == pytest.approx(1 - sum(v * w for v, w in zip(x, y, strict=True)) / norms, abs=1e-12)


def test_borders_belong_to_the_harder_class() -> None:
    positive = np.array([0.25, 0.25, 0.25, 0.25, 0.25])
    negative = np.array([0.76, 0.75, 0.26, 0.25, 0.0])
    classes = triplet_classes(positive, negative, 0.5)
    assert classes.tolist() == ["easy", "semi_hard", "semi_hard", "hard", "hard"]
    assert class_shares(classes) == {"share_easy": 0.2, "share_semi_hard": 0.4, "share_hard": 0.4}


def test_orders_keep_ties_in_file_order() -> None:
    difficulty = np.array([0.1, -0.2, 0.1, 0.3, -0.2])
    rng = np.random.default_rng(0)
    assert difficulty_order(difficulty, "ascending", rng).tolist() == [1, 4, 0, 2, 3]
    assert difficulty_order(difficulty, "descending", rng).tolist() == [3, 0, 2, 1, 4]
    drawn = [difficulty_order(difficulty, "random", np.random.default_rng(s)).tolist() for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[2]) == list(range(5))


def test_paced_size_is_not_fooled_by_rounding() -> None:
    assert [paced_size(t, 10, 1.0, 10) for t in range(1, 11)] == list(range(1, 11))
    assert paced_size(1, 4, 0.0, 7) == 7


def test_the_last_smaller_batch_is_dropped_unless_alone() -> None:
    assert [b.tolist() for b in consecutive_batches(np.arange(5), 2)] == [[0, 1], [2, 3]]
    assert [b.tolist() for b in consecutive_batches(np.arange(4), 2)] == [[0, 1], [2, 3]]
    assert [b.tolist() for b in consecutive_batches(np.arange(3), 8)] == [[0, 1, 2]]


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
