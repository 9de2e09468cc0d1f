"""What optuna-dashboard is given: a point is shown as running only while one of its trials runs."""

from __future__ import annotations

import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from harness import Death, World, make_space
from optuna.trial import TrialState, create_trial

from search.store.lock import exclusive
from search.study.optuna_storage import open_storage
from search.study.plan import point_means
from search.study.shown_points import ShownStorage
from search.study.shown_points import shown as point_shown


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


def test_what_is_shown_of_a_point_by_what_its_trials_do() -> None:
    def record(state: str, best: float | None = None, ended: int = 0, waits: bool = False) -> Any:
        return SimpleNamespace(state=state, best=best, ended=ended, waits=waits, open=state in ("running", "paused"))

    plain = create_trial(state=TrialState.RUNNING)
    measured = create_trial(state=TrialState.RUNNING, intermediate_values={100: 0.4, 300: 0.2, 200: 0.3})

    def seen(driven: bool, *records: Any, trial: Any = plain) -> tuple[TrialState, float | None]:
        found = point_shown(trial, list(records), driven)
        return found.state, found.value

    running, waiting = (TrialState.RUNNING, None), (TrialState.WAITING, None)
    done, more = record("completed", 0.5, 1_700_000_000_000), record("completed", 0.7, 1_700_000_060_000)
    assert seen(True) == running  # just proposed
    assert seen(False) == waiting
    assert seen(True, done, record("running")) == running
    assert seen(False, done, record("running")) == (TrialState.COMPLETE, 0.5)
    assert seen(True, done, record("paused")) == (TrialState.COMPLETE, 0.5)
    assert seen(True, record("paused")) == running
    assert seen(False, record("paused")) == waiting
    for driven in (True, False):
        assert seen(driven, done, more) == (TrialState.COMPLETE, pytest.approx(0.6))
        assert seen(driven, record("paused", waits=True), trial=measured) == (TrialState.PRUNED, 0.2)
    ended = point_shown(plain, [more, done], driven=False).datetime_complete
    assert ended == datetime.fromtimestamp(1_700_000_060)
