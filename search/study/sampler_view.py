"""The study as a sampler sees it: Optuna's distributions, paused and failed points, predicted end values.

Optuna's samplers know completed, pruned and running trials. Here a point may wait at a rung, wait for further seeds, or
have failed for a reason that lies in the point itself; `SamplerView` translates.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.space import Param, Space

MAX_GP_POINTS = 300  # completed points that a Gaussian process is shown
MOST_RUNNING = 31  # running ones, the newest, as many as where points are not proposed ahead: 200 take much longer
FAILURE = "failure"  # user attribute of points that failed by their own fault: the failure's kind
VALUED_STATES = (TrialState.COMPLETE, TrialState.PRUNED)
WIDE = 16  # values of an integer; Optuna's Gaussian process tries all of fewer at once
FACTOR = 2  # gains are learnt from a step to so many times it: fewer points have got further
PENALTIES = (1.0, 3.0, 10.0, 30.0)  # of the ridge regression, inputs having a standard deviation of about 1
SPREAD = 0.3  # of an input in [0, 1] whose values are spread evenly
FEWEST = 5  # gains from which a regression is tried
BETTER = 0.9  # share of a constant's error below which a regression is used
Floats = NDArray[np.float64]
Gain = Callable[[Floats], float]  # as a function of a point's `inputs`


def distribution(param: Param) -> BaseDistribution:
    """The parameter as Optuna's distribution; list values are represented by their JSON text."""
    if param.values is not None:
        return CategoricalDistribution([label(v) for v in param.values])
    if param.kind == "int":
        assert param.low is not None
        assert param.high is not None
        return IntDistribution(int(param.low), int(param.high), log=param.log, step=int(param.step or 1))
    assert param.low is not None
    assert param.high is not None
    return FloatDistribution(param.low, param.high, log=param.log, step=param.step)


def label(value: Any) -> Any:
    """A value as Optuna stores it."""
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def value_of(param: Param, stored: Any) -> Any:
    """The inverse of `label`, and of what floating point makes of steps."""
    if param.values is not None:
        return next(v for v in param.values if label(v) == stored)
    return param.nearest(stored)


def sampler_distribution(param: Param, smooth: bool = False) -> BaseDistribution:
    """The parameter as a sampler sees it: a list of numbers by the positions of its values, evenly spaced.

    Optuna treats the values of a list as unrelated: of batches of 16, 32 and 64 a sampler would learn nothing about 32
    from the other two. Such lists are mostly geometric, so positions fit better than values.

    smooth: whole numbers of a wide range as real ones, which the study rounds. Optuna's Gaussian process searches along
    every integer by itself, point by point, and along all real numbers together.
    """
    if values := param.rising():
        return IntDistribution(0, len(values) - 1)
    if smooth and param.kind == "int" and param.values is None and (param.count() or 0) > WIDE:
        (low, high), half = param.bounds, float(param.step or 1) / 2
        return FloatDistribution(low - half, high + half, log=param.log)  # the ends are as likely as other values
    return distribution(param)


def sampled_value(param: Param, drawn: Any) -> Any:
    """The value that a sampler has drawn from `sampler_distribution`."""
    values = param.rising()
    return value_of(param, drawn) if values is None else values[int(drawn)]


def by_position(trials: Sequence[FrozenTrial], params: Mapping[str, Param], smooth: bool = False) -> list[FrozenTrial]:
    """Points in the terms of `sampler_distribution`."""
    lists = {name: values for name, param in params.items() if (values := param.rising())}
    found = {name: sampler_distribution(param, smooth) for name, param in params.items()}
    seen = {name: own for name, own in found.items() if own != distribution(params[name])}

    def shown(trial: FrozenTrial) -> FrozenTrial:
        places = {name: values.index(trial.params[name]) for name, values in lists.items() if name in trial.params}
        other = copy.copy(trial)
        other.params = trial.params | places
        other.distributions = trial.distributions | {name: own for name, own in seen.items() if name in trial.params}
        return other

    return [shown(trial) if trial.params else trial for trial in trials] if seen else list(trials)


def with_inactive(trial: FrozenTrial, params: Mapping[str, Param]) -> FrozenTrial:
    """A point with its inactive parameters, each in the middle of its range or at its list's first value.

    Optuna's Gaussian process models the parameters that all points have, and draws other parameters at random.
    """
    if not trial.params or trial.params.keys() >= params.keys():
        return trial
    shown = copy.copy(trial)
    shown.params = {name: trial.params.get(name, _middle(param)) for name, param in params.items()}
    shown.distributions = {name: distribution(param) for name, param in params.items()}
    return shown


def _middle(param: Param) -> Any:
    if param.values is not None:
        return label(param.values[0])
    assert param.low is not None
    assert param.high is not None
    return param.nearest(math.sqrt(param.low * param.high) if param.log else (param.low + param.high) / 2)


class SamplerView(optuna.Study):
    """The study in the terms of Optuna's samplers; its storage keeps the true states, FAIL and RUNNING.

    - Points that failed by their own fault are completed with the worst value of any point: samplers ignore failed
      trials, so they would propose the same too-large batch again and again.
    - Points that are to have further seeds are completed at the mean of those they have.
    - Under pruner asha, points with an evaluation are pruned at their latest, whether they wait at a rung or have gone
      on from it: those that go on are the best, and samplers take running trials for unknown or bad.
    - A Gaussian process, which reads completed points only, sees pruned points completed at their `predicted` values,
      and every point with all parameters (`with_inactive`).
    - Lists of numbers appear as the positions of their values (`by_position`).
    """

    space: Space  # set by `PointSampler`, as `mean` is
    mean: Callable[[int], float | None]

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: ARG002
    ) -> list[FrozenTrial]:
        # Optuna's cache is emptied by `ask`, which this view never gets: it would hold the first answer for ever.
        trials = super()._get_trials(deepcopy, None, use_cache=False)
        seen = [self._translated(t) for t in trials]
        # what waits at its rung counts too: the completed points alone are the best ones
        if values := [t.value for t in seen if t.state in VALUED_STATES and t.value is not None]:
            worst = min(values) if self.direction == StudyDirection.MAXIMIZE else max(values)
            seen = [_failed(t, worst) if t.state == TrialState.FAIL and FAILURE in t.user_attrs else t for t in seen]
        smooth = self.space.search.sampler == "gp"
        if smooth:  # it reads completed points only
            running = [t for t in seen if t.state == TrialState.RUNNING and t.params]
            hidden = {t.number for t in running[:-MOST_RUNNING]}
            seen = predicted([t for t in seen if t.number not in hidden], self.space.params, self.direction)
            seen = [with_inactive(t, self.space.params) for t in fewer(seen, self.direction)]
        seen = by_position(seen, self.space.params, smooth)
        return seen if states is None else [t for t in seen if t.state in states]

    @property
    def best_trial(self) -> FrozenTrial:
        """The best of `get_trials`: Optuna would take it from the storage, with values instead of positions.

        Raises: ValueError without a completed point.
        """
        best = max if self.direction == StudyDirection.MAXIMIZE else min
        return best(self.get_trials(states=(TrialState.COMPLETE,)), key=lambda trial: cast(float, trial.value))

    def _translated(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.state != TrialState.RUNNING:
            return trial
        if (mean := self.mean(trial.number)) is not None:
            return _as(trial, TrialState.COMPLETE, mean)
        if trial.intermediate_values and self.space.pruner.kind == "asha":
            return _as(trial, TrialState.PRUNED, trial.intermediate_values[max(trial.intermediate_values)])
        return trial


def fewer(trials: list[FrozenTrial], direction: StudyDirection) -> list[FrozenTrial]:
    """At most `MAX_GP_POINTS` completed points, half of them the best, half the latest: a Gaussian process takes
    seconds a proposal beyond."""
    values = {t.number: t.value for t in trials if t.state == TrialState.COMPLETE and t.value is not None}
    if len(values) <= MAX_GP_POINTS:
        return trials
    half = MAX_GP_POINTS // 2
    numbers = list(values)
    best = sorted(numbers[:-half], key=values.__getitem__, reverse=direction == StudyDirection.MAXIMIZE)
    kept = {*best[:half], *numbers[-half:]}
    return [t for t in trials if t.state != TrialState.COMPLETE or t.number in kept]


def _failed(trial: FrozenTrial, worst: float) -> FrozenTrial:
    failed = _as(trial, TrialState.COMPLETE, worst)
    failed.intermediate_values = {}  # the fall to the worst value is no gain to learn from
    return failed


def _as(trial: FrozenTrial, state: TrialState, value: float) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.value = state, value
    return shown


def predicted(
    trials: Sequence[FrozenTrial], params: Mapping[str, Param], direction: StudyDirection
) -> list[FrozenTrial]:
    """Pruned points as completed at the value that they would probably have reached: best so far plus further gain.

    The gain is learned from points that went on: from where the point stands to twice its training, from there to four
    times, and so on to the end, since few points are completed and many have passed the first rungs. It is regressed on
    the hyperparameters, since what leads early does not lead at the end (a high learning rate gains early, a low one
    late). Until a point is completed, those that got furthest stand in for completed ones; then the gain is the same
    for all, and no value exceeds the best of them.
    """
    sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
    known = [
        i for i, t in enumerate(trials) if t.state in VALUED_STATES and t.value is not None and t.intermediate_values
    ]
    gains = _Gains({i: _Curve(trials[i], sign, inputs(trials[i].params, params)) for i in known})
    shown = list(trials)
    for i in known:
        if trials[i].state == TrialState.PRUNED:
            shown[i] = copy.copy(trials[i])
            shown[i].state, shown[i].value = TrialState.COMPLETE, sign * gains.reached(i)
    return shown


def inputs(point: Mapping[str, Any], params: Mapping[str, Param]) -> Floats:
    """A point in numbers from 0 to 1: places in ranges and in lists of numbers, other choices one by one; under a
    condition also whether it is there, and the middle where it is not."""
    found: list[float] = []
    for name, param in params.items():
        there = name in point
        if param.values is not None and param.rising() is None:
            found += [float(there and point[name] == label(value)) for value in param.values]
        else:
            found.append(param.place(point[name]) if there else 0.5)
        if param.when:
            found.append(float(there))
    return np.array(found)


class _Curve:
    """A point with values. All of them are such that more is better."""

    def __init__(self, trial: FrozenTrial, sign: float, place: Floats) -> None:
        self.place, self.steps = place, sorted(trial.intermediate_values)
        self.best = list(itertools.accumulate((sign * trial.intermediate_values[s] for s in self.steps), max))
        self.value = sign * trial.value if trial.state == TrialState.COMPLETE and trial.value is not None else None
        self.last, self.latest = self.steps[-1], sign * trial.intermediate_values[self.steps[-1]]

    def at(self, step: int, end: int) -> float | None:
        """The best so far at a step; None before its first value, and where it did not get so far."""
        if step == end and self.value is not None:
            return self.value
        if step < self.steps[0] or (step > self.last and self.value is None):
            return None
        return self.best[bisect_right(self.steps, step) - 1]


class _Gains:
    """What points gain from one step to another."""

    def __init__(self, curves: Mapping[int, _Curve]) -> None:
        self._curves = curves
        self._end = max((c.last for c in curves.values() if c.value is not None), default=0)
        self._most, self._factor, self._learned = float("inf"), FACTOR, regressed
        if not self._end:
            self._end = max((c.last for c in curves.values()), default=0)
            furthest = [c for c in curves.values() if c.last == self._end]
            for curve in furthest:
                curve.value = curve.latest
            self._most = max((c.latest for c in furthest), default=0.0)
            self._factor, self._learned = self._end, constant
        self._between: dict[tuple[int, int], Gain] = {}

    def reached(self, i: int) -> float:
        """What a point that was pruned would probably have reached at the end."""
        curve = self._curves[i]
        value, step = curve.best[-1], curve.last
        while step < self._end:
            following = min(self._factor * max(step, 1), self._end)
            value += self._gain(step, following)(curve.place)
            step = following
        return min(value, self._most)

    def _gain(self, step: int, following: int) -> Gain:
        if (step, following) not in self._between:
            places, gains = [], []
            for curve in self._curves.values():
                before, after = curve.at(step, self._end), curve.at(following, self._end)
                if before is not None and after is not None:
                    places.append(curve.place)
                    gains.append(after - before)
            self._between[step, following] = self._learned(places, gains)
        return self._between[step, following]


def constant(places: Sequence[Floats], gains: Sequence[float]) -> Gain:  # noqa: ARG001
    """The median gain, whatever the inputs; 0 where none is known."""
    median = statistics.median(gains) if gains else 0.0
    return lambda _: median


def regressed(places: Sequence[Floats], gains: Sequence[float]) -> Gain:
    """A gain as a function of a point's inputs: a ridge regression with its best penalty where it predicts left-out
    gains better than a constant does, else `constant`. It extrapolates at most half their range beyond them."""
    if len(gains) < FEWEST:
        return constant(places, gains)
    x, y = np.array(places), np.array(gains)
    centre, mean, count = x.mean(0), float(y.mean()), len(y)
    x, y = (x - centre) / SPREAD, y - mean
    least, slope = BETTER * float(np.mean((y * count / (count - 1)) ** 2)), None
    for penalty in PENALTIES:
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T)
        leverage = np.einsum("ij,ji->i", x, weights) + 1 / count
        error = float(np.mean(((y - x @ (weights @ y)) / (1 - leverage)) ** 2))  # of each from all others
        if error < least:
            least, slope = error, weights @ y / SPREAD
    if slope is None:
        return constant(places, gains)
    room = (max(gains) - min(gains)) / 2
    low, high = min(gains) - room, max(gains) + room
    return lambda place: float(np.clip(mean + (place - centre) @ slope, low, high))
