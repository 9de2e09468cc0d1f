"""What the console shows while a search runs: its first half minute, then a live table or, in a file, plain lines.

Output that cannot be written ends no search; on a terminal lines break between words.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from search.space import Space
from search.store.ledger import Event, Ledger, TrialRecord
from search.wording import best_trials, duration, headline, leading, number, show, trial_line

AROUND = 7  # lines of a live table besides its trials: heading, column names, what is not shown, a note
ROWS = 8  # ended and paused trials shown, best first
PLAIN_EVERY_S = 30.0  # between two progress lines of a log file, besides the lines for ended trials
GAP = 2  # blanks between two columns of the table
# First what is dropped last. A searched parameter comes after these, in the order of the space file.
FIRST = ("trial", "best", "", "state", "examples")
LAST = ("now", "ex/s", "took", "memory")
LEFT = ("", "trial", "state")  # aligned left, as parameters are
FIRST_PROCESS = "starting a trial's process"
OPENING_ENDS = ("eval", "end", "pause")
COMMAND = re.compile(r"\b(search|analysis) [a-z]+ \S|https?://")
KEPT = "\u00a0"  # a blank where no line is broken
UNWRITTEN = "output cannot be written (%s); the search goes on"
HANGING = 4  # blanks before what is left of a broken line
log = logging.getLogger(__name__)


class Phases:
    """One line per phase of the start when it is over, `  starting Ray  6.1 s`; on a terminal also the current one.

    Usable as a context: whatever happens inside, the terminal is as it was afterwards.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.open = True  # until a trial's first evaluation
        self._began = self._since = time.monotonic()
        self._what = ""
        self._followed = ""  # id of the trial whose phases are shown: several at once would alternate
        columns = (TextColumn("  {task.description:<34}", markup=False), TimeElapsedColumn(), BarColumn(20))
        hidden = console.quiet or not console.is_terminal
        self._bar = Progress(*columns, TaskProgressColumn(), console=console, transient=True, disable=hidden)

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, what: str, done: int = 0, of: int = 0) -> None:
        """A phase begins, or (the same one again) has come so far."""
        if not self.open:
            return
        if what != self._what:
            self._over()
            self._what, self._since = what, time.monotonic()
            self._bar.add_task(what, total=None)
        self._bar.update(self._bar.task_ids[0], completed=done, total=of or None)
        self._bar.start()

    def observe(self, event: Event) -> bool:
        """Follow the first trial. Returns: whether the opening goes on."""
        if not self.open:
            return False
        kind = event["e"]
        if kind in ("start", "again") and not self._followed:
            self._followed = event["id"]
            self.begin(FIRST_PROCESS)
        elif kind == "phase" and event["id"] == self._followed:
            self.begin(event["what"], event["done"], event["of"])
        elif kind in OPENING_ENDS:
            self.close()
            self.console.print(f"  first result after {time.monotonic() - self._began:.0f} s", highlight=False)
        return self.open

    def close(self) -> None:
        """The opening is over."""
        if self.open:
            self._over()
            self.open = False
        self._bar.stop()

    def _over(self) -> None:
        """Print the phase that has ended."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        if self._what:
            took = time.monotonic() - self._since
            self.console.print(f"  {self._what:<34} {took:6.1f} s", highlight=False, markup=False)
            self._what = ""


def display_for(console: Console, space: Space, ledger: Ledger, verbose: bool = False) -> Display:
    """A live table where a terminal is attached, else plain lines. verbose: also a line for every evaluation, above the
    table where there is one."""
    kind = LiveTable if console.is_terminal else Display
    return kind(console, space, ledger, verbose)


class Display:
    """One line per ended trial and now and then one of progress: for log files and pipes."""

    def __init__(self, console: Console, space: Space, ledger: Ledger, verbose: bool = False) -> None:
        self._console, self._space, self._ledger, self._verbose = console, space, ledger, verbose
        self._printed = time.monotonic()

    def observe(self, event: Event) -> None:
        if event["e"] == "end":
            self._print(trial_line(self._ledger.trials[event["id"]], self._space))
        elif event["e"] == "eval" and self._verbose:
            of = f" of {event['planned']:,}" if event["planned"] else ""
            self._print(f"{event['id']} {event['examples']:,}{of} examples: {number(event['value'])}")
        elif event["e"] == "retry":
            self._print(f"{event['id']}: {event['reason']}; started again from its last checkpoint")
        elif event["e"] != "phase" and time.monotonic() - self._printed > PLAIN_EVERY_S:
            self._print(headline(self._space, self._ledger, event["t"]))

    def note(self, text: str) -> None:
        """A line for people, such as a tracker in trouble."""
        self._print(text)

    def start(self) -> None:
        """Nothing to set up."""

    def stop(self) -> None:
        """Nothing to take down."""

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveTable(Display):
    """Running trials, the best ended ones and the study's progress, redrawn once a second."""

    def __init__(self, console: Console, space: Space, ledger: Ledger, verbose: bool = False) -> None:
        super().__init__(console, space, ledger, verbose)
        self._note = ""
        self._doing: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=1, transient=True)
        self.start, self.stop = self._live.start, self._live.stop  # type: ignore[method-assign]  # the same calls

    def observe(self, event: Event) -> None:
        """The table is drawn from the ledger; what trials are busy with before their first evaluation is not in it."""
        if event["e"] == "phase":
            share = f" {event['done'] / event['of']:.0%}" if event["of"] else ""
            self._doing[event["id"]] = event["what"] + share
        elif "id" in event:
            self._doing.pop(event["id"], None)
        if self._verbose:
            super().observe(event)

    def note(self, text: str) -> None:
        self._note = text
        if not self._live.is_started:
            super().note(text)

    def _draw(self) -> Group:
        ledger, (width, height) = self._ledger, self._console.size
        room = max(2, height - AROUND)  # rows past the terminal's last line are not drawn
        baselines = [s for s in list(ledger.trials.values()) if s.trial.baseline and not s.open]
        shown = best_trials(ledger, min(ROWS, room // 2), paused=True)
        shown += [s for s in baselines if s not in shown][:1]
        running, others = leading(ledger, "running", max(1, room - len(shown)))
        best = ledger.best.trial.id if ledger.best else None
        table, dropped = trial_table(running + shown, self._space, width, best, self._doing)
        heading = parted(headline(self._space, ledger, int(time.time() * 1000)), width)
        lines: list[RenderableType] = [Text(heading, style="bold"), table]
        if others:
            lines.append(Text(f"not shown: {others} more running", style="dim"))
        if dropped:
            lines.append(Text(f"not shown at {width} columns: {', '.join(dropped)}", style="dim"))
        if self._note:
            lines.append(Text(self._note, style="yellow"))
        return Group(*lines)


def trial_table(
    records: Sequence[TrialRecord], space: Space, width: int, best: str | None, doing: Mapping[str, str]
) -> tuple[Table, list[str]]:
    """The table of trials, and the names of the columns that did not fit: the least important ones, never part of one.

    Args:
        width: of the terminal, in characters; best: id of the best trial.
        doing: trial id -> what it is busy with before its first evaluation, in place of its state.
    """
    names = list(space.params)
    rows = [cells(record, names, best, doing) for record in records]
    canonical = ["", "trial", "state", "examples", "now", "best", "ex/s", "took", "memory", *names]
    filled = [name for name in canonical if (name and name in FIRST) or any(row[name] for row in rows)]
    wide = {name: max(len(text) for text in (name, *(row[name] for row in rows))) for name in filled}
    left, kept = width, set()
    for name in importance(names):
        if name in wide and wide[name] <= left:
            kept.add(name)
            left -= wide[name] + GAP
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    shown = [name for name in filled if name in kept]
    for name in shown:
        justify = "left" if name in LEFT or name in names else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=wide[name])  # type: ignore[arg-type]  # a literal
    for record, row in zip(records, rows, strict=True):
        style = "bold green" if record.trial.id == best else "cyan" if record.trial.baseline else ""
        table.add_row(*(Text(row[name]) for name in shown), style=style)
    return table, [name for name in filled if name not in kept]


def importance(names: Sequence[str]) -> list[str]:
    """All columns, first what is dropped last. names: of the searched parameters, in the order of the space file."""
    return [*FIRST, *names, *LAST]


def cells(record: TrialRecord, names: Sequence[str], best: str | None, doing: Mapping[str, str]) -> dict[str, str]:
    """The row of a trial, column name -> text. Values times 100; examples and seconds are the trial's so far."""
    point: Mapping[str, Any] = record.trial.point
    marks = (("best", record.trial.id == best), ("base", bool(record.trial.baseline)))
    pace = record.examples / record.seconds if record.examples and record.seconds else None
    row = {
        "": " ".join(mark for mark, holds in marks if holds),
        "trial": record.trial.id,
        "state": doing.get(record.trial.id, record.state),
        "examples": f"{record.examples:,}" + (f"/{record.planned:,}" if record.planned else ""),
        "now": number(record.value) if record.open else "",
        "best": number(record.best),
        "ex/s": f"{pace:,.0f}" if pace is not None else "",
        "took": duration(record.seconds) if record.seconds else "",
        "memory": f"{record.memory_gb:.1f} GB" if record.memory_gb is not None else "",
    }
    return row | {name: show(point[name]) if name in point else "" for name in names}


def parted(line: str, width: int | None = None) -> str:
    """`fitted` for a list of facts: broken between them, at commas, as far as one fits into a line."""
    return fitted(line.replace(" ", KEPT).replace("," + KEPT, ", "), width).replace(KEPT, " ")


def fitted(line: str, width: int | None = None) -> str:
    """A line broken between words where a terminal would break inside one; as it is in files and pipes.

    One with a command or an address stays whole: what is copied from a terminal is one line then.

    Args: width: of the terminal, in characters; None = of the one that reads along, if any.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if width is None or len(line) <= width or COMMAND.search(line):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(), width, initial_indent=indent, subsequent_indent=indent + " " * HANGING,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


class Output(Console):
    """A console that goes on in silence when its reader is gone (`search run … | head`, a `tee` that was killed), and
    without what a full disk does not take. rich raises instead, in the middle of whatever was to be printed.
    """

    def __init__(self, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=_Lossy(file), **options)  # type: ignore[arg-type]  # what of a file rich uses


class _Lossy:
    """A text file (None = sys.stdout at the time) whose failed writes are a warning, once."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file, self._failed = file, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file or sys.stdout, name)

    def write(self, text: str) -> int:
        self._try(lambda file: file.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda file: file.flush())

    def _try(self, action: Callable[[IO[str]], object]) -> None:
        try:
            action(self._file or sys.stdout)
        except OSError as error:
            if error.errno == errno.EPIPE:
                print_nowhere()
            elif not self._failed:
                self._failed = True
                log.warning(UNWRITTEN, error.strerror or error)


def print_nowhere() -> None:
    """Send standard output, and standard error where it goes to the same pipe or file, to /dev/null from here on."""
    lost = os.fstat(sys.stdout.fileno())
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if os.path.samestat(os.fstat(stream.fileno()), lost):
            os.dup2(null, stream.fileno())
    os.close(null)
