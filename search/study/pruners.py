"""Stopping trials early: Optuna's pruners, the resource being training examples seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, cast

import optuna
from optuna.pruners import BasePruner

from search.space import Pruner
from search.space.optuna_class import PRUNER, OptunaClass

EARLIEST = 15  # nothing is judged in the first 1/15 of a trial: see `earliest`


def make_pruner(
    settings: Pruner, own: OptunaClass | None = None, *, maximise: bool, first: int, longest: int
) -> BasePruner:
    """The pruner of a space.

    Args:
        own: the class that the space names, if any.
        first: examples of the first evaluation at which a trial may be pruned.
        longest: examples of a full-length trial.
    """
    if own is not None:
        return cast(BasePruner, own.made(PRUNER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are "experimental": optuna is pinned to one major version
        match settings.kind:
            case "median":
                return optuna.pruners.MedianPruner(n_startup_trials=5)
            case "percentile":
                return optuna.pruners.PercentilePruner(settings.percentile, n_startup_trials=5)
            case "successive_halving":
                return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=settings.reduction)
            case "hyperband":
                return optuna.pruners.HyperbandPruner(
                    min_resource=first, max_resource=max(longest, first), reduction_factor=settings.reduction
                )
            case "patient":
                return optuna.pruners.PatientPruner(None, patience=settings.patience)
            case "threshold":
                if maximise:
                    return optuna.pruners.ThresholdPruner(lower=settings.lower)
                return optuna.pruners.ThresholdPruner(upper=settings.lower)
            case "wilcoxon":
                return optuna.pruners.WilcoxonPruner()
            case _:
                return optuna.pruners.NopPruner()


def warmup_examples(settings: Pruner, params: Mapping[str, Any], planned: int) -> int:
    """Training examples before which a trial may not be pruned.

    `warmup: auto` follows the learning-rate schedule: `warmup_share` of the trial, or `warmup_epochs` of its epochs
    (GCLSR); values during warm-up say little about what a rate will do. Under asha it is 0: a trial that was
    paused too early can be promoted later, and waiting would train every point for its warm-up before it is compared.
    """
    if settings.warmup is not None:
        return settings.warmup
    if settings.kind == "asha":
        return 0
    share = non_negative(params, "warmup_share")
    if (epochs := non_negative(params, "warmup_epochs")) and (whole := non_negative(params, "epochs")):
        share = epochs / whole
    return math.ceil(planned * min(1.0, share))


def non_negative(params: Mapping[str, Any], name: str) -> float:
    """A hyperparameter's value >= 0; 0 where there is none, or a script means something else by the name."""
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))


def earliest(settings: Pruner, warmup: int, planned: int) -> int:
    """Training examples before which a trial is not judged, whatever the pruner.

    Warm-up or `min_rung`; without the latter a fifteenth of the trial. The very first values of a trial mostly tell
    how fast it starts: on recorded curves with 27 evaluations (tests/search/test_pruners.py) hyperband found the best
    point in 13 of 20 searches when it judged from the first evaluation on, in 17 with this rule, at 3 % more examples.
    """
    rung = settings.min_rung if settings.min_rung is not None else math.ceil(planned / EARLIEST)
    return max(warmup, rung, 1)


def first_rung(settings: Pruner, warmup: int, planned: int, every: int) -> int:
    """Examples of the first evaluation at which pruning is decided, when there is one `every` so many."""
    return math.ceil(earliest(settings, warmup, planned) / every) * every
