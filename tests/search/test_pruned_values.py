"""What pruned points would probably have reached: shown to samplers that read completed points only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import make_space
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from search.space import Param
from search.study.sampler_view import inputs, predicted, regressed

MAX, MIN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE
DONE, PRUNED = TrialState.COMPLETE, TrialState.PRUNED
X = {"x": Param(name="x", kind="float", low=0.0, high=1.0)}


def frozen(state: TrialState, values: Sequence[float], value: float | None = None, x: float = 0.5) -> FrozenTrial:
    """Evaluated after 100, 200, ... examples."""
    steps = {100 * (k + 1): v for k, v in enumerate(values)}
    return create_trial(
        state=state, value=value, params={"x": x}, distributions={"x": FloatDistribution(0, 1)},
        intermediate_values=steps,
    )  # fmt: skip


def values(trials: Sequence[FrozenTrial], direction: StudyDirection = MAX) -> list[float | None]:
    return [t.value for t in predicted(trials, X, direction)]


def test_pruned_point_is_shown_at_its_predicted_value() -> None:
    done = [
        frozen(DONE, [0.1, 0.3, 0.4], 0.4),
        frozen(DONE, [0.2, 0.5, 0.4], 0.5),
        frozen(DONE, [0.3, 0.5, 0.9], 0.9),
    ]
    stopped = [
        frozen(PRUNED, [0.15], 0.15),  # further gains from the first evaluation: 0.3, 0.3, 0.6
        frozen(PRUNED, [0.3, 0.2], 0.2),  # best so far 0.3; from the second: 0.1, 0.0, 0.4
        frozen(PRUNED, [0.8], 0.8),  # is better than all others were there: nothing holds it down
    ]
    shown = predicted(done + stopped, X, MAX)
    assert [t.value for t in shown] == pytest.approx([0.4, 0.5, 0.9, 0.45, 0.4, 1.1])
    assert {t.state for t in shown} == {DONE}
    assert [t.state for t in stopped] == [PRUNED] * 3  # the study's own stay as they are


def test_the_same_where_smaller_is_better() -> None:
    assert values([frozen(DONE, [0.9, 0.6], 0.6), frozen(PRUNED, [0.95], 0.95)], MIN)[1] == pytest.approx(0.65)


def test_gains_are_learnt_from_all_that_went_on() -> None:
    """One point is completed; what a first rung gains up to the second is learned from those that reached that, too."""
    done = frozen(DONE, [0.5, 0.6, 0.6, 0.6, 0.8], 0.8)
    gone_on = [frozen(PRUNED, [0.4, 0.4 + gain], 0.4 + gain) for gain in (0.2, 0.3)]
    found = values([done, *gone_on, frozen(PRUNED, [0.3], 0.3)])
    assert found == pytest.approx([0.8, 0.8, 0.9, 0.3 + 0.2 + 0.2])  # the median of 0.1, 0.2, 0.3; then 0.2


def test_furthest_points_stand_in_until_one_is_completed() -> None:
    """With four workers thirty points were drawn blindly before the first was completed."""
    curves = [[0.1], [0.2, 0.3], [0.25, 0.5], [0.6]]  # further gains from the first evaluation: 0.1, 0.25
    found = values([frozen(PRUNED, curve, curve[-1]) for curve in curves])
    assert found == pytest.approx([0.275, 0.3, 0.5, 0.5])  # 0.775: no point has shown that yet


def test_point_pruned_before_any_completed_measurement_keeps_its_value() -> None:
    done = create_trial(state=DONE, value=0.9, params={}, distributions={}, intermediate_values={300: 0.9})
    assert values([done, frozen(PRUNED, [0.2], 0.1)]) == pytest.approx([0.9, 0.2])
    done = create_trial(state=DONE, value=0.9, params={}, distributions={}, intermediate_values={200: 0.5, 300: 0.9})
    found = values([done, *(frozen(PRUNED, curve, 0.1) for curve in ([0.2], [0.1, 0.3]))])
    assert found == pytest.approx([0.9, 0.2 + 0.2 + 0.4, 0.3 + 0.4])  # up to 200 as the other one that is pruned


def test_untrained_values_and_shorter_trials_do_no_harm() -> None:
    """Step 0, and a completed point that was planned shorter: from where it ended on it has gained nothing."""
    at = lambda state, curve, value: create_trial(state=state, value=value, intermediate_values=curve)  # noqa: E731
    done = [at(DONE, {0: 0.1, 100: 0.3}, 0.3), at(DONE, {0: 0.1, 100: 0.2, 900: 0.6}, 0.6)]
    found = values([*done, at(PRUNED, {0: 0.2}, 0.2), at(PRUNED, {0: 0.1, 100: 0.4}, 0.4)])
    # From 100 on to 200, 400 and 800 no point gains; to the end 0 and 0.4.
    assert found == pytest.approx([0.3, 0.6, 0.55, 0.6])


def test_without_a_value_nothing_is_predicted() -> None:
    for trials in ([], [frozen(TrialState.RUNNING, [])], [create_trial(state=PRUNED)]):
        assert predicted(trials, X, MAX) == trials


def test_late_gains_are_predicted_from_the_hyperparameters() -> None:
    """Early values fall with x, gains rise with it. The pruned ones are the slow ones; their order at the end is the
    other way round, which one gain for all cannot tell."""
    rng = np.random.default_rng(0)

    def curve(x: float) -> list[float]:
        start = 0.5 - 0.1 * x + 0.002 * rng.standard_normal()
        return [start, start, start + 0.4 * x]

    went_on = [frozen(DONE, c := curve(x), c[-1], x) for x in np.linspace(0.0, 0.6, 9)]
    paused = [frozen(PRUNED, [c := curve(x)[0]], c, x) for x in (0.7, 0.85, 1.0)]
    found = [v for v in values([*went_on, *paused])[9:] if v is not None]
    truth = [0.5 + 0.3 * x for x in (0.7, 0.85, 1.0)]
    assert found == pytest.approx(truth, abs=0.07)  # 0.55, 0.53, 0.52 by one gain for all
    assert found[0] < found[1] < found[2]


def test_a_regression_has_to_foretell_what_was_left_out() -> None:
    """Of noise it mostly makes nothing: the median. Nor is it trusted far beyond the gains that there are."""
    rng = np.random.default_rng(0)
    places = [rng.random(4) for _ in range(12)]
    medians = 0
    for _ in range(50):
        gains = rng.standard_normal(12).tolist()
        medians += regressed(places, gains)(places[0]) == pytest.approx(np.median(gains))
    assert medians >= 30
    rising = regressed(places, [float(place[0]) for place in places])
    assert rising(np.array([0.5, 0.0, 1.0, 0.0])) == pytest.approx(0.5, abs=0.05)
    most, least = max(p[0] for p in places), min(p[0] for p in places)
    assert rising(np.array([9.0, 0.5, 0.5, 0.5])) == pytest.approx(most + (most - least) / 2)
    assert regressed(places[:4], [0.1, 0.2, 0.4, 0.4])(places[0]) == pytest.approx(0.3)  # too few
    assert regressed([], [])(places[0]) == 0.0


def test_a_point_in_numbers() -> None:
    spaces: dict[str, Any] = {
        "batch_size": {"choice": [64, 16, 32]},
        "temperature": {"float": [0.01, 1.0], "log": True},
        "dropout": {"float": [0.1, 0.3], "when": {"batch_size": [64]}},
        "pooling": {"choice": ["cls", "avg"], "when": {"batch_size": [64]}},
    }
    params = make_space(params=spaces).params
    names = list(params)

    def found(point: dict[str, Any]) -> dict[str, list[float]]:
        widths = {"batch_size": 1, "temperature": 1, "dropout": 2, "pooling": 3}
        numbers, out = inputs(point, params).tolist(), {}
        for name in names:
            out[name], numbers = numbers[: widths[name]], numbers[widths[name] :]
        assert not numbers
        return {name: [round(n, 6) for n in value] for name, value in out.items()}

    assert found({"batch_size": 64, "temperature": 0.1, "dropout": 0.15, "pooling": "avg"}) == {
        "batch_size": [1.0], "temperature": [0.5], "dropout": [0.25, 1.0], "pooling": [0.0, 1.0, 1.0],
    }  # fmt: skip
    assert found({"batch_size": 32, "temperature": 0.01}) == {
        "batch_size": [0.5], "temperature": [0.0], "dropout": [0.5, 0.0], "pooling": [0.0, 0.0, 0.0],
    }  # fmt: skip


def test_two_numbers_and_lists_are_choices_to_a_regression_too() -> None:
    params = {
        "batch_size": Param(name="batch_size", kind="choice", values=(16, 64)),
        "mlp": Param(name="mlp", kind="choice", values=([64, 32], [])),
    }
    assert inputs({"batch_size": 16, "mlp": "[64, 32]"}, params).tolist() == [1.0, 0.0, 1.0, 0.0]  # as Optuna has them
    assert inputs({"batch_size": 64, "mlp": "[]"}, params).tolist() == [0.0, 1.0, 0.0, 1.0]
