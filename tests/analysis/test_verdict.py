"""Noise, pairs and the verdict on small tables whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from simulate import METRIC, simulate

from analysis.errors import AnalysisError
from analysis.noise import PRIOR_SD, seed_noise
from analysis.pairs import pair_noise
from analysis.stats import spearman_influence
from analysis.tables import points_table
from analysis.verdict import Verdict, judge


def table(values: Mapping[str, list[float]], confirmed: Mapping[str, list[float]] | None = None) -> pd.DataFrame:
    """Trials of points by name; the first point is the baseline."""
    rows = [(p, "search", v) for p, vs in values.items() for v in vs]
    rows += [(p, "confirm", v) for p, vs in (confirmed or {}).items() for v in vs]
    frame = pd.DataFrame(rows, columns=["point", "stage", "value"])
    frame["run_id"] = frame["trial"] = [f"t{i}" for i in range(len(frame))]
    frame["stop"], frame["baseline"] = "completed", frame["point"] == next(iter(values))
    frame["seed"], frame["params.x"] = range(len(frame)), frame["point"].str[1:].astype(float)
    for column, value in (("examples", 1.0), ("seconds", 1.0), ("folder", ""), ("reason", "")):
        frame[column] = value
    return frame


def verdict(trials: pd.DataFrame) -> Verdict:
    return judge(trials, points_table(trials), METRIC, ["x"], lambda _: None, np.random.default_rng(0))


def test_noise_of_repeats_is_the_pooled_standard_deviation() -> None:
    noise = seed_noise(table({"p0": [0.1, 0.3], "p1": [0.7, 0.7, 1.0]}), ["x"])
    assert noise.source == "repeats"
    assert noise.df == 3
    assert noise.sd == pytest.approx(np.sqrt((0.02 + 0.06) / 3))


def test_noise_of_neighbours_on_a_slope() -> None:
    rng = np.random.default_rng(0)
    noise = seed_noise(table({f"p{i}": [0.0005 * i + rng.normal(0, 0.01)] for i in range(80)}), ["x"])
    assert noise.source == "neighbours"
    assert noise.sd == pytest.approx(0.01, rel=0.4)  # 20 pairs: sd of the estimate 16 %


def test_noise_without_repeats_or_neighbours_is_the_prior() -> None:
    few = seed_noise(table({f"p{i}": [0.1 * i] for i in range(5)}), ["x"])
    assert (few.sd, few.source) == (PRIOR_SD, "prior")
    apart = table({f"p{i}": [float(i % 7)] for i in range(40)})
    apart["params.name"] = apart["point"]  # a choice in which no two points agree
    assert seed_noise(apart, ["name"]).source == "prior"
    alike = seed_noise(table({f"p{i}": [1e-4 * (i % 7)] for i in range(40)}), ["y"])
    assert alike.sd < 4e-4  # values that differ by less than the prior do not have its noise


def test_noise_of_survivors_is_not_taken_at_its_word() -> None:
    """What a pruner leaves of equal points is alike by selection; the upper part of all tells the noise nonetheless."""
    rng = np.random.default_rng(0)
    found, plain = [], []
    for _ in range(40):
        values = np.sort(rng.normal(0.5, 0.005, 60))
        trials = table({f"p{i}": [value] for i, value in enumerate(values)})
        trials.loc[:35, "stop"] = "pruned"
        found.append(seed_noise(trials, ["y"]).sd)
        plain.append(values[36:].std(ddof=1))
    assert max(found) <= PRIOR_SD
    assert np.mean(found) == pytest.approx(0.005, rel=0.15)
    assert np.mean(plain) < 0.6 * 0.005


def test_pair_noise_takes_the_seeds_part_out() -> None:
    rng = np.random.default_rng(0)
    gold = rng.normal(size=3000)
    habits = rng.normal(size=(2, 3000))
    stored = {
        f"{p}{s}": {"stsb_dev": gold + 0.6 * habits[p] + 0.6 * rng.normal(size=3000), "stsb_gold": gold}
        for p in (0, 1)
        for s in range(5)
    }
    runs = [[f"{p}{s}" for s in range(5)] for p in (0, 1)]
    found = pair_noise(*runs, ["stsb_dev"], stored.get)
    # What would be left with ever more seeds: the influence of the mean model, own part shrunk by averaging 200 seeds.
    psi = [
        np.mean([spearman_influence(gold + 0.6 * h + 0.6 * rng.normal(size=3000), gold)[1] for _ in range(200)], axis=0)
        for h in habits
    ]
    assert found is not None
    assert found.pairs == 3000
    assert found.between == pytest.approx(np.var(psi[0] - psi[1]) / 3000, rel=0.15)
    single = pair_noise(["00"], ["10"], ["stsb_dev"], stored.get)
    assert single is not None
    assert single.between > 1.5 * found.between
    assert pair_noise(["00"], ["none"], ["stsb_dev"], stored.get) is None
    assert pair_noise(["00"], ["10"], ["other_dev"], stored.get) is None


def test_clear_winner_confirmed() -> None:
    rng = np.random.default_rng(1)
    values = {f"p{i}": [0.70 + rng.normal(0, 0.004)] for i in range(20)} | {"p7": [0.76]}
    fresh = {"p0": 0.70 + rng.normal(0, 0.004, 5), "p7": 0.75 + rng.normal(0, 0.004, 5)}
    found = verdict(table(values, {p: v.tolist() for p, v in fresh.items()}))
    assert (found.best, found.confirmed, found.n, found.tried, found.candidates) == ("p7", True, 5, 20, 2)
    assert found.gain is not None
    assert found.gain.significant
    assert found.gain.low < 0.05 < found.gain.high
    assert found.gain.p_value < 0.01
    assert found.expected == pytest.approx(0.75, abs=0.006)
    assert found.naive == 0.76
    assert found.p_best > 0.99


def test_best_of_many_equal_ones_is_no_gain() -> None:
    rng = np.random.default_rng(2)
    found = verdict(table({f"p{i}": [0.70 + rng.normal(0, 0.005)] for i in range(60)}))
    assert found.gain is not None
    assert not found.gain.significant
    assert found.expected < found.naive - 0.005
    assert found.gain.low < 0 < found.gain.high
    assert found.pairs is None


def test_baseline_on_top_no_baseline_and_one_trial() -> None:
    top = verdict(table({"p0": [0.8], "p1": [0.7]}))
    assert top.baseline_is_best
    assert top.gain is None
    trials = table({"p0": [0.8], "p1": [0.7]}).assign(baseline=False)
    assert verdict(trials).gain is None
    assert not verdict(trials).baseline_is_best
    single = verdict(table({"p0": [0.8]}))
    assert single.expected == pytest.approx(0.8)
    assert single.p_best == 1.0
    with pytest.raises(AnalysisError, match="no trial has been completed"):
        verdict(table({"p0": [0.8]}).assign(stop="pruned"))


def test_a_point_that_racing_ended_is_not_named() -> None:
    found = verdict(
        table({"p0": [0.7], "p1": [0.7]}, {"p0": [0.7] * 5, "p1": [0.70, 0.71, 0.72, 0.71, 0.7], "p2": [0.9]})
    )
    assert found.best == "p1"


def test_smaller_is_better_mirrors_larger_is_better() -> None:
    rng = np.random.default_rng(3)
    trials = table({f"p{i}": [0.70 + rng.normal(0, 0.005)] for i in range(30)})
    larger = verdict(trials)
    mirrored = trials.assign(value=-trials["value"])
    smaller = judge(
        mirrored, points_table(mirrored), replace(METRIC, mode="min"), ["x"], lambda _: None, np.random.default_rng(0)
    )
    assert smaller.best == larger.best
    assert smaller.expected == pytest.approx(-larger.expected)
    assert (smaller.low, smaller.high) == pytest.approx((-larger.high, -larger.low))
    assert smaller.gain is not None
    assert larger.gain is not None
    assert smaller.gain.value == pytest.approx(larger.gain.value)


def test_same_seed_same_verdict() -> None:
    first, second = (simulate(np.zeros(20), np.random.default_rng(5), confirm=2).verdict for _ in range(2))
    assert first == second
