"""Proposing points: Optuna's samplers, seeded by trial number, never the same point twice.

Every proposal starts a fresh sampler from (study seed, point number, attempt), so that a resumed study goes on as the
undisturbed one would: the stream depends on what is in the study, not on what this process drew before.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from search.space import Param, Space, paper_point

ATTEMPTS = 20  # proposals that repeat an earlier point before a random unseen one is taken
RANDOM_ATTEMPTS = 1000  # then, of a continuous space, or one too large to list
LISTABLE = 200_000  # points that may be listed to find the unseen ones
LESSON = "lesson"  # user attribute of failed points that the sampler is to avoid: the failure's kind
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


def key(point: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True, default=str)


class PointSampler(BaseSampler):
    """Proposes whole points, each once: the baseline, rows of a grid, or what an Optuna sampler draws.

    Args:
        space: what may be proposed.
        seen: keys of the points proposed so far (shared with the study, which adds to it).
    """

    def __init__(self, space: Space, seen: Container[str]) -> None:
        self._space, self._seen = space, seen
        self._grid = _rows(space) if space.is_grid else None
        self._proposed: tuple[int, Point] = (-1, {})
        self.view: optuna.Study | None = None  # set by the study: what the sampler learns from

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
            self._proposed = (trial.number, self._propose(self.view or study, trial))
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
        for attempt in range(ATTEMPTS):
            point = self._ask(study, trial, attempt)
            if key(point) not in self._seen:
                return point
        return self._unseen(number)

    def _ask(self, study: optuna.Study, trial: FrozenTrial, attempt: int) -> Point:
        space = self._space
        if space.search.sampler == "random":
            rng = np.random.default_rng([space.search.seed, trial.number, attempt])
            return walk(space, lambda param: _draw(param, rng))
        seed = int(np.random.SeedSequence([space.search.seed, trial.number, attempt]).generate_state(1)[0])
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
            point = walk(self._space, lambda param: _draw(param, rng))
            if key(point) not in self._seen:
                return point
        return point  # nearly everything of a huge space has been seen: a repetition is the lesser evil


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
    """A fresh sampler of the space's kind. Optuna 5 defaults, but for conditional spaces (groups) and warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "experimental" arguments: optuna is pinned to one major version
        match space.search.sampler:
            case "tpe":
                return optuna.samplers.TPESampler(
                    multivariate=True, group=True, constant_liar=True, warn_independent_sampling=False, seed=seed
                )
            case "gp":
                return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
            case "cmaes":
                return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            case "nsga2":
                return optuna.samplers.NSGAIISampler(seed=seed, population_size=_population(space))
            case "qmc":  # one scrambled sequence for the whole study; its position is kept in the study
                return optuna.samplers.QMCSampler(
                    scramble=True,
                    seed=space.search.seed,
                    warn_independent_sampling=False,
                    warn_asynchronous_seeding=False,
                )
            case kind:
                raise AssertionError(f"{kind} is not an Optuna sampler")


def _population(space: Space) -> int:
    """NSGA-II's generations: a tenth of the trials, 4 to 50 (with Optuna's 50 most studies end in the first)."""
    return min(50, max(4, (space.search.trials or 500) // 10))


def _draw(param: Param, rng: np.random.Generator) -> Any:
    if param.values is not None:
        return param.values[int(rng.integers(len(param.values)))]
    assert param.low is not None
    assert param.high is not None
    if param.log:
        value = float(np.exp(rng.uniform(np.log(param.low), np.log(param.high))))
        return param.nearest(value)
    count = param.count()
    if count is not None:
        return param.nearest(param.low + int(rng.integers(count)) * (param.step or 1))
    return float(rng.uniform(param.low, param.high))


class Lessons(optuna.Study):
    """The study as samplers see it: points that failed by their own fault count as completed with the worst value.

    Optuna's samplers ignore failed trials, so they would propose the same too-large batch again and again. The
    storage keeps the honest state, FAIL.
    """

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,  # noqa: ARG002
    ) -> list[FrozenTrial]:
        if states is None:
            wanted: Container[TrialState] | None = None
        else:
            wanted = {state for state in TrialState if state in states or state == TrialState.FAIL}
        # Optuna's cache is emptied by `ask`, which this view never sees: it would show the first look for ever.
        trials = super()._get_trials(deepcopy, wanted, use_cache=False)
        told = (TrialState.COMPLETE, TrialState.PRUNED)
        values = [t.value for t in trials if t.state in told and t.value is not None]
        worst = _worst(values, self.direction)
        taught = [_as_worst(t, worst) if t.state == TrialState.FAIL and LESSON in t.user_attrs else t for t in trials]
        return taught if states is None else [t for t in taught if t.state in states]


def _worst(values: Sequence[float], direction: optuna.study.StudyDirection) -> float:
    if not values:
        return 0.0  # Spearman: no relation
    return min(values) if direction == optuna.study.StudyDirection.MAXIMIZE else max(values)


def _as_worst(trial: FrozenTrial, value: float) -> FrozenTrial:
    return FrozenTrial(
        number=trial.number,
        state=TrialState.COMPLETE,
        value=value,
        datetime_start=trial.datetime_start,
        datetime_complete=trial.datetime_complete,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs,
        system_attrs=trial.system_attrs,
        intermediate_values=trial.intermediate_values,
        trial_id=trial._trial_id,
    )
