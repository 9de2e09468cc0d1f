"""Proposing points: Optuna's samplers, seeded by trial number, never the same point twice.

Every proposal starts a fresh sampler from (study seed, point number, attempt), so that a resumed study goes on as the
undisturbed one would: the stream depends on what is in the study, not on what this process drew before.
"""

from __future__ import annotations

import copy
import json
import statistics
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from search.space import PAPER, Param, Space, paper_point

ATTEMPTS = 20  # proposals that repeat an earlier point before a random unseen one is taken
RANDOM_ATTEMPTS = 1000  # then, of a continuous space, or one too large to list
GUESSED = ("gp", "cmaes")  # samplers of Optuna's that read completed trials only
MOST_SHOWN = 300  # completed points that a Gaussian process is shown
LISTABLE = 200_000  # points that may be listed to find the unseen ones
OWN_FAULT = "lesson"  # user attribute of points that failed by their own fault: the failure's kind
MAXIMIZE = optuna.study.StudyDirection.MAXIMIZE
Point = dict[str, Any]


def distribution(param: Param) -> BaseDistribution:
    """The parameter as Optuna knows it; list values go by their JSON text."""
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


def walk(space: Space, draw: Callable[[Param], Any]) -> Point:
    """A point made parameter by parameter, inactive ones left out."""
    point: Point = {}
    for name, param in space.params.items():
        if space.active(name, point):
            point[name] = draw(param)
    return point


def random_point(space: Space, rng: np.random.Generator) -> Point:
    """A point drawn evenly (on a log scale where the parameter has one)."""
    return walk(space, lambda param: _draw(param, rng))


def key(point: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True, default=str)


class PointSampler(BaseSampler):
    """Proposes whole points, each once: the baseline, what is remembered, rows of a grid, or what a sampler draws.

    Args:
        space: what may be proposed.
        seen: keys of the points proposed so far (shared with the study, which adds to it).
        storage: of the Optuna study.
        waits: whether the point of a number is paused at a rung.
        mean: the value so far of a point that is to have further seeds, None where it has none yet.
        memory: the points that are tried first (`Ledger.memory`).
    """

    def __init__(
        self,
        space: Space,
        seen: Container[str],
        storage: BaseStorage,
        waits: Callable[[int], bool],
        mean: Callable[[int], float | None],
        memory: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._space, self._seen, self._storage, self._waits, self._mean = space, seen, storage, waits, mean
        self._memory = memory
        self._grid = _rows(space) if space.is_grid else None
        self._proposed: tuple[int | None, Point] = (None, {})
        self._learnt_from: optuna.Study | None = None  # made at the first proposal, when the study exists

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002  # Optuna's interface
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Nothing: points are proposed whole, by `sample_independent`."""
        return {}

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002
    ) -> Any:
        if self._proposed[0] != trial.number:
            if self._learnt_from is None:
                self._learnt_from = StudyAsSeen(study.study_name, self._storage, sampler=self)
                self._learnt_from.waits, self._learnt_from.mean = self._waits, self._mean
                self._learnt_from.guesses = self._space.search.sampler in GUESSED
                self._learnt_from.slow = self._space.search.sampler == "gp"
            self._proposed = (trial.number, self._propose(self._learnt_from, trial))
        point = self._proposed[1]
        if param_name not in point:  # a half-stored proposal of an earlier life took another branch of the space
            seed = [self._space.search.seed, trial.number, ATTEMPTS]
            return _draw(self._space.params[param_name], np.random.default_rng(seed))
        return label(point[param_name])

    def _propose(self, study: optuna.Study, trial: FrozenTrial) -> Point:
        space, number = self._space, trial.number
        if self._grid is not None:
            return self._grid[number]
        if number == 0 and space.search.baseline == "paper":
            return paper_point(space)
        place = number - first_remembered(space)
        if 0 <= place < len(self._memory):
            return dict(self._memory[place]["point"])
        for attempt in range(ATTEMPTS):
            point = self._ask(study, trial, attempt)
            if key(point) not in self._seen:
                return point
        return self._unseen(number)

    def _ask(self, study: optuna.Study, trial: FrozenTrial, attempt: int) -> Point:
        space = self._space
        if space.search.sampler == "random":
            rng = np.random.default_rng([space.search.seed, trial.number, attempt])
            return random_point(space, rng)
        (seed,) = np.random.SeedSequence([space.search.seed, trial.number, attempt]).generate_state(1).tolist()
        sampler = make_sampler(space, seed)
        together = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, together)

        def draw(param: Param) -> Any:
            if param.name in drawn:
                return value_of(param, drawn[param.name])
            alone = sampler.sample_independent(study, trial, param.name, distribution(param))
            return value_of(param, alone)

        return walk(space, draw)

    def _unseen(self, number: int) -> Point:
        """A random point not seen yet; the study has made sure that there is one."""
        rng = np.random.default_rng([self._space.search.seed, number, ATTEMPTS + 1])
        count = self._space.cardinality()
        if count is not None and count <= LISTABLE:
            left = [point for point in self._space.points() if key(point) not in self._seen]
            return left[int(rng.integers(len(left)))]
        for _ in range(RANDOM_ATTEMPTS):
            point = random_point(self._space, rng)
            if key(point) not in self._seen:
                return point
        return point  # nearly everything of a huge space has been seen: a repetition is the lesser evil


def first_remembered(space: Space) -> int:
    """The number of the first remembered point: they come after the baseline."""
    return int(space.search.baseline == PAPER)


def _rows(space: Space) -> list[Point]:
    """The points of a grid in the order in which they run: as written or, under a pruner, drawn from the study's seed.

    A pruner holds a trial against those before it. Grids are mostly written in ascending order, so that trial after
    trial is the best so far and none can be stopped.
    """
    points = list(space.points())
    if space.pruner.kind != "none":
        np.random.default_rng(space.search.seed).shuffle(points)  # type: ignore[arg-type]
    return points


def make_sampler(space: Space, seed: int) -> BaseSampler:
    """A fresh sampler of the space's kind. Optuna 5 defaults, but for conditional spaces (groups)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "experimental" arguments: optuna is pinned to one major version
        match space.search.sampler:
            case "tpe":
                return optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
            case "cmaes":
                return optuna.samplers.CmaEsSampler(seed=seed)
            case "nsga2":
                return optuna.samplers.NSGAIISampler(seed=seed, population_size=_population(space))
            case "qmc":  # one scrambled sequence for the whole study; its position is kept in the study
                return optuna.samplers.QMCSampler(scramble=True, seed=space.search.seed)
            case kind:
                raise AssertionError(f"{kind} is not an Optuna sampler")


def _population(space: Space) -> int:
    """NSGA-II's generations: a tenth of the trials, 4 to 50 (with Optuna's 50 most studies end in the first)."""
    trials = space.search.trials
    return 50 if trials is None else min(50, max(4, trials // 10))


def _draw(param: Param, rng: np.random.Generator) -> Any:
    count = param.count()
    if count is not None and not param.log:
        return param.at(int(rng.integers(count)))
    assert param.low is not None
    assert param.high is not None
    if param.log:
        return param.nearest(float(np.exp(rng.uniform(np.log(param.low), np.log(param.high)))))
    return float(rng.uniform(param.low, param.high))


class StudyAsSeen(optuna.Study):
    """The study as samplers see it: points that failed by their own fault count as completed with the worst value, and
    points that wait at a rung as pruned there; points that are to have further seeds as completed at the mean of those
    they have. To samplers that read completed points only (`GUESSED`), pruned points
    are completed at the value that they would probably have reached.

    Optuna's samplers ignore failed trials, so they would propose the same too-large batch again and again, and take
    what does not end for bad. The storage keeps the honest states, FAIL and RUNNING.
    """

    waits: Callable[[int], bool]  # set by who makes it, as the others
    mean: Callable[[int], float | None]
    guesses: bool  # of samplers in `GUESSED`
    slow: bool  # of a Gaussian process

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: ARG002
    ) -> list[FrozenTrial]:
        # Optuna's cache is emptied by `ask`, which this view never sees: it would show the first look for ever.
        trials = super()._get_trials(deepcopy, None, use_cache=False)
        told = (TrialState.COMPLETE, TrialState.PRUNED)
        values = [t.value for t in trials if t.state in told and t.value is not None]
        worst = _worst(values, self.direction)
        seen = [self._as_seen(t, worst) for t in trials]
        if self.guesses:
            seen = guessed(seen, self.direction)
        if self.slow:
            seen = fewer(seen, self.direction)
        return seen if states is None else [t for t in seen if t.state in states]

    def _as_seen(self, trial: FrozenTrial, worst: float) -> FrozenTrial:
        if trial.state == TrialState.FAIL and OWN_FAULT in trial.user_attrs:
            return _as(trial, TrialState.COMPLETE, worst)
        if trial.state == TrialState.RUNNING and trial.intermediate_values and self.waits(trial.number):
            return _as(trial, TrialState.PRUNED, trial.intermediate_values[max(trial.intermediate_values)])
        if trial.state == TrialState.RUNNING and (mean := self.mean(trial.number)) is not None:
            return _as(trial, TrialState.COMPLETE, mean)
        return trial


def guessed(trials: Sequence[FrozenTrial], direction: optuna.study.StudyDirection) -> list[FrozenTrial]:
    """Pruned points as completed at what they would probably have reached: the best so far plus the median further gain
    of completed points from that rung on, at most the best completed value. Until a point is completed, those that were
    pruned at the furthest rung stand for completed ones: several workers have tens of points before the first is."""
    sign = 1.0 if direction == MAXIMIZE else -1.0
    told = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED) and t.intermediate_values]
    reached = [t for t in told if t.state == TrialState.COMPLETE]
    if told and not reached:
        furthest = max(max(t.intermediate_values) for t in told)
        reached = [t for t in told if max(t.intermediate_values) == furthest]
    completed = [
        (sign * t.value, {step: sign * v for step, v in t.intermediate_values.items()})
        for t in reached
        if t.value is not None
    ]
    if not completed:
        return list(trials)
    most = max(value for value, _ in completed)
    gains: dict[int, float] = {}

    def gain(rung: int) -> float:
        if rung not in gains:
            found = [
                value - max(v for step, v in curve.items() if step <= rung)
                for value, curve in completed
                if min(curve) <= rung
            ]
            gains[rung] = statistics.median(found) if found else 0.0
        return gains[rung]

    shown = []
    for trial in trials:
        if trial.state == TrialState.PRUNED and trial.intermediate_values:
            best = max(sign * v for v in trial.intermediate_values.values())
            value = min(most, best + gain(max(trial.intermediate_values)))
            shown.append(_as(trial, TrialState.COMPLETE, sign * value))
        else:
            shown.append(trial)
    return shown


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


def _worst(values: Sequence[float], direction: optuna.study.StudyDirection) -> float:
    if not values:
        return 0.0  # Spearman: no relation
    return min(values) if direction == MAXIMIZE else max(values)


def _as(trial: FrozenTrial, state: TrialState, value: float) -> FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.value = state, value
    return shown
