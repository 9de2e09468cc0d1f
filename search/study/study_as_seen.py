"""A study as its sampler sees it: what the storage has, in the terms of samplers that know less than we do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container

import optuna
from optuna.trial import FrozenTrial, TrialState

from search.space import Space
from search.study.distributions import by_place, whole
from search.study.guesses import TOLD, guessed

GUESSED = ("gp", "cmaes")  # samplers of Optuna's that read completed trials only
MOST_SHOWN = 300  # completed points that a Gaussian process is shown
OWN_FAULT = "lesson"  # user attribute of points that failed by their own fault: the failure's kind
MAXIMIZE = optuna.study.StudyDirection.MAXIMIZE


class StudyAsSeen(optuna.Study):
    """The study as samplers see it: points that failed by their own fault count as completed with the worst value that
    any point has, as soon as one has; where trials pause, points that have an evaluation as pruned at their latest,
    whether they wait at a rung or have gone on from it: those that go on are the best, and samplers take what runs for
    unknown or bad; points that are to have further seeds as completed at the mean of those they have. To samplers that
    read completed points only (`GUESSED`), pruned points are completed at the value that they would probably have
    reached; to a Gaussian process, every point has all parameters (`whole`). Lists of numbers stand by the places of
    their values (`by_place`).

    Optuna's samplers ignore failed trials, so they would propose the same too-large batch again and again, and take
    what does not end for bad. The storage keeps the honest states, FAIL and RUNNING.
    """

    space: Space  # set by who makes it, as the others
    mean: Callable[[int], float | None]

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: ARG002
    ) -> list[FrozenTrial]:
        # Optuna's cache is emptied by `ask`, which this view never sees: it would show the first look for ever.
        trials = super()._get_trials(deepcopy, None, use_cache=False)
        seen = [self._as_seen(t) for t in trials]
        # what waits at its rung counts too: the completed points alone are the best ones
        if values := [t.value for t in seen if t.state in TOLD and t.value is not None]:
            worst = min(values) if self.direction == MAXIMIZE else max(values)
            seen = [_failed(t, worst) if t.state == TrialState.FAIL and OWN_FAULT in t.user_attrs else t for t in seen]
        if self.space.search.sampler in GUESSED:
            seen = guessed(seen, self.space.params, self.direction)
        if self.space.search.sampler == "gp":
            seen = [whole(t, self.space.params) for t in fewer(seen, self.direction)]
        seen = by_place(seen, self.space.params)
        return seen if states is None else [t for t in seen if t.state in states]

    def _as_seen(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.state != TrialState.RUNNING:
            return trial
        if (mean := self.mean(trial.number)) is not None:
            return _as(trial, TrialState.COMPLETE, mean)
        if trial.intermediate_values and self.space.pruner.kind == "asha":
            return _as(trial, TrialState.PRUNED, trial.intermediate_values[max(trial.intermediate_values)])
        return trial


def fewer(trials: list[FrozenTrial], direction: optuna.study.StudyDirection) -> list[FrozenTrial]:
    """At most `MOST_SHOWN` completed points, half of them the best, half the latest: a Gaussian process takes seconds
    a proposal beyond."""
    values = {t.number: t.value for t in trials if t.state == TrialState.COMPLETE and t.value is not None}
    if len(values) <= MOST_SHOWN:
        return trials
    half = MOST_SHOWN // 2
    numbers = list(values)
    best = sorted(numbers[:-half], key=values.__getitem__, reverse=direction == MAXIMIZE)
    kept = {*best[:half], *numbers[-half:]}
    return [t for t in trials if t.state != TrialState.COMPLETE or t.number in kept]


def _failed(trial: FrozenTrial, worst: float) -> FrozenTrial:
    failed = _as(trial, TrialState.COMPLETE, worst)
    failed.intermediate_values = {}  # nobody is to learn a gain from the fall to the worst value
    return failed


def _as(trial: FrozenTrial, state: TrialState, value: float) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.value = state, value
    return shown
