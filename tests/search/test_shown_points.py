"""What optuna-dashboard is given: a point is shown as running only while one of its trials runs."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import optuna
import pytest
from harness import Death, World, make_space
from optuna.trial import TrialState

from search.store.lock import exclusive
from search.study.optuna_storage import open_storage
from search.study.plan import point_means
from search.study.shown_points import ShownStorage


def states(world: World) -> dict[int, TrialState]:
    return {trial.number: trial.state for trial in shown(world).get_trials(deepcopy=False)}


def shown(world: World) -> optuna.Study:
    return optuna.load_study(study_name=world.study, storage=ShownStorage(world.folder))


def test_points_that_a_budget_left_with_open_seeds_are_complete_at_their_means(tmp_path: Path) -> None:
    world = World(make_space({"sampler": "tpe", "trials": 12, "repeats": 3, "examples": 9000}), tmp_path)
    driver = world.life()
    assert driver.status == "out_of_budget"
    kept = optuna.load_study(study_name=world.study, storage=open_storage(world.folder))
    left = [t.number for t in kept.get_trials(states=[TrialState.RUNNING])]
    assert left, "the file keeps them open for a larger budget"
    study = shown(world)
    means = point_means(driver.ledger)
    assert len(means) > 3
    for number in left:
        trial = study.trials[number]
        if number in means:
            assert (trial.state, trial.value) == (TrialState.COMPLETE, pytest.approx(means[number]))
            assert trial.datetime_complete is not None
        else:
            assert trial.state == TrialState.WAITING, "paused before its first value"
    assert study.best_value == pytest.approx(max(means.values()))
    assert study.get_trials(states=[TrialState.RUNNING]) == []
    assert study.metric_names == ["stsb_dev"]


def test_only_what_runs_is_running(tmp_path: Path) -> None:
    world = World(make_space({"sampler": "tpe", "trials": 12, "repeats": 3}), tmp_path)
    with pytest.raises(Death):
        world.life(concurrency=2, die_at=100)
    with exclusive(world.folder):
        driven = Counter(states(world).values())
    dead = Counter(states(world).values())
    assert (driven[TrialState.RUNNING], dead[TrialState.RUNNING]) == (2, 0)
    assert driven[TrialState.COMPLETE] >= 3
    assert dead[TrialState.COMPLETE] + dead[TrialState.WAITING] == driven.total()
    driver = world.life()
    assert set(states(world).values()) == {TrialState.COMPLETE}
    assert shown(world).trials[0].value == pytest.approx(
        statistics.fmean(r.best for r in driver.ledger.by_point["search", 0] if r.best is not None)
    )


def test_a_trial_that_waits_at_its_rung_is_pruned_there(tmp_path: Path) -> None:
    world = World(make_space({"sampler": "random", "trials": 12}, pruner={"kind": "asha", "warmup": 0}), tmp_path)
    with pytest.raises(Death):
        world.life(concurrency=2, die_at=90)
    with exclusive(world.folder):
        trials = shown(world).get_trials(states=[TrialState.PRUNED])
    assert trials
    for trial in trials:
        assert trial.value == trial.intermediate_values[max(trial.intermediate_values)]
