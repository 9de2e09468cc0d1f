"""Parameters and their values as Optuna's samplers take them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
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
