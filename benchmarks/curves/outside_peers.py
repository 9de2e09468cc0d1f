"""Syne Tune 0.16 and NePS 0.17 on the simulated clock, each with its own code and its defaults."""

from __future__ import annotations

import logging
import warnings
from datetime import UTC, datetime
from typing import Any

import numpy as np
import optuna

from benchmarks.curves.outside import Task
from benchmarks.curves.peers import ASHA_GO, domain
from benchmarks.curves.play import SEED_OF_TRIALS, Job, Judged
from search.study.sampler_view import distribution, value_of
from search.study.samplers import Point, walk


class Syne:
    """A class of `syne_tune.optimizer.baselines`: CQR, which stops nothing, or one on top of ASHA."""

    def __init__(self, task: Task, kind: str, seed: int) -> None:
        from syne_tune.optimizer import baselines

        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        np.random.seed(seed)  # its kernel densities draw from it
        self._space, self._trials, self._seed = task.space, list[Any](), SEED_OF_TRIALS + seed
        stops = {} if kind == "CQR" else {"time_attr": "evaluations", "max_t": task.table.evaluations}
        self._scheduler = getattr(baselines, kind)(
            {name: domain(param) for name, param in task.space.params.items()}, metric="value", do_minimize=False,
            random_seed=seed, **stops,
        )  # fmt: skip

    def next(self) -> tuple[str, Point, int] | None:
        from syne_tune.backend.trial_status import Trial

        config = self._scheduler.suggest().config
        trial = Trial(len(self._trials), config, datetime.now(UTC))
        self._trials.append(trial)
        self._scheduler.on_trial_add(trial)
        return str(trial.trial_id), walk(self._space, lambda p: value_of(p, config[p.name])), self._seed

    def evaluated(self, job: Job, value: float) -> Judged:
        trial = self._trials[int(job.id)]
        if self._scheduler.on_trial_result(trial, {"value": value, "evaluations": job.done}) == ASHA_GO:
            return "go"
        self._scheduler.on_trial_remove(trial)
        return "stop"

    def ended(self, job: Job) -> None:
        result = {"value": float(job.curve[-1]), "evaluations": job.done}
        self._scheduler.on_trial_complete(self._trials[int(job.id)], result)


class Neps:
    """PriorBand without a prior on ASHA's rungs: it proposes near the best point and pauses, by ask and tell."""

    def __init__(self, task: Task, seed: int) -> None:
        import neps
        import torch

        warnings.filterwarnings("ignore")
        np.random.seed(seed)  # it has no seed of its own
        torch.manual_seed(seed)
        self._space, self._seed, self._length = task.space, SEED_OF_TRIALS + seed, task.table.evaluations
        kinds: dict[str, Any] = {name: _neps(param) for name, param in task.space.params.items()}
        kinds["evaluations"] = neps.IntegerFidelity(lower=1, upper=max(2, self._length))
        space = type("Space", (neps.PipelineSpace,), kinds)()
        self._search = neps.AskAndTell(neps.algorithms.priorband(space, base="asha"))
        self._asked: dict[str, Any] = {}  # a point's last requested evaluation

    def next(self) -> tuple[str, Point, int] | None:
        trial = self._search.ask()
        name = trial.metadata.id.split("_rung_")[0]
        self._asked[name] = trial
        return name, walk(self._space, lambda p: value_of(p, trial.config[p.name])), self._seed

    def evaluated(self, job: Job, value: float) -> Judged:
        trial = self._asked[job.id]
        if job.done < trial.config["evaluations"]:
            return "go"
        self._search.tell(trial, -value)
        return "wait"

    def ended(self, job: Job) -> None:
        self._search.tell(self._asked[job.id], -float(job.curve[-1]))


def _neps(param: Any) -> Any:
    import neps

    match distribution(param):
        case optuna.distributions.CategoricalDistribution(choices=choices):
            return neps.Categorical(tuple(choices))
        case optuna.distributions.IntDistribution(low=low, high=high, log=log):
            return neps.Integer(lower=low, upper=high, log=log)
        case optuna.distributions.FloatDistribution(low=low, high=high, log=log):
            return neps.Float(lower=low, upper=high, log=log)
        case other:
            raise AssertionError(other)
