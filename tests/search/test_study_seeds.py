"""Seeds of a point: when they come, what the study sees of them, what stops them. Without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import World, agree, curve, make_space, optuna_study
from optuna.trial import TrialState

from analysis.statistics.empirical_bayes import about_means
from search.schema import SEED_SD
from search.space import Space
from search.store.journal import read
from search.store.ledger import Ledger
from search.study.plan import make_trial
from search.study.seeds import Seeds, beyond_seeds, pooled_sd


def test_the_study_sees_the_mean_of_the_repeats(tmp_path: Path) -> None:
    world = World(make_space({"trials": 3, "repeats": 3}), tmp_path, value=lambda t, k: 0.1 * k + 0.001 * t.seed)
    ledger = world.session().ledger
    assert len(ledger.trials) == 9
    assert sorted(s.trial.id for s in ledger.trials.values() if s.trial.number == 1) == ["t0001", "t0001.1", "t0001.2"]
    assert [t.value for t in optuna_study(world).trials] == [pytest.approx(0.6 + 0.001 * (3 + 4 + 5) / 3)] * 3


def test_repeats_of_a_dominated_point_are_not_started(tmp_path: Path) -> None:
    """A point 0.2 below the best (the seeds' standard deviation is about 0.003) gets one seed, a close one all."""
    ledger = World(make_space({"trials": 10, "repeats": 3}), tmp_path).session(concurrency=1).ledger
    best = max(p["value"] for p in ledger.points.values())
    for number, point in ledger.points.items():
        runs = ledger.by_point[("search", number)]
        if number > 0 and runs[0].best is not None and runs[0].best < best - 0.2:
            assert point["seeds"] == 1
    assert max(p["seeds"] for p in ledger.points.values()) == 3


@pytest.mark.parametrize("kind", ["none", "successive_halving"])
def test_grid_gives_further_seeds_to_the_best_points(kind: str, tmp_path: Path) -> None:
    """Every point has its first seed before any has a second; then the best point is first, and what is dominated
    beside it (0.02 below, where a seed moves 0.005) gets no second one."""
    rates = [1e-5, 2e-5, 3e-5, 4e-5]
    space = make_space(
        {"sampler": "grid", "trials": None, "repeats": 3, "baseline": "none"},
        params={"learning_rate": {"grid": rates}, "batch_size": 32},
        pruner={"kind": kind},
    )
    world = World(space, tmp_path, value=lambda trial, _: 0.5 + 0.02 * rates.index(trial.params["learning_rate"]))
    ledger = world.session(concurrency=1).ledger
    started = [record.trial for record in ledger.trials.values()]
    assert [trial.repeat for trial in started] == [0, 0, 0, 0, 1, 2]
    assert {trial.params["learning_rate"] for trial in started[4:]} == {4e-5}
    assert sorted(point["seeds"] for point in ledger.points.values()) == [1, 1, 1, 3]
    agree(world)


@pytest.mark.parametrize(("sampler", "search"), [("tpe", {}), ("random", {"trials": None, "budget": 40})])
def test_further_seeds_go_to_the_best_third_while_points_come(
    sampler: str, search: dict[str, Any], tmp_path: Path
) -> None:
    """Under a sampler that learns, and where points never end: a second seed for 1 in 3 of all but the baseline, a
    third for 1 in 9, and the baseline's when another point has all of its own."""
    space = make_space({"sampler": sampler, "trials": 18, "repeats": 3} | search)
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) - 0.5 * bool(trial.baseline))
    ledger = world.session(concurrency=1).ledger
    ended: dict[int, list[float]] = {}
    for record in ledger.trials.values():  # in the order of their start
        number, repeat = record.trial.number, record.trial.repeat
        new_points = any(r.trial.number > max(ended, default=-1) for r in list(ledger.trials.values())[len(ended) :])
        if repeat and new_points and number and record.state == "completed":
            rivals = [sum(v) / len(v) for n, v in ended.items() if n and len(v) >= repeat]
            assert sum(mean >= sum(ended[number]) / repeat for mean in rivals) <= len(rivals) // 3
        if repeat and not number:
            assert max(map(len, ended.values())) == 3
        if record.best is not None:
            ended.setdefault(number, []).append(record.best)
        if max(ended, default=0) < 3:
            assert not repeat
    assert max(map(len, ended.values())) == len(ended[0]) == 3


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_sampler_sees_each_point_at_its_mean_over_seeds(sampler: str, tmp_path: Path) -> None:
    space = make_space({"sampler": sampler, "trials": None, "budget": 12, "repeats": 3})
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) + 0.01 * trial.seed)
    driver = world.session(concurrency=1)
    plan: Any = driver.plan
    view = plan.study.sampler._view
    shown = {trial.number: trial for trial in view.get_trials()}
    means = {
        number: [r.best for r in records if r.state == "completed"]
        for (_, number), records in driver.ledger.by_point.items()
    }
    assert any(len(values) == 2 for values in means.values())
    assert not driver.ledger.points  # none is complete
    for number, values in means.items():
        if values:
            assert shown[number].state == TrialState.COMPLETE
            assert shown[number].value == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("failing", [None, 1])
def test_seeds_of_the_last_points_fill_idle_places(failing: int | None, tmp_path: Path) -> None:
    """A single setting with five seeds on four places: the papers' rows. A failed seed ends its point, once."""
    space = make_space(
        {"sampler": "grid", "trials": None, "repeats": 5},
        params={"learning_rate": {"grid": [3e-5]}, "batch_size": 32},
        pruner={"kind": "none"},
    )
    world = World(space, tmp_path, fault=lambda trial, k: "nan" if trial.repeat == failing and k == 1 else None)
    ledger = world.session(concurrency=4).ledger
    kinds = [event["e"] for event in read(world.folder.journal)]
    assert kinds[1:5] == ["start"] * 4  # after the session's own line
    assert kinds.count("point") == 1
    point = ledger.points[0]
    assert not ledger.open_trials
    assert len(ledger.trials) == point["seeds"]
    if failing is None:
        assert (point["state"], point["seeds"]) == ("complete", 5)
    else:
        assert (point["state"], optuna_study(world).trials[0].user_attrs["failure"]) == ("fail", "nan")
        assert ledger.stops["failed:nan"] == 1
    agree(world)


def test_a_pruned_first_seed_has_no_second_one(tmp_path: Path) -> None:
    space = make_space({"trials": 30, "repeats": 3}, pruner={"kind": "median"})
    ledger = World(space, tmp_path).session(concurrency=6).ledger
    pruned = [number for number, point in ledger.points.items() if point["state"] == "pruned"]
    assert pruned
    assert all(ledger.points[number]["seeds"] == 1 for number in pruned)


def test_wilcoxon_prunes_over_repeats(tmp_path: Path) -> None:
    space = make_space({"trials": 12, "repeats": 8}, pruner={"kind": "wilcoxon"})
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) / 20 + 0.5)  # close: seeds alone do not tell
    ledger = world.session(concurrency=1).ledger
    pruned = [n for n, p in ledger.points.items() if p["state"] == "pruned"]
    trials = optuna_study(world).trials
    assert pruned
    assert all(trials[n].state == TrialState.PRUNED for n in pruned)
    assert all(2 <= ledger.points[n]["seeds"] < 8 for n in pruned)


def test_the_pooled_seed_noise_is_the_worked_example() -> None:
    """Squares about the means: 2 of two values, 8 of three, 2 of two; 4 degrees of freedom."""
    points = [[1.0, 3.0], [7.0], [0.0, 2.0, 4.0], [5.0, 7.0], []]
    assert pooled_sd(points) == pytest.approx(3**0.5)
    assert pooled_sd([*points, [1.0, 1.0, 1.0]]) == pytest.approx(2**0.5)
    assert pooled_sd(points[:4:2]) == SEED_SD  # 3 degrees of freedom say too little
    assert pooled_sd([[1.0] * 5]) == SEED_SD  # so does a metric that does not move
    assert about_means(points) == (pytest.approx(12), 4)
    assert beyond_seeds(1.43, 1.0, 4, 2)  # 1.64 times the root of 1/4 + 1/2 is 1.4203
    assert not beyond_seeds(1.41, 1.0, 4, 2)
    assert not beyond_seeds(1.43, 1.1, 4, 2)
    assert not beyond_seeds(1.64, 1.0, 2, 2)  # just as much
    assert pooled_sd([[0.70, 0.72], [0.71, 0.73, 0.75], [0.69, 0.71]]) == pytest.approx(0.0012**0.5 / 2)


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_point_with_most_seeds_gets_the_next_seed(mode: str, sign: int) -> None:
    """Of three points with two seeds the best gets a third before, of nine, one of the best three gets a second."""
    space = make_space({"sampler": "tpe", "repeats": 3, "baseline": "none"}, metric={"name": "stsb_dev", "mode": mode})
    values = {0: [0.2, 0.2], 1: [0.6, 0.8], 2: [0.4, 0.4], 3: [0.1], 4: [0.3], 5: [0.9], 6: [0.69], 7: [0.5], 8: [0.0]}
    ledger = ended(space, {number: [sign * value for value in ours] for number, ours in values.items()})
    seeds = Seeds(space, ledger, 100, lambda *_: None)
    ledger.examples, ledger.planned = 99, 10
    assert seeds.due(range(9)) is None  # of ten full-length trials a seed would be a tenth
    ledger.examples = 100
    assert seeds.due(range(9)) == 1
    assert seeds.due({*range(9)} - {1}) == 5  # 1 is complete
    assert seeds.due({*range(9)} - {1, 5}) == 6
    assert seeds.due({*range(9)} - {1, 5, 6}) is None
    assert seeds.last(range(9), ahead=False) == 5


@pytest.mark.parametrize(
    ("end", "second", "due"),
    [
        ({}, 0.8, {9.9: None, 10.0: 1, 99.0: 1}),
        ({"budget": 12}, 0.8, {9.9: None, 10.0: 1, 11.0: 1, 11.1: None}),  # a seed begun after 11 of 12 could not end
        ({"budget": 20}, 0.8, {14.9: None, 15.0: 1, 19.0: 1, 19.1: None}),
        ({"examples": 200}, 0.8, {14.9: None, 15.0: 1, 19.0: 1, 19.1: None}),
        (
            {"budget": 20},
            0.9,
            {15.0: None, 19.0: None},
        ),  # the second seed of the best point shows what the first one did
    ],
)
def test_further_seeds_come_late_and_only_where_they_differ(
    end: dict[str, int], second: float, due: dict[float, int | None]
) -> None:
    space = make_space({"sampler": "tpe", "trials": 100, "repeats": 3, "baseline": "none"} | end)
    ledger = ended(space, {0: [0.9, second], 1: [0.7], 2: [0.3], 3: [0.1], 4: [0.0], 5: [0.2]})
    ledger.planned = 10
    for trained, number in due.items():
        ledger.examples = round(10 * trained)
        assert Seeds(space, ledger, 100, lambda *_: None).due(range(6)) == number


def ended(space: Space, values: dict[int, list[float]]) -> Ledger:
    """Of these completed seeds of points."""
    ledger = Ledger(maximise=space.metric.mode == "max")
    ledger.apply({"e": "session", "t": 0})
    for number, ours in values.items():
        for repeat, value in enumerate(ours):
            trial = make_trial(space, {}, number=number, repeat=repeat, seed=repeat, stage="search", baseline="")
            ledger.apply({"e": "start", "t": 0, **vars(trial)})
            ledger.apply({"e": "end", "t": 0, "id": trial.id, "stop": "completed", "best": value, "best_at": 1,
                          "examples": 1, "seconds": 1.0, "reason": ""})  # fmt: skip
    return ledger


@pytest.mark.parametrize(
    ("pruner", "states", "further"),
    [
        ("none", ["running"], True),
        ("successive_halving", ["running"], False),  # it may still be stopped
        ("successive_halving", ["completed", "running"], True),
        ("none", ["completed", "failed:nan"], False),
        ("none", ["completed", "completed", "running"], False),  # all there are
    ],
)
def test_seed_starts_ahead_only_if_no_pruner_can_stop_it(pruner: str, states: list[str], further: bool) -> None:
    space = make_space({"repeats": 3, "baseline": "none"}, pruner={"kind": pruner})
    ledger = Ledger()
    ledger.apply({"e": "session", "t": 0})
    for repeat, state in enumerate(states):
        trial = make_trial(space, {}, number=0, repeat=repeat, seed=repeat, stage="search", baseline="")
        ledger.apply({"e": "start", "t": 0, **vars(trial)})
        if state != "running":
            ledger.apply({"e": "end", "t": 0, "id": trial.id, "stop": state, "best": 0.5, "best_at": 1, "examples": 1,
                          "seconds": 1.0, "reason": ""})  # fmt: skip
    seeds = Seeds(space, ledger, 12, lambda number: None)  # noqa: ARG005
    assert seeds.last([0], ahead=True) == (0 if further else None)
    if "running" in states:
        assert seeds.last([0], ahead=False) is None


def seeds_of(points: dict[int, dict[str, Any]], values: dict[int, list[float]]) -> Seeds:
    """Of a ledger with these complete points and these completed seeds of points."""
    by_point = {
        ("search", number): [
            SimpleNamespace(open=False, state="completed", best=v, trial=SimpleNamespace(baseline="", number=number))
            for v in found
        ]
        for number, found in values.items()
    }
    settled = {number: {"number": number, "seeds": 1} | event for number, event in points.items()}
    ledger: Any = SimpleNamespace(points=settled, by_point=by_point, sign=1)
    return Seeds(make_space({"repeats": 3, "baseline": "none"}), ledger, 100, lambda *_: None)


def test_dominated_point_is_compared_with_the_best_other_completed_one() -> None:
    def dominated(points: dict[int, dict[str, Any]]) -> bool:
        return seeds_of(points, {0: [0.5]})._dominated(0)

    complete, pruned = {"state": "complete", "value": 0.9}, {"state": "pruned", "value": 0.9}
    assert dominated({1: complete})
    assert dominated({1: complete, 2: {"state": "complete", "value": 0.1}})
    assert not dominated({1: pruned}), "stopped, so its value is not known"
    assert not dominated({0: complete}), "not against itself"
    assert not dominated({0: complete, 1: {"state": "complete", "value": 0.51}})
    assert not dominated({})
