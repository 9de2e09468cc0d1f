"""The Optuna study's own file, `optuna.log`."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.storages.journal._file import get_lock_file

from search.journal import cut_torn_line
from search.layout import StudyFolder


def open_storage(folder: StudyFolder) -> JournalStorage:
    """The study's Optuna storage. Lock files of dead processes are removed: the caller holds the study's own lock."""
    folder.local.mkdir(parents=True, exist_ok=True)
    path = str(folder.optuna)
    lock = JournalFileOpenLock(path)
    for stale in folder.local.glob(folder.optuna.name + ".lock*"):
        with suppress(FileNotFoundError):
            stale.unlink()
    cut_torn_line(folder.optuna)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # journal storage is "experimental": optuna is pinned to one major version
        return JournalStorage(UnsyncedBackend(path, lock_obj=lock))


class UnsyncedBackend(JournalFileBackend):
    """Without a sync to disk per line (3 ms each, ten per trial): the study's journal, from which Optuna's is brought
    up to date, is not synced either. The lock stays, since optuna-dashboard may write notes."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with get_lock_file(self._lock), open(self._file_path, "ab") as f:
            f.write(text.encode())
