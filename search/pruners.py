"""Stopping trials early: Optuna's pruners, the resource being training examples seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.pruners import BasePruner

from search.space import Pruner


def make_pruner(settings: Pruner, *, maximise: bool, first: int, longest: int) -> BasePruner:
    """The pruner of a space.

    Args:
        first: examples of the first evaluation at which a trial may be pruned.
        longest: examples of a whole trial.
    """
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
                return optuna.pruners.WilcoxonPruner(p_threshold=0.1)
            case _:
                return optuna.pruners.NopPruner()


def warmup_examples(settings: Pruner, params: Mapping[str, Any], planned: int) -> int:
    """Training examples before which a trial may not be pruned.

    `warmup: auto` follows the learning-rate schedule: `warmup_share` of the trial, or `warmup_epochs` of its epochs
    (GCLSR); values during warm-up say little about what a rate will do.
    """
    if settings.warmup is not None:
        return settings.warmup
    share: float = params.get("warmup_share", 0.0)
    if epochs := params.get("warmup_epochs"):
        share = min(1.0, epochs / params["epochs"])
    return math.ceil(planned * share)


def first_rung(settings: Pruner, warmup: int, rung: int) -> int:
    """Examples of the first evaluation at which pruning is decided.

    Args: warmup: examples of warm-up; rung: examples between two evaluations.
    """
    return max(1, math.ceil(max(warmup, settings.min_rung or 0, 1) / rung)) * rung
