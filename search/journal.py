"""The journal of a study: one JSON line per thing that happened, and the state it adds up to.

The journal is written first; the Optuna study and the tracker follow it and are brought up to date from it after a
death. What the driver knows about runs is `Ledger`, the journal folded: live and replayed states are the same code.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]  # "e": kind, "t": milliseconds since 1970, and the fields below
# life     a driver starts                          settings of this life
# start    a run is handed to Tune the first time   the fields of Run
# again    a run is handed to Tune after a death or a pause: id
# retry    a run's process died, Tune starts it again: id, reason
# eval     id, and the fields of Evaluation
# pause    a run has been stopped to be resumed: id
# end      id, and the fields of Outcome
# point    a point is settled: number, state, value (mean over its seeds), seeds
# close    the driver ends in order: status, reason


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trial as the search sees it: a point with a seed.

    Attributes:
        id: "t0007", "t0007.1" for the second seed of a point, "c0007.3" in stage confirm.
        number: of the point in the Optuna study; repeat: which of its seeds, from 0.
        point: the searched parameters' values; params: all hyperparameters.
        baseline: "paper" for the published setting, else "".
    """

    id: str
    number: int
    repeat: int
    seed: int
    stage: str
    point: Mapping[str, Any]
    params: Mapping[str, Any]
    point_id: str
    baseline: str = ""


@dataclass(kw_only=True)
class RunState:
    """Where a run stands. `state`: running, paused, completed, pruned or failed:<kind>."""

    run: Run
    state: str = "running"
    examples: int = 0
    planned: int = 0
    value: float | None = None
    best: float | None = None
    best_at: int = 0
    seconds: float = 0.0
    retries: int = 0
    reason: str = ""
    started: int = 0
    ended: int = 0
    best_file: bool = True  # the weights of its best evaluation may be on disk

    @property
    def open(self) -> bool:
        return self.state in ("running", "paused")

    @property
    def failed(self) -> bool:
        return self.state.startswith("failed:")


@dataclass
class Ledger:
    """What the journal adds up to. `maximise`: whether greater values are better."""

    maximise: bool = True
    runs: dict[str, RunState] = field(default_factory=dict)
    live: dict[str, RunState] = field(default_factory=dict)  # the open ones, in order of their start
    stops: Counter[str] = field(default_factory=Counter)  # of the ended ones
    by_point: dict[tuple[str, int], list[RunState]] = field(default_factory=dict)  # (stage, number), by repeat
    tried: set[int] = field(default_factory=set)  # points of the search of which a seed has ended
    points: dict[int, Event] = field(default_factory=dict)  # settled ones: no further seed will come
    best: RunState | None = None  # of the ended completed runs of stage search
    since_best: int = 0  # points settled since the best point
    best_point: float | None = None
    lives: list[tuple[int, int]] = field(default_factory=list)  # (first, last) event of each, milliseconds
    closed: Event | None = None  # the last life's orderly end

    def apply(self, event: Event) -> None:
        kind, time = event["e"], event["t"]
        if kind == "life":
            self.lives.append((time, time))
            self.closed = None
        elif self.lives:
            self.lives[-1] = (self.lives[-1][0], max(time, self.lives[-1][1]))
        handler = getattr(self, f"_{kind}", None)
        if handler is not None:
            handler(event)

    def better(self, a: float, b: float | None) -> bool:
        return b is None or (a > b if self.maximise else a < b)

    def elapsed(self, now: int | None = None) -> float:
        """Seconds that drivers of this study have been at work; time between their lives does not count."""
        past = sum(last - first for first, last in self.lives)
        running = max(0, now - self.lives[-1][1]) if now is not None and self.lives else 0
        return (past + running) / 1000

    def trial_seconds(self) -> float:
        """Training and evaluation seconds of all runs."""
        return sum(state.seconds for state in self.runs.values())

    def ended(self) -> int:
        return sum(self.stops.values())

    def failed(self) -> int:
        return sum(count for stop, count in self.stops.items() if stop.startswith("failed:"))

    def _start(self, event: Event) -> None:
        run = Run(**{k: v for k, v in event.items() if k not in ("e", "t")})
        state = RunState(run=run, started=event["t"])
        self.runs[run.id] = self.live[run.id] = state
        self.by_point.setdefault((run.stage, run.number), []).append(state)

    def _again(self, event: Event) -> None:
        self.runs[event["id"]].state = "running"

    def _retry(self, event: Event) -> None:
        self.runs[event["id"]].retries += 1

    def _eval(self, event: Event) -> None:
        state = self.runs[event["id"]]
        state.examples, state.planned, state.value = event["examples"], event["planned"], event["value"]
        state.best, state.best_at = event["best"], event["best_at"]
        state.seconds = max(state.seconds, event["seconds"])

    def _pause(self, event: Event) -> None:
        self.runs[event["id"]].state = "paused"

    def _end(self, event: Event) -> None:
        state = self.live.pop(event["id"])
        state.state, state.reason, state.ended = event["stop"], event["reason"], event["t"]
        state.best, state.best_at = event["best"], event["best_at"]
        state.examples, state.seconds = event["examples"], max(state.seconds, event["seconds"])
        self.stops[state.state] += 1
        if state.run.stage == "search":
            self.tried.add(state.run.number)
        ranks = state.run.stage == "search" and state.state == "completed" and state.best is not None
        if ranks and self.better(event["best"], self.best.best if self.best else None):
            self.best = state

    def _point(self, event: Event) -> None:
        self.points[event["number"]] = event
        self.since_best += 1
        if event["state"] == "complete" and self.better(event["value"], self.best_point):
            self.best_point, self.since_best = event["value"], 0

    def _close(self, event: Event) -> None:
        self.closed = event


class Journal:
    """Appends events to the file and keeps the ledger in step. One writer at a time (the study's lock sees to it)."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(path)
        self.ledger = ledger
        for event in read(path):
            ledger.apply(event)
        self._file = path.open("a", encoding="utf-8")

    def append(self, kind: str, time: int, **fields: Any) -> Event:
        """Write one event and apply it. Flushed, not synced: a killed process loses nothing, a power cut little."""
        event: Event = {"e": kind, "t": time, **fields}
        self._file.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
        self.ledger.apply(event)
        return event

    def start(self, run: Run, time: int) -> Event:
        return self.append("start", time, **asdict(run))

    def close(self) -> None:
        self._file.close()


def read(path: Path, offset: int = 0) -> Iterator[Event]:
    """The events from a byte offset on; an incomplete last line is left out."""
    yield from (event for event, _ in read_with_ends(path, offset))


def read_with_ends(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """(event, byte offset after its line); an incomplete last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as f:
        f.seek(offset)
        for line in f:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield json.loads(line), offset


def cut_torn_line(path: Path) -> None:
    """Drop an incomplete last line, left by a process that died while it wrote."""
    if not path.exists():
        return
    with path.open("rb+") as f:
        size = f.seek(0, os.SEEK_END)
        if size == 0:
            return
        step = 1 << 16
        end = size
        while end > 0:
            start = max(0, end - step)
            f.seek(start)
            found = f.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            f.truncate(end)


def finite(value: float | None) -> float | None:
    """None for NaN and infinities: neither JSON nor any store takes them."""
    return value if value is not None and math.isfinite(value) else None
