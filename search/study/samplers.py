"""Proposing points: Optuna's samplers, seeded by trial number, no point twice while others can be found.

Every proposal makes a fresh sampler from (study seed, point number, attempt), so a resumed study proposes what the
uninterrupted one would: the points depend on the study, not on what this process drew before. A class that a space
names is instantiated once a session, since it may keep state in its instance (docs/howto/sampler.md).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from search.space import PAPER, Param, Space, paper_point
from search.space.optuna_class import SAMPLER, OptunaClass
from search.store.layout import UserError
from search.study.sampler_view import SamplerView, by_position, label, sampled_value, sampler_distribution
from trainables.contract.errors import first_line, line_in

ATTEMPTS = 20  # proposals that repeat an earlier point before a random unseen one is taken
RANDOM_ATTEMPTS = 1000  # then, of a continuous space, or one too large to list
LISTABLE = 200_000  # points that may be listed to find the unseen ones
FIRST = 10  # proposals drawn evenly, without the sampler, as in Optuna's own
EVENLY = 3  # then 1 in this many that would be learnt from paused trials is drawn evenly: see `_ask`
Point = dict[str, Any]


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


def even_point(space: Space, place: int) -> Point:
    """The `place`-th point, from 0, of the space's scrambled Sobol sequence (its seed's): fills a space more evenly
    than independent draws do."""
    sequence = qmc.Sobol(len(space.params), seed=np.random.default_rng(space.search.seed))
    if place:
        sequence.fast_forward(place)
    shares = dict(zip(space.params, sequence.random()[0], strict=True))
    return walk(space, lambda param: _at(param, float(shares[param.name])))


def key(point: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True, default=str)


class PointSampler(BaseSampler):
    """Proposes whole points, each once: the baseline, those of `search.start`, rows of a grid, or what a sampler draws.

    Args:
        space: what may be proposed.
        seen: keys of the points proposed so far (shared with the study, which adds to it).
        storage: of the Optuna study.
        mean: the value so far of a point that is to have further seeds, None where it has none yet.
        memory: the points that are tried first (`Ledger.memory`).
    """

    def __init__(
        self,
        space: Space,
        seen: Container[str],
        storage: BaseStorage,
        mean: Callable[[int], float | None],
        memory: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._space, self._seen, self._storage, self._mean, self._memory = space, seen, storage, mean, memory
        self._grid = rows(space) if space.is_grid else None
        self._proposed: tuple[int | None, Point] = (None, {})
        self._own: BaseSampler | None = None  # of the space's class, made at its first proposal
        self._own_points: set[int] = set()  # that it has proposed
        self._view: SamplerView | None = None  # made at the first proposal, when the study exists

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
            if self._view is None:
                self._view = SamplerView(study.study_name, self._storage, sampler=self)
                self._view.space, self._view.mean = self._space, self._mean
            self._proposed = (trial.number, self._propose(self._view, trial))
        return label(self._proposed[1][param_name])

    def _propose(self, study: optuna.Study, trial: FrozenTrial) -> Point:
        space, number = self._space, trial.number
        if self._grid is not None:
            return self._grid[number]
        if number == 0 and space.search.baseline == "paper":
            return paper_point(space)
        place = number - first_enqueued(space)
        if 0 <= place < len(self._memory):
            return dict(self._memory[place]["point"])
        for attempt in range(ATTEMPTS):
            point = self._ask(study, trial, attempt)
            if key(point) not in self._seen:
                return point
        return self._unseen(number)

    def _ask(self, study: optuna.Study, trial: FrozenTrial, attempt: int) -> Point:
        """A point that the sampler draws, or at first and now and then an even draw.

        Where trials pause, most of what a sampler learns from are first rungs, and what leads there is not what leads
        at the end: it would follow them ever further. 1 in 3 even draws keep the rungs in touch with the rest of the
        space, as in BOHB (Falkner et al. 2018, arXiv:1807.01774, rho = 1/3).
        """
        space = self._space
        if space.search.sampler == "qmc":  # a sampler's own sequence would keep its position in Optuna's storage
            return even_point(space, trial.number) if attempt == 0 else self._unseen(trial.number)
        learns = space.search.sampler in ("tpe", "gp") and space.pruner.kind == "asha"
        if learns and attempt == 0 and _evenly(trial.number):
            return even_point(space, sum(map(_evenly, range(trial.number))))
        if space.search.sampler == "random" or (learns and _evenly(trial.number)):
            rng = np.random.default_rng([space.search.seed, trial.number, attempt])
            return random_point(space, rng)
        (seed,) = np.random.SeedSequence([space.search.seed, trial.number, attempt]).generate_state(1).tolist()
        with named_error(space, SAMPLER):
            return self._drawn(self._own_sampler(study, trial, seed) or make_sampler(space, seed), study, trial)

    def _own_sampler(self, study: optuna.Study, trial: FrozenTrial, seed: int) -> BaseSampler | None:
        """The one of the space's class, one for a session, prepared for a new trial; None where it has none."""
        if (own := self._space.classes.get(SAMPLER)) is None or own.code is None:
            return None
        if self._own is None:
            self._own = own.made(SAMPLER, seed)
        assert self._own is not None
        if trial.number not in self._own_points:
            self._own_points.add(trial.number)
            self._own.before_trial(study, trial)
        return self._own

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Reported to the space's own class, of points that it has proposed; the built-in samplers ignore it."""
        del study
        if self._own is not None and self._view is not None and trial.number in self._own_points:
            with named_error(self._space, SAMPLER):
                (shown,) = by_position([trial], self._space.params)
                self._own.after_trial(self._view, shown, state, values)

    def _drawn(self, sampler: BaseSampler, study: optuna.Study, trial: FrozenTrial) -> Point:
        together = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, together)

        def draw(param: Param) -> Any:
            seen = sampler_distribution(param, smooth=self._space.search.sampler == "gp")
            if param.name in drawn:
                value = drawn[param.name]
            else:
                value = sampler.sample_independent(study, trial, param.name, seen)
            seen.to_internal_repr(value)  # raises what it cannot be
            return sampled_value(param, value)

        return walk(self._space, draw)

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


def _evenly(number: int) -> bool:
    return number < FIRST or number % EVENLY == 0


def first_enqueued(space: Space) -> int:
    """The number of the first point of `search.start`: they come after the baseline."""
    return int(space.search.baseline == PAPER)


def rows(space: Space) -> list[Point]:
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
    own = space.classes.get(SAMPLER, OptunaClass(space.search.sampler, {}))
    ours = {"multivariate": True, "group": True, "constant_liar": True} if own.name == "tpe" else {}
    return cast(BaseSampler, own.made(SAMPLER, seed, **ours))


@contextlib.contextmanager
def named_error(space: Space, kind: str) -> Iterator[None]:
    """Errors of a class that the space names, a "sampler" or a "pruner", in one line. Raises: UserError for them."""
    try:
        yield
    except Exception as error:  # whatever it raises
        if (own := space.classes.get(kind)) is None:
            raise
        line = line_in(own.code.file, error) if own.code else None
        where = f", line {line}" if line else ""
        raise UserError(f"{kind} {own.name}{where}: {type(error).__name__}: {first_line(error)}") from error


def _draw(param: Param, rng: np.random.Generator) -> Any:
    count = param.count()
    if count is not None and not param.log:
        return param.at(int(rng.integers(count)))
    return _at(param, float(rng.random()))


def _at(param: Param, share: float) -> Any:
    """The value that lies so far, in [0, 1), between the parameter's ends, on its own scale."""
    count = param.count()
    if count is not None and not param.log:
        return param.at(int(share * count))
    assert param.low is not None
    assert param.high is not None
    if param.log:
        low, high = np.log(param.low), np.log(param.high)
        return param.nearest(float(np.exp(low + (high - low) * share)))
    return float(param.low + (param.high - param.low) * share)
