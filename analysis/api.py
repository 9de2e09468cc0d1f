"""The Python interface: `analysis.read(study)` as pandas tables, a verdict, figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, InputError, unknown
from analysis.reading.store import find_study, open_store
from analysis.tables.study import Study, read_study
from analysis.tables.trials import rank_points, rank_trials
from search import schema
from search.schema import DEFAULT_STORAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.statistics.importance import Importance
    from analysis.statistics.verdict import ConfirmForecast, Verdict


def read(
    study: str | None = None,
    *,
    storage: str | os.PathLike[str] = DEFAULT_STORAGE,
    tracking_uri: str | None = None,
    metric: str | None = None,
) -> StudyResults:
    """The results of a study, finished or not.

    Args:
        study: its name, its uuid, or the name of a space, whose newest study is taken; None = your newest one.
        storage: where the studies and `mlflow.db` lie; SEARCH_STORAGE is not read. tracking_uri: of another tracking
            store; without it MLFLOW_TRACKING_URI wins over `storage`.
        metric: what trials are valued by: a dev metric or `mean(a_dev,b_dev)`; None = the one that selected.
    Raises: InputError for a study, metric or store that is not there; AnalysisError for a study without trials.
    """
    storage = os.fspath(storage)
    store = open_store(schema.tracking_uri(tracking_uri, storage), storage)
    return StudyResults(read_study(store, find_study(store, study), metric))


@dataclass(frozen=True)
class StudyResults:
    """A study's trials, valued by one metric.

    study: what it is read from: its space, stored runs, artifacts.
    """

    study: Study

    def __repr__(self) -> str:
        ended = ", ".join(f"{n} {kind}" for kind, n in self.study.counts().items())
        return f"<study {self.name}: {len(self.study.trials)} trials ({ended}) by {self.metric}>"

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def metric(self) -> str:
        return self.study.metric.name

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial, best first.

        Columns:
            rank: 1 = best; missing for pruned trials and where there is no value. trial, point: names; trials of one
            point differ in seed.
            value: the metric at the trial's best evaluation, in its own unit (correlations in [-1, 1]).
            stage: "search" or "confirm". stop: "completed", "pruned", "failed:<kind>", "running", "killed".
            reason: why it failed, else "". baseline: whether the point is the baseline. origin: the study or
            preset that it was taken from, else "". seed, number: of the trial, of the point in the search. examples:
            trained on at the best evaluation. seconds: of training. rate: examples per second. started: UTC. method,
            folder, run_id: MLflow's. params.<name>: hyperparameters.
        """
        return rank_trials(self.study.trials, self.study.metric).drop(columns="confirmed")

    @cached_property
    def points(self) -> pd.DataFrame:
        """One row per configuration, best first: confirmed ones, then completed, then pruned, each by value. `rank`
        counts on through the confirmed and the other completed ones.

        Columns as in `trials`, those of the first counted trial, and:
            value, sd, n: mean, standard deviation (n - 1) and number of the counted seeds: fresh ones if `confirmed`,
            else the search's. search_value, search_n: of the search alone. all_value, all_n: of both.
            gain: value minus the baseline's as measured, larger is better; missing for pruned points.
            seeds, run_ids: lists of the counted trials.
        """
        return rank_points(self.study.points, self.study.metric)

    def best(self) -> Verdict:
        """Which configuration is best, its value, and whether it beats the baseline.

        Raises: AnalysisError if no trial has been completed.
        """
        from analysis.statistics.verdict import study_verdict

        return study_verdict(self.study)

    def forecast(self, top: int = 3, seeds: int = 5) -> ConfirmForecast:
        """What confirming the baseline and the `top` best other points on `seeds` fresh seeds could show.

        Raises: AnalysisError if no trial of the search has been completed, InputError for a number below 1.
        """
        from analysis.statistics.verdict import confirm_forecast

        for name, number in (("top", top), ("seeds", seeds)):
            if number < 1:
                raise InputError(f"forecast: {name}: expected at least 1, got {number}")
        return confirm_forecast(self.study, top, seeds)

    @cached_property
    def importance(self) -> Importance:
        """Which parameters moved the score. Raises: AnalysisError with too few completed points."""
        from analysis.statistics.importance import importance

        return importance(self.study, np.random.default_rng(0))

    def plot(self, name: str) -> Figure:
        """A figure of `analysis plot`, by its name: history, curves, parallel, slices, ...

        Raises: InputError for an unknown name, AnalysisError if the study has no data for it.
        """
        from analysis.plots.gallery import NAMES, gallery

        if name not in NAMES:
            raise unknown("figure", name, NAMES, shown=len(NAMES))
        measured = self.importance if name == "importance" else self._measured() if name == "contour" else None
        for picture in gallery(self.study, measured, (name,)):
            return picture.figure
        raise AnalysisError(f"the study has no data for: {name}")

    def _measured(self) -> Importance | None:
        try:
            return self.importance
        except AnalysisError:
            return None
