"""What samplers are shown of a study: pruned points at their probable values, and not too many."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from harness import World, curve, make_space
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from search.space.params import Param
from search.store.ledger import Trial
from search.study.distributions import distribution, value_of, whole
from search.study.samplers import PointSampler, _draw, even_point, key, make_sampler, random_point
from search.study.study_as_seen import OWN_FAULT, StudyAsSeen, fewer, guessed

MAX, MIN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE


def frozen(state: TrialState, values: list[float], value: float | None = None) -> FrozenTrial:
    steps = {100 * (k + 1): v for k, v in enumerate(values)}
    return create_trial(
        state=state,
        value=value,
        params={"x": 0.5},
        distributions={"x": FloatDistribution(0, 1)},
        intermediate_values=steps,
    )


def test_a_pruned_point_is_shown_at_what_it_would_have_reached() -> None:
    done = [
        frozen(TrialState.COMPLETE, [0.1, 0.3, 0.4], 0.4),
        frozen(TrialState.COMPLETE, [0.2, 0.5, 0.4], 0.5),
        frozen(TrialState.COMPLETE, [0.3, 0.5, 0.9], 0.9),
    ]
    stopped = [
        frozen(TrialState.PRUNED, [0.15], 0.15),  # further gains from the first rung: 0.3, 0.3, 0.6
        frozen(TrialState.PRUNED, [0.3, 0.2], 0.2),  # best so far 0.3; from the second: 0.1, 0.0, 0.4
        frozen(TrialState.PRUNED, [0.8], 0.8),  # no better than the best completed
    ]
    shown = guessed(done + stopped, MAX)
    assert [t.value for t in shown] == pytest.approx([0.4, 0.5, 0.9, 0.45, 0.4, 0.9])
    assert {t.state for t in shown} == {TrialState.COMPLETE}
    assert [t.state for t in stopped] == [TrialState.PRUNED] * 3  # the study's own stay as they are


def test_the_same_where_smaller_is_better() -> None:
    done = [frozen(TrialState.COMPLETE, [0.9, 0.6], 0.6)]
    assert guessed([*done, frozen(TrialState.PRUNED, [0.95], 0.95)], MIN)[1].value == pytest.approx(0.65)


def test_until_a_point_is_completed_those_that_got_furthest_stand_for_it() -> None:
    """With four workers thirty points were drawn blindly before the first was completed."""
    curves = [[0.1], [0.2, 0.3], [0.25, 0.5], [0.6]]  # further gains from the first rung: 0.1, 0.25
    shown = guessed([frozen(TrialState.PRUNED, curve, curve[-1]) for curve in curves], MAX)
    assert [t.value for t in shown] == pytest.approx([0.275, 0.3, 0.5, 0.5])
    assert {t.state for t in shown} == {TrialState.COMPLETE}


def test_a_point_stopped_before_any_completed_one_was_measured_keeps_its_value() -> None:
    done = create_trial(
        state=TrialState.COMPLETE, value=0.9, params={}, distributions={}, intermediate_values={200: 0.5, 300: 0.9}
    )
    shown = guessed([done, *(frozen(TrialState.PRUNED, values, 0.1) for values in ([0.2], [0.1, 0.3]))], MAX)
    assert [t.value for t in shown] == pytest.approx([0.9, 0.2, 0.7])


def test_without_a_value_nothing_is_guessed() -> None:
    running = frozen(TrialState.RUNNING, [], None)
    assert guessed([running], MAX) == [running]


@pytest.mark.parametrize(("direction", "sign"), [(MAX, 1), (MIN, -1)])
def test_a_gaussian_process_sees_the_best_and_the_latest(direction: StudyDirection, sign: int) -> None:
    """Of values that get worse in the middle: the latest half, and before those the first."""
    half = 150  # docs/performance.md: at most 300
    values = [sign * (0.9 if number < half else 0.1) for number in range(4 * half)]
    trials = [frozen(TrialState.COMPLETE, [v], v) for v in values]
    for number, trial in enumerate(trials):
        trial.number = number
    shown = fewer(trials, direction)
    assert [t.number for t in shown] == [*range(half), *range(3 * half, 4 * half)]
    assert fewer(trials[:300], direction) == trials[:300]
    assert len(fewer(trials[:301], direction)) == 300


@pytest.mark.parametrize(("sampler", "bounded"), [("tpe", False), ("gp", True)])
def test_only_a_gaussian_process_is_spared_points(
    sampler: str, bounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()
    monkeypatch.setattr("search.study.study_as_seen.fewer", lambda trials, _: calls.append(len(trials)) or trials)
    World(make_space({"sampler": sampler, "trials": 3}), tmp_path).life()
    assert bool(calls) == bounded


def test_a_point_in_training_keeps_others_away() -> None:
    """Side by side, TPE does not propose the same neighbourhood twice."""
    space = make_space({"sampler": "tpe"}, params={"dropout": {"float": [0.0, 0.9]}})
    distributions: dict[str, BaseDistribution] = {"dropout": FloatDistribution(0, 0.9)}

    def proposed(running: int) -> float:
        study = optuna.create_study(direction="maximize")
        for x in np.linspace(0, 0.9, 19):
            value = -((x - 0.5) ** 2)
            study.add_trial(create_trial(value=value, params={"dropout": x}, distributions=distributions))
        for _ in range(running):
            open_one = create_trial(state=TrialState.RUNNING, params={"dropout": 0.5}, distributions=distributions)
            study.add_trial(open_one)
        drawn = []
        for seed in range(20):
            sampler, trial = make_sampler(space, seed), study.ask()
            together = sampler.infer_relative_search_space(study, trial)
            drawn.append(sampler.sample_relative(study, trial, together)["dropout"])
        return float(np.mean(np.abs(np.array(drawn) - 0.5)))

    assert proposed(running=10) > proposed(running=0) + 0.02


@pytest.mark.slow
def test_a_gaussian_process_learns_from_pruned_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same budget, mean over seeds: with pruned points shown to it no worse than without."""

    def regret(name: str) -> float:
        found = []
        for seed in range(6):
            space = make_space(
                {"sampler": "gp", "trials": 30, "seed": seed, "budget": 8, "baseline": "none"}, pruner={"kind": "asha"}
            )

            def value(trial: Trial, k: int) -> float:
                return curve(trial, k)

            ledger = World(space, tmp_path / f"{name}{seed}", value=value).life(concurrency=1).ledger
            found.append(max(r.best for r in ledger.trials.values() if r.best is not None))
        return statistics.mean(found)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shown = regret("shown")
    monkeypatch.setattr("search.study.study_as_seen.GUESSED", ())
    assert shown >= regret("hidden") - 0.002


def test_a_gaussian_process_knows_parameters_under_conditions(tmp_path: Path) -> None:
    """Optuna's models only those that all points have, and draws the others blindly."""
    space = make_space(
        {"sampler": "gp", "trials": 30, "baseline": "none"},
        params={
            "batch_size": {"choice": [16, 64]},
            "temperature": {"float": [0.02, 0.2], "log": True, "when": {"batch_size": [64]}},
        },
    )

    def value(trial: Trial, k: int) -> float:  # noqa: ARG001
        if trial.point["batch_size"] == 16:
            return 0.2
        return 0.8 - float(np.log(trial.point["temperature"] / 0.03) ** 2) / 4

    ledger = World(space, tmp_path, value=value).life(concurrency=1).ledger
    late = [r.trial.point for r in ledger.trials.values() if r.trial.number >= 20]
    near = [point for point in late if abs(np.log(point.get("temperature", 1) / 0.03)) < 0.35]
    assert len(near) >= 7  # three of ten by chance


def test_a_point_is_whole_to_a_gaussian_process() -> None:
    params = make_space(
        params={
            "batch_size": {"choice": [16, 64]},
            "dropout": {"float": [0.1, 0.3], "step": 0.1, "when": {"batch_size": [64]}},
            "temperature": {"float": [0.02, 0.2], "log": True, "when": {"batch_size": [64]}},
            "pooling": {"choice": ["cls", "avg"], "when": {"batch_size": [64]}},
        }
    ).params
    active = create_trial(
        value=0.5, params={"batch_size": 16}, distributions={"batch_size": distribution(params["batch_size"])}
    )
    shown = whole(active, params)
    assert shown.params == {
        "batch_size": 16, "dropout": 0.2, "temperature": pytest.approx(0.2 * 0.1**0.5), "pooling": "cls",
    }  # fmt: skip
    assert shown.distributions == {name: distribution(param) for name, param in params.items()}
    assert active.params == {"batch_size": 16}, "what the storage has stays"
    assert whole(shown, params) is shown
    assert whole(create_trial(state=TrialState.FAIL), params).params == {}


@pytest.mark.parametrize(
    ("param", "values"),
    [
        (Param(name="batch_size", kind="int", low=8, high=32, step=8), [8, 16, 24, 32]),
        (Param(name="dropout", kind="float", low=0.1, high=0.5, step=0.2), [0.1, 0.3, 0.5]),
        (Param(name="epochs", kind="int", low=3, high=5), [3, 4, 5]),
        (Param(name="pooling", kind="choice", values=("cls", "avg")), ["cls", "avg"]),
    ],
)
def test_every_value_of_a_list_or_of_steps_is_drawn_as_often(param: Param, values: list[Any]) -> None:
    rng = np.random.default_rng(0)
    drawn = [_draw(param, rng) for _ in range(400 * len(values))]
    assert {type(v) for v in drawn} == {type(values[0])}
    assert [drawn.count(v) for v in values] == pytest.approx([400] * len(values), abs=80)  # 4.6 standard errors
    assert sum(drawn.count(v) for v in values) == len(drawn)


def test_ranges_are_drawn_evenly_on_their_own_scale() -> None:
    rng = np.random.default_rng(0)
    rate = Param(name="learning_rate", kind="float", low=1e-5, high=1e-3, log=True)
    drawn = np.log10([_draw(rate, rng) for _ in range(2000)])
    assert np.quantile(drawn, [0.01, 0.5, 0.99]) == pytest.approx([-4.98, -4, -3.02], abs=0.08)
    sizes = Param(name="batch_size", kind="int", low=1, high=64, log=True)
    found = [_draw(sizes, rng) for _ in range(2000)]
    assert {type(v) for v in found} == {int}
    assert float(np.median(found)) == pytest.approx(8, abs=1)
    plain = Param(name="dropout", kind="float", low=0.1, high=0.5)
    assert np.quantile([_draw(plain, rng) for _ in range(2000)], [0.01, 0.5, 0.99]) == pytest.approx(
        [0.104, 0.3, 0.496], abs=0.02
    )


def test_parameters_as_optuna_knows_them() -> None:
    stepped = Param(name="batch_size", kind="int", low=8, high=32, step=8)
    assert distribution(stepped) == optuna.distributions.IntDistribution(8, 32, step=8)
    assert distribution(Param(name="epochs", kind="int", low=1, high=5)) == optuna.distributions.IntDistribution(1, 5)
    log = Param(name="batch_size", kind="int", low=8, high=64, log=True)
    assert distribution(log) == optuna.distributions.IntDistribution(8, 64, log=True)
    tenths = Param(name="dropout", kind="float", low=0.1, high=0.4, step=0.1)
    assert distribution(tenths) == FloatDistribution(0.1, 0.4, step=0.1)
    assert value_of(tenths, 0.1 + 2 * 0.1) == 0.3  # which floating point makes 0.30000000000000004
    assert value_of(Param(name="mlp", kind="choice", values=([64, 32], [])), "[64, 32]") == [64, 32]


@pytest.mark.parametrize(("direction", "worst"), [("maximize", 0.2), ("minimize", 0.7)])
def test_what_a_sampler_sees_of_each_kind_of_trial(direction: str, worst: float) -> None:
    """Completed; pruned; failed by its own fault and by another's; waiting at its rung or gone on from it; with one of
    its seeds; new. Gone on, a trial was taken for unknown by a Gaussian process and for bad by TPE."""
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction=direction)
    view = StudyAsSeen(study.study_name, storage)
    view.space, view.mean = make_space({"sampler": "tpe"}, pruner={"kind": "asha"}), {5: 0.55}.get
    own = create_trial(state=TrialState.FAIL, user_attrs={OWN_FAULT: "oom"})
    study.add_trial(own)
    assert [(t.state, t.value) for t in view.get_trials()] == [(TrialState.COMPLETE, 0.0)]  # nothing is known yet
    for trial in [
        frozen(TrialState.COMPLETE, [0.7], 0.7),
        frozen(TrialState.PRUNED, [0.3, 0.2], 0.2),
        create_trial(state=TrialState.FAIL, user_attrs={"reason": "lost"}),
        frozen(TrialState.RUNNING, [0.4, 0.1]),
        frozen(TrialState.RUNNING, [0.6]),
        frozen(TrialState.RUNNING, [0.9]),
        create_trial(state=TrialState.PRUNED),
        create_trial(state=TrialState.RUNNING),
    ]:
        study.add_trial(trial)
    done, pruned, failed, runs = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING
    assert [(t.state, t.value) for t in view.get_trials()] == [
        (done, worst), (done, 0.7), (pruned, 0.2), (failed, None), (pruned, 0.1), (done, 0.55), (pruned, 0.9),
        (pruned, None), (runs, None),
    ]  # fmt: skip
    assert [t.number for t in view.get_trials(states=(done,))] == [0, 1, 5]
    view.space = make_space({"sampler": "tpe"}, pruner={"kind": "hyperband"})
    assert [t.number for t in view.get_trials(states=(runs,))] == [4, 6, 8]  # where nothing pauses, as Optuna has it


class Everything:
    """All keys, counted."""

    asked = 0

    def __contains__(self, one: object) -> bool:
        self.asked += 1
        return True


def sampler_of(space: Any, seen: Any) -> PointSampler:
    return PointSampler(space, seen, optuna.storages.InMemoryStorage(), lambda _: None)


def test_after_twenty_repetitions_an_unseen_point_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list every one as likely; of what cannot be listed a thousand are tried; from the number's own stream."""
    listed = make_space({"baseline": "none"}, params={"batch_size": {"choice": [16, 32, 64, 128]}})
    sampler = sampler_of(listed, {key({"batch_size": 16}), key({"batch_size": 64})})
    asked = list[int]()
    monkeypatch.setattr(sampler, "_ask", lambda *given: asked.append(given[-1]) or {"batch_size": 16})
    study = optuna.create_study()
    assert sampler._propose(study, study.ask())["batch_size"] in (32, 128)
    assert asked == list(range(20))
    drawn = [sampler._unseen(number)["batch_size"] for number in range(8)]
    assert drawn == [(32, 128)[np.random.default_rng([3, number, 21]).integers(2)] for number in range(8)]
    monkeypatch.setattr("search.study.samplers.LISTABLE", 4)
    assert [sampler._unseen(number)["batch_size"] for number in range(8)] == drawn
    monkeypatch.setattr("search.study.samplers.LISTABLE", 3)
    assert [sampler._unseen(number)["batch_size"] for number in range(8)] != drawn  # drawn until one is new
    endless, all_seen = make_space({"baseline": "none"}), Everything()
    last = sampler_of(endless, all_seen)._unseen(7)
    rng = np.random.default_rng([3, 7, 21])
    assert all_seen.asked == 1000
    assert last == [random_point(endless, rng) for _ in range(1000)][-1]
    fresh = sampler_of(endless, set())._unseen(7)
    assert fresh == random_point(endless, np.random.default_rng([3, 7, 21]))


@pytest.mark.parametrize(
    ("sampler", "pruner", "evenly"),
    [
        ("tpe", "asha", [1, 2, 3, 4, 6, 12]),
        ("gp", "asha", [1, 2, 3, 4, 6, 12]),
        ("tpe", "median", []),
        ("qmc", "asha", []),
    ],
)
def test_where_trials_pause_the_first_proposals_and_then_one_in_three_are_even_draws(
    sampler: str, pruner: str, evenly: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leads at the first rung is not what leads at the end: a sampler followed it for ever."""
    for kind in (optuna.samplers.TPESampler, optuna.samplers.GPSampler):
        monkeypatch.setattr(kind, "sample_relative", lambda *_: {"learning_rate": 1e-5})
    monkeypatch.setattr("search.study.samplers.FIRST", 5)
    monkeypatch.setattr("search.study.samplers.EVENLY", 6)
    params = {"learning_rate": {"float": [1e-5, 1e-3], "log": True}, "dropout": {"float": [0.0, 0.5]}}
    space = make_space({"sampler": sampler, "trials": 15, "seed": 7}, params=params, pruner={"kind": pruner})
    ledger = World(space, tmp_path).life(concurrency=1).ledger
    places = {1: 1, 2: 2, 3: 3, 4: 4, 6: 5, 12: 6}  # 0 is the baseline's
    points = {r.trial.number: r.trial.point for r in ledger.trials.values()}
    assert [n for n, place in places.items() if points[n] == even_point(space, place)] == evenly
    learnt = [n for n, point in points.items() if point["learning_rate"] == 1e-5]
    assert not evenly or learnt == [n for n in range(1, 15) if n not in places]


def test_even_draws_fill_a_space_and_repeat_themselves() -> None:
    """Eight points of a scrambled Sobol sequence: one in every eighth of a range, one to four of every choice."""
    params = {
        "learning_rate": {"float": [1e-5, 1e-3], "log": True},
        "batch_size": {"choice": [16, 32]},
        "dropout": {"float": [0.0, 0.4]},
    }
    space = make_space({"sampler": "gp", "seed": 5}, params=params, pruner={"kind": "asha"})
    points = [even_point(space, place) for place in range(8)]
    rates = sorted(int((np.log10(point["learning_rate"]) + 5) / 2 * 8) for point in points)
    assert rates == sorted(int(point["dropout"] / 0.4 * 8) for point in points) == list(range(8))
    assert [point["batch_size"] for point in points].count(16) == 4
    assert points == [even_point(space, place) for place in range(8)]
    other = make_space({"sampler": "gp", "seed": 6}, params=params, pruner={"kind": "asha"})
    assert all(even_point(other, place) != point for place, point in enumerate(points))


def test_equal_points_have_equal_keys() -> None:
    assert key({"a": 1, "b": [2]}) == key({"b": (2,), "a": 1}) != key({"a": 1, "b": 2})


def test_generations_are_a_tenth_of_the_trials() -> None:
    trials = [None, 10, 49, 50, 59, 60, 490, 500, 2000]
    made: list[Any] = [make_sampler(make_space({"sampler": "nsga2", "trials": n, "budget": 9}), 1) for n in trials]
    assert [one._population_size for one in made] == [50, 4, 4, 5, 5, 6, 49, 50, 50]


def test_samplers_are_optunas_with_these_settings() -> None:
    tpe: Any = make_sampler(make_space({"sampler": "tpe"}), 1)
    assert (tpe._multivariate, tpe._group, tpe._constant_liar) == (True, True, True)
    qmc: Any = make_sampler(make_space({"sampler": "qmc", "seed": 5}), 1)
    assert (qmc._scramble, qmc._seed) == (True, 5)  # one sequence for the whole study
