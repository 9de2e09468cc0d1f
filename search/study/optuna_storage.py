"""The Optuna study's own file, `optuna.log`: a copy for samplers, pruners and optuna-dashboard.

The journal is the truth. Where the copy does not say what the journal says (deleted, cut, damaged, of another life),
it is made again.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState, create_trial

from search.space import Space
from search.store.journal import cut_torn_line
from search.store.layout import StudyFolder
from search.store.ledger import Ledger
from search.study.distributions import distribution, label


def open_study(
    folder: StudyFolder, space: Space, ledger: Ledger, make: Callable[[JournalStorage], optuna.Study]
) -> tuple[optuna.Study, JournalStorage, str]:
    """The Optuna study, which knows every point of the journal; its storage; what had to be done ("" = nothing).

    Args: make: creates or loads the study in a storage.
    """
    was_there = folder.optuna.exists()
    try:
        storage = open_storage(folder)
        study = make(storage)
        if _agrees(study, space, ledger):
            return study, storage, ""
    except Exception:  # whatever a damaged file makes Optuna raise
        pass
    done = "optuna.log was missing and was made again from the journal"
    if was_there:
        aside = next(p for n in itertools.count(1) if not (p := Path(f"{folder.optuna}.damaged-{n}")).exists())
        os.replace(folder.optuna, aside)
        done = f"optuna.log did not agree with the journal and was made again; the old one is {aside.name}"
    folder.optuna.unlink(missing_ok=True)
    storage = open_storage(folder)
    study = make(storage)
    _rebuild(study, space, ledger)
    return study, storage, done


def _agrees(study: optuna.Study, space: Space, ledger: Ledger) -> bool:
    """Whether Optuna has what the journal has: it may lag by the last write, never lead but by unstarted proposals."""
    frozen = study.get_trials(deepcopy=False)
    points = _points(ledger)
    if points and max(points) >= len(frozen):
        return False
    for trial in frozen:
        ended = trial.state.is_finished()
        point = points.get(trial.number)
        if point is None and ended:
            return False
        if ended and trial.number not in ledger.points:
            return False
        if point is not None and trial.params != {name: label(v) for name, v in point.items() if name in space.params}:
            return False
    return True


def _rebuild(study: optuna.Study, space: Space, ledger: Ledger) -> None:
    """Every point of the journal as a running trial; the plan then shows it what was seen of them."""
    points = _points(ledger)
    for number in range(max(points, default=-1) + 1):
        point = points.get(number, {})  # none: proposed, not started before a death
        known = {name: space.params[name] for name in point if name in space.params}
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params={name: label(point[name]) for name in known},
                distributions={name: distribution(param) for name, param in known.items()},
            )
        )


def _points(ledger: Ledger) -> dict[int, Mapping[str, Any]]:
    return {number: r[0].trial.point for (stage, number), r in ledger.by_point.items() if stage == "search"}


def open_storage(folder: StudyFolder) -> JournalStorage:
    """The study's Optuna storage. Lock files of dead processes are removed: the caller holds the study's own lock."""
    folder.local.mkdir(parents=True, exist_ok=True)
    for stale in folder.local.glob(folder.optuna.name + ".lock*"):
        with suppress(FileNotFoundError):
            stale.unlink()
    cut_torn_line(folder.optuna)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # journal storage is "experimental": optuna is pinned to one major version
        return JournalStorage(UnsyncedBackend(str(folder.optuna)))


class UnsyncedBackend(JournalFileBackend):
    """Without a sync to disk per line (3 ms each, ten per trial): the study's journal, from which Optuna's is brought
    up to date, is not synced either. The lock stays, since optuna-dashboard may write notes."""

    def __init__(self, path: str) -> None:
        self._path, self._between_processes = path, JournalFileOpenLock(path)
        super().__init__(path, lock_obj=self._between_processes)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._between_processes.acquire()
        try:
            with open(self._path, "ab") as f:
                f.write(text.encode())
        finally:
            self._between_processes.release()
