"""What the journal of a study adds up to: the state of every trial, every point and the study as a whole.

Apart from retries and faulty nodes, a driver's state is the journal folded event by event, so a resumed session has the
state of the first one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainables.contract import formats
from trainables.contract.formats import NewerFormatError
from trainables.contract.trial import DEVICE_MEMORY

OLDER = {"life": "session"}  # names of events in format 1
Event = dict[str, Any]  # "e": kind, "t": milliseconds since 1970, and the fields below
# space    what is searched, written at a study's creation and when `resume --set` changes it: space (resolved),
#          format, version (of the program that wrote it; both absent in format 1); in the first event of the journal
#          also uuid (which study it is) and user (who began it; both absent before format 3)
# files    what the files hold that trials read, written when a study begins: revisions (key and name -> hash)
# memory   which points are tried first, written at a study's creation: points (each with point, origin)
# session  a driver starts on a stage                settings of this session
# start    a trial is handed to Tune the first time  the fields of Trial
# again    a trial is handed to Tune after a crash or a pause, or is promoted from its rung: id
# retry    a trial's process crashed or ran out of memory, and the trial starts again: id, reason, cause (the fault's
#          kind; oom: with a larger share; node: costs no retry; older journals have `alone` in its place)
# eval     id, and the fields of Evaluation
# rung     a trial has reached a rung: id, level, value (of this evaluation), go (false: it is to pause there); or, at
#          a budget's end, it makes way for others: level is the highest one it has reached (-1: none), `kept` lists the
#          trials that the rest of the budget is reserved for
# pause    a trial has been stopped to be resumed, or waits at its rung: id, rung (level, or null), and
#          best, best_at, examples, seconds so far
# end      id, and the fields of Outcome
# reopen   an ended trial is to be taken up again (`resume --retry-failed`): id
# share    `resources: auto` is decided by what the first trial measured: gpus, cpus (of each trial), trials (on a
#          card, or on a machine without one), reason, machine (that it holds for)
# point    a point is complete: number, state, value (mean over its seeds), seeds
# close    the driver ends in order: status, reason

# Written before a session, too: the time since the last one is not counted as work. A rung or a point that a crashed
# driver did not write is added by the next one while it plans; else they follow an evaluation or an end at once.
BETWEEN_SESSIONS = ("space", "files", "reopen", "rung", "point")
EVENT_KINDS = (
    "space", "files", "memory", "session", "start", "again", "retry", "eval", "rung", "pause", "end", "reopen", "point",
    "close", "share",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial as it is planned: a point with a seed.

    Attributes:
        id: "t0007", "t0007.1" for the second seed of a point, "c0007.3" in stage confirm.
        number: of the point in the Optuna study.
        repeat: which of the point's seeds, from 0.
        seed: the trial's own.
        stage: "search" or "confirm".
        point: the searched parameters' values.
        params: all hyperparameters.
        point_id: hash of all hyperparameters, so that points of different studies can be compared.
        baseline: "paper" for the baseline, else "".
        origin: the study and trial that a point of `search.start` comes from ("simcse-1 t0007", "paper bert-large"),
            else "".
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
    origin: str = ""


TRIAL_FIELDS = {one.name for one in fields(Trial)}


@dataclass(kw_only=True)
class TrialRecord:
    """What the journal records of a trial.

    Attributes:
        trial: the trial as it is planned.
        state: running, paused, completed, pruned or failed:<kind>.
        examples: training examples so far.
        planned: training examples of this trial if it runs to its end, 0 = unknown.
        value: the selecting metric at the last evaluation, as measured (Spearman in [-1, 1]); None before the first.
        best: the same at the best evaluation: the result of a completed trial.
        best_at: training examples at which `best` was reached.
        seconds: wall-clock time of training and evaluation, across restarts.
        larger: its memory did not suffice once, so it gets a larger share of its device.
        reason: why it failed, in one line, else "".
        ended: milliseconds since 1970, 0 while it is open.
        rungs: level -> value of the rungs that the trial has reached.
        waiting: the level at which it waits for promotion; None = it waits at none.
        memory_gb: most memory that its device has held, 1e9 bytes; None = unknown.
    """

    trial: Trial
    state: str = "running"
    examples: int = 0
    planned: int = 0
    value: float | None = None
    best: float | None = None
    best_at: int = 0
    seconds: float = 0.0
    larger: bool = False
    reason: str = ""
    ended: int = 0
    rungs: dict[int, float] = field(default_factory=dict)
    waiting: int | None = None
    memory_gb: float | None = None

    @property
    def open(self) -> bool:
        return self.state in ("running", "paused")

    @property
    def waits(self) -> bool:
        """Whether it is paused until it is promoted."""
        return self.waiting is not None and self.state == "paused"

    @property
    def failed(self) -> bool:
        return self.state.startswith("failed:")


@dataclass
class Ledger:
    """What the journal adds up to. `maximise`: whether greater values are better."""

    maximise: bool = True
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    open_trials: dict[str, TrialRecord] = field(default_factory=dict)  # in order of their start
    on_rungs: dict[str, TrialRecord] = field(default_factory=dict)  # those that have reached a rung
    stops: Counter[str] = field(default_factory=Counter)  # of the ended ones
    by_point: dict[tuple[str, int], list[TrialRecord]] = field(default_factory=dict)  # (stage, number), by repeat
    lost_nodes: int = 0  # how often a trial started again because it had lost a node
    tried: set[int] = field(default_factory=set)  # points of the search of which a seed has ended or reached a rung
    points: dict[int, Event] = field(default_factory=dict)  # complete ones: no further seed will come
    best: TrialRecord | None = None  # of the completed trials of stage search
    examples: int = 0  # trained by the search; what a trial repeats after a crash is counted once
    kept: Sequence[str] = ()  # trials that the rest of the training budget was last reserved for, in this session
    longest_step: int = 0  # examples from one evaluation to the next, at most
    planned: int = 0  # examples of the longest trial that the space allows; 0: no trial has reported its length yet
    longest: int = 0  # examples of the longest trial of the search so far
    examples_at_best: int = 0  # `examples` when the best point improved
    best_point: float | None = None  # the best that a mean over the seeds of a point so far has been
    sessions: list[tuple[int, int]] = field(default_factory=list)  # (first, last) event of each, milliseconds
    last: int = 0  # milliseconds, of the latest event
    closed: Event | None = None  # the last session's orderly end
    space: Mapping[str, Any] | None = None  # resolved; None in studies of an older version
    stamp: Mapping[str, Any] = field(default_factory=dict)  # format and version of the last `space`
    files: Mapping[str, str] | None = None  # what the files held that trials read; None in studies of an older version
    share: Event | None = None  # how trials share cards or cores, as decided last
    memory: Sequence[Mapping[str, Any]] = ()  # what is tried first, in this order
    stages: dict[str, str] = field(default_factory=dict)  # stage -> how its last session ended; "crashed": no `close`
    confirming: Mapping[str, Any] | None = None  # settings of the last session that confirmed
    _silent: int = 0  # points 0 to here ended without reporting the length of their trials
    _stage: str = "search"
    _stages: list[str] = field(default_factory=list)  # of each session

    def apply(self, event: Event) -> None:
        """Raises: NewerFormatError for an event that only a newer version can have written; LookupError, TypeError or
        ValueError for one that does not follow from those before it."""
        kind, time = event["e"], event["t"]
        if kind not in EVENT_KINDS:
            raise self._unknown(f"event {kind!r}")
        self.last = max(self.last, time)
        if kind == "session":
            self.sessions.append((time, time))
            self.closed, self.kept = None, ()
            self._stage = event.get("stage", "search")
            self._stages.append(self._stage)
            self.stages[self._stage] = "crashed"
            if self._stage == "confirm":
                self.confirming = {k: v for k, v in event.items() if k not in ("e", "t")}
        elif self.sessions and kind not in BETWEEN_SESSIONS:
            self.sessions[-1] = (self.sessions[-1][0], max(time, self.sessions[-1][1]))
        handler = getattr(self, f"_{kind}", None)
        if handler is not None:
            handler(event)

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that larger is better."""
        return 1.0 if self.maximise else -1.0

    def better(self, a: float, b: float | None) -> bool:
        return b is None or self.sign * a > self.sign * b

    def elapsed(self, now: int | None = None, stage: str | None = None) -> float:
        """Seconds that drivers of this study have been at work; time between sessions does not count.

        Args: stage: of the sessions of this stage only.
        """
        sessions = zip(self.sessions, self._stages, strict=True)
        past = sum(last - first for (first, last), of in sessions if stage in (None, of))
        at_work = now is not None and bool(self.sessions) and stage in (None, self._stage)
        running = max(0, now - self.sessions[-1][1]) if at_work and now is not None else 0
        return (past + running) / 1000

    def trial_seconds(self) -> float:
        """Training and evaluation seconds of the search's trials."""
        return sum(record.seconds for record in self.trials.values() if record.trial.stage == "search")

    @property
    def full_length(self) -> int:
        """Examples of a full-length trial, the unit of budgets and patience: of the longest trial that the space
        allows, by what the first point reports of its length (where it cannot, the next one), whichever trial is the
        first to report. Of trials that do not report it, as many as the longest so far took, once one is completed
        (the first may have ended early by itself). 0 = not known yet."""
        return self.planned or (self.longest if self.best is not None else 0)

    def full_length_trials(self, examples: int) -> float:
        """Training in full-length trials; 0 until it is known how long a trial is."""
        return examples / self.full_length if self.full_length else 0.0

    def since_best(self) -> float:
        """Training since the best point improved, in full-length trials; 0 until a point is completed: before that
        there is nothing to improve on, and the first trials of many workers cost that much."""
        return self.full_length_trials(self.examples - self.examples_at_best) if self.best_point is not None else 0.0

    def waiting(self) -> list[TrialRecord]:
        """Trials that wait at their rungs, or are about to."""
        return [record for record in list(self.open_trials.values()) if record.waiting is not None]

    def ended(self) -> int:
        return sum(list(self.stops.values()))

    def failed(self) -> int:
        return sum(count for stop, count in list(self.stops.items()) if stop.startswith("failed:"))

    def _start(self, event: Event) -> None:
        given = {k: v for k, v in event.items() if k not in ("e", "t")}
        if unknown := given.keys() - TRIAL_FIELDS:
            raise self._unknown(f"a start with {', '.join(sorted(unknown))}")
        trial = Trial(**given)
        record = TrialRecord(trial=trial)
        self.trials[trial.id] = self.open_trials[trial.id] = record
        self.by_point.setdefault((trial.stage, trial.number), []).append(record)

    def _again(self, event: Event) -> None:
        record = self.trials[event["id"]]
        record.state, record.waiting = "running", None

    def _rung(self, event: Event) -> None:
        record = self.on_rungs[event["id"]] = self.trials[event["id"]]
        record.rungs[event["level"]] = event["value"]
        record.waiting = None if event["go"] else event["level"]
        self.kept = event.get("kept", self.kept)
        self.tried.add(record.trial.number)

    def _retry(self, event: Event) -> None:
        record = self.trials[event["id"]]
        self.lost_nodes += event.get("cause") == "node"
        record.larger = record.larger or event.get("alone", False) or event.get("cause") == "oom"

    def _eval(self, event: Event) -> None:
        record = self.trials[event["id"]]
        if record.trial.stage == "search":
            step = event["examples"] - record.examples
            self.examples += step
            self.longest_step = max(self.longest_step, step)
            self.longest = max(self.longest, event["examples"])
        record.examples, record.planned, record.value = event["examples"], event["planned"], event["value"]
        record.best, record.best_at = event["best"], event["best_at"]
        record.seconds = max(record.seconds, event["seconds"])
        record.memory_gb = event["metrics"].get(DEVICE_MEMORY, record.memory_gb)
        self._plan_length()

    def _plan_length(self) -> None:
        """Set the unit of budgets, once, by the first point that reports the length of its trials."""
        while not self.planned and (records := self.by_point.get(("search", self._silent))):
            self.planned = longest_planned(self.space, records[0])
            if self.planned or (records[0].open and not records[0].examples):
                return
            self._silent += 1

    def _pause(self, event: Event) -> None:
        self.trials[event["id"]].state = "paused"

    def _end(self, event: Event) -> None:
        record = self.open_trials.pop(event["id"])
        record.waiting = None
        record.state, record.reason, record.ended = event["stop"], event["reason"], event["t"]
        record.best, record.best_at = event["best"], event["best_at"]
        record.examples, record.seconds = event["examples"], max(record.seconds, event["seconds"])
        self.stops[record.state] += 1
        self._plan_length()
        if record.trial.stage == "search":
            self.tried.add(record.trial.number)
            self.longest = max(self.longest, event["examples"])
        if record.trial.stage == "search" and record.state == "completed" and record.best is not None:
            if self.better(event["best"], self.best.best if self.best else None):
                self.best = record
            values = [r.best for r in self.by_point["search", record.trial.number] if r.state == "completed"]
            mean = sum(v for v in values if v is not None) / len(values)
            if self.better(mean, self.best_point):
                self.best_point, self.examples_at_best = mean, self.examples

    def _point(self, event: Event) -> None:
        self.points[event["number"]] = event

    def _reopen(self, event: Event) -> None:
        record = self.trials[event["id"]]
        self.stops -= Counter([record.state])
        record.state, record.reason = "paused", ""
        self.open_trials[event["id"]] = record
        if record.trial.stage == "search":
            number = record.trial.number
            self.points.pop(number, None)
            if all(other.open for other in self.by_point["search", number]):
                self.tried.discard(number)

    def _space(self, event: Event) -> None:
        formats.check_format(event, formats.JOURNAL)
        self.stamp = {k: event[k] for k in (formats.FORMAT, formats.VERSION) if k in event}
        self.space = event["space"]

    def _unknown(self, what: str) -> NewerFormatError:
        by = (
            f", where {formats.PRODUCT} {self.stamp[formats.VERSION]} wrote last"
            if formats.VERSION in self.stamp
            else ""
        )
        return NewerFormatError(f"{what} is of a newer version{by}; {formats.reads(formats.JOURNAL)}")

    def _files(self, event: Event) -> None:
        self.files = {**event["revisions"], **(self.files or {})}

    def _share(self, event: Event) -> None:
        self.share = event

    def _memory(self, event: Event) -> None:
        self.memory = event["points"]

    def _close(self, event: Event) -> None:
        self.closed = event
        self.stages[self._stage] = event["status"]


def longest_planned(space: Mapping[str, Any] | None, record: TrialRecord) -> int:
    """Examples of the longest trial that a resolved space allows, by a trial's own: they grow with `epochs`, up to
    `max_examples`. 0 where the trial has not reported its length; a script's own hyperparameters are not read."""
    params = record.trial.params
    if space is None or space.get("script") or not record.planned or not params.get("epochs"):
        return record.planned

    def largest(name: str) -> float:
        written = space["params"].get(name, params.get(name))
        values = next(iter(written.values())) if isinstance(written, Mapping) else [written]
        values = [*values, *(row[name] for row in space.get("points", ()) if name in row)]
        return math.inf if None in values else max(values)

    limit, own = max(largest("max_examples"), record.planned), params.get("max_examples")
    longest = record.planned * largest("epochs") / params["epochs"]
    if own is not None and record.planned >= own and limit < math.inf:  # its data would go on
        longest = limit
    return int(min(longest, limit))
