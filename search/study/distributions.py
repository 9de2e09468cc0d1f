"""Parameters and their values as Optuna's samplers take them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from search.space import Param


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


def distribution_seen(param: Param) -> BaseDistribution:
    """The parameter as a sampler sees it: a list of numbers by the places of its values, evenly spaced.

    To Optuna the values of a list have nothing to do with each other. Of batches of 16, 32 and 64 a sampler would learn
    nothing about 32 from the other two; mostly such lists are geometric, so places are nearer to the truth than values.
    """
    values = param.rising()
    return distribution(param) if values is None else IntDistribution(0, len(values) - 1)


def value_seen(param: Param, drawn: Any) -> Any:
    """The value that a sampler has drawn from `distribution_seen`."""
    values = param.rising()
    return value_of(param, drawn) if values is None else values[int(drawn)]


def by_place(trials: Sequence[FrozenTrial], params: Mapping[str, Param]) -> list[FrozenTrial]:
    """Points in the terms of `distribution_seen`."""
    lists = {name: values for name, param in params.items() if (values := param.rising())}
    seen = {name: distribution_seen(params[name]) for name in lists}

    def shown(trial: FrozenTrial) -> FrozenTrial:
        places = {name: values.index(trial.params[name]) for name, values in lists.items() if name in trial.params}
        other = copy.copy(trial)
        other.params = trial.params | places
        other.distributions = trial.distributions | {name: seen[name] for name in places}
        return other

    return [shown(trial) if trial.params else trial for trial in trials] if lists else list(trials)


def whole(trial: FrozenTrial, params: Mapping[str, Param]) -> FrozenTrial:
    """A point with its inactive parameters, each in the middle of its range or at its list's first value.

    Optuna's Gaussian process models the parameters that all points have, and draws the others blindly.
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
