"""Methods at a common budget: duels of confirmed bests, differences of the rest, and what counts together."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from memory_study import METRIC, MemoryStore, memory_study, run
from scipy import stats
from simulate import World
from simulate_duel import simulate_duel

from analysis.errors import AnalysisError
from analysis.statistics.league import (
    CONFIRMED,
    SEARCHED,
    Duel,
    compared,
    further_pairs,
    holm,
    league,
)
from analysis.statistics.verdict import study_verdict
from analysis.tables.comparable import first_points, same_data, shares
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from search import schema

GOLD = np.random.default_rng(0).uniform(0, 5, 300).astype(np.float32)


class Scored(MemoryStore):
    """With cosines of every trial, each run's its own."""

    def __init__(self, space: Mapping[str, Any], gold: np.ndarray) -> None:
        super().__init__(space)
        self._gold = gold

    def artifact(self, run: Any, path: str) -> bytes | None:
        if path != schema.SIMILARITIES:
            return super().artifact(run, path)
        cosines = self._gold + np.random.default_rng(7).normal(size=300)  # what all models get wrong
        cosines += 0.3 * np.random.default_rng(list(run.run_id.encode())).normal(size=300)
        buffer = io.BytesIO()
        np.savez(buffer, stsb_dev=cosines.astype(np.float32), stsb_gold=self._gold)
        return buffer.getvalue()


def searched(method: str, values: list[float], confirm: Mapping[int, list[float]], gold: np.ndarray = GOLD) -> Study:
    """A study of one trial a point, and fresh seeds of some points."""
    rows = [(i, 0, value, "search") for i, value in enumerate(values)]
    rows += [(i, 100 + k, value, "confirm") for i, fresh in confirm.items() for k, value in enumerate(fresh)]
    number, seeds, value, stage = zip(*rows, strict=True)
    study = memory_study([{"x": i} for i in number], value, {"x": {"int": [0, 99]}}, seeds=seeds)
    space = {"data": {"dev": ["stsb"]}, "params": {"x": {"int": [0, 99]}}}
    ids = [f"{method}-{i}" for i in range(len(rows))]  # MLflow's are unique in a store
    return replace(
        study,
        trials=study.trials.assign(stage=list(stage), run_id=ids),
        stored=run(method, method=method, study_id=method),
        stored_trials=[run(i) for i in ids],
        store=Scored(space, gold),
    )


def verdict(expected: float, below: float, above: float, n: int = 3, metric: Metric = METRIC) -> Any:
    return SimpleNamespace(metric=metric, expected=expected, below=below, above=above, n=n)


def test_arms_are_the_worked_example() -> None:
    duel = compared("a", verdict(0.80, 0.03, 0.01), "b", verdict(0.75, 0.02, 0.04, n=5), pairs=0.0)
    assert (duel.of, duel.difference) == (CONFIRMED, pytest.approx(0.05))
    assert duel.low == pytest.approx(0.0)  # 3, 4, 5
    assert duel.high == pytest.approx(0.05 + np.hypot(0.01, 0.02))
    assert duel.p_value == pytest.approx(0.05)  # the interval ends at 0
    other = compared("b", verdict(0.75, 0.02, 0.04, n=5), "a", verdict(0.80, 0.03, 0.01), pairs=0.0)
    assert (other.low, other.high) == pytest.approx((-duel.high, -duel.low))
    assert other.p_value == pytest.approx(0.05)
    pairs = compared("a", verdict(0.80, 0.03, 0.01), "b", verdict(0.75, 0.02, 0.04), pairs=0.12**2 / 1.959964**2)
    assert pairs.low == pytest.approx(0.05 - 0.13)  # 5, 12, 13
    # Student's t of three seeds and the prior: five degrees of freedom.
    assert pairs.p_value == pytest.approx(2 * stats.t.sf(0.05 / 0.13 * stats.t.isf(0.025, 5), 5))


def test_a_loss_is_better_below() -> None:
    lower = Metric("loss", ("loss",), "min")
    duel = compared("a", verdict(1.0, 0.3, 0.1, metric=lower), "b", verdict(2.0, 0.1, 0.4, metric=lower), 0.0)
    assert (duel.difference, duel.low) == (pytest.approx(1.0), pytest.approx(0.5))


def test_confirmed_methods_are_compared_by_what_was_found() -> None:
    first = searched("simcse", [0.70, 0.40, 0.72, 0.60, 0.50], {2: [0.71, 0.715, 0.72]})
    second = searched("edacse", [0.60, 0.20, 0.65, 0.61, 0.55], {2: [0.645, 0.64, 0.65]})
    found = league([first, second])
    (duel,) = found.duels
    assert duel.of == CONFIRMED
    assert duel.difference == pytest.approx(study_verdict(first).expected - study_verdict(second).expected)
    assert duel.significant
    assert duel.high - duel.low < 0.06
    (open_one,) = league([first, searched("edacse", [0.60, 0.20, 0.65, 0.61, 0.55], {})]).duels
    assert (open_one.of, open_one.significant) == (SEARCHED, False)


def test_common_pairs_cancel_and_others_add() -> None:
    first = searched("simcse", [0.70, 0.72], {1: [0.71, 0.72]})
    same, other = (searched("edacse", [0.60, 0.65], {1: [0.64, 0.65]}, gold=g) for g in (GOLD, GOLD[::-1].copy()))
    verdicts = [study_verdict(study) for study in (first, same, other)]
    arms = [(v.pairs.own, v.pairs.between / 2) for v in verdicts if v.pairs]
    apart = further_pairs(first, verdicts[0], other, verdicts[2])
    assert apart == pytest.approx(arms[0][0] + arms[2][0] - arms[0][1] - arms[2][1])
    assert further_pairs(first, verdicts[0], same, verdicts[1]) < apart / 3


@pytest.mark.parametrize("data", [{"dev": ["/elsewhere/stsb_dev.tsv"]}, {"dev": ["sickr", "stsb"]}, {}, None])
def test_the_same_gold_cancels_however_the_space_names_it(data: dict[str, Any] | None) -> None:
    first = searched("simcse", [0.70, 0.72, 0.6], {1: [0.71, 0.72]})
    second = searched("edacse", [0.60, 0.65, 0.5], {1: [0.64, 0.65]})
    elsewhere = replace(second, store=Scored({"data": data}, GOLD))
    (duel,), (other,) = (league([first, one]).duels for one in (second, elsewhere))
    assert (other.difference, other.low, other.high) == pytest.approx((duel.difference, duel.low, duel.high))


def test_pairs_of_one_alone_say_nothing_of_a_difference() -> None:
    known, unknown = searched("simcse", [0.70, 0.72], {1: [0.71, 0.72]}), memory_study([{"x": 1}], [0.5], {})
    verdicts = study_verdict(known), study_verdict(unknown)
    assert verdicts[0].pairs is not None
    assert verdicts[1].pairs is None
    assert further_pairs(known, verdicts[0], unknown, verdicts[1]) == 0.0
    assert further_pairs(unknown, verdicts[1], known, verdicts[0]) == 0.0


def test_confirmations_of_later_points_are_dropped() -> None:
    """Its best was found later: of the first three only the paper's setting is confirmed, which was not their best."""
    long = searched("simcse", [0.60, 0.65, 0.62, 0.80], {3: [0.79, 0.79, 0.80], 0: [0.60, 0.60, 0.61]})
    cut = study_verdict(first_points(long, 3))
    assert (cut.confirmed, cut.value) == (False, pytest.approx(0.65))
    kept = study_verdict(first_points(searched("simcse", [0.60, 0.65, 0.62, 0.61], {1: [0.64, 0.64]}), 3))
    assert (kept.confirmed, kept.value) == (True, pytest.approx(0.64))


def test_search_of_the_budget_keeps_its_confirmations() -> None:
    """Also where the best of the search was not among it: nothing of a longer search speaks here."""
    study = searched("simcse", [0.60, 0.65, 0.62], {0: [0.60, 0.61]})
    assert first_points(study, 3).trials["stage"].tolist().count("confirm") == 2
    assert first_points(study, 2).trials["stage"].tolist().count("confirm") == 0


def test_search_beyond_twice_the_budget_is_not_tested() -> None:
    short = searched("edacse", [0.60, 0.61, 0.65, 0.62], {2: [0.64, 0.65, 0.65]})
    values = [0.60, 0.61, 0.70, 0.62, *np.linspace(0.5, 0.6, 5)]
    (duel,) = league([searched("simcse", values, {2: [0.70, 0.70, 0.70]}), short]).duels
    assert duel.of == SEARCHED
    (duel,) = league([searched("simcse", values[:8], {2: [0.70, 0.70, 0.70]}), short]).duels
    assert duel.of == CONFIRMED


def test_intervals_end_at_the_range_of_the_metric() -> None:
    values = [0.95, 0.20, 0.97, 0.40, 0.30]
    found = league([searched("simcse", values, {}), searched("edacse", [v - 0.1 for v in values], {})])
    for entry in found.entries:
        assert -1 <= entry.verdict.low < entry.verdict.high <= 1
    assert all(-2 <= duel.low < duel.high <= 2 for duel in found.duels)


@pytest.mark.parametrize(
    ("metric", "space", "limits"),
    [
        ("stsb_dev", {"data": {"dev": ["stsb"]}}, (-1, 1)),
        ("nq_ndcg10_dev", {"data": {"dev": ["nq"]}}, (0, 1)),
        ("stsb_dev", {}, (-np.inf, np.inf)),  # nothing is known of it
        ("spread_dev", {"data": {"dev": ["stsb"], "evaluations": {"lengths": None}}}, (-np.inf, np.inf)),
        ("score_dev", {"data": {"dev": ["x"]}, "method": "script"}, (-np.inf, np.inf)),
    ],
)
def test_the_range_of_a_metric(metric: str, space: dict[str, Any], limits: tuple[float, float]) -> None:
    study = memory_study([{"x": 1}], [0.5], {}, space=space)
    assert replace(study, metric=Metric(metric, (metric,))).limits == limits


def test_longer_search_is_compared_by_its_first_points() -> None:
    """A method against itself with three times the trials: the best of the rest does not count."""
    short = searched("edacse", [0.60, 0.61, 0.65, 0.62], {})
    longer = searched("simcse", [0.60, 0.61, 0.65, 0.62, *np.linspace(0.7, 0.9, 8)], {})
    found = league([longer, short])
    assert {(entry.label, entry.trials, entry.verdict.tried) for entry in found.entries} == {
        ("simcse", 12, 4),
        ("edacse", 4, 4),
    }
    (duel,) = found.duels
    assert (duel.of, duel.p_value, duel.significant) == (SEARCHED, None, False)
    assert duel.difference == pytest.approx(0.0, abs=0.01)
    assert duel.low < 0 < duel.high


def test_bests_of_the_search_differ_by_their_intervals() -> None:
    one, other = (SimpleNamespace(metric=METRIC, expected=e, low=e - a, high=e + b) for e, a, b in
                  ((0.80, 0.03, 0.01), (0.75, 0.02, 0.04)))  # fmt: skip
    duel = compared("a", one, "b", other, None)  # type: ignore[arg-type]
    assert (duel.low, duel.high) == pytest.approx((0.0, 0.05 + np.hypot(0.01, 0.02)))
    lower = Metric("loss", ("loss",), "min")
    one, other = (SimpleNamespace(**vars(v) | {"metric": lower}) for v in (one, other))
    duel = compared("a", one, "b", other, None)  # type: ignore[arg-type]
    assert (duel.low, duel.high) == pytest.approx((-0.05 - np.hypot(0.01, 0.02), 0.0))


def test_two_searches_of_one_method_differ_seldom() -> None:
    """All configurations equal: what two searches found differs by seeds and dev pairs alone."""
    rng = np.random.default_rng(1)
    found = [one for one in (simulate_duel(World(points=10, seeds=3), rng) for _ in range(60)) if one]
    claimed = [duel for duel, _ in found if duel.p_value is not None and duel.p_value < 0.05]
    assert len(claimed) <= 7  # of 60 at 5 %: more has odds of 1 in 100
    assert sum(duel.low <= truth <= duel.high for duel, truth in found) >= 53


def tpe_study(name: str, points: int, seed: int, repeats: int) -> Study:
    """A search by TPE, whose best third has `repeats` seeds. Seed noise: a standard deviation of 0.5 (x 100)."""
    rng = np.random.default_rng([seed, points])
    own = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=int(rng.integers(2**31))))
    found, truth = [], []
    for _ in range(points):
        trial = own.ask()
        x = trial.suggest_float("x", 0, 1)
        truth.append(0.75 - 0.1 * (x - 0.37) ** 2)
        found.append(truth[-1] + 0.005 * rng.normal())
        own.tell(trial, found[-1])
    rows = [(i, 0, value) for i, value in enumerate(found)]
    for i in sorted(np.argsort(found)[-(points // 3) :]):
        rows += [(i, seed, truth[i] + 0.005 * rng.normal()) for seed in range(1, repeats)]
    number, seeds, value = zip(*rows, strict=True)
    made = memory_study([{"x": i} for i in number], value, {"x": {"int": [0, 99]}}, seeds=seeds)
    return replace(made, stored=run(name, method=name, study_id=name))


@pytest.mark.costly
@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_longer_search_by_the_same_method_has_no_advantage(count: int) -> None:
    """Pairs of TPE with 60 and 20 points. 3 standard errors: an unbiased league fails 3 times in 1,000."""
    pairs = [(tpe_study("long", 60, s, 3), tpe_study("short", 20, s, 3)) for s in range(count)]
    differences = [d.difference * (1 if d.first == "long" else -1) for a, b in pairs for d in league([a, b]).duels]
    error = np.std(differences) / count**0.5
    assert abs(np.mean(differences)) < 3 * error
    assert error < 0.005 / count**0.5, "an advantage of 0.52 (x 100) would be seen even in 25 pairs"


def duel(p_value: float | None) -> Duel:
    return Duel("a", "b", CONFIRMED, 0.1, 0.0, 0.2, p_value)


def test_holm_is_the_worked_example() -> None:
    """0.01 of four times four, 0.02 times three, and never below the one before, nor above 1."""
    found = holm([duel(0.9), duel(0.01), duel(0.02), duel(0.7), duel(None)])
    assert [one.p_value for one in found] == [1.0, 0.04, 0.06, 1.0, None]
    assert [one.significant for one in found] == [False, True, False, False, False]
    assert [one.p_value for one in holm([duel(0.03), duel(0.04)])] == pytest.approx([0.06, 0.06])
    assert [holm([duel(p)])[0].significant for p in (0.0499, 0.0501)] == [True, False]


def test_a_league_wants_one_metric_and_two_methods() -> None:
    first, second = searched("simcse", [0.6, 0.7, 0.5], {}), searched("edacse", [0.5, 0.6, 0.4], {})
    other = replace(second, metric=Metric("sickr_dev", ("sickr_dev",)))
    with pytest.raises(AnalysisError, match="one metric for all studies, got sickr_dev, stsb_dev"):
        league([first, other])
    with pytest.raises(AnalysisError, match="two methods at least, got simcse"):
        league([first])


def test_budget_is_taken_from_the_oldest_studies() -> None:
    studies = [searched(name, [0.5] * n, {}) for name, n in (("b", 3), ("a", 2), ("c", 4))]
    starts = {"b": 2, "a": 1, "c": 3}
    studies = [replace(s, stored=replace(s.stored, start=starts[s.stored.tags[schema.METHOD]])) for s in studies]
    found = [(study.stored.tags[schema.METHOD], n) for study, n in shares(studies, 6)]
    assert found == [("a", 2), ("b", 3), ("c", 1)]
    assert [n for _, n in shares(studies, 5)] == [2, 3], "a study of which nothing counts is left out"


def test_other_training_is_a_method_of_its_own() -> None:
    """A short trial run in the same store counted among the method's first configurations."""

    def trained(searched_names: tuple[str, ...] = (), **params: str) -> Any:
        study = searched("simcse", [0.5, 0.6, 0.4], {})
        params = {"encoder": "tiny", **{name.replace("_", ".", 1): value for name, value in params.items()}}
        return replace(study, stored=replace(study.stored, params=params), searched=searched_names)

    whole = {"data_train": "wiki", "train_max_examples": "None", "train_epochs": "1"}
    alike, short = [trained(**whole), trained(**whole)], trained(**whole | {"train_max_examples": "1000"})
    found = league([*alike, short])
    assert {entry.label: entry.trials for entry in found.entries} == {
        "simcse (tiny), train.max_examples null": 6,
        "simcse (tiny), train.max_examples 1000": 3,
    }
    with pytest.raises(AnalysisError, match=r"two methods at least, got simcse \(tiny\)$"):
        league(alike)
    del whole["train_epochs"]
    other = trained(("epochs",), **whole | {"data_train": "nli"})
    assert {entry.label for entry in league([alike[0], other]).entries} == {
        "simcse (tiny), data.train wiki, train.epochs 1",
        "simcse (tiny), data.train nli, train.epochs searched",
    }


def test_studies_of_other_dev_sets_are_not_of_one_league() -> None:
    def study(dev: list[str], holdout: float = 0.0, metric: str = "ours_dev", gold: tuple[float, ...] = ()) -> Any:
        made = memory_study([{"a": 1}], [0.5], {"a": {"float": [0, 1]}})
        space = {"data": {"dev": dev}, "metric": {"name": metric, "holdout": holdout}}
        own = replace(made, metric=Metric(metric, (metric,)))
        own.__dict__["space"] = space
        stored = {"ours_gold": np.array(gold, dtype=np.float32)} if gold else None
        object.__setattr__(own, "similarities", lambda _: stored)
        return own

    easy = study(["/data/easy/ours_dev.tsv"])
    assert same_data(easy, study(["/data/easy/ours_dev.tsv"]))
    assert same_data(easy, study(["/data/easy/ours_dev.tsv", "stsb"]))  # whatever else it measured
    assert not same_data(easy, study(["/data/hard/ours_dev.tsv"]))
    assert not same_data(easy, study(["/data/easy/ours_dev.tsv"], 0.2))
    assert same_data(study(["a", "a_b"], metric="a_b_dev"), study(["c", "a_b"], metric="a_b_dev"))  # not measured on a
    bare = study([])
    bare.__dict__["space"] = {}
    assert same_data(easy, bare)  # out of reach
    stored = study(["ours_dev.tsv"], gold=(1, 2, 5))
    assert same_data(stored, study(["/data/easy/ours_dev.tsv"], gold=(1, 2, 5)))  # one file, typed in two ways
    assert not same_data(stored, study(["ours_dev.tsv"], gold=(1, 2)))  # written over between the studies
