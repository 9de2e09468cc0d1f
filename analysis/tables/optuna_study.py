"""A study as an Optuna study, for Optuna's own figures and its dashboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from analysis.errors import InputError
from analysis.tables.axes import Axis, label, study_axes
from analysis.tables.study import Study
from analysis.tables.trials import PARAM
from search.schema import stored

STATES = {"completed": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "running": TrialState.RUNNING}
ABSENT = object()
ATTRIBUTES = ("trial", "point", "stage", "stop", "seed", "baseline", "run_id")


def optuna_study(study: Study, storage: str | None = None) -> optuna.Study:
    """All trials as an `optuna.Study` of the study's name: parameters with the space's distributions, values,
    evaluations by training examples, states, and ATTRIBUTES as user attributes. A parameter that did not exist in a
    trial is missing there; ranges are widened to what was run outside them.

    Args: storage: URL of an Optuna storage to write to, e.g. `sqlite:///optuna.db`; None = in memory.
    Raises: InputError if the storage cannot be opened or holds a study of this name.
    """
    import sqlalchemy.exc

    trials = study.trials
    axes = [axis for axis in study_axes(study) if PARAM + axis.name in trials]
    written = study.space.get("params") or {}
    space = {axis.name: _distribution(axis, trials[PARAM + axis.name], written.get(axis.name)) for axis in axes}
    evaluations: dict[str, dict[int, float]] = {}
    for run, _, step, value in study.store.history(list(trials["run_id"]), [stored(study.metric.name)]):
        evaluations.setdefault(run, {})[int(step)] = value
    made: list[FrozenTrial] = []
    for row in trials.astype(object).where(trials.notna(), None).to_dict("records"):
        state = STATES.get(row["stop"], TrialState.FAIL)
        if state == TrialState.COMPLETE and row["value"] is None:
            state = TrialState.FAIL
        given = {name: _given(row[PARAM + name], distribution) for name, distribution in space.items()}
        trial = create_trial(
            state=state,
            value=row["value"] if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
            params={name: value for name, value in given.items() if value is not ABSENT},
            distributions={name: space[name] for name, value in given.items() if value is not ABSENT},
            user_attrs={name: row[name] for name in ATTRIBUTES},
            intermediate_values=evaluations.get(row["run_id"], {}),
        )
        if row.get("started") is not None:
            trial.datetime_start = row["started"].to_pydatetime().replace(tzinfo=None)
            if state.is_finished():
                trial.datetime_complete = trial.datetime_start + pd.Timedelta(seconds=row["seconds"] or 0.0)
        made.append(trial)
    try:
        return created(made, study.metric.sign > 0, storage, study.name)
    except DuplicatedStudyError:
        raise InputError(f"{storage}: a study {study.name} is there already") from None
    except (ImportError, StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as reason:
        raise InputError(f"{storage}: {str(reason).splitlines()[0]}") from None


def created(
    trials: Sequence[FrozenTrial], larger: bool, storage: str | None = None, name: str | None = None
) -> optuna.Study:
    """An Optuna study of these trials. larger: whether larger values are better."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=0)
    direction = StudyDirection.MAXIMIZE if larger else StudyDirection.MINIMIZE
    created = optuna.create_study(storage=storage, study_name=name, direction=direction, sampler=sampler)
    created.add_trials(trials)
    return created


def _distribution(axis: Axis, column: pd.Series[Any], written: Any) -> BaseDistribution:
    seen = column.dropna()
    if not axis.numeric:
        return CategoricalDistribution([_choice(v) for v in dict.fromkeys([*axis.values, *map(label, seen)])])
    low, high = min([axis.low, *seen]), max([axis.high, *seen])
    if isinstance(written, dict) and "int" in written:
        return IntDistribution(int(low), int(high), log=axis.log)
    return FloatDistribution(low, high, log=axis.log)


def _given(value: Any, distribution: BaseDistribution) -> Any:
    """A trial's value of a parameter as Optuna takes it; ABSENT where the parameter did not exist."""
    if isinstance(distribution, CategoricalDistribution):
        value = _choice(label(value))
        return value if value in distribution.choices else ABSENT
    return value if isinstance(value, (int, float)) else ABSENT


def _choice(text: str) -> Any:
    """A choice by its label: a number, a bool, None, or text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value
