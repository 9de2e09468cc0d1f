"""The noise by the seed: prior, repeats, and what moderates what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.statistics import study_verdict
from analysis.statistics.empirical_bayes import FLOOR, moderate
from analysis.statistics.evaluated import SeedValues
from analysis.statistics.seed_noise import Prior, learned, seed_noise, upper_spread
from search import schema
from search.schema import SEED_SD
from search.study import seeds


def values(**points: list[float]) -> SeedValues:
    """Search trials by point, seeds 0, 1, ...; `_fresh` at the end of a name puts them into stage confirm."""
    rows = [(name, seed, v) for name, found in points.items() for seed, v in enumerate(found)]
    return SeedValues(
        np.array([name.removesuffix("_fresh") for name, _, _ in rows], dtype=object),
        np.array([name.endswith("_fresh") for name, _, _ in rows]),
        np.array([seed for _, seed, _ in rows], dtype=object),
        np.array([v for _, _, v in rows]),
    )


def test_one_prior_for_search_and_analysis() -> None:
    assert pytest.approx((0.7670 - 0.7316) / 4.498, abs=1e-4) == SEED_SD
    assert seeds.SEED_SD is SEED_SD
    assert Prior() == Prior(SEED_SD, studies=0, df=0)


def test_within_is_the_error_of_a_one_way_layout() -> None:
    # Squares about the means 0.2 and 0.8: 0.02 and 0.06; a search trial is no repeat of its confirmation.
    found = values(a=[0.1, 0.3], b=[0.7, 0.7, 1.0], c=[0.5], c_fresh=[0.9])
    assert found.within()[0] == pytest.approx(0.08)
    assert found.within()[1] == 3
    assert values(a=[0.1], b=[0.2]).within() == (0.0, 0)


def test_prior_and_repeats_are_pooled() -> None:
    noise = seed_noise(values(a=[0.1, 0.3], b=[0.7, 0.7, 1.0]), prior=Prior(0.2))
    assert noise.repeats == 3
    assert noise.df == 6
    assert noise.sd == pytest.approx(np.sqrt((3 * 0.04 + 0.08) / 6))
    # 5 % quantile of chi-square with 6 degrees of freedom: 1.63538
    assert noise.most == pytest.approx(noise.sd * np.sqrt(6 / 1.63538), rel=1e-4)


def test_the_floor_is_a_thousandth_of_a_point() -> None:
    assert seed_noise(values(a=[0.5, 0.5]), prior=Prior(0.0)).sd == 1e-5
    assert moderate([7.0, 7.0], 0.0)[0] == pytest.approx(1e-10)
    assert upper_spread(np.ones(20), 0) == 1e-5


def test_one_repeat_counts_already() -> None:
    noise = seed_noise(values(a=[0.1, 0.3], b=[0.7]))
    assert noise.repeats == 1
    assert noise.sd == pytest.approx(np.sqrt((3 * SEED_SD**2 + 0.02) / 4))


def test_without_repeats_the_prior_speaks_widely() -> None:
    noise = seed_noise(values(a=[0.1], b=[0.2]))
    assert (noise.sd, noise.df, noise.repeats) == (SEED_SD, 3.0, 0)
    assert noise.most == pytest.approx(SEED_SD * np.sqrt(3 / 0.351846), rel=1e-4)  # 5 % of chi-square, 3 df
    assert seed_noise(values(a=[0.5, 0.5], b=[0.5, 0.5]), prior=Prior(0.0)).sd == FLOOR


def test_without_repeats_the_spread_of_the_upper_part_bounds_the_noise() -> None:
    rng = np.random.default_rng(0)
    alike = values(**{f"p{i}": [0.7 + 0.0005 * rng.standard_normal()] for i in range(100)})
    noise = seed_noise(alike)
    assert noise.sd == pytest.approx(0.0005 * 1.27, rel=0.4)
    assert noise.most == noise.sd
    repeated = values(**{f"p{i}": [0.7 + 0.0005 * rng.standard_normal()] * 2 for i in range(100)})
    assert seed_noise(repeated).sd != noise.sd


def test_upper_spread_of_normal_values_is_their_sd() -> None:
    rng = np.random.default_rng(1)
    found = [upper_spread(rng.normal(5, 2, 400), 0) for _ in range(50)]
    assert np.mean(found) == pytest.approx(2, rel=0.03)
    assert upper_spread(np.arange(15.0), 0) == float("inf")
    assert np.isfinite(upper_spread(np.arange(16.0), 0))
    assert np.isfinite(upper_spread(np.arange(8.0), 5))
    assert upper_spread(np.ones(20), 0) == FLOOR


def test_upper_spread_by_hand() -> None:
    # 0..99, none pruned: quantiles 0.6 and 0.9 are 59.4 and 89.1; normal ones 0.253347 and 1.281552.
    assert upper_spread(np.arange(100.0), 0) == pytest.approx((89.1 - 59.4) / (1.281552 - 0.253347), rel=1e-5)
    # 40 kept of 100: low = 1 - 0.7 * 0.4 = 0.72, high = 0.93; among the kept those are 1 - 0.28 / 0.4, 1 - 0.07 / 0.4.
    expected = (39 * 0.825 - 39 * 0.3) / (1.475791 - 0.582842)
    assert upper_spread(np.arange(40.0), 60) == pytest.approx(expected, rel=1e-5)


def test_survivors_of_a_pruner_tell_the_noise_nonetheless() -> None:
    """What a pruner leaves of equal points is alike by selection; the upper part of all tells the noise."""
    rng = np.random.default_rng(0)
    kept = [np.sort(rng.normal(0.5, 0.005, 60))[36:] for _ in range(200)]
    assert np.mean([upper_spread(v, 36) for v in kept]) == pytest.approx(0.005, rel=0.1)
    assert np.mean([v.std(ddof=1) for v in kept]) < 0.6 * 0.005


def test_moderated_variance() -> None:
    assert moderate([1.0, 3.0], 4.0) == pytest.approx(((3 * 4 + 2) / 4, 4.0))
    assert moderate([7.0], 4.0) == pytest.approx((4.0, 3.0))
    assert moderate([7.0, 7.0], 0.0) == pytest.approx((FLOOR**2, 4.0))


def test_the_prior_is_learned_from_studies_with_enough_repeats() -> None:
    few = values(a=[0.1, 0.3], b=[0.1, 0.3])
    assert learned([few, values(a=[0.2])]) == Prior()
    prior = learned([few, values(a=[0.1, 0.3, 0.5]), values(a=[0.2])])  # 2 + 2 degrees of freedom, squares 0.04 + 0.08
    assert (prior.studies, prior.df) == (2, 4)
    assert prior.sd == pytest.approx(np.sqrt((3 * SEED_SD**2 + 0.12) / 7))


def test_the_prior_is_learned_from_the_newest_repeated_studies_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, repeats: str = "1", encoder: str = "a", **tags: str) -> SimpleNamespace:
        return SimpleNamespace(run_id=name, params={"search.repeats": repeats, "encoder": encoder}, tags=tags)

    confirmed = {f"{schema.CONFIRMATION}1": "", schema.METHOD: "simcse"}
    runs = [
        run("own", **confirmed), run("plain", **{schema.METHOD: "simcse"}), run("confirmed", **confirmed),
        run("repeated", "3", **{schema.METHOD: "simcse"}), run("encoder", "3", "b", **confirmed),
        run("method", **{**confirmed, schema.METHOD: "sda"}), *(run(f"more{i}", **confirmed) for i in range(5)),
    ]  # fmt: skip
    read: list[str] = []
    store = SimpleNamespace(studies=lambda: runs, trials=lambda run: [run])
    metric = SimpleNamespace(name="stsb_dev", sign=1.0)
    study: Any = SimpleNamespace(stored=runs[0], store=store, metric=metric, known_metric=True)
    monkeypatch.setattr(
        study_verdict, "read_study", lambda store, run, *_: read.append(run.run_id) or SimpleNamespace(trials=None)  # noqa: ARG005
    )  # fmt: skip
    monkeypatch.setattr(study_verdict.SeedValues, "of", lambda *_: values(a=[0.1, 0.3]))
    assert study_verdict.study_prior(study).df == 5
    assert read == ["confirmed", "repeated", "more0", "more1", "more2"]
