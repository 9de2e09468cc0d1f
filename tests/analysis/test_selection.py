"""How far a picked value is off by chance: closed forms, and the redrawn selection itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from analysis.statistics.selection import (
    WEIGHTS,
    Error,
    Power,
    bound_of_largest,
    largest,
    planned,
    spent,
    split,
    tail_of_largest,
)


def test_nodes_integrate_the_largest_of_normals() -> None:
    assert WEIGHTS.sum() == pytest.approx(1)
    assert WEIGHTS @ largest(1) == pytest.approx(0, abs=1e-9)
    assert WEIGHTS @ largest(1) ** 2 == pytest.approx(1, abs=0.01)
    assert WEIGHTS @ largest(10) == pytest.approx(1.53875, abs=2e-3)  # expected maximum of 10 normals (Tippett 1925)
    assert WEIGHTS @ largest(100) == pytest.approx(2.50759, abs=2e-3)


def test_tail_of_one_candidate_is_student_s() -> None:
    error = Error(0.04, 7.0)
    assert error.sd == pytest.approx(0.2)
    assert error.freedom == 7.0
    assert error.tail(0.5) == pytest.approx(student.sf(2.5, 7))
    assert error.bound(0.025) == pytest.approx(0.2 * student.isf(0.025, 7))
    assert error.bound(0.01) == pytest.approx(0.2 * student.isf(0.01, 7))


def test_candidates_share_the_level() -> None:
    error = Error(0.04, 7.0, candidates=4)
    assert error.tail(0.5) == pytest.approx(4 * student.sf(2.5, 7))
    assert error.bound(0.02) == pytest.approx(0.2 * student.isf(0.005, 7))
    assert Error(0.04, 7.0, candidates=50).tail(0.0) == 1.0  # a probability all the same


def test_known_variance_adds_and_frees() -> None:
    error = Error(0.09, 5.0, known=0.16)
    assert error.sd == pytest.approx(0.5)
    assert error.freedom == pytest.approx(5 * (0.25 / 0.09) ** 2)
    assert Error(0.0, 5.0, known=0.16).bound(0.025) == pytest.approx(0.4 * 1.959964, rel=1e-4)
    assert Error(1e-9, 5.0, known=1.0).freedom == 1e6


def test_picked_part_is_the_largest_of_all_tried() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200_000, 20)).max(axis=1)
    error = Error(0.04, 1e6, known=0.05, kept=0.3, tried=20)
    draws = 0.3 * z + 0.3 * rng.standard_normal(len(z))
    for level in (0.2, 0.025, 0.005):
        assert error.bound(level) == pytest.approx(np.quantile(draws, 1 - level), abs=0.012)
        assert error.tail(error.bound(level)) == pytest.approx(level, rel=1e-4)
    assert Error(0.0, 4.0, kept=0.3, tried=20).tail(10.0) == 0.0
    assert Error(0.0, 4.0, kept=0.3, tried=20).tail(-10.0) == 1.0


def test_what_the_search_picked_by() -> None:
    # Pairs' part 3, seeds 1: the regression of the part on the sum explains 3/4 of its variance.
    kept, rest = split(3.0, 1.0)
    assert kept == pytest.approx(np.sqrt(0.75 * 3))
    assert rest == pytest.approx(0.75)
    assert split(0.0, 1.0) == (0.0, 0.0)
    rng = np.random.default_rng(1)
    part = np.sqrt(3) * rng.standard_normal((100_000, 8))
    picked = (part + rng.standard_normal(part.shape)).argmax(axis=1)
    bias = part[np.arange(len(part)), picked]
    assert bias.mean() == pytest.approx(kept * 1.42360, abs=0.02)  # expected maximum of 8 normals
    assert bias.var() == pytest.approx(rest + kept**2 * 0.3729, abs=0.03)  # and its variance


def test_the_largest_of_several_with_an_estimated_sd() -> None:
    assert tail_of_largest(2.0, 1.0, 1e6, 1) == pytest.approx(norm.sf(2), abs=2e-3)
    rng = np.random.default_rng(2)
    scale = 0.5 * np.sqrt(6 / rng.chisquare(6, 200_000))  # the sd, believed after an estimate of 0.5 with 6 df
    draws = scale * rng.standard_normal((200_000, 15)).max(axis=1)
    for level in (0.1, 0.025):
        bound = bound_of_largest(level, 0.5, 6.0, 15)
        assert bound == pytest.approx(np.quantile(draws, 1 - level), rel=0.02)
        assert tail_of_largest(bound, 0.5, 6.0, 15) == pytest.approx(level, rel=1e-4)


def test_an_error_that_cannot_vary_is_reached_for_certain() -> None:
    assert Error(0.0, 4.0).tail(0.0) == 1.0
    assert Error(0.0, 4.0).tail(1e-9) == 0.0
    assert Error(1.0, 1e6, kept=0.5).tail(0.0) == pytest.approx(0.5)  # one tried: nothing was picked


def test_the_level_is_spent_once_over_all_looks() -> None:
    assert [spent(look) for look in (1, 2, 3)] == pytest.approx([0.025 / 2, 0.025 / 6, 0.025 / 12])
    assert sum(spent(look) for look in range(1, 10_000)) == pytest.approx(0.025, rel=1e-3)


def test_visible_gain_by_hand() -> None:
    error = Error(0.04, 7.0, candidates=3)
    assert error.visible(0.0125) == pytest.approx(0.2 * (student.isf(0.0125 / 3, 7) + 0.8416212))
    found = Power.of(error, 4, 0.0125)
    assert (found.seeds, found.more) == (4, 8)
    assert found.visible == error.visible(0.0125)
    assert found.visible_more == pytest.approx(np.sqrt(0.02) * (student.isf(0.0125 / 3, 11) + 0.8416212))
    assert found.floor == 0.0
    assert found.seeds_help


def test_seeds_do_not_help_beyond_the_dev_set() -> None:
    found = Power.of(Error(0.001, 7.0, known=1.0), 5, 0.0125)
    assert found.floor == pytest.approx(norm.isf(0.0125) + 0.8416212, rel=1e-3)
    assert not found.seeds_help
    assert not Power(5, 1.1, 10, 1.0, 1.0).seeds_help
    assert Power(5, 1.11, 10, 1.0, 1.0).seeds_help


@pytest.mark.parametrize(("in_search", "seeds_part"), [(1, 0.25), (2, 0.125)])
def test_error_of_a_planned_confirmation(in_search: int, seeds_part: float) -> None:
    found = planned(sd=0.5, between=0.2, tried=30, in_search=in_search, rivals=3, seeds=5)
    kept, rest = split(0.1, seeds_part)
    assert found == Error(2 * 0.25 / 5, 7.0, rest + 0.1, kept, 30, 3)
    more = planned(sd=0.5, between=0.2, tried=30, in_search=in_search, rivals=3, seeds=9)
    assert more.visible(0.0125) < found.visible(0.0125)
