"""Points that are proposed: what a sampler draws, even draws, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from harness import World, make_space
from optuna._gp import optim_mixed
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from search.space import load_space
from search.space.params import Param
from search.study.sampler_view import distribution, sampler_distribution, value_of
from search.study.samplers import PointSampler, _draw, even_point, key, make_sampler, random_point


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


@pytest.mark.parametrize(
    ("param", "values"),
    [
        (Param(name="batch_size", kind="int", low=8, high=32, step=8), [8, 16, 24, 32]),
        (Param(name="dropout", kind="float", low=0.1, high=0.5, step=0.2), [0.1, 0.3, 0.5]),
        (Param(name="epochs", kind="int", low=3, high=5), [3, 4, 5]),
        (Param(name="pooling", kind="choice", values=("cls", "avg")), ["cls", "avg"]),
    ],
)
def test_values_of_lists_and_steps_are_drawn_equally_often(param: Param, values: list[Any]) -> None:
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


def test_parameters_as_optuna_distributions() -> None:
    stepped = Param(name="batch_size", kind="int", low=8, high=32, step=8)
    assert distribution(stepped) == optuna.distributions.IntDistribution(8, 32, step=8)
    assert distribution(Param(name="epochs", kind="int", low=1, high=5)) == optuna.distributions.IntDistribution(1, 5)
    log = Param(name="batch_size", kind="int", low=8, high=64, log=True)
    assert distribution(log) == optuna.distributions.IntDistribution(8, 64, log=True)
    tenths = Param(name="dropout", kind="float", low=0.1, high=0.4, step=0.1)
    assert distribution(tenths) == FloatDistribution(0.1, 0.4, step=0.1)
    assert value_of(tenths, 0.1 + 2 * 0.1) == 0.3  # which floating point makes 0.30000000000000004
    assert value_of(Param(name="mlp", kind="choice", values=([64, 32], [])), "[64, 32]") == [64, 32]


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
    ],
)
def test_asha_draws_first_and_every_third_point_uniformly(
    sampler: str, pruner: str, evenly: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leads at the first rung is not what leads at the end: a sampler followed it for ever."""
    for kind in (optuna.samplers.TPESampler, optuna.samplers.GPSampler):
        monkeypatch.setattr(kind, "sample_relative", lambda *_: {"learning_rate": 1e-5})
    monkeypatch.setattr("search.study.samplers.FIRST", 5)
    monkeypatch.setattr("search.study.samplers.EVENLY", 6)
    params = {"learning_rate": {"float": [1e-5, 1e-3], "log": True}, "dropout": {"float": [0.0, 0.5]}}
    space = make_space({"sampler": sampler, "trials": 15, "seed": 7}, params=params, pruner={"kind": pruner})
    ledger = World(space, tmp_path).session(concurrency=1).ledger
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


def test_samplers_are_optunas_with_these_settings() -> None:
    tpe: Any = make_sampler(make_space({"sampler": "tpe"}), 1)
    assert (tpe._multivariate, tpe._group, tpe._constant_liar) == (True, True, True)


def test_listed_row_without_a_parameter_is_trained_as_written(tmp_path: Path) -> None:
    """It got the values of other rows, drawn at random; and a published row that was one was no baseline."""
    space = load_space(Path(__file__).parents[2] / "spaces" / "papers" / "sda_table07_zh.yaml")
    ledger = World(space, tmp_path / "sda").session().ledger
    assert [dict(r.trial.point) for r in ledger.trials.values() if not r.trial.repeat] == list(space.points())
    points = [{"learning_rate": 3e-5}, {"learning_rate": 5e-5, "temperature": 0.2}, {"learning_rate": 5e-5}]
    space = make_space({"sampler": "grid", "trials": None, "baseline": "paper"}, params={}, points=points)
    ledger = World(space, tmp_path / "fake").session().ledger
    assert [dict(r.trial.point) for r in ledger.trials.values()] == points
    assert [r.trial.baseline for r in ledger.trials.values()] == ["paper", "", ""]


def test_quasi_random_draws_vary_parameters_missing_in_the_first_point(tmp_path: Path) -> None:
    """A parameter under a condition had one value for a whole search."""
    params = {
        "learning_rate": {"float": [1e-6, 1e-3], "log": True}, "pooling": {"choice": ["cls", "avg"]},
        "temperature": {"float": [0.01, 0.2], "when": {"pooling": "avg"}},
    }  # fmt: skip
    ledger = World(make_space({"sampler": "qmc", "trials": 24}, params=params), tmp_path).session(1).ledger
    drawn = [r.trial.point["temperature"] for r in ledger.trials.values() if "temperature" in r.trial.point]
    assert len(set(drawn)) == len(drawn) > 6


def test_a_gaussian_process_searches_wide_integers_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As real numbers, rounded: along each integer by itself a proposal takes seconds. Short ranges stay integers."""
    lines: list[int] = []
    plain = optim_mixed._discrete_line_search
    monkeypatch.setattr(
        optim_mixed, "_discrete_line_search", lambda *given, **named: lines.append(given[3]) or plain(*given, **named)
    )
    params = {
        "learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"int": [16, 512], "log": True},
        "max_length": {"int": [20, 60], "step": 2}, "epochs": {"int": [1, 16]},
    }  # fmt: skip
    space = make_space({"sampler": "gp", "trials": 16, "baseline": "none"}, params=params)
    assert sampler_distribution(space.params["batch_size"], smooth=True) == FloatDistribution(15.5, 512.5, log=True)
    assert sampler_distribution(space.params["epochs"], smooth=True) == distribution(space.params["epochs"])
    world = World(space, tmp_path)
    world.session(interrupt_at=70)
    driver = world.session()
    assert driver.status == "finished"
    assert lines == []
    for record in driver.ledger.trials.values():
        for name, value in record.trial.point.items():
            assert space.params[name].legal(value)
            assert isinstance(value, float if name == "learning_rate" else int)
