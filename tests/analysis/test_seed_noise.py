"""Noise by the seed: prior, repeats, and which studies the prior is learned from."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from memory_study import memory_study
from small_store import SPACE, SmallStore
from small_tables import table

from analysis.reading.store import find_study, open_store
from analysis.statistics import verdict
from analysis.statistics.empirical_bayes import FLOOR
from analysis.statistics.seed_noise import Prior, SeedValues, learned, seed_noise, unknown_metric, upper_spread
from analysis.tables.metric import parse_metric
from analysis.tables.study import read_study
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


def test_floor_is_a_thousandth_of_a_point() -> None:
    assert seed_noise(values(a=[0.5, 0.5], b=[0.5, 0.5]), prior=Prior(0.0)).sd == FLOOR == 1e-5
    assert upper_spread(np.ones(20), 0) == FLOOR


def test_without_repeats_the_prior_speaks_widely() -> None:
    noise = seed_noise(values(a=[0.1], b=[0.2]))
    assert (noise.sd, noise.df, noise.repeats) == (SEED_SD, 3.0, 0)
    assert noise.most == pytest.approx(SEED_SD * np.sqrt(3 / 0.351846), rel=1e-4)  # 5 % of chi-square, 3 df


def test_spread_and_error_without_repeats_are_the_worked_example() -> None:
    """Quantiles .6 and .9 of 0 to 15 are 9 and 13.5, of a normal .253347 and 1.281552; 1 + 2.7 / sqrt(16)."""
    spread = 4.5e-4 / (1.281552 - 0.253347) * (1 + 2.7 / 4)
    found = seed_noise(values(**{f"p{i}": [0.7 + 1e-4 * i] for i in range(16)}))
    assert (found.sd, found.most) == pytest.approx((spread, spread), rel=1e-5)
    few = seed_noise(values(**{f"p{i}": [0.7 + 1e-4 * i] for i in range(15)}))
    assert few.sd == SEED_SD


def test_upper_spread_is_the_worked_example() -> None:
    # 0..99, none pruned: quantiles 0.6 and 0.9 are 59.4 and 89.1; normal ones 0.253347 and 1.281552.
    assert upper_spread(np.arange(100.0), 0) == pytest.approx((89.1 - 59.4) / (1.281552 - 0.253347), rel=1e-5)
    # 40 left of 100: low = 1 - 0.7 * 0.4 = 0.72, high = 0.93; among the 40 those are 1 - 0.28 / 0.4, 1 - 0.07 / 0.4.
    expected = (39 * 0.825 - 39 * 0.3) / (1.475791 - 0.582842)
    assert upper_spread(np.arange(40.0), 60) == pytest.approx(expected, rel=1e-5)


def test_survivors_of_a_pruner_tell_the_noise_nonetheless() -> None:
    """What a pruner leaves of equal points is alike by selection; the upper part of all shows the noise."""
    rng = np.random.default_rng(0)
    kept = [np.sort(rng.normal(0.5, 0.005, 60))[36:] for _ in range(200)]
    assert np.mean([upper_spread(v, 36) for v in kept]) == pytest.approx(0.005, rel=0.1)
    assert np.mean([v.std(ddof=1) for v in kept]) < 0.6 * 0.005


def test_the_prior_is_learned_from_studies_with_enough_repeats() -> None:
    few = values(a=[0.1, 0.3], b=[0.1, 0.3])
    assert learned([few, values(a=[0.2])]) == Prior()
    prior = learned([few, values(a=[0.1, 0.3, 0.5]), values(a=[0.2])])  # 2 + 2 degrees of freedom, squares 0.04 + 0.08
    assert (prior.studies, prior.df) == (2, 4)
    assert prior.sd == pytest.approx(np.sqrt((3 * SEED_SD**2 + 0.12) / 7))


def test_prior_is_learned_from_newest_related_studies(monkeypatch: pytest.MonkeyPatch) -> None:
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
    metric = SimpleNamespace(name="stsb_dev", parts=("stsb_dev",), sign=1.0)
    study: Any = SimpleNamespace(stored=runs[0], store=store, metric=metric, known_metric=True, memo={})
    monkeypatch.setattr(
        verdict, "read_study", lambda store, run, *_: read.append(run.run_id) or SimpleNamespace(trials=None)  # noqa: ARG005
    )  # fmt: skip
    monkeypatch.setattr(verdict.SeedValues, "of", lambda *_: values(a=[0.1, 0.3]))
    assert verdict.study_prior(study).df == 5
    assert verdict.study_prior(study).df == 5
    assert read == ["confirmed", "repeated", "more0", "more1", "more2"], "read once"


def test_prior_of_an_unknown_metric_is_the_worked_example() -> None:
    values = np.array([30.0, 31, 29, 30.5, 29.5, 30.2, 29.8, 900])
    assert unknown_metric(values).sd < 1
    assert unknown_metric(np.array([30.0])) == Prior(30.0, points=1)
    assert unknown_metric(np.array([30.0, 32.0])).sd == pytest.approx(2**0.5)
    prior = Prior(5.0, points=8)
    repeated = SeedValues.of(table({"p0": [30.0, 30.2], "p1": [31.0]}), 1.0)
    assert seed_noise(repeated, prior=prior).sd == pytest.approx(0.02**0.5)
    assert seed_noise(repeated, prior=prior).df == 1
    assert learned([repeated], prior) is prior
    six = SeedValues.of(table({"p0": [0.0, 0.2] * 3}), 1.0)
    assert learned([six], prior) == Prior(pytest.approx(0.012**0.5), 1, 5)
    once = SeedValues.of(table({"p0": [30.0], "p1": [31.0]}), 1.0)
    assert (seed_noise(once, prior=prior).sd, seed_noise(once, prior=prior).df) == (5.0, 3.0)


def test_metric_of_a_script_has_no_published_prior(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    script = copy.deepcopy(SPACE) | {"name": "own", "method": "script", "data": {}, "preset": {}}
    script["metric"] = {"name": "accuracy_dev", "mode": "max"}
    for name, space, metric in (("own-1", script, "accuracy_dev"), ("small-1", SPACE, "builtin_dev")):
        run = made.study(name, space)
        for i in range(4):
            made.trial(run, name, f"t{i:04}", {"learning_rate": 0.1 * i}, [0.5 + 0.1 * i], metric=metric)
    store = open_store(made.uri)
    own, known = (read_study(store, find_study(store, name)) for name in ("own-1", "small-1"))
    assert (own.known_metric, known.known_metric) == (False, True)
    assert verdict.study_prior(own) == Prior(pytest.approx(0.1291, abs=1e-4), points=4)
    assert verdict.study_prior(known) == Prior(SEED_SD)
    assert verdict.study_verdict(own).noise.sd == pytest.approx(0.1291, abs=1e-4)


@pytest.mark.parametrize("metric", ["nq_ndcg10_dev", "nq_recall100_dev", "mean(stsb_dev,nq_mrr10_dev)"])
def test_retrieval_measure_has_no_published_prior(metric: str) -> None:
    study = memory_study([{"a": i} for i in range(3)], [0.2, 0.3, 0.4], {}, space={"data": {"dev": ["stsb", "nq"]}})
    study = replace(study, metric=parse_metric(metric))
    assert study.known_metric  # larger is better
    assert verdict.study_prior(study) == Prior(pytest.approx(0.1), points=3)
