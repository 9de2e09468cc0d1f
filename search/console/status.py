"""`search status`, `list` and `logs`: how far studies are and what their trials printed, from journals and folders.

The status of a study without a driver also brings MLflow up to date and closes the runs left RUNNING there.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import fsspec
import yaml
from filelock import Timeout

from search.console.display import fitted
from search.schema import TRACEBACK_FILE
from search.space import Space, SpaceError, load_space
from search.store.bucket import last_sign, pull
from search.store.journal import JournalReader, alive, read, tracking_lock
from search.store.layout import StudyFolder, UserError, absolute, find_study, reading, storage_option, studies
from search.store.ledger import Event, Ledger
from search.wording import (
    best_trials,
    counted,
    duration,
    failed_kinds,
    go_on,
    headline,
    number,
    open_work,
    seconds_left,
    trial_line,
    wanted_points,
)
from trainables.contract.trial import LOG

FRESH_S = 120.0  # with a younger heartbeat a study in a bucket counts as running elsewhere
WORST_FIRST = ("crashed", "failed", "interrupted", "out_of_budget", "finished")  # a study is as its worst stage is
DISK_S = 60.0  # between two measurements of a study's size on disk
SHOWN = 5  # trials that `status` shows


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Where a study stands.

    Attributes:
        state: running, finished, failed, interrupted, out_of_budget, or crashed (it can be resumed).
        points: of which a seed has ended; of: of the whole study (None: time, training or patience end it).
        best: value of the best completed trial, in [-1, 1] (for people it is printed times 100); best_trial its id.
        failed: failed trials by kind; per_hour: such points per hour.
        left_low_s, left_high_s: the likely range of the seconds to the end.
        disk_bytes: of the trials' folders.
        open: what `resume` would run; "" while it runs, and when there is nothing.
        tracker: what keeps MLflow from being up to date, else "".
        holder: of a study in a bucket: the machine that runs or ran it, and its last heartbeat; else "".
    """

    study: str
    method: str
    metric: str
    state: str
    points: int
    of: int | None
    running: int
    paused: int
    pruned: int
    failed: Mapping[str, int]
    best: float | None
    best_trial: str
    elapsed_s: float
    per_hour: float | None
    left_low_s: float | None
    left_high_s: float | None
    disk_bytes: int
    reason: str = ""
    open: str = ""
    tracker: str = ""
    holder: str = ""


class StudyReader:
    """A study's space and ledger, cached from one read to the next, which then reads only what is new.

    Attributes:
        curves: of the search's and the confirmation's trials, id -> (examples, value) of each evaluation.
        failures: id, stop, reason and traceback of each failed trial, in the order of their ends.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.failures: list[dict[str, str]] = []
        self._space: tuple[float, Space] | None = None  # and when its file was changed
        self._journal: JournalReader | None = None
        self._disk = (-math.inf, 0)  # when it was measured, and bytes

    def read(self) -> tuple[Space, Ledger]:
        """Raises: SpaceError, UserError where the study cannot be read."""
        pull(self.folder)
        with reading(self.folder.space):
            changed = self.folder.space.stat().st_mtime
        if self._space is None or self._space[0] != changed:
            self._space, self._journal = (changed, load_space(self.folder.space, run_code=False)), None
        space = self._space[1]
        if self._journal is None:
            self._reset()
            self._journal = JournalReader(
                self.folder.journal, space.metric.mode == "max", observe=self._observe, reset=self._reset
            )
        return space, self._journal.read_on()

    def disk_bytes(self) -> int:
        """Of the trials' folders, measured at most once in `DISK_S`: thousands of folders take seconds."""
        if time.monotonic() - self._disk[0] >= DISK_S:
            filesystem, trials = fsspec.core.url_to_fs(f"{self.folder.uri}/trials")
            size = int(filesystem.du(trials)) if filesystem.exists(trials) else 0
            self._disk = time.monotonic(), size
        return self._disk[1]

    def _observe(self, event: Event) -> None:
        if event["e"] == "eval":
            self.curves.setdefault(event["id"], []).append((event["examples"], event["value"]))
        elif event["e"] == "end" and event["stop"].startswith("failed:"):
            self.failures.append({"trial": event["id"], **{k: event[k] for k in ("stop", "reason", "traceback")}})

    def _reset(self) -> None:
        self.curves.clear()
        self.failures.clear()


def study_status(folder: StudyFolder | StudyReader, now: float | None = None) -> tuple[StudyStatus, Space, Ledger]:
    """A study's status, read from its folder without the tracker. Args: folder: or a reader that has read it before."""
    reader = folder if isinstance(folder, StudyReader) else StudyReader(folder)
    folder = reader.folder
    space, ledger = reader.read()
    now_ms = int((now if now is not None else time.time()) * 1000)
    sign = last_sign(folder)
    running = alive(folder) or (sign is not None and sign[1] < FRESH_S)
    state = "running" if running else next((s for s in WORST_FIRST if s in ledger.stages.values()), "interrupted")
    elapsed = ledger.elapsed(now_ms if running else None)
    left = seconds_left(space, ledger, ledger.elapsed(now_ms, "search")) if running else None
    open_trials = list(ledger.open_trials.values())
    status = StudyStatus(
        study=folder.study,
        method=space.method,
        metric=space.metric.name,
        state=state,
        points=len(ledger.tried),
        of=wanted_points(space),
        running=sum(record.state == "running" for record in open_trials) if running else 0,
        paused=sum(record.state == "paused" or not running for record in open_trials),
        pruned=ledger.stops["pruned"],
        failed=failed_kinds(ledger),
        best=ledger.best.best if ledger.best else None,
        best_trial=ledger.best.trial.id if ledger.best else "",
        elapsed_s=round(elapsed, 1),
        per_hour=round(len(ledger.tried) / elapsed * 3600, 2) if elapsed else None,
        left_low_s=round(left[0], 1) if left else None,
        left_high_s=round(left[1], 1) if left else None,
        disk_bytes=reader.disk_bytes(),
        reason=str(ledger.closed["reason"]) if ledger.closed and not running else "",
        open="" if running else open_work(space, ledger),
        holder=f"{sign[0]}, last heartbeat {duration(sign[1])} ago" if sign else "",
    )
    return status, space, ledger


def check_driven_here(folder: StudyFolder, status: StudyStatus) -> None:
    """Raises: UserError when no driver on this machine runs the study: stop requests are files on its disk."""
    if not alive(folder):
        elsewhere = f" on this machine: held by {status.holder}" if status.holder else f": {status.state}"
        raise UserError(f"study {folder.study} is not running{elsewhere}")


def bring_up_to_date(folder: StudyFolder, space: Space, running: bool, again: bool = False) -> str:
    """Replay the journal into MLflow; with no driver alive also close what it left RUNNING. "" or what went wrong.

    Args: again: write all of it once more; of what is there already nothing changes.
    """
    if running:
        return ""  # the driver does it
    from search.schema import tracking_uri
    from search.tracking.replayer import BUSY_ELSEWHERE, replay
    from search.tracking.tracker import Tracker

    try:
        with tracking_lock(folder):
            tracker = Tracker(tracking_uri(storage=folder.storage), folder, space)
            if again:
                tracker.rewind()
            return "" if alive(folder) else replay(tracker)
    except Timeout:
        return BUSY_ELSEWHERE
    except OSError as error:  # another user's study
        return f"not brought up to date: {folder.local} cannot be written: {error.strerror or error}"


def track_study(storage: str, study: str | None) -> str:
    """Fill an empty or lost MLflow from the journal and the opened test sets of a study (default: the newest).

    Returns: its name.
    Raises: UserError while a driver runs it, which writes to MLflow itself, and when MLflow cannot be written.
    """
    folder = find_study(absolute(storage), study)
    status, space, _ = study_status(folder)
    if status.state == "running":
        raise UserError(f"study {folder.study} is running: its driver writes to MLflow")
    if trouble := bring_up_to_date(folder, space, running=False, again=True):
        raise UserError(f"study {folder.study}: MLflow: {trouble}")
    return folder.study


def status_now(storage: str, study: str | None) -> tuple[StudyStatus, Space, Ledger]:
    """Where a study (the newest by default) stands; MLflow is brought up to date where no driver does it."""
    folder = find_study(absolute(storage), study)
    status, space, ledger = study_status(folder)
    tracker = bring_up_to_date(folder, space, status.state == "running")
    return replace(status, tracker=tracker), space, ledger


def print_status(storage: str, study: str | None, form: str) -> None:
    """Print where STUDY (the newest by default) stands; `form`: table, json, csv or yaml."""
    status, space, ledger = status_now(storage, study)
    if form != "table":
        print(listing([status], form), end="")
        return
    now = int(time.time() * 1000) if status.state == "running" else 0
    lines = [f"{status.study}: {status.state}" + (f" ({status.reason})" if status.reason else "")]
    lines.append(f"  {headline(space, ledger, now)}")
    if status.per_hour:
        rate = f"{status.per_hour:,.{0 if status.per_hour >= 10 else 1}f}"
        lines.append(f"  {rate} points an hour; {status.disk_bytes / 1e6:,.0f} MB on disk")
    waiting = [record for record in ledger.open_trials.values() if record.waiting is None]
    if status.state != "running":  # without a driver nothing runs
        waiting = [replace(record, state="open") for record in waiting]
    lines += [f"  {trial_line(record, space)}" for record in [*waiting, *best_trials(ledger, SHOWN)]]
    if status.holder:
        lines.append(f"  held by {status.holder}")
    if status.tracker:
        lines.append(f"  tracker: {status.tracker}")
    if status.open:
        lines.append(f"  open: {status.open}")
    if status.open or status.state not in ("running", "finished"):
        options = storage_option(absolute(storage))
        label = "extend" if status.state == "out_of_budget" else "go on"
        lines.append(f"  {label}: {go_on(space, ledger, status.study, options, status.reason)}")
    print("\n".join(map(fitted, lines)))


def print_studies(storage: str, form: str) -> None:
    """Print all studies of a storage, oldest first."""
    found, broken = [], []
    for folder in studies(absolute(storage)):
        try:
            found.append(study_status(folder)[0])
        except (UserError, SpaceError) as error:  # one damaged study does not hide other studies
            broken.append(str(error))
    if form == "table" and found:
        _print_table(found)
    elif form != "table":
        print(listing(found, form), end="")
    for line in broken:
        print(line, file=sys.stderr)
    if not found and not broken and form == "table":
        print(f"no study in {absolute(storage)}")


def _print_table(found: Sequence[StudyStatus]) -> None:
    """A line for each study, however narrow the terminal is."""
    rows = [("study", "method", "state", "points", "best", "failed", "took")]
    for s in found:
        points = f"{s.points}/{s.of}" if s.of else str(s.points)
        best = f"{s.metric} {number(s.best)}" if s.best is not None else ""
        rows.append((s.study, s.method, s.state, points, best, counted(s.failed), duration(s.elapsed_s)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def listing(statuses: Sequence[StudyStatus], form: str) -> str:
    """Statuses as json, yaml or csv text."""
    rows: list[dict[str, Any]] = [{**asdict(s), "failed": dict(s.failed)} for s in statuses]
    if form == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    if form == "yaml":
        return str(yaml.safe_dump(rows, sort_keys=False, allow_unicode=True))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(StudyStatus.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "failed": ";".join(f"{k}={n}" for k, n in row["failed"].items())} for row in rows)
    return out.getvalue()


def log_lines(storage: str, study: str | None, trial: str | None) -> list[str]:
    """Of one trial, or of every trial with a log: how it stands, its log, its restarts, its traceback.

    Raises: UserError when there is no such study or trial.
    """
    folder = find_study(absolute(storage), study)
    space, ledger = StudyReader(folder).read()
    if trial is not None and trial not in ledger.trials:
        names = ", ".join(list(ledger.trials)[:3])
        there = f"they are called {names} ..." if names else "none has started"
        raise UserError(f"no trial {trial!r} in study {folder.study}; {there}")
    own = {name: trial_log(folder, name) for name in ([trial] if trial is not None else ledger.trials)}
    for event in read(folder.journal):
        if event["e"] == "retry" and event["id"] in own:
            own[event["id"]].append(f"started again: {event['reason']}")
        elif event["e"] == "end" and event["traceback"] and event["id"] in own:
            own[event["id"]] += [f"{TRACEBACK_FILE}:", *event["traceback"].splitlines()]
    lines: list[str] = []
    for name, found in own.items():
        if found or trial is not None:
            lines += [
                trial_line(ledger.trials[name], space),
                *(f"  {line}" for line in found or ["nothing was printed"]),
            ]
    return lines or [f"no trial of {folder.study} has printed, warned or failed"]


def trial_log(folder: StudyFolder, trial_id: str) -> list[str]:
    """What a trial has printed, written when it ends; [] where there is nothing."""
    filesystem, path = fsspec.core.url_to_fs(f"{folder.trial(trial_id)}/{LOG}")
    try:
        return str(filesystem.cat_file(path).decode(errors="replace")).splitlines()
    except FileNotFoundError:
        return []
