"""The live table of trials: as many columns as fit, the least important ones left out, never part of a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from search.space import Space
from search.store.ledger import TrialRecord
from search.wording import duration, number, show

GAP = 2  # blanks between two columns
# First what is dropped last. A searched parameter comes after these, in the order of the space file.
FIRST = ("trial", "best", "", "state", "examples")
LAST = ("now", "ex/s", "took", "memory")
LEFT = ("", "trial", "state")  # aligned left, as parameters are
BEST, BASELINE = "best", "base"


def trial_table(
    records: Sequence[TrialRecord], space: Space, width: int, best: str | None, doing: Mapping[str, str]
) -> tuple[Table, list[str]]:
    """The table, and the names of the columns that did not fit.

    Args:
        width: of the terminal, in characters; best: id of the best trial.
        doing: trial id -> what it is busy with before its first evaluation, in place of its state.
    """
    names = list(space.params)
    rows = [cells(record, names, best, doing) for record in records]
    canonical = ["", "trial", "state", "examples", "now", "best", "ex/s", "took", "memory", *names]
    filled = [name for name in canonical if (name and name in FIRST) or any(row[name] for row in rows)]
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) if rows else len(name) for name in filled}
    left = width
    kept = set()
    for name in importance(names):
        if name in wide and wide[name] <= left:
            kept.add(name)
            left -= wide[name] + GAP
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    shown = [name for name in filled if name in kept]
    for name in shown:
        justify: JustifyMethod = "left" if name in LEFT or name in names else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=wide[name])
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
    marks = ((BEST, record.trial.id == best), (BASELINE, bool(record.trial.baseline)))
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
