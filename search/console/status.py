"""`search status` and `search list`: how far studies are, read from their journals alone.

Looking at a study whose driver is gone also brings MLflow up to date and closes the runs that it left RUNNING.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import fsspec
import yaml
from filelock import Timeout
from rich.console import Console
from rich.table import Table

from search.console.output import fitted
from search.space import Space, SpaceError, load_space
from search.store.bucket import last_sign, pull
from search.store.journal import alive, fold, tracking_lock
from search.store.layout import StudyFolder, UserError, absolute, find_study, storage_option, studies
from search.store.ledger import Ledger
from search.wording import (
    best_trials,
    duration,
    headline,
    larger,
    number,
    open_work,
    seconds_left,
    trial_line,
    wanted_points,
)

FRESH_S = 120.0  # a younger sign of life of a study in a bucket says that another machine runs it
WORST_FIRST = ("died", "failed", "interrupted", "out_of_budget", "finished")  # a study is as its worst stage is
SHOWN = 5  # trials that `status` shows


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Where a study stands.

    Attributes:
        state: running, finished, failed, interrupted, out_of_budget, or died (killed; it can be resumed).
        points: of which a seed has ended; of: how many there are to be (None: time, training or patience end it).
        best: value of the best completed trial, in [-1, 1] (for people it is printed times 100); best_trial its id.
        failed: failed trials by kind; per_hour: such points per hour.
        left_low_s, left_high_s: between which the seconds to the end probably lie.
        disk_bytes: of the trials' folders.
        open: what `resume` would take up, in words; "" while it runs, and when there is nothing.
        tracker: what keeps MLflow from being up to date, else "".
        holder: of a study in a bucket: the machine that runs it, or died with it, and its last sign of life; else "".
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


def study_status(folder: StudyFolder, now: float | None = None) -> tuple[StudyStatus, Space, Ledger]:
    """A study's status, without looking at the tracker."""
    pull(folder)
    space = load_space(folder.space)
    ledger = fold(folder.journal, Ledger(maximise=space.metric.mode == "max"))
    now_ms = int((now if now is not None else time.time()) * 1000)
    sign = last_sign(folder)
    running = is_running(folder, sign)
    state = "running" if running else next((s for s in WORST_FIRST if s in ledger.stages.values()), "interrupted")
    elapsed = ledger.elapsed(now_ms if running else None)
    left = seconds_left(space, ledger, ledger.elapsed(now_ms, "search")) if running else None
    open_trials = list(ledger.open_trials.values())
    kinds = {stop.removeprefix("failed:"): n for stop, n in ledger.stops.items() if stop.startswith("failed:")}
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
        failed=kinds,
        best=ledger.best.best if ledger.best else None,
        best_trial=ledger.best.trial.id if ledger.best else "",
        elapsed_s=round(elapsed, 1),
        per_hour=round(len(ledger.tried) / elapsed * 3600, 2) if elapsed else None,
        left_low_s=round(left[0], 1) if left else None,
        left_high_s=round(left[1], 1) if left else None,
        disk_bytes=disk_bytes(folder),
        reason=str(ledger.closed["reason"]) if ledger.closed and not running else "",
        open="" if running else open_work(space, ledger),
        holder=f"{sign[0]}, last sign of life {duration(sign[1])} ago" if sign else "",
    )
    return status, space, ledger


def is_running(folder: StudyFolder, sign: tuple[str, float] | None) -> bool:
    """Whether a driver is at work: this machine's lock says so; elsewhere the `last_sign` of life in the bucket."""
    return alive(folder) or (sign is not None and sign[1] < FRESH_S)


def check_driven_here(folder: StudyFolder, status: StudyStatus) -> None:
    """Raises: UserError when no driver on this machine runs the study: word to stop is left on this machine, and the
    driver of a bucket's study is at its cluster."""
    if not is_running(folder, None):
        elsewhere = f" on this machine: held by {status.holder}" if status.holder else f": {status.state}"
        raise UserError(f"study {folder.study} is not running{elsewhere}")


def disk_bytes(folder: StudyFolder) -> int:
    """Bytes of all trials' checkpoints."""
    filesystem, path = fsspec.core.url_to_fs(f"{folder.uri}/trials")
    return int(filesystem.du(path)) if filesystem.exists(path) else 0


def bring_up_to_date(folder: StudyFolder, space: Space, running: bool) -> str:
    """Replay the journal into MLflow; with no driver alive also close what it left RUNNING. "" or what went wrong."""
    if running:
        return ""  # the driver does it
    from search.schema import tracking_uri
    from search.tracking.replayer import TOLD_ELSEWHERE, replay
    from search.tracking.tracker import Tracker

    try:
        with tracking_lock(folder):
            return "" if alive(folder) else replay(Tracker(tracking_uri(storage=folder.storage), folder, space))
    except Timeout:
        return TOLD_ELSEWHERE
    except OSError as error:  # another user's study
        return f"not brought up to date: {folder.local} cannot be written: {error.strerror or error}"


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
        lines.append(f"  {status.per_hour:g} points an hour; {status.disk_bytes / 1e6:,.0f} MB on disk")
    waiting = [record for record in ledger.open_trials.values() if record.waiting is None]
    if status.state != "running":  # nothing runs where nobody drives
        waiting = [replace(record, state="open") for record in waiting]
    lines += [f"  {trial_line(record, space)}" for record in [*waiting, *best_trials(ledger, SHOWN)]]
    if status.holder:
        lines.append(f"  held by {status.holder}")
    if status.tracker:
        lines.append(f"  tracker: {status.tracker}")
    if status.open:
        lines.append(f"  open: {status.open}")
    if status.open or status.state not in ("running", "finished"):
        lines.append(f"  go on: search resume {status.study}{storage_option(absolute(storage))}{larger(status.reason)}")
    print("\n".join(map(fitted, lines)))


def print_studies(storage: str, form: str) -> None:
    """Print all studies of a storage, oldest first."""
    found, broken = [], []
    for folder in studies(absolute(storage)):
        try:
            found.append(study_status(folder)[0])
        except (UserError, SpaceError) as error:  # one damaged study does not hide the others
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
    """A study is one line: on a narrow terminal that cuts it where it ends, no value is taken apart."""
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "method", "state", "points", "best", "failed", "took"):
        table.add_column(heading, no_wrap=True)
    for s in found:
        of = f"/{s.of}" if s.of else ""
        best = f"{s.metric} {number(s.best)}" if s.best is not None else ""
        failed = ", ".join(f"{n} {kind}" for kind, n in s.failed.items())
        table.add_row(s.study, s.method, s.state, f"{s.points}{of}", best, failed, duration(s.elapsed_s))
    console = Console(highlight=False)
    needed = console.measure(table, options=console.options.update(width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(table)


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
