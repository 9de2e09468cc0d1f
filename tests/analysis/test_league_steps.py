"""Single steps of duels, the league and what other studies tell, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_duels import searched

from analysis.errors import AnalysisError
from analysis.statistics import league as league_module
from analysis.statistics import study_verdict as study_verdict_module
from analysis.statistics.duels import EXPECTED, Duel, holm
from analysis.statistics.league import _interval, _shares, first_points, further_pairs, league
from analysis.statistics.study_verdict import RELATED, _related, study_verdict
from analysis.tables.metric import Metric
from search import schema


def duel(p_value: float) -> Duel:
    return Duel("a", "b", EXPECTED, 0.1, 0.0, 0.2, p_value)


def test_holm_by_hand() -> None:
    found = holm([duel(0.9), duel(0.01), duel(0.02), duel(0.7)])
    assert [one.p_value for one in found] == pytest.approx([1.0, 0.04, 0.06, 1.0])
    assert [one.significant for one in found] == [False, True, False, False]
    assert [one.p_value for one in holm([duel(0.03), duel(0.04)])] == pytest.approx([0.06, 0.06]), "never falls"
    assert [one.significant for one in holm([duel(0.0499), duel(0.0501)])] == [False, False]
    assert [holm([duel(p)])[0].significant for p in (0.0499, 0.0501)] == [True, False]
    assert holm([duel(0.6)])[0].p_value == pytest.approx(0.6)


@pytest.mark.parametrize(("between", "left"), [(None, 0.55), (0.5, 0.35), (0.1, 0.0)])
def test_what_the_arms_lack_of_the_pairs(between: float | None, left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_module, "_between", lambda *_: between)
    first, second = (SimpleNamespace(pairs=SimpleNamespace(own=own, between=b)) for own, b in ((0.3, 0.1), (0.4, 0.2)))
    sides: Any = (SimpleNamespace(), first, SimpleNamespace(), second)
    assert further_pairs(*sides) == pytest.approx(left)


def test_three_values_have_an_interval_and_two_have_none() -> None:
    low, high = _interval(np.array([0.1, 0.2, 0.4]), 2)
    assert low[0] < high[0]
    assert all(np.isnan(end[0]) for end in _interval(np.array([0.1, 0.2]), 2))


def test_a_search_as_long_as_the_budget_keeps_what_it_confirmed() -> None:
    """Also where the best of the search was not among it: nothing of a longer search speaks here."""
    study = searched("simcse", [0.60, 0.65, 0.62], {0: [0.60, 0.61]})
    assert first_points(study, 3).trials["stage"].tolist().count("confirm") == 2
    assert first_points(study, 2).trials["stage"].tolist().count("confirm") == 0


def test_a_league_wants_one_metric_and_two_methods() -> None:
    first, second = searched("simcse", [0.6, 0.7, 0.5], {}), searched("edacse", [0.5, 0.6, 0.4], {})
    other = replace(second, metric=Metric("sickr_dev", ("sickr_dev",)))
    with pytest.raises(AnalysisError, match="one metric for all studies, got sickr_dev, stsb_dev"):
        league([first, other])
    with pytest.raises(AnalysisError, match="two methods at least, got simcse"):
        league([first])


def test_a_method_s_budget_is_taken_from_its_oldest_studies() -> None:
    studies = [searched(name, [0.5] * n, {}) for name, n in (("b", 3), ("a", 2), ("c", 4))]
    starts = {"b": 2, "a": 1, "c": 3}
    studies = [replace(s, stored=replace(s.stored, start=starts[s.stored.tags[schema.METHOD]])) for s in studies]
    shares = [(study.stored.tags[schema.METHOD], n) for study, n in _shares(studies, 6)]
    assert shares == [("a", 2), ("b", 3), ("c", 1)]
    assert [n for _, n in _shares(studies, 5)] == [2, 3], "a study of which nothing counts is left out"


def test_what_was_trained_otherwise_is_set_against_it_not_mixed_in() -> None:
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


def stored(name: str, repeats: str | None = "1", confirmed: bool = False, **tags: str) -> Any:
    own = {schema.METHOD: "simcse", schema.METRIC: "stsb_dev", schema.MODE: "max"} | tags
    own |= {f"{schema.CONFIRMATION}17": "trials 12"} if confirmed else {}
    params = {"encoder": "tiny"} | ({"search.repeats": repeats} if repeats else {})
    return SimpleNamespace(run_id=name, tags=own, params=params)


def related(runs: list[Any], monkeypatch: pytest.MonkeyPatch, empty: str = "") -> list[str]:
    store = SimpleNamespace(studies=lambda: runs, trials=lambda run: [] if run.run_id == empty else [run])
    study: Any = SimpleNamespace(
        store=store, stored=stored("mine", "3"), metric=SimpleNamespace(name="stsb_dev", sign=1)
    )
    monkeypatch.setattr(study_verdict_module, "read_study", lambda *given: SimpleNamespace(trials=given[1].run_id))
    monkeypatch.setattr(study_verdict_module, "SeedValues", SimpleNamespace(of=lambda *given: given[0]))
    return list(_related(study))  # type: ignore[arg-type]


def test_which_studies_tell_of_the_seed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        stored("repeated", "3"), stored("confirmed", confirmed=True), stored("neither"), stored("older", None),
        stored("mine", "3"), stored("other", "3", **{schema.METHOD: "sda"}), stored("empty", "3"),
    ]  # fmt: skip
    assert related(runs, monkeypatch, empty="empty") == ["repeated", "confirmed"]


def test_the_newest_few_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [stored(f"s{i}", "3") for i in range(RELATED + 3)]
    assert related(runs, monkeypatch) == [f"s{i}" for i in range(RELATED)]
    assert RELATED == 5


@pytest.mark.parametrize(
    ("limits", "cut"), [((-1, 1), (-1, 1, -2, 2)), ((0, 1), (0, 1, -1, 1)), ((-9, 9), (-3, 3, -5, 5))]
)
def test_a_verdict_ends_where_the_metric_does(
    limits: tuple[float, float], cut: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = study_verdict(searched("simcse", [0.70, 0.702], {1: [0.70, 0.72], 0: [0.70, 0.71]}))
    assert whole.gain is not None
    wide = replace(whole, low=-3.0, high=3.0, gain=replace(whole.gain, low=-5.0, high=5.0))
    monkeypatch.setattr(study_verdict_module, "judge", lambda *_, **__: wide)
    monkeypatch.setattr(study_verdict_module, "study_prior", lambda _: None)
    names = ("trials", "points", "metric", "similarities", "confirmations")
    study: Any = SimpleNamespace(**dict.fromkeys(names), limits=limits)
    found = study_verdict(study)
    assert found.gain is not None
    assert (found.low, found.high, found.gain.low, found.gain.high) == cut
