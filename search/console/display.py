"""What the console shows while a search runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from search.console.output import parted
from search.console.trial_table import trial_table
from search.space import Space
from search.store.ledger import Event, Ledger
from search.wording import best_trials, headline, number, trial_line

ROWS = 8  # ended and paused trials shown, best first
PLAIN_EVERY_S = 30.0  # between two progress lines of a log file, besides the lines for ended trials


class Display(Protocol):
    """Shows a search while it runs."""

    def observe(self, event: Event) -> None: ...

    def note(self, text: str) -> None:
        """A line for people, such as a tracker in trouble."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def display_for(console: Console, space: Space, ledger: Ledger, verbose: bool = False) -> Display:
    """A live table where a terminal is attached, else plain lines. verbose: also a line for every evaluation, above the
    table where there is one."""
    lines = PlainLines(console, space, ledger, verbose)
    return LiveTable(console, space, ledger, lines if verbose else None) if console.is_terminal else lines


class LiveTable:
    """Running trials, the best ended ones and the study's progress, redrawn once a second."""

    def __init__(self, console: Console, space: Space, ledger: Ledger, above: PlainLines | None = None) -> None:
        self._space, self._ledger, self._notes, self._above = space, ledger, [""], above
        self._doing: dict[str, str] = {}
        self._console = console
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=1, transient=True)

    def observe(self, event: Event) -> None:
        """The table is drawn from the ledger; what trials are busy with before their first evaluation is not in it."""
        if event["e"] == "phase":
            share = f" {event['done'] / event['of']:.0%}" if event["of"] else ""
            self._doing[event["id"]] = event["what"] + share
        elif "id" in event:
            self._doing.pop(event["id"], None)
        if self._above is not None:
            self._above.observe(event)

    def note(self, text: str) -> None:
        self._notes[0] = text
        if not self._live.is_started:
            self._console.print(text, markup=False)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        ledger = self._ledger
        running = [s for s in list(ledger.open_trials.values()) if s.state == "running"]
        baselines = [s for s in list(ledger.trials.values()) if s.trial.baseline and not s.open]
        shown = best_trials(ledger, ROWS, paused=True)
        shown += [s for s in baselines if s not in shown][:1]
        best = ledger.best.trial.id if ledger.best else None
        width = self._console.width
        table, dropped = trial_table(running + shown, self._space, width, best, self._doing)
        lines: list[RenderableType] = [
            Text(parted(headline(self._space, ledger, int(time.time() * 1000)), width), style="bold"),
            table,
        ]
        if dropped:
            lines.append(Text(f"not shown at {width} columns: {', '.join(dropped)}", style="dim"))
        if self._notes[0]:
            lines.append(Text(self._notes[0], style="yellow"))
        return Group(*lines)


class PlainLines:
    """One line per ended trial and now and then one of progress: for log files and pipes."""

    def __init__(self, console: Console, space: Space, ledger: Ledger, verbose: bool = False) -> None:
        self._console, self._space, self._ledger, self._verbose = console, space, ledger, verbose
        self._said = time.monotonic()

    def observe(self, event: Event) -> None:
        if event["e"] == "end":
            self._print(trial_line(self._ledger.trials[event["id"]], self._space))
        elif event["e"] == "eval" and self._verbose:
            of = f" of {event['planned']:,}" if event["planned"] else ""
            self._print(f"{event['id']} {event['examples']:,}{of} examples: {number(event['value'])}")
        elif event["e"] == "retry":
            self._print(f"{event['id']}: {event['reason']}; started again from its last checkpoint")
        elif event["e"] != "phase" and time.monotonic() - self._said > PLAIN_EVERY_S:
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
