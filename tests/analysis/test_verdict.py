"""The verdict on small tables whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from simulate import METRIC, SimulatedStudy, World
from small_tables import table

from analysis.errors import AnalysisError
from analysis.statistics.correlation import spearman_influence
from analysis.statistics.evaluated import Evaluated, SeedValues
from analysis.statistics.pair_noise import pair_noise
from analysis.statistics.seed_noise import moderate, seed_noise
from analysis.statistics.study_verdict import study_verdict
from analysis.statistics.verdict import Verdict, judge, judged
from analysis.tables.study import Study
from analysis.tables.trials import points_table
from search.schema import CONFIRMATION, SEED_SD


def verdict(trials: pd.DataFrame, **options: Any) -> Verdict:
    return judge(trials, points_table(trials), METRIC, lambda _: None, **options)


def winner() -> pd.DataFrame:
    """p7 is better by 0.05; seeds move by 0.004."""
    rng = np.random.default_rng(1)
    values = {f"p{i}": [0.70 + rng.normal(0, 0.004)] for i in range(20)} | {"p7": [0.76]}
    fresh = {"p0": 0.70 + rng.normal(0, 0.004, 5), "p7": 0.75 + rng.normal(0, 0.004, 5)}
    return table(values, {p: v.tolist() for p, v in fresh.items()})


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
    mine = np.mean([spearman_influence(stored[run]["stsb_dev"], gold)[1] for run in runs[0]], axis=0)
    assert found.own == pytest.approx(np.var(mine) / 3000)
    assert found.between == pytest.approx(np.var(psi[0] - psi[1]) / 3000, rel=0.15)
    single = pair_noise(["00"], ["10"], ["stsb_dev"], stored.get)
    assert single is not None
    assert single.between > 1.5 * found.between
    few = pair_noise(["00", "01"], ["10", "11", "12"], ["stsb_dev"], stored.get)
    a, b = (
        [spearman_influence(stored[r]["stsb_dev"], gold)[1] for r in rs] for rs in (["00", "01"], ["10", "11", "12"])
    )
    within = (2 * np.var(a, axis=0) + 3 * np.var(b, axis=0)).mean() / (1 + 2)  # per seed, three degrees of freedom
    apart = np.var(np.mean(a, axis=0) - np.mean(b, axis=0))
    assert few is not None
    assert few.between == pytest.approx((apart - within * (1 / 2 + 1 / 3)) / 3000)
    assert pair_noise(["00"], ["none"], ["stsb_dev"], stored.get) is None
    assert pair_noise(["00"], ["10"], ["other_dev"], stored.get) is None


def test_clear_winner_confirmed() -> None:
    trials = winner()
    found = verdict(trials, looks=1)
    assert (found.best, found.confirmed, found.n, found.tried, found.candidates) == ("p7", True, 5, 20, 2)
    assert (found.looks, found.naive) == (1, 0.76)
    assert found.gain is not None
    assert found.gain.significant
    assert found.gain.paired == 5
    assert found.gain.low < 0.05 < found.gain.high
    assert found.expected == pytest.approx(0.75, abs=0.006)
    assert found.expected <= found.value
    assert found.p_best > 0.99
    assert found.p_best_of_all > 0.95


def test_gain_by_hand() -> None:
    """Paired differences, their moderated variance, Student's t, two rivals' worth of Bonferroni, half the level."""
    trials = winner()
    rival = trials[(trials["point"] == "p0") & (trials["stage"] == "confirm")].assign(point="p3", baseline=False)
    trials = pd.concat([trials, rival], ignore_index=True)
    found = verdict(trials, looks=1)
    noise = seed_noise(SeedValues.of(trials, 1.0))
    fresh = trials[trials["stage"] == "confirm"]
    gaps = fresh.loc[fresh["point"] == "p7", "value"].to_numpy() - fresh.loc[fresh["point"] == "p0", "value"].to_numpy()
    variance = (3 * 2 * noise.sd**2 + ((gaps - gaps.mean()) ** 2).sum()) / 7 / 5
    assert found.gain is not None
    assert found.gain.observed == pytest.approx(gaps.mean())
    assert found.gain.low == pytest.approx(gaps.mean() - variance**0.5 * student.isf(0.0125 / 2, 7))
    assert found.gain.high == pytest.approx(gaps.mean() + variance**0.5 * student.isf(0.025, 7))
    assert found.gain.value == pytest.approx(gaps.mean() - (found.value - found.expected))
    assert found.gain.p_value == pytest.approx(4 * 2 * student.sf(gaps.mean() / variance**0.5, 7))
    assert found.gain.baseline_n == 5
    assert found.gain.baseline_value == pytest.approx(fresh.loc[fresh["point"] == "p0", "value"].mean())
    assert found.power is not None
    assert found.power.visible == pytest.approx(variance**0.5 * (student.isf(0.0125 / 2, 7) + 0.8416212))


def test_value_interval_by_hand() -> None:
    found = verdict(winner(), looks=1)
    noise = seed_noise(SeedValues.of(winner(), 1.0))
    fresh = winner().query("point == 'p7' and stage == 'confirm'")["value"].to_numpy()
    variance, df = moderate(fresh.tolist(), noise.sd**2)
    assert df == 7
    error = (variance / 5) ** 0.5
    assert found.low == pytest.approx(
        fresh.mean() - error * student.isf(0.025 / 2, 7)
    )  # the baseline could be named too
    assert found.high == pytest.approx(fresh.mean() + error * student.isf(0.025, 7))


def test_every_look_costs() -> None:
    lows, values = [], []
    for looks in (1, 2, 3):
        gain = verdict(winner(), looks=looks).gain
        assert gain is not None
        assert gain.p_value is not None
        lows.append(gain.low)
        values.append(gain.p_value)
    assert lows[0] > lows[1] > lows[2]
    assert values == pytest.approx([values[0], 3 * values[0], 6 * values[0]])
    assert verdict(winner(), looks=None).looks == 4  # nobody counted: after every seed but the first
    repeated = table({"p0": [0.70, 0.71], "p1": [0.72, 0.73]}, {"p0": [0.70, 0.71], "p1": [0.72, 0.73]})
    assert verdict(repeated, looks=1).looks == 2  # the search, which had repeats, was one
    assert verdict(table({"p0": [0.7], "p1": [0.8]}), looks=3).looks == 1


def test_no_claim_rests_on_an_assumed_noise() -> None:
    found = verdict(table({"p0": [0.1], **{f"p{i}": [0.2] for i in range(1, 9)}, "p9": [0.9]}))
    assert found.gain is not None
    assert not found.gain.significant
    assert found.gain.p_value is None
    assert found.power is None
    assert found.noise.repeats == 0
    assert found.noise.sd == SEED_SD
    single = verdict(table({"p0": [0.70, 0.71], "p1": [0.75]}, {"p0": [0.7], "p1": [0.9]}))  # repeats, but not of these
    assert single.gain is not None
    assert single.gain.p_value is None
    assert not single.gain.significant


def test_repeats_of_the_search_allow_a_claim_against_all_that_was_tried() -> None:
    values = {"p0": [0.700, 0.701, 0.702], "p1": [0.790, 0.791, 0.793]} | {
        f"p{i}": [0.70, 0.701, 0.699] for i in range(2, 9)
    }
    found = verdict(table(values))
    noise = seed_noise(SeedValues.of(table(values), 1.0))
    variance, df = moderate([0.090, 0.090, 0.091], 2 * noise.sd**2)
    assert found.gain is not None
    assert (found.gain.significant, found.gain.paired, found.looks) == (True, 3, 1)
    assert found.gain.low == pytest.approx(0.271 / 3 - (variance / 3) ** 0.5 * student.isf(0.0125 / 8, df))


def test_without_common_seeds_the_difference_is_of_means() -> None:
    trials = winner()
    trials.loc[trials["point"] == "p0", "seed"] += 100
    found = verdict(trials, looks=1)
    noise = seed_noise(SeedValues.of(trials, 1.0))
    assert found.gain is not None
    assert found.gain.paired == 0
    reach = (noise.sd**2 * (1 / 5 + 1 / 5)) ** 0.5 * student.isf(0.0125, noise.df)
    assert found.gain.low == pytest.approx(found.gain.observed - reach)


def test_the_correction_never_raises_what_was_measured() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        values = {f"p{i}": [float(rng.normal(0.7, 0.005))] for i in range(12)} | {"p3": [0.80]}
        found = verdict(
            table(values, {p: rng.normal(0.70 + 0.1 * (p == "p3"), 0.005, 3).tolist() for p in ("p0", "p3")})
        )
        assert found.best == "p3"
        assert found.value - 0.003 < found.expected <= found.value


def test_best_of_many_equal_ones_is_no_gain() -> None:
    rng = np.random.default_rng(2)
    found = verdict(table({f"p{i}": [0.70 + rng.normal(0, 0.005)] for i in range(60)}))
    assert found.gain is not None
    assert not found.gain.significant
    assert found.expected < found.naive - 0.005
    assert found.gain.low < 0 < found.gain.high
    assert found.pairs is None
    assert found.p_best_of_all == found.p_best < 0.3


def test_probability_is_of_the_candidates_and_of_all() -> None:
    rng = np.random.default_rng(4)
    values = {f"p{i}": [0.70 + rng.normal(0, 0.01)] for i in range(40)}
    found = verdict(table(values, {"p0": [0.69, 0.70, 0.695], "p1": [0.70, 0.705, 0.70]}))
    assert found.candidates == 2
    assert found.p_best > 0.5 > found.p_best_of_all


def test_baseline_on_top_no_baseline_and_one_trial() -> None:
    top = verdict(table({"p0": [0.8], "p1": [0.7]}))
    assert top.baseline_is_best
    assert top.gain is None
    trials = table({"p0": [0.8], "p1": [0.7]}).assign(baseline=False)
    assert verdict(trials).gain is None
    assert not verdict(trials).baseline_is_best
    single = verdict(table({"p0": [0.8]}))
    assert single.expected == pytest.approx(0.8)
    assert single.p_best == single.p_best_of_all == 1.0
    with pytest.raises(AnalysisError, match="no trial has been completed"):
        verdict(table({"p0": [0.8]}).assign(stop="pruned"))


def test_a_point_that_racing_ended_is_not_named() -> None:
    found = verdict(
        table({"p0": [0.7], "p1": [0.7]}, {"p0": [0.7] * 5, "p1": [0.70, 0.71, 0.72, 0.71, 0.7], "p2": [0.9] * 2})
    )
    assert found.best == "p1"
    enough = verdict(table({"p0": [0.7]}, {"p0": [0.7] * 6, "p2": [0.9] * 3}))
    assert enough.best == "p2"  # half the seeds are enough
    assert enough.candidates == 2


def test_smaller_is_better_mirrors_larger_is_better() -> None:
    trials = winner()
    larger = verdict(trials, looks=1)
    mirrored = trials.assign(value=-trials["value"])
    smaller = judge(mirrored, points_table(mirrored), replace(METRIC, mode="min"), lambda _: None, looks=1)
    assert smaller.best == larger.best
    assert (smaller.expected, smaller.naive, smaller.value) == pytest.approx(
        (-larger.expected, -larger.naive, -larger.value)
    )
    assert (smaller.low, smaller.high) == pytest.approx((-larger.high, -larger.low))
    assert smaller.gain is not None
    assert larger.gain is not None
    assert (smaller.gain.value, smaller.gain.low) == pytest.approx((larger.gain.value, larger.gain.low))
    assert smaller.gain.baseline_value == pytest.approx(-larger.gain.baseline_value)
    assert smaller.to_dict()["metric"] == METRIC.name


def test_points_as_arrays() -> None:
    trials = table({"p0": [0.1, 0.3], "p1": [0.5], "p2": [0.4], "p3": [0.9]}, {"p1": [0.7, 0.8]})
    trials.loc[trials["point"] == "p2", "stop"] = "pruned"
    trials.loc[trials["point"] == "p3", "stop"] = "failed:oom"
    found = Evaluated.of(points_table(trials), 1.0)
    assert found.point.tolist() == ["p0", "p1", "p2"]
    assert found.value == pytest.approx([0.2, 0.75, 0.4])
    assert found.completed.tolist() == [True, True, False]
    assert found.nameable().tolist() == [False, True, False]
    assert found.best_of_search() == 0.5
    assert found.reference() == 0
    seeds = SeedValues.of(trials, -1.0)
    assert seeds.of_point("p0", confirm=False) == pytest.approx({0: -0.1, 1: -0.3})
    assert seeds.of_point("p1", confirm=True) == pytest.approx({10: -0.7, 11: -0.8})
    assert seeds.search_repeats()
    assert seeds.firsts() == pytest.approx([-0.1, -0.5])
    nothing = Evaluated.of(points_table(trials[trials["stage"] == "confirm"]), 1.0)
    assert np.isnan(nothing.best_of_search())
    assert nothing.reference() is None


def study(trials: pd.DataFrame, name: str, tags: dict[str, str], store: Any) -> Study:
    stored = SimpleNamespace(
        run_id=name, tags={"method": "simcse", "metric": "stsb_dev", **tags}, params={"encoder": "e"}
    )
    return Study(store, cast(Any, stored), [], METRIC, trials, ("x",), None)


def test_looks_are_the_confirmations_that_the_study_counts() -> None:
    store = SimpleNamespace(studies=list, artifact=lambda _run, _path: None)
    tags = {f"{CONFIRMATION}{time}": "top 3, seeds 5" for time in (100, 200)}
    assert study_verdict(_deaf(study(winner(), "s", tags, store))).looks == 2
    assert study_verdict(_deaf(study(winner(), "s", {}, store))).looks == 4


def test_no_interval_is_wider_than_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SimpleNamespace(studies=list, artifact=lambda _run, _path: None)
    found = _deaf(study(winner(), "s", {}, store))
    plain = study_verdict(found)
    assert plain.gain is not None
    room = max(abs(plain.gain.low), abs(plain.gain.high)) / 2
    monkeypatch.setattr(Study, "limits", (0.0, room))
    cut = study_verdict(found)
    assert cut.gain is not None
    assert (cut.gain.low, cut.gain.high) == (max(plain.gain.low, -room), min(plain.gain.high, room))


def _deaf(found: Study) -> Study:
    """The study, its similarities out of reach."""
    object.__setattr__(found, "similarities", lambda _: None)
    return found


@pytest.mark.parametrize("world", [World(), World(confirm="no", prune=0.4), World(repeats=2, confirm="race", best=1.0)])
def test_arrays_and_tables_say_the_same(world: World) -> None:
    """The simulation hands over arrays, a study tables."""
    for seed in range(3):
        simulated = SimulatedStudy(world, np.random.default_rng(seed))
        if world.confirm != "no":
            simulated.confirm(world.seeds)
        first = judged(*simulated.arrays(), METRIC, lambda _a, _b: None, looks=1)
        second = verdict(simulated.table(), looks=1)
        assert first.best == second.best
        assert (first.tried, first.candidates, first.looks) == (second.tried, second.candidates, second.looks)
        for name in ("value", "expected", "low", "high", "naive", "p_best", "p_best_of_all"):
            assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-6), name
