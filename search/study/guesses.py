"""What pruned points would probably have reached, for samplers that read completed points only."""

from __future__ import annotations

import copy
import itertools
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.space import Param
from search.study.distributions import label

Floats = NDArray[np.float64]
Gain = Callable[[Floats], float]  # as a function of a place, which `inputs` gives
TOLD = (TrialState.COMPLETE, TrialState.PRUNED)
FACTOR = 2  # gains are learnt from a step to so many times it: fewer points have got further
PENALTIES = (1.0, 3.0, 10.0, 30.0)  # of the ridge regression, inputs having a standard deviation of about 1
SPREAD = 0.3  # of an input in [0, 1] whose values are spread evenly
FEWEST = 5  # gains from which a regression is tried
BETTER = 0.9  # of a constant's error, at which a regression is believed


def guessed(trials: Sequence[FrozenTrial], params: Mapping[str, Param], direction: StudyDirection) -> list[FrozenTrial]:
    """Pruned points as completed at what they would probably have reached: the best so far plus the further gain.

    The gain is told by those that went on, from where the point stands to twice its training, from there to four
    times, and so on to the end: few points are completed, many more have passed the first rungs. It is regressed on the
    hyperparameters, since what leads early is not what leads at the end (a high learning rate gains early, a low one
    late); with one gain for all, samplers follow what leads early. Until a point is completed, those that got furthest
    stand for completed ones (several workers have tens of points before the first is): then gains are the same for all,
    and nothing is shown as better than the best of them.
    """
    sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
    told = [i for i, t in enumerate(trials) if t.state in TOLD and t.value is not None and t.intermediate_values]
    gains = _Gains({i: _Curve(trials[i], sign, inputs(trials[i].params, params)) for i in told})
    shown = list(trials)
    for i in told:
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
        self._most, self._factor, self._learnt = float("inf"), FACTOR, regressed
        if not self._end:
            self._end = max((c.last for c in curves.values()), default=0)
            furthest = [c for c in curves.values() if c.last == self._end]
            for curve in furthest:
                curve.value = curve.latest
            self._most, self._factor, self._learnt = max((c.latest for c in furthest), default=0.0), self._end, constant
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
            self._between[step, following] = self._learnt(places, gains)
        return self._between[step, following]


def constant(places: Sequence[Floats], gains: Sequence[float]) -> Gain:  # noqa: ARG001
    """The median gain, wherever; none where none is known."""
    median = statistics.median(gains) if gains else 0.0
    return lambda _: median


def regressed(places: Sequence[Floats], gains: Sequence[float]) -> Gain:
    """A gain as a function of the place: a ridge regression, where it foretells left-out gains better than a constant
    does, by its best penalty; else `constant`. It is trusted to half their range beyond them."""
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
