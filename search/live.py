"""What the console shows: a live table on a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from search.journal import Event, Ledger, RunState
from search.space import Space

if TYPE_CHECKING:
    from search.runner import StudyResult

ROWS = 8  # ended trials shown, best first
PLAIN_EVERY_S = 30.0  # between two progress lines of a log file, besides the lines for ended trials
WORDS = {
    "finished": "is finished",
    "out_of_budget": "has used up its budget",
    "failed": "has failed",
    "interrupted": "is paused",
}


class Display(Protocol):
    """Shows a search while it runs."""

    def observe(self, event: Event) -> None: ...

    def note(self, text: str) -> None:
        """A line for people, such as a tracker in trouble."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def display_for(console: Console, space: Space, ledger: Ledger) -> Display:
    """A live table where a terminal is attached, else plain lines."""
    return LiveTable(console, space, ledger) if console.is_terminal else PlainLines(console, space, ledger)


class LiveTable:
    """Running trials, the best ended ones and the study's progress, redrawn once a second."""

    def __init__(self, console: Console, space: Space, ledger: Ledger) -> None:
        self._space, self._ledger, self._notes = space, ledger, [""]
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=1, transient=True)

    def observe(self, event: Event) -> None:
        """Nothing: the table is drawn from the ledger."""

    def note(self, text: str) -> None:
        self._notes[0] = text

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        ledger = self._ledger
        running = [s for s in list(ledger.live.values()) if s.state == "running"]
        names = list(self._space.params)
        table = Table(box=None, pad_edge=False)
        for heading in ("trial", "state", "examples", "now", "best", *names):
            table.add_column(heading, justify="left" if heading in ("trial", "state", *names) else "right")
        for state in running + best_runs(ledger, ROWS):
            table.add_row(*row(state, names))
        lines: list[RenderableType] = [
            Text(headline(self._space, ledger, int(time.time() * 1000)), style="bold"),
            table,
        ]
        if self._notes[0]:
            lines.append(Text(self._notes[0], style="yellow"))
        return Group(*lines)


class PlainLines:
    """One line per ended trial and now and then one of progress: for log files and pipes."""

    def __init__(self, console: Console, space: Space, ledger: Ledger) -> None:
        self._console, self._space, self._ledger = console, space, ledger
        self._said = time.monotonic()

    def observe(self, event: Event) -> None:
        if event["e"] == "end":
            self._print(trial_line(self._ledger.runs[event["id"]], self._space))
        elif event["e"] == "retry":
            self._print(f"{event['id']}: {event['reason']}; started again from its last checkpoint")
        elif time.monotonic() - self._said > PLAIN_EVERY_S:
            self._print(headline(self._space, self._ledger, event["t"]))

    def note(self, text: str) -> None:
        self._print(text)

    def start(self) -> None:
        """Nothing to set up."""

    def stop(self) -> None:
        """Nothing to take down."""

    def _print(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def headline(space: Space, ledger: Ledger, now: int) -> str:
    """`quickstart: 12 of 16 points, best 0.712 (t0007), 2 failed (oom), 3m10s, about 1m left`."""
    done, total = len(ledger.tried), wanted_points(space)
    parts = [f"{done}{f' of {total}' if total else ''} points"]
    if ledger.best is not None:
        parts.append(f"best {space.metric.name} {number(ledger.best.best)} ({ledger.best.run.id})")
    for stop in ("pruned", "paused"):
        count = ledger.stops[stop] if stop == "pruned" else sum(s.state == "paused" for s in list(ledger.live.values()))
        if count:
            parts.append(f"{count} {stop}")
    if ledger.failed():
        parts.append(f"{ledger.failed()} failed ({failures(ledger)})")
    elapsed = ledger.elapsed(now if ledger.closed is None else None)
    parts.append(duration(elapsed))
    left = seconds_left(space, ledger, elapsed)
    if left is not None and ledger.closed is None:
        parts.append(f"about {duration(left)} left")
    return f"{space.name}: " + ", ".join(parts)


def seconds_left(space: Space, ledger: Ledger, elapsed: float) -> float | None:
    """Estimate from the rate of trials so far, if every further point has all its seeds, within the time budget; None
    before the first trial has ended."""
    total, ended, by_trials = wanted_points(space), ledger.ended(), None
    if total and ended:
        of_settled = sum(point["seeds"] for point in ledger.points.values())
        to_come = (total - len(ledger.points)) * space.search.repeats - (ended - of_settled)
        by_trials = elapsed / ended * max(0, to_come)
    by_time = max(0.0, space.search.time - elapsed) if space.search.time is not None else None
    known = [s for s in (by_trials, by_time) if s is not None]
    return min(known) if known else None


def wanted_points(space: Space) -> int | None:
    """How many points the study is to have; None when only time or patience ends it."""
    known = [n for n in (space.search.trials, space.cardinality()) if n is not None]
    return min(known) if known else None


def failures(ledger: Ledger) -> str:
    """`2 oom, 1 nan`."""
    kinds = {stop.removeprefix("failed:"): n for stop, n in ledger.stops.items() if stop.startswith("failed:")}
    return ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items(), key=lambda item: -item[1]))


def best_runs(ledger: Ledger, count: int) -> list[RunState]:
    """The best ended runs, best first, completed before pruned ones; failed ones last, in order of their end."""
    sign = -1.0 if ledger.maximise else 1.0
    ended = [s for s in list(ledger.runs.values()) if not s.open]
    ended.sort(key=lambda s: (s.state != "completed", s.failed, sign * s.best if s.best is not None else 0.0, s.ended))
    return ended[:count]


def trial_line(state: RunState, space: Space) -> str:
    """`t0007 completed  best 0.712 at 6,000 of 8,000 examples, 12s  learning_rate=3e-05`."""
    planned = f" of {state.planned:,}" if state.planned > state.examples else ""
    point = " ".join(f"{name}={show(v)}" for name, v in state.run.point.items())
    seed = f" seed {state.run.seed}" if space.search.repeats > 1 or state.run.stage == "confirm" else ""
    if state.failed:
        return f"{state.run.id} {state.state}{seed}  {state.reason}  {point}"
    best = f"best {number(state.best)} at {state.best_at:,}, {state.examples:,}{planned} examples"
    return f"{state.run.id} {state.state}{seed}  {best}, {duration(state.seconds)}  {point}"


def row(state: RunState, names: list[str]) -> list[str]:
    """Cells of the live table."""
    progress = f"{state.examples:,}" + (f"/{state.planned:,}" if state.planned else "")
    point: Mapping[str, Any] = state.run.point
    cells = [state.run.id, state.state, progress, number(state.value), number(state.best)]
    return cells + [show(point[name]) if name in point else "" for name in names]


def number(value: float | None) -> str:
    """A correlation in [-1, 1] with four decimals."""
    return "" if value is None else f"{value:.4f}"


def show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """`1h02m`, `3m10s`, `12s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def closing_lines(result: StudyResult) -> list[str]:
    """What is printed at the end of a life: how it went, the best trials, where to look, how to go on."""
    space, ledger, study = result.space, result.ledger, result.folder.study
    lines = [f"study {study} {WORDS[result.status]}" + (f": {result.reason}" if result.reason else "")]
    lines.append("  " + headline(space, ledger, 0))
    stage = "confirm" if any(s.run.stage == "confirm" for s in ledger.runs.values()) else "search"
    shown = [s for s in best_runs(ledger, len(ledger.runs)) if not s.failed and s.run.stage == stage][:3]
    lines += [f"  {trial_line(state, space)}" for state in shown]
    if result.frequent_reasons:
        lines.append("  most frequent failures:")
        lines += [f"    {count} x {reason}" for reason, count in result.frequent_reasons]
    if result.trouble:
        command = f"search status {study}{result.storage_option}"
        lines.append(f"  the tracker is behind ({result.trouble}); `{command}` brings it up to date")
    if result.status in ("interrupted", "out_of_budget", "failed"):
        larger = {"out_of_budget": " --set search.time=... (or device_hours)"}.get(result.status, "")
        lines.append(f"  go on:        search resume {study}{result.storage_option}{larger}")
    lines.append(f"  see more:     analysis best --metric {space.metric.name} --study {study}{result.tracking_option}")
    if result.kept:
        lines.append(f"  checkpoints:  {', '.join(result.kept)} in {result.folder.uri}/trials")
    if result.link:
        lines.append(f"  MLflow:       {result.link}")
    else:
        lines.append(f"  MLflow:       search ui {study}{result.storage_option}")
    return lines
