"""The verdict, the forecast of a confirmation and the held-out dev pairs, on small tables with known answers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from simulate import METRIC
from small_tables import judge, table, table_study

from analysis.errors import AnalysisError
from analysis.statistics.empirical_bayes import moderate
from analysis.statistics.seed_noise import SeedValues, seed_noise, unknown_metric
from analysis.statistics.selection import Power, planned, spent
from analysis.statistics.verdict import confirm_forecast, study_verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Held, Study, held
from analysis.writing.answer import explain_lines, forecast_lines
from search.schema import CONFIRMATION, SEED_SD

LOSS = Metric("eval_loss_dev", ("eval_loss_dev",), "min")


def winner() -> pd.DataFrame:
    """p7 is better by 0.05; seeds move by 0.004."""
    rng = np.random.default_rng(1)
    values = {f"p{i}": [0.70 + rng.normal(0, 0.004)] for i in range(20)} | {"p7": [0.76]}
    fresh = {"p0": 0.70 + rng.normal(0, 0.004, 5), "p7": 0.75 + rng.normal(0, 0.004, 5)}
    return table(values, {p: v.tolist() for p, v in fresh.items()})


def test_clear_winner_confirmed() -> None:
    trials = winner()
    found = judge(trials, analyses=1)
    assert (found.best, found.confirmed, found.n, found.tried, found.candidates) == ("p7", True, 5, 20, 2)
    assert (found.analyses, found.naive) == (1, 0.76)
    assert found.gain is not None
    assert found.gain.significant
    assert found.gain.paired == 5
    assert found.gain.low < 0.05 < found.gain.high
    assert found.expected == pytest.approx(0.75, abs=0.006)
    assert found.expected <= found.value
    assert found.p_best > 0.99


def test_gain_is_the_worked_example() -> None:
    """Paired differences, their moderated variance, Student's t, two rivals' worth of Bonferroni, 0.8 of the level."""
    trials = winner()
    rival = trials[(trials["point"] == "p0") & (trials["stage"] == "confirm")].assign(point="p3", baseline=False)
    trials = pd.concat([trials, rival], ignore_index=True)
    found = judge(trials, analyses=1)
    noise = seed_noise(SeedValues.of(trials, 1.0))
    fresh = trials[trials["stage"] == "confirm"]
    gaps = fresh.loc[fresh["point"] == "p7", "value"].to_numpy() - fresh.loc[fresh["point"] == "p0", "value"].to_numpy()
    variance = (3 * 2 * noise.sd**2 + ((gaps - gaps.mean()) ** 2).sum()) / 7 / 5
    assert found.gain is not None
    assert found.gain.observed == pytest.approx(gaps.mean())
    assert found.gain.low == pytest.approx(gaps.mean() - variance**0.5 * student.isf(0.02 / 2, 7))
    assert found.gain.high == pytest.approx(gaps.mean() + variance**0.5 * student.isf(0.025, 7))
    assert found.gain.value == pytest.approx(gaps.mean() - (found.value - found.expected))
    assert found.gain.p_value == pytest.approx(2.5 * 2 * student.sf(gaps.mean() / variance**0.5, 7))
    assert found.gain.baseline_n == 5
    assert found.gain.baseline_value == pytest.approx(fresh.loc[fresh["point"] == "p0", "value"].mean())
    assert found.power is not None
    assert found.power.visible == pytest.approx(variance**0.5 * (student.isf(0.02 / 2, 7) + 0.8416212))


def test_value_interval_is_the_worked_example() -> None:
    found = judge(winner(), analyses=1)
    noise = seed_noise(SeedValues.of(winner(), 1.0))
    fresh = winner().query("point == 'p7' and stage == 'confirm'")["value"].to_numpy()
    variance, df = moderate(fresh.tolist(), noise.sd**2)
    assert df == 7
    error = (variance / 5) ** 0.5
    assert found.low == pytest.approx(
        fresh.mean() - error * student.isf(0.025 / 2, 7)
    )  # the baseline could be named too
    assert found.high == pytest.approx(fresh.mean() + error * student.isf(0.025, 7))


def test_every_interim_analysis_costs() -> None:
    lows, values = [], []
    for analyses in (1, 2, 3):
        gain = judge(winner(), analyses=analyses).gain
        assert gain is not None
        assert gain.p_value is not None
        lows.append(gain.low)
        values.append(gain.p_value)
    assert lows[0] > lows[1] > lows[2]
    assert values == pytest.approx([values[0], 5 * values[0], 25 * values[0]])
    assert judge(winner(), analyses=None).analyses == 4  # not counted: after every seed but the first
    repeated = table({"p0": [0.70, 0.71], "p1": [0.72, 0.73]}, {"p0": [0.70, 0.71], "p1": [0.72, 0.73]})
    assert judge(repeated, analyses=1).analyses == 1, "repeats of the search cost no level"
    assert judge(table({"p0": [0.7], "p1": [0.8]}), analyses=3).analyses == 1


def test_no_claim_rests_on_an_assumed_noise() -> None:
    found = judge(table({"p0": [0.1], **{f"p{i}": [0.2] for i in range(1, 9)}, "p9": [0.9]}))
    assert found.gain is not None
    assert not found.gain.significant
    assert found.gain.p_value is None
    assert found.power is None
    assert found.noise.repeats == 0
    assert found.noise.sd == SEED_SD
    single = judge(table({"p0": [0.70, 0.71], "p1": [0.75]}, {"p0": [0.7], "p1": [0.9]}))  # repeats, but not of these
    assert single.gain is not None
    assert single.gain.p_value is None
    assert not single.gain.significant


def test_repeats_of_the_search_allow_no_claim() -> None:
    """They give an estimate and an interval; a claim rests on fresh seeds."""
    values = {"p0": [0.700, 0.701, 0.702], "p1": [0.790, 0.791, 0.793]} | {
        f"p{i}": [0.70, 0.701, 0.699] for i in range(2, 9)
    }
    found = judge(table(values))
    assert found.gain is not None
    assert (found.gain.significant, found.gain.p_value, found.power) == (False, None, None)
    assert found.gain.paired == 3
    assert 0.08 < found.gain.low < found.gain.value < found.gain.high < 0.1
    fresh = judge(table(values, {"p0": [0.70, 0.702], "p1": [0.79, 0.791]}), analyses=1)
    assert fresh.gain is not None
    assert fresh.gain.significant


def test_without_common_seeds_the_difference_is_of_means() -> None:
    trials = winner()
    trials.loc[trials["point"] == "p0", "seed"] += 100
    found = judge(trials, analyses=1)
    noise = seed_noise(SeedValues.of(trials, 1.0))
    assert found.gain is not None
    assert found.gain.paired == 0
    reach = (noise.sd**2 * (1 / 5 + 1 / 5)) ** 0.5 * student.isf(0.02, noise.df)
    assert found.gain.low == pytest.approx(found.gain.observed - reach)


def test_baseline_on_top_no_baseline_and_one_trial() -> None:
    top = judge(table({"p0": [0.8], "p1": [0.7]}))
    assert top.baseline_is_best
    assert top.gain is None
    trials = table({"p0": [0.8], "p1": [0.7]}).assign(baseline=False)
    assert judge(trials).gain is None
    assert not judge(trials).baseline_is_best
    single = judge(table({"p0": [0.8]}))
    assert single.expected == pytest.approx(0.8)
    assert single.p_best == 1.0
    with pytest.raises(AnalysisError, match="no trial has been completed"):
        judge(table({"p0": [0.8]}).assign(stop="pruned"))


def test_a_point_that_racing_ended_is_not_named() -> None:
    found = judge(
        table({"p0": [0.7], "p1": [0.7]}, {"p0": [0.7] * 5, "p1": [0.70, 0.71, 0.72, 0.71, 0.7], "p2": [0.9] * 2})
    )
    assert found.best == "p1"
    enough = judge(table({"p0": [0.7]}, {"p0": [0.7] * 6, "p2": [0.9] * 3}))
    assert enough.best == "p2"  # half the seeds are enough
    assert enough.candidates == 2


def test_smaller_is_better_mirrors_larger_is_better() -> None:
    trials = winner()
    larger = judge(trials, analyses=1)
    mirrored = trials.assign(value=-trials["value"])
    smaller = judge(mirrored, replace(METRIC, mode="min"), analyses=1)
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


def test_interim_analyses_are_the_confirmations_that_the_study_counts() -> None:
    tags = {f"{CONFIRMATION}{time}": "top 3, seeds 5" for time in (100, 200)}
    assert study_verdict(table_study(winner(), tags)).analyses == 2
    assert study_verdict(table_study(winner())).analyses == 4


def test_no_interval_is_wider_than_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    found = table_study(winner())
    plain = study_verdict(found).gain
    assert plain is not None
    width = max(abs(plain.low), abs(plain.high)) / 2
    monkeypatch.setattr(Study, "limits", (0.0, width))
    cut = study_verdict(found).gain
    assert cut is not None
    assert (cut.low, cut.high) == (max(plain.low, -width), min(plain.high, width))


@pytest.mark.parametrize(
    ("searched", "fresh"),
    [
        ({"p0": [0.70], "p1": [0.72], "p2": [0.80]}, {"p0": [0.701, 0.702]}),  # the best failed on its fresh seeds
        ({"p0": [0.70, 0.702, 0.698], "p1": [0.80]}, None),  # a search that is under way
        ({"p0": [0.70], "p1": [0.80]}, {"p0": [0.70] * 5, "p1": [0.79, 0.80]}),
    ],
)
def test_seeds_of_the_baseline_do_not_make_it_best(
    searched: dict[str, list[float]], fresh: dict[str, list[float]] | None
) -> None:
    found = judge(table(searched, fresh))
    assert found.best != "p0"
    assert found.gain is not None
    assert not found.baseline_is_best


@pytest.mark.parametrize("points", [3, 12])
def test_intervals_hold_for_an_unknown_metric(points: int) -> None:
    """Equal points of a perplexity about 30, seeds move it by 1: with SimCSE's noise no interval held the truth."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(60):
        trials = table({f"p{i}": [30 + rng.normal()] for i in range(points)})
        prior = unknown_metric(SeedValues.of(trials, LOSS.sign).firsts())
        found = judge(trials, LOSS, prior=prior)
        held += found.low <= 30 <= found.high
    assert held >= 55
    lines = " ".join(explain_lines(table_study(trials), found))
    assert f"the spread of the {points} points, an upper bound" in lines


def partly_confirmed(confirmed: dict[str, int], tags: dict[str, str], **changes: Any) -> Study:
    """Twelve points, p0 the baseline, p11 best; `confirmed` of them on so many fresh seeds."""
    rows = [(f"p{i}", "search", 0, 0.70 + 0.001 * i) for i in range(12)]
    rows += [(p, "confirm", 1 + s, 0.70 + 0.002 * s) for p, n in confirmed.items() for s in range(n)]
    trials = pd.DataFrame(rows, columns=["point", "stage", "seed", "value"])
    trials = trials.assign(stop="completed", baseline=trials["point"] == "p0", seconds=90.0)
    trials["run_id"] = trials["trial"] = [f"t{i}" for i in range(len(trials))]
    return table_study(trials.assign(**changes), tags)


def test_before_anything_is_confirmed() -> None:
    found = confirm_forecast(partly_confirmed({}, {}), top=3, seeds=5)
    assert (found.points, found.seeds, found.trials, found.seconds, found.analysis) == (4, 5, 20, 90.0, 1)
    assert found.noise.repeats == 0
    assert found.pairs is None
    error = planned(sd=found.noise.sd, between=0.0, tried=12, in_search=1.0, rivals=3, seeds=5)
    assert found.power == Power.of(error, 5, spent(1))
    lines = forecast_lines(found, partly_confirmed({}, {"study_id": "s"}))
    assert "4 points on 5 fresh seeds, 20 trials, about 30 minutes of training at 90 s a trial" in lines[0]
    assert lines[1].startswith("Power: with this dev set and 5 seeds, 80 % of confirmations detect a gain of ")
    assert "assumed, since no seed was repeated" in lines[2]


def test_existing_seeds_are_not_run_again() -> None:
    found = confirm_forecast(partly_confirmed({"p0": 5, "p11": 5, "p10": 2}, {f"{CONFIRMATION}1": "x"}), top=3, seeds=6)
    assert (found.points, found.trials, found.analysis) == (4, 4 * 6 - 12, 2)
    assert found.noise.repeats == 4 + 4 + 1
    assert found.power is not None
    assert found.power.seeds == 6
    assert (
        confirm_forecast(partly_confirmed({"p0": 5}, {}), top=1, seeds=3).trials == 3
    )  # no fewer than none for the baseline


def test_without_a_baseline_nothing_can_be_claimed() -> None:
    none = partly_confirmed({}, {}, baseline=False)
    found = confirm_forecast(none, top=3, seeds=5)
    assert (found.points, found.power) == (3, None)
    assert "No gain can be tested" in forecast_lines(found, none)[1]
    alone = partly_confirmed({}, {})
    object.__setattr__(alone, "trials", alone.trials[alone.trials["baseline"]])
    found = confirm_forecast(alone, top=1, seeds=5)
    assert (found.points, found.power) == (1, None)
    with pytest.raises(AnalysisError, match="no trial of the search has been completed"):
        confirm_forecast(partly_confirmed({}, {}, stop="pruned"), top=3, seeds=5)


def test_forecast_compares_a_leading_baseline_with_another_point() -> None:
    found = confirm_forecast(partly_confirmed({}, {}, value=np.append(1.0, np.zeros(11))), top=1, seeds=5)
    assert (found.points, found.trials) == (2, 10)
    assert found.power is not None


def test_noise_is_the_study_s() -> None:
    found = partly_confirmed({"p0": 5, "p11": 5}, {})
    assert confirm_forecast(found, 3, 5).noise == seed_noise(SeedValues.of(found.trials, 1.0))


VALUES = {"p0": [0.70, 0.72], "p1": [0.80, 0.82]}
HELD = {"p0": [0.69, 0.70], "p1": [0.74, 0.75]}


def with_held(held_values: dict[str, list[float]]) -> Study:
    trials = table(VALUES)
    trials["run_id"] = trials["point"] + trials["seed"].astype(str)
    runs = [
        SimpleNamespace(run_id=f"{p}{seed}", metrics={"best_stsb_held_dev": v})
        for p, vs in held_values.items()
        for seed, v in enumerate(vs)
    ]
    return table_study(trials, runs=runs)


def test_means_over_the_counted_seeds() -> None:
    found = with_held(HELD)
    assert held(found, "p1") == Held(pytest.approx(0.81), pytest.approx(0.745))
    assert held(found, "p7") is None
    assert held(with_held({}), "p1") is None
    assert held(with_held({"p1": [0.74]}), "p0") is None  # of the baseline nothing is stored
