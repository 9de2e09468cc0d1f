"""What samplers are shown of a study: pruned points at their probable values, and not too many."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import optuna
import pytest
from harness import World, curve, make_space
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from search.store.ledger import Trial
from search.study.samplers import MOST_SHOWN, fewer, guessed

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


def test_without_a_completed_point_nothing_is_guessed() -> None:
    (shown,) = guessed([frozen(TrialState.PRUNED, [0.1], 0.1)], MAX)
    assert shown.state == TrialState.PRUNED


def test_a_gaussian_process_sees_the_best_and_the_latest() -> None:
    rng = np.random.default_rng(0)
    trials = [frozen(TrialState.COMPLETE, [v], v) for v in rng.random(2 * MOST_SHOWN)]
    for number, trial in enumerate(trials):
        trial.number = number
    shown = fewer(trials, MAX)
    assert len(shown) == MOST_SHOWN
    assert set(range(int(1.5 * MOST_SHOWN), 2 * MOST_SHOWN)) <= {t.number for t in shown}
    best = max(trials, key=lambda t: t.value or 0.0)
    assert best.number in {t.number for t in shown}
    assert fewer(trials[:MOST_SHOWN], MAX) == trials[:MOST_SHOWN]


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
    monkeypatch.setattr("search.study.samplers.GUESSED", ())
    assert shown >= regret("hidden") - 0.002
