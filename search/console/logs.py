"""`search logs`: what trials printed and warned, and how they failed."""

from __future__ import annotations

import fsspec

from search.schema import TRACEBACK_FILE
from search.space import load_space
from search.store.bucket import pull
from search.store.journal import fold, read
from search.store.layout import StudyFolder, UserError, absolute, find_study
from search.store.ledger import Ledger
from search.wording import trial_line
from trainables.contract.trial_files import LOG


def log_lines(storage: str, study: str | None, trial: str | None) -> list[str]:
    """Of one trial, or of every trial that has something to say: how it stands, its new starts, its log, its traceback.

    Raises: UserError when there is no such study or trial.
    """
    folder = find_study(absolute(storage), study)
    pull(folder)
    space = load_space(folder.space)
    ledger = fold(folder.journal, Ledger(maximise=space.metric.mode == "max"))
    if trial is not None and trial not in ledger.trials:
        names = ", ".join(list(ledger.trials)[:3])
        raise UserError(f"no trial {trial!r} in study {folder.study}; they are called {names} ...")
    told: dict[str, list[str]] = {}
    for event in read(folder.journal):
        if event["e"] == "retry":
            told.setdefault(event["id"], []).append(f"started again: {event['reason']}")
        elif event["e"] == "end" and event["traceback"]:
            told.setdefault(event["id"], []).extend([f"{TRACEBACK_FILE}:", *event["traceback"].splitlines()])
    lines: list[str] = []
    for record in [ledger.trials[trial]] if trial is not None else list(ledger.trials.values()):
        own = [*trial_log(folder, record.trial.id), *told.get(record.trial.id, [])]
        if own or trial is not None:
            lines += [trial_line(record, space), *(f"  {line}" for line in own or ["nothing was printed"])]
    return lines or [f"no trial of {folder.study} has printed, warned or failed"]


def trial_log(folder: StudyFolder, trial_id: str) -> list[str]:
    """What a trial has printed, written when it ends; [] where there is nothing."""
    filesystem, path = fsspec.core.url_to_fs(f"{folder.trial(trial_id)}/{LOG}")
    try:
        return str(filesystem.cat_file(path).decode(errors="replace")).splitlines()
    except FileNotFoundError:
        return []
