"""Stopping and deleting studies from outside their driver."""

from __future__ import annotations

import os

from search.console.status import check_driven_here, study_status
from search.schema import tracking_uri, unreachable
from search.space import load_space
from search.store.layout import StudyFolder, UserError, absolute, find_study
from search.tracking.mlflow_store import remove_runs, trouble


def stop_study(storage: str, study: str | None) -> str:
    """Ask the driver of a study on this machine's disk to pause it. Returns: the study's name.

    Raises: UserError when no driver runs it, or its storage is a bucket, whose driver is at its cluster.
    """
    folder = find_study(absolute(storage), study)
    check_driven_here(folder, study_status(folder)[0])
    folder.ask_to_stop()
    return folder.study


def deletable(storage: str, study: str) -> tuple[StudyFolder, str]:
    """A study that no driver runs, and a description of what it holds.

    Raises: UserError when there is no such study, a driver runs it, or this user may not remove it.
    """
    folder = find_study(absolute(storage), study)
    status, _, ledger = study_status(folder)
    if status.state == "running":
        by = f" by {status.holder}" if status.holder else ""
        raise UserError(f"study {folder.study} is being run{by}; `search stop {folder.study}` first")
    effective = os.access in os.supports_effective_ids
    if not all(os.access(place, os.W_OK, effective_ids=effective) for place in (folder.local, folder.local.parent)):
        raise UserError(f"{folder.local}: may not be removed by this user; nothing was deleted")
    return folder, f"{folder.uri}: {len(ledger.trials)} trials, {status.disk_bytes / 1e6:,.0f} MB, their runs in MLflow"


def delete_study(folder: StudyFolder) -> int:
    """Remove a study's runs and artifacts from MLflow, then its folder.

    Returns: how many runs there were.
    Raises: UserError when MLflow does not answer. The folder then stays, because the runs are found through it.
    """
    space, uri = load_space(folder.space, run_code=False), tracking_uri(storage=folder.storage)
    if not (down := unreachable(uri)):
        try:
            runs = remove_runs(uri, space, folder)
        except Exception as error:  # stores raise what they like
            down = trouble(error)
    if down:
        raise UserError(f"study {folder.study}: its runs in MLflow cannot be deleted: {down}; its folder was left")
    folder.delete(folder.uri)
    folder.delete(str(folder.local))
    return runs
