"""`optuna.log` as optuna-dashboard shows it: a point is RUNNING only while one of its trials runs.

In the file a point stays RUNNING until it is settled, since Optuna never opens an ended one again. Under `repeats` that
is most points for most of a search, and all that a budget left open; a trial that waits at its rung is one, too.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Container
from datetime import datetime
from http.server import ThreadingHTTPServer
from wsgiref.simple_server import WSGIServer, make_server

from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState

from search.store.journal import fold
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, TrialRecord
from search.store.lock import alive
from search.study.optuna_storage import UnsyncedBackend
from search.study.plan import mean_so_far


class ShownStorage(JournalStorage):
    """A study's Optuna storage in which points that are not settled stand as the journal has them.

    COMPLETE at the mean of the seeds so far; PRUNED where the trial waits at its rung; WAITING what a later life is to
    take up; RUNNING what runs.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental", as in `open_storage`
            super().__init__(UnsyncedBackend(str(folder.optuna)))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy=deepcopy)
        if any(trial.state == TrialState.RUNNING for trial in trials):
            ledger, driven = fold(self._folder.journal, Ledger()), self._driven()
            trials = [
                shown(trial, ledger.by_point.get(("search", trial.number), []), driven)
                if trial.state == TrialState.RUNNING
                else trial
                for trial in trials
            ]
        return trials if states is None else [trial for trial in trials if trial.state in states]

    def _driven(self) -> bool:
        return self._folder.lock.exists() and alive(self._folder)


def shown(trial: FrozenTrial, records: list[TrialRecord], driven: bool) -> FrozenTrial:
    """A point that is not settled, from the trials that it has had so far.

    Args: driven: whether a driver is at work on the study.
    """
    if any(record.waits for record in records[:1]) and trial.intermediate_values:
        return _as(trial, TrialState.PRUNED, trial.intermediate_values[max(trial.intermediate_values)])
    if driven and (not records or any(record.state == "running" for record in records)):
        return trial
    if (mean := mean_so_far(records)) is not None:
        ended = datetime.fromtimestamp(max(record.ended for record in records) / 1000)
        return _as(trial, TrialState.COMPLETE, mean, ended)
    return trial if driven else _as(trial, TrialState.WAITING, None)


def _as(trial: FrozenTrial, state: TrialState, value: float | None, ended: datetime | None = None) -> FrozenTrial:
    other = copy.copy(trial)
    other.state, other.value, other.datetime_complete = state, value, ended
    return other


class _Server(ThreadingHTTPServer, WSGIServer):
    """A thread a request, which keeps no process alive."""


def serve(storage: str, study: str, port: str) -> None:
    """optuna-dashboard of a study on the loopback, until the process ends."""
    import optuna_dashboard

    pages = optuna_dashboard.wsgi(ShownStorage(StudyFolder(storage, study)))
    make_server("127.0.0.1", int(port), pages, server_class=_Server).serve_forever()
