"""The verdict on small tables whose answers are known, and off the beaten path."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from simulate import METRIC, SimulatedStudy, World
from small_tables import judge, table

from analysis.errors import AnalysisError
from analysis.statistics.empirical_bayes import moderate
from analysis.statistics.picked import Evaluated
from analysis.statistics.seed_noise import SeedValues, seed_noise, unknown_metric
from analysis.statistics.selection import Error, Power
from analysis.statistics.study_verdict import study_verdict
from analysis.statistics.verdict import Gain, _gain, _looks, judged
from analysis.tables.metric import Metric
from analysis.tables.points import points_table
from analysis.tables.study import Study
from analysis.writing.answer import verdict_lines
from search.schema import CONFIRMATION, SEED_SD

LEVEL_OF_LOOK = 0.0125
LOSS = Metric("eval_loss_dev", ("eval_loss_dev",), "min")


def winner() -> pd.DataFrame:
    """p7 is better by 0.05; seeds move by 0.004."""
    rng = np.random.default_rng(1)
    values = {f"p{i}": [0.70 + rng.normal(0, 0.004)] for i in range(20)} | {"p7": [0.76]}
    fresh = {"p0": 0.70 + rng.normal(0, 0.004, 5), "p7": 0.75 + rng.normal(0, 0.004, 5)}
    return table(values, {p: v.tolist() for p, v in fresh.items()})


def test_clear_winner_confirmed() -> None:
    trials = winner()
    found = judge(trials, looks=1)
    assert (found.best, found.confirmed, found.n, found.tried, found.candidates) == ("p7", True, 5, 20, 2)
    assert (found.looks, found.naive) == (1, 0.76)
    assert found.gain is not None
    assert found.gain.significant
    assert found.gain.paired == 5
    assert found.gain.low < 0.05 < found.gain.high
    assert found.expected == pytest.approx(0.75, abs=0.006)
    assert found.expected <= found.value
    assert found.p_best > 0.99


def test_gain_by_hand() -> None:
    """Paired differences, their moderated variance, Student's t, two rivals' worth of Bonferroni, half the level."""
    trials = winner()
    rival = trials[(trials["point"] == "p0") & (trials["stage"] == "confirm")].assign(point="p3", baseline=False)
    trials = pd.concat([trials, rival], ignore_index=True)
    found = judge(trials, looks=1)
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
    found = judge(winner(), looks=1)
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
        gain = judge(winner(), looks=looks).gain
        assert gain is not None
        assert gain.p_value is not None
        lows.append(gain.low)
        values.append(gain.p_value)
    assert lows[0] > lows[1] > lows[2]
    assert values == pytest.approx([values[0], 3 * values[0], 6 * values[0]])
    assert judge(winner(), looks=None).looks == 4  # nobody counted: after every seed but the first
    repeated = table({"p0": [0.70, 0.71], "p1": [0.72, 0.73]}, {"p0": [0.70, 0.71], "p1": [0.72, 0.73]})
    assert judge(repeated, looks=1).looks == 2  # the search, which had repeats, was one
    assert judge(table({"p0": [0.7], "p1": [0.8]}), looks=3).looks == 1


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


def test_repeats_of_the_search_allow_a_claim() -> None:
    values = {"p0": [0.700, 0.701, 0.702], "p1": [0.790, 0.791, 0.793]} | {
        f"p{i}": [0.70, 0.701, 0.699] for i in range(2, 9)
    }
    found = judge(table(values))
    noise = seed_noise(SeedValues.of(table(values), 1.0))
    variance, df = moderate([0.090, 0.090, 0.091], 2 * noise.sd**2)
    assert found.gain is not None
    assert (found.gain.significant, found.gain.paired, found.looks) == (True, 3, 1)
    assert found.gain.low == pytest.approx(0.271 / 3 - (variance / 3) ** 0.5 * student.isf(0.0125 / 8, df))


def test_without_common_seeds_the_difference_is_of_means() -> None:
    trials = winner()
    trials.loc[trials["point"] == "p0", "seed"] += 100
    found = judge(trials, looks=1)
    noise = seed_noise(SeedValues.of(trials, 1.0))
    assert found.gain is not None
    assert found.gain.paired == 0
    reach = (noise.sd**2 * (1 / 5 + 1 / 5)) ** 0.5 * student.isf(0.0125, noise.df)
    assert found.gain.low == pytest.approx(found.gain.observed - reach)


def test_the_correction_never_raises_what_was_measured() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        values = {f"p{i}": [float(rng.normal(0.7, 0.005))] for i in range(12)} | {"p3": [0.80]}
        found = judge(table(values, {p: rng.normal(0.70 + 0.1 * (p == "p3"), 0.005, 3).tolist() for p in ("p0", "p3")}))
        assert found.best == "p3"
        assert found.value - 0.003 < found.expected <= found.value


def test_best_of_many_equal_ones_is_no_gain() -> None:
    rng = np.random.default_rng(2)
    found = judge(table({f"p{i}": [0.70 + rng.normal(0, 0.005)] for i in range(60)}))
    assert found.gain is not None
    assert not found.gain.significant
    assert found.expected < found.naive - 0.005
    assert found.gain.low < 0 < found.gain.high
    assert found.pairs is None
    assert found.p_best < 0.3


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
    larger = judge(trials, looks=1)
    mirrored = trials.assign(value=-trials["value"])
    smaller = judge(mirrored, replace(METRIC, mode="min"), looks=1)
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
        second = judge(simulated.table(), looks=1)
        assert first.best == second.best
        assert (first.tried, first.candidates, first.looks) == (second.tried, second.candidates, second.looks)
        for name in ("value", "expected", "low", "high", "naive", "p_best"):
            assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-6), name


def gain(
    difference: float, taken: float, *, repeats: int = 3, n: int = 3, theirs: int = 3, below: float = 0.07
) -> tuple[Gain, Power | None]:
    """Of a difference whose error has variance 4e-4, 6 degrees of freedom, and 1e-5 through the dev pairs."""
    error = Error(4e-4, 6.0, 1e-5)
    picked: Any = SimpleNamespace(
        confirmed=True, n=n, between=1e-4, noise=SimpleNamespace(repeats=repeats),
        against=lambda *_: (difference, error, 0), below=lambda reach: below + 0 * reach,
    )  # fmt: skip
    pool: Any = SimpleNamespace(confirmed=[True], point=["p"], value=[0.5], n=[theirs], trial=["t9"])
    seeds: Any = SimpleNamespace(of_point=lambda *_: {})
    return _gain(pool, 0, picked, seeds, {}, taken, LEVEL_OF_LOOK, -1.0)


def bound(level: float, known: float = 1e-5) -> float:
    """Student's, with Satterthwaite's degrees of freedom."""
    variance = 4e-4 + known
    return float(student.ppf(1 - level, 6 * (variance / 4e-4) ** 2) * np.sqrt(variance))


def test_lower_bound_is_at_most_the_corrected_gain() -> None:
    found, _ = gain(0.30, 0.29)
    assert found.low == pytest.approx(0.01)
    assert found.significant
    found, _ = gain(0.30, 0.30)
    assert found.low == 0.0
    assert not found.significant, "nothing is left: no gain"
    found, _ = gain(0.30, 0.31)
    assert not found.significant


@pytest.mark.parametrize(("repeats", "n", "theirs", "claims"), [(0, 3, 3, False), (1, 2, 2, True), (3, 3, 1, False)])
def test_a_claim_wants_repeats_and_two_seeds_of_both(repeats: int, n: int, theirs: int, claims: bool) -> None:
    found, power = gain(0.5, 0.0, repeats=repeats, n=n, theirs=theirs)
    assert (found.significant, found.p_value is not None, power is not None) == (claims, claims, claims)
    assert found.low == pytest.approx(0.5 - (bound(LEVEL_OF_LOOK) if claims else 0.07))


@pytest.mark.parametrize(
    ("confirmed", "n", "counted", "repeated", "looks"),
    [(False, 5, 4, True, 1), (True, 3, None, False, 2), (True, 1, None, False, 1), (True, 5, 1, True, 2)],
)
def test_looks_by_hand(confirmed: bool, n: int, counted: int | None, repeated: bool, looks: int) -> None:
    picked: Any = SimpleNamespace(confirmed=confirmed, n=n)
    seeds: Any = SimpleNamespace(search_repeats=lambda: repeated)
    assert _looks(counted, picked, seeds) == looks


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
    assert not any("came out above" in line for line in verdict_lines(found, "s"))


def test_point_with_too_few_seeds_is_mentioned() -> None:
    searched = {"p0": [0.70], "p1": [0.69], "p2": [0.80]}
    found = judge(table(searched, {"p0": [0.70] * 5, "p1": [0.69] * 5, "p2": [0.8]}))
    assert found.baseline_is_best
    assert "of those that have the seeds to be named none came out above" in " ".join(verdict_lines(found, "s"))


def test_where_less_is_better_the_correction_goes_up() -> None:
    searched = {"p0": [0.50], "p1": [0.48], "p2": [0.49], "p3": [0.485], "p4": [0.51]}
    fresh = {
        "p0": [0.505, 0.50, 0.50], "p1": [0.498, 0.495, 0.50], "p2": [0.499, 0.5, 0.497], "p3": [0.5, 0.502, 0.499],
    }  # fmt: skip
    found = judge(table(searched, fresh), LOSS, looks=1)
    assert found.expected > found.value
    line = verdict_lines(found, "s")[1]
    assert f"{100 * (found.expected - found.value):.2f} above the {100 * found.value:.2f} measured" in line


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
    lines = " ".join(verdict_lines(found, "s"))
    assert f"as much as the {points} points differ by, since nothing is known of this metric" in lines
