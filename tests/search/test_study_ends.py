"""What ends a study: failures, patience, budgets of training, time and device hours. Without Ray."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from harness import EVALUATIONS, RUNG, Death, World, make_space

from search.store.journal import fold
from search.store.ledger import Ledger, Trial
from search.study.driver import Driver
from search.study.plan import make_trial
from search.wording import open_work
from trainables.on_ray.messages import pause_requested


def test_too_many_failures_end_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 30, "max_failed_share": 0.5}), tmp_path, fault=lambda trial, k: "data")  # noqa: ARG005
    driver = world.session(concurrency=1)
    assert driver.status == "failed"
    assert driver.ledger.ended() == 5
    assert driver.frequent_reasons() == [("data: data happened", 5)]
    assert driver.reason == "5 of 5 trials failed"


def test_patience_ends_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 50, "patience": 5}), tmp_path, value=lambda t, k: k / 10 - t.number / 1000)
    driver = world.session(concurrency=1)
    assert len(driver.ledger.points) == 6  # the first is the best, five do not improve on it
    assert (driver.status, driver.reason) == ("finished", "no improvement over the training of 5 full-length trials")


def test_patience_counts_training_not_points(tmp_path: Path) -> None:
    """Points that are stopped at their first rung cost little patience."""
    space = make_space({"trials": 50, "patience": 5, "baseline": "none"}, pruner={"kind": "threshold", "lower": 0.5})

    def value(trial: Trial, k: int) -> float:
        return 0.4 if trial.number else 0.6 + k / 100

    driver = World(space, tmp_path, value=value).session(concurrency=1)
    assert driver.ledger.stops["completed"] == 1
    assert driver.ledger.stops["pruned"] == 5 * EVALUATIONS  # each stopped at the first of its six evaluations


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_running_trials_finish_after_patience_ends_the_search(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space({"trials": 100, "patience": 5})
    undisturbed = World(space, tmp_path / "undisturbed").session(concurrency=4).ledger
    end, cut = Driver._end, []

    def cut_short(self: Driver, status: Any, reason: str, pause: bool) -> None:
        end(self, status, reason, pause)
        if status == "finished" and not cut:
            cut.append(reason)
            if how == "killed":
                raise Death
            end(self, "interrupted", "SIGINT", True)

    monkeypatch.setattr(Driver, "_end", cut_short)
    world = World(space, tmp_path / how)
    with pytest.raises(Death) if how == "killed" else contextlib.nullcontext():
        world.session(concurrency=4)
    ledger = fold(world.folder.journal, Ledger())
    assert open_work(space, ledger) == f"{len(ledger.open_trials)} trials of the search"  # and no new point
    driver = world.session(concurrency=4)
    assert cut
    assert not open_work(space, driver.ledger)
    assert driver.status == "finished"
    assert not driver.ledger.open_trials
    assert driver.ledger.stops == undisturbed.stops


@pytest.mark.parametrize("pruner", ["none", "asha"])
def test_patience_begins_with_the_first_completed_point(
    pruner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight trials at once are the training of two full-length trials when each has done a quarter."""
    end, best = Driver._end, []

    def watched(self: Driver, status: Any, reason: str, pause: bool) -> None:
        best.append(self.ledger.best_point)
        end(self, status, reason, pause)

    monkeypatch.setattr(Driver, "_end", watched)
    world = World(make_space({"trials": 100, "patience": 2}, pruner={"kind": pruner}), tmp_path)
    assert world.session(concurrency=8).reason == "no improvement over the training of 2 full-length trials"
    assert best
    assert None not in best


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("search", [{"budget": 7.5}, {"examples": int(7.5 * EVALUATIONS * RUNG)}])
def test_training_budget_ends_the_study_and_can_be_raised(search: dict[str, Any], workers: int, tmp_path: Path) -> None:
    world = World(make_space(search | {"trials": None}, pruner={"kind": "successive_halving"}), tmp_path)
    driver = world.session(concurrency=workers)
    assert driver.status == "out_of_budget"
    over = (workers - 1) * RUNG  # what runs beside it stops at its next evaluation
    assert 7.5 * EVALUATIONS * RUNG <= driver.ledger.examples <= 7.5 * EVALUATIONS * RUNG + over
    assert len(driver.ledger.points) > 8  # what pruning saves buys further points
    world.space = make_space({"budget": 9, "trials": None}, pruner={"kind": "successive_halving"})
    more = int(world.session(concurrency=workers).ledger.examples)
    assert 9 * EVALUATIONS * RUNG <= more <= 9 * EVALUATIONS * RUNG + over


def test_a_budget_is_the_same_after_any_death(tmp_path: Path) -> None:
    """What a trial repeats after a death is counted once."""
    world = World(make_space({"budget": 5, "trials": None}), tmp_path)
    for die_at in (12, 25, 5):
        with pytest.raises(Death):
            world.session(concurrency=1, die_at=die_at)
    assert world.session(concurrency=1).ledger.examples == 5 * EVALUATIONS * RUNG


def test_last_evaluation_that_spends_the_budget_completes_its_trial(tmp_path: Path) -> None:
    driver = World(make_space({"budget": 2, "trials": None}), tmp_path).session(concurrency=1)
    assert driver.status == "out_of_budget"
    assert [record.state for record in driver.ledger.trials.values()] == ["completed"] * 2


@pytest.mark.parametrize("pruner", ["none", "asha"])
def test_budget_that_just_suffices_finishes_the_search(pruner: str, tmp_path: Path) -> None:
    world = World(make_space({"budget": 2, "trials": 2}, pruner={"kind": pruner}), tmp_path)
    driver = world.session(concurrency=2)
    assert (driver.status, driver.reason) == ("finished", "")
    assert driver.ledger.examples == 2 * EVALUATIONS * RUNG
    assert not driver.ledger.open_trials


def test_downtime_does_not_count_against_the_time_budget(tmp_path: Path) -> None:
    world = World(make_space({"trials": 500, "time": 4}), tmp_path)
    with pytest.raises(Death):
        world.session(die_at=60)
    world.now += 3600  # an hour between the sessions
    driver = world.session()
    assert driver.status == "out_of_budget"
    assert driver.ledger.elapsed() == pytest.approx(4, abs=0.2)
    assert driver.ledger.ended() > 5


def test_device_hours_end_the_study(tmp_path: Path) -> None:
    driver = World(make_space({"trials": 500, "device_hours": 5 / 3600}), tmp_path).session()
    assert driver.status == "out_of_budget"
    assert 5 <= driver.ledger.trial_seconds() < 6


@pytest.mark.parametrize(("budget", "before", "after"), [("device_hours", 5 / 3600, 7 / 3600), ("time", 4, 6)])
def test_confirming_takes_nothing_from_the_budget_of_the_search(
    budget: str, before: float, after: float, tmp_path: Path
) -> None:
    world = World(make_space({"trials": 500, budget: before}), tmp_path)
    searched = world.session().ledger.ended()
    confirmed = world.session(confirm=20).ledger.ended() - searched
    assert confirmed > 4
    world.space = make_space({"trials": 500, budget: after})
    driver = world.session()
    assert driver.status == "out_of_budget"
    assert driver.ledger.ended() - confirmed >= 1.3 * searched


def test_a_trial_that_starts_again_is_not_to_pause(tmp_path: Path) -> None:
    """It ran out of memory on its way to a pause at its rung: the pause request is still there."""
    world = World(make_space(), tmp_path)
    (trial,) = world.session(concurrency=1, interrupt_at=3).ledger.open_trials
    world.folder.mark_trial(trial, True)
    world.session(concurrency=1)
    assert not pause_requested(world.folder.trial(trial))


@pytest.mark.parametrize("seed", range(3))
def test_failure_share_counts_paused_trials_as_sound(seed: int, tmp_path: Path) -> None:
    """Most of what a search that pauses has judged is paused, not ended: 15 % of failing points ended it at 50 %."""

    def fault(trial: Trial, k: int) -> str | None:
        return "nan" if k == 1 and trial.number % 7 == 3 else None

    space = make_space({"trials": 60, "seed": seed}, pruner={"kind": "asha"})
    driver = World(space, tmp_path, fault=fault).session(concurrency=4)
    assert (driver.status, driver.reason) == ("finished", "")
    assert driver.ledger.failed() == 9


def test_completed_script_trial_defines_the_budget_unit(tmp_path: Path) -> None:
    """A completed trial reports it."""
    world = World(make_space({"trials": 50, "budget": 3, "baseline": "none"}), tmp_path, planned=0)
    driver = world.session(concurrency=1)
    assert driver.status == "out_of_budget"
    assert driver.ledger.stops == {"completed": 3}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_script_trial_that_ends_early_is_not_full_length(concurrency: int, tmp_path: Path) -> None:
    """A budget of five was over before another trial was whole, and so was patience."""

    def ends(trial: Trial) -> int:
        return EVALUATIONS if trial.number else 1

    budget = make_space({"trials": 50, "budget": 5, "baseline": "none"})
    world = World(budget, tmp_path / "budget", planned=0, ends=ends)
    driver = world.session(concurrency=concurrency)
    assert driver.status == "out_of_budget"
    assert 5 * EVALUATIONS * RUNG <= driver.ledger.examples <= (5 * EVALUATIONS + concurrency) * RUNG
    assert fold(world.folder.journal, Ledger()).full_length == EVALUATIONS * RUNG

    patience = make_space({"trials": 50, "patience": 2, "baseline": "none"})
    world = World(patience, tmp_path / "patience", planned=0, ends=ends, value=lambda t, k: -t.number + k / 100)
    assert world.session(concurrency=1).ledger.stops == {"completed": 3}


@pytest.mark.parametrize(
    ("budget", "most"), [({"examples": 2000}, 2000 + 5 * RUNG), ({"budget": 4}, 4 * EVALUATIONS * RUNG + 5 * RUNG)]
)
def test_other_budgets_hold_once_patience_is_over(budget: dict[str, Any], most: int, tmp_path: Path) -> None:
    """Patience lets what runs train on, and that is paid for, too."""
    world = World(make_space({"trials": None, "baseline": "none", "patience": 0.5, **budget}), tmp_path)
    driver = world.session(concurrency=6, seed=1)
    assert driver.status == "out_of_budget"
    assert driver.ledger.examples <= most
    assert driver.ledger.open_trials
    assert driver.spent()
    assert not open_work(world.space, driver.ledger)


def test_patience_restarts_when_a_running_trial_becomes_best(tmp_path: Path) -> None:
    """It was called finished for want of an improvement that had just come."""

    def value(trial: Trial, k: int) -> float:
        return (0.5 if trial.number != 5 else 0.9) + k / 1000

    driver = World(make_space({"trials": 40, "patience": 2}), tmp_path, value=value).session(concurrency=6)
    assert driver.reason == "no improvement over the training of 2 full-length trials"
    assert driver.ledger.since_best() >= 2


@pytest.mark.parametrize(
    ("params", "searched", "unit"),
    [  # data of 1,000 examples
        ({"epochs": {"int": [1, 3]}}, [{"epochs": 1}, {"epochs": 3}, {"epochs": 2}], 3000),
        ({"epochs": {"choice": [1, 4]}, "max_examples": 2500}, [{"epochs": 1}, {"epochs": 4}], 2500),
        ({"max_examples": {"choice": [100, 300]}}, [{"max_examples": 100}, {"max_examples": 300}], 300),
        ({"epochs": 2}, [{}, {}], 2000),
    ],
)
def test_unit_of_budgets_is_the_longest_trial_whoever_reports_first(
    params: dict[str, Any], searched: list[dict[str, int]], unit: int
) -> None:
    space = make_space(
        {"trials": None, "budget": 4, "baseline": "none"}, params={"learning_rate": {"float": [1e-6, 1e-3]}, **params}
    )
    for order in itertools.permutations(range(len(searched))):
        ledger = Ledger()
        ledger.apply({"e": "space", "t": 0, "space": json.loads(json.dumps(space.resolved())), "format": 2})
        for number, point in enumerate(searched):
            point = {"learning_rate": 1e-5, **point}
            trial = make_trial(space, point, number=number, repeat=0, seed=3, stage="search", baseline="")
            ledger.apply({"e": "start", "t": 0, **vars(trial)})
        seen = set()
        for number in order:
            trial = next(r.trial for r in ledger.trials.values() if r.trial.number == number)
            length = min(1000 * trial.params["epochs"], trial.params.get("max_examples") or 10_000)
            ledger.apply({"e": "eval", "t": 0, "id": trial.id, "examples": 10, "planned": length, "value": 0.5,
                          "metrics": {}, "best": 0.5, "best_at": 10, "seconds": 1.0})  # fmt: skip
            seen.add(ledger.full_length)
        assert seen - {0} == {unit}, "never another one"


def test_budget_unit_comes_from_next_point_if_the_first_fails() -> None:
    space = make_space({"trials": None, "budget": 4})
    ledger = Ledger()
    for number in range(2):
        point = {"learning_rate": 1e-5, "batch_size": 16}
        trial = make_trial(space, point, number=number, repeat=0, seed=3, stage="search", baseline="")
        ledger.apply({"e": "start", "t": 0, **vars(trial)})
    ledger.apply({"e": "eval", "t": 0, "id": "t0001", "examples": 10, "planned": 600, "value": 0.5, "metrics": {},
                  "best": 0.5, "best_at": 10, "seconds": 1.0})  # fmt: skip
    assert ledger.full_length == 0, "the first one may still say"
    ledger.apply({"e": "end", "t": 0, "id": "t0000", "stop": "failed:data", "best": None, "best_at": 0, "examples": 0,
                  "seconds": 0.0, "reason": ""})  # fmt: skip
    assert ledger.full_length == 600
