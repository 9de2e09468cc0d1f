"""Other searches on the simulated clock, each with its own code: Optuna plain, Ray Tune's OptunaSearch with ASHA, Syne
Tune's ASHA, BOHB and PASHA. With its dependencies Syne Tune brings a CUDA library; these do, and 0.14 and later have
neither PASHA nor ASHA that promotes:
`pip install --no-deps syne-tune==0.13.0 dill sortedcontainers statsmodels patsy formulaic interface_meta`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna

from benchmarks.curves.play import SEED_OF_TRIALS, Job, Judged
from benchmarks.curves.surrogate import Surrogate
from search.space import Space
from search.study.sampler_view import distribution, value_of
from search.study.samplers import Point, random_point, walk


class Random:
    """Random points, every one trained to its end."""

    def __init__(self, surrogate: Surrogate, seed: int) -> None:
        self._space, self._rng, self._count = surrogate.space, np.random.default_rng(seed), 0
        self._seed = SEED_OF_TRIALS + seed

    def next(self) -> tuple[str, Point, int] | None:
        self._count += 1
        return str(self._count), random_point(self._space, self._rng), self._seed

    def evaluated(self, job: Job, value: float) -> Judged:  # noqa: ARG002
        return "go"

    def ended(self, job: Job) -> None:
        """Nothing is learnt."""


class Optuna:
    """`study.ask` and `study.tell` as Optuna's users write it; its samplers and pruners with their defaults."""

    def __init__(self, surrogate: Surrogate, sampler: str, pruner: str, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        count = surrogate.table.evaluations
        samplers: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
            "tpe": optuna.samplers.TPESampler,
            "gp": optuna.samplers.GPSampler,
        }
        pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=count),
        }
        self._space = surrogate.space
        self._study = optuna.create_study(
            direction="maximize", sampler=samplers[sampler](seed=seed), pruner=pruners[pruner]()
        )
        self._asked: dict[str, optuna.Trial] = {}
        self._seed = SEED_OF_TRIALS + seed

    def next(self) -> tuple[str, Point, int] | None:
        asked = self._study.ask()
        self._asked[str(asked.number)] = asked
        return str(asked.number), suggested(self._space, asked), self._seed

    def evaluated(self, job: Job, value: float) -> Judged:
        asked = self._asked[job.id]
        asked.report(value, job.done)
        if not asked.should_prune():
            return "go"
        self._study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        return "stop"

    def ended(self, job: Job) -> None:
        self._asked[job.id].report(float(job.curve[-1]), job.done)
        self._study.tell(self._asked[job.id], float(job.curve.max()))


class RayAsha:
    """Ray Tune's OptunaSearch (TPE) with its ASHAScheduler, called as Tune's controller calls them."""

    def __init__(self, surrogate: Surrogate, seed: int) -> None:
        from ray.tune.schedulers import ASHAScheduler
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = surrogate.space
        self._space, self._count, self._seed = space, 0, SEED_OF_TRIALS + seed

        def define(trial: Any) -> None:
            self._point = suggested(space, trial)

        self._search = OptunaSearch(space=define, metric="value", mode="max", seed=seed)
        self._asha = ASHAScheduler(
            metric="value", mode="max", max_t=surrogate.table.evaluations, grace_period=1, reduction_factor=3,
            stop_last_trials=False,
        )  # fmt: skip
        self._trials: dict[str, Any] = {}

    def next(self) -> tuple[str, Point, int] | None:
        name = str(self._count)
        self._count += 1
        self._search.suggest(name)
        trial = SimpleNamespace(trial_id=name, last_result={}, run_metadata=None)
        self._trials[name] = trial
        self._asha.on_trial_add(None, trial)
        return name, self._point, self._seed

    def evaluated(self, job: Job, value: float) -> Judged:
        result, trial = {"value": value, "training_iteration": job.done}, self._trials[job.id]
        self._search.on_trial_result(job.id, result)
        if self._asha.on_trial_result(None, trial, result) == ASHA_GO:
            return "go"
        self._search.on_trial_complete(job.id, result)
        return "stop"

    def ended(self, job: Job) -> None:
        result = {"value": float(job.curve[-1]), "training_iteration": job.done}
        self._asha.on_trial_complete(None, self._trials[job.id], result)
        self._search.on_trial_complete(job.id, result)


class SyneTune:
    """Syne Tune's ASHA that promotes, BOHB (kernel densities and ASHA, stopping) and PASHA; its defaults.

    It has no conditional parameters: one that is not active in a point is drawn and left out of it.
    """

    def __init__(self, surrogate: Surrogate, kind: str, seed: int) -> None:
        from syne_tune.optimizer import baselines

        make = {
            "promotion": partial(baselines.ASHA, type="promotion"),
            "pasha": baselines.PASHA,
            "bohb": baselines.BOHB,
        }[kind]
        self._space, self._trials, self._seed = surrogate.space, list[Any](), SEED_OF_TRIALS + seed
        logging.getLogger("syne_tune").setLevel(logging.ERROR)  # else a warning a search
        self._scheduler = make(
            {name: domain(param) for name, param in surrogate.space.params.items()}, metric="value", mode="max",
            resource_attr="evaluations", max_t=surrogate.table.evaluations, random_seed=seed,
        )  # fmt: skip

    def next(self) -> tuple[str, Point, int] | None:
        from syne_tune.backend.trial_status import Trial

        suggestion = self._scheduler.suggest(len(self._trials))
        if suggestion is None:
            return None
        if suggestion.spawn_new_trial_id:
            trial = Trial(len(self._trials), suggestion.config, datetime.now(UTC))
            self._trials.append(trial)
            self._scheduler.on_trial_add(trial)
        else:  # a paused one goes on
            trial = self._trials[suggestion.checkpoint_trial_id]
        config = trial.config
        return str(trial.trial_id), walk(self._space, lambda p: value_of(p, config[p.name])), self._seed

    def evaluated(self, job: Job, value: float) -> Judged:
        trial = self._trials[int(job.id)]
        decision = self._scheduler.on_trial_result(trial, {"value": value, "evaluations": job.done})
        if decision == ASHA_GO:
            return "go"
        self._scheduler.on_trial_remove(trial)
        return "wait" if decision == "PAUSE" else "stop"

    def ended(self, job: Job) -> None:
        trial, result = self._trials[int(job.id)], {"value": float(job.curve[-1]), "evaluations": job.done}
        if self._scheduler.on_trial_result(trial, dict(result)) == ASHA_GO:
            self._scheduler.on_trial_complete(trial, result)
        else:
            self._scheduler.on_trial_remove(trial)


def domain(param: Any) -> Any:
    """A parameter as Syne Tune's users write it."""
    from syne_tune import config_space

    match distribution(param):
        case optuna.distributions.CategoricalDistribution(choices=choices):
            return config_space.choice(list(choices))
        case optuna.distributions.IntDistribution(low=low, high=high, log=log):
            return (config_space.lograndint if log else config_space.randint)(low, high)
        case optuna.distributions.FloatDistribution(low=low, high=high, log=log, step=None):
            return (config_space.loguniform if log else config_space.uniform)(low, high)
        case optuna.distributions.FloatDistribution(low=low, high=high, step=float() as step):
            return config_space.finrange(low, high, round((high - low) / step) + 1)
        case other:
            raise AssertionError(other)


ASHA_GO = "CONTINUE"  # of both libraries


def suggested(space: Space, trial: Any) -> Point:
    """A point that an Optuna trial suggests, parameter by parameter."""

    def draw(param: Any) -> Any:
        wanted = distribution(param)
        match wanted:
            case optuna.distributions.CategoricalDistribution(choices=choices):
                found = trial.suggest_categorical(param.name, choices)
            case optuna.distributions.IntDistribution(low=low, high=high, log=log, step=step):
                found = trial.suggest_int(param.name, low, high, step=step, log=log)
            case optuna.distributions.FloatDistribution(low=low, high=high, log=log, step=step):
                found = trial.suggest_float(param.name, low, high, step=step, log=log)
            case _:
                raise AssertionError(wanted)
        return value_of(param, found)

    return walk(space, draw)
