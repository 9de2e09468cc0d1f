"""The rest of a training budget finishes the baseline and the leader; who makes way waits for a larger one. No Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import EVALUATIONS, RUNG, Death, World, asha_space, curve, make_space, steps

from search.store.journal import read
from search.store.ledger import Trial


@pytest.mark.parametrize("budget", [{"budget": 3}, {"examples": 3 * EVALUATIONS * RUNG}])
def test_the_rest_of_a_budget_finishes_the_leader(budget: dict[str, Any], tmp_path: Path) -> None:
    finished = 0
    for seed in range(20):
        world = World(asha_space(trials=None, seed=seed, **budget), tmp_path / str(seed))
        driver = world.session(concurrency=4, seed=seed)
        ledger = driver.ledger
        assert driver.status == "out_of_budget"
        assert ledger.examples < (3 * EVALUATIONS + 4) * RUNG  # each of four notices at its next evaluation
        assert ledger.best is not None
        finished += ledger.best.best == max(r.best for r in ledger.trials.values() if r.best is not None)
    assert finished >= 15  # other trials showed too late that they were better


@pytest.mark.parametrize("concurrency", [2, 4])
@pytest.mark.parametrize("budget", [{"time": 100}, {"device_hours": 0.05}])
def test_the_rest_of_the_time_finishes_a_trial(budget: dict[str, float], concurrency: int, tmp_path: Path) -> None:
    for seed in range(10):
        world = World(asha_space(trials=None, seed=seed, **budget), tmp_path / str(seed), lasts=10.0)
        driver = world.session(concurrency=concurrency, seed=seed)
        assert driver.status == "out_of_budget"
        assert driver.ledger.best is not None


def test_who_has_fallen_far_is_not_finished(tmp_path: Path) -> None:
    """Its first evaluation was high by chance: the rest of the budget would raise nothing, and name a poor setting."""

    def value(trial: Trial, k: int) -> float:
        lucky = trial.number == 2
        return (0.95 if k == 1 else 0.1) if lucky else curve(trial, k)

    for seed in range(10):
        world = World(asha_space(trials=None, seed=seed, budget=4), tmp_path / str(seed), value=value)
        ledger = world.session(concurrency=1, seed=seed).ledger
        lucky = ledger.trials["t0002"]
        assert lucky.best == 0.95
        assert lucky.state == "paused"
        assert ledger.best is not None


def test_baseline_is_complete_at_the_end_of_a_small_budget(tmp_path: Path) -> None:
    space = make_space({"trials": None, "budget": 2, "repeats": 2}, pruner={"kind": "asha"})
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) - 0.5 * bool(trial.baseline))
    ledger = world.session(concurrency=4).ledger
    assert ledger.trials["t0000"].trial.baseline
    assert ledger.trials["t0000"].state == "completed"


def test_who_made_way_goes_on_under_a_larger_budget(tmp_path: Path) -> None:
    ways = 0
    for seed in range(8):
        world = World(asha_space(trials=None, seed=seed, repeats=3, budget=5), tmp_path / str(seed))
        world.session(concurrency=4, seed=seed)
        events = list(read(world.folder.journal))
        made_way = {e["id"] for e in events if e["e"] == "rung" and e["level"] == -1}
        ways += len(made_way)
        world.space = asha_space(trials=None, seed=seed, repeats=3, budget=12)
        ledger = world.session(concurrency=4, seed=seed).ledger
        assert all(ledger.trials[name].examples > RUNG for name in made_way)
        assert not any(event["state"] == "fail" for event in ledger.points.values())
    assert ways


def test_seeds_make_way_and_go_on(tmp_path: Path) -> None:
    """At the end of a budget a second seed waits, too; the search ends with no trial left waiting."""
    space = asha_space(trials=9, repeats=2, budget=6)
    for seed in range(8):
        world = World(space, tmp_path / str(seed))
        world.session(concurrency=4, seed=seed)
        world.space = asha_space(trials=9, repeats=2)
        driver = world.session(concurrency=4, seed=seed)
        assert driver.status == "finished"
        assert not driver.ledger.open_trials


@pytest.mark.parametrize("die_at", range(24, 48))
def test_deaths_at_the_end_of_a_budget_change_nothing(die_at: int, tmp_path: Path) -> None:
    space = asha_space(trials=None, budget=3)
    plain = World(space, tmp_path / "plain")
    expected = steps(plain.session(concurrency=1).ledger)
    world = World(space, tmp_path / "killed")
    with pytest.raises(Death):
        world.session(concurrency=1, die_at=die_at)
    assert steps(world.session(concurrency=1).ledger) == expected
