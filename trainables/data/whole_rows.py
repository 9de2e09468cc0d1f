"""Rows that lack a text are left out, and that is said. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from trainables.contract.errors import DataError
from trainables.data.files import Table

TRIPLET = ("anchor", "positive", "negative")


def without_text(columns: Sequence[Sequence[str]]) -> list[int]:
    """Rows in which one of the columns has no text."""
    return sorted({i for column in columns for i, text in enumerate(column) if not text or text.isspace()})


def others(n: int, rows: Collection[int]) -> list[int]:
    """Which of n rows are not among these."""
    return [i for i in range(n) if i not in rows]


def left_out(path: Path, lines: Sequence[int], rows: Sequence[int], why: str, what: str) -> str:
    """What is said of rows that are left out, "" if there are none."""
    if not rows:
        return ""
    return f"{path}:{lines[rows[0]]}: {why}; {len(rows)} of {len(lines)} {what} are left out for that"


def whole_triplets(path: Path, read: Table, whole_file: bool) -> tuple[dict[str, Sequence[str]], str, int]:
    """The triplets that have all their texts, and of several hard negatives those that at least half of all rows have.

    Args:
        read: anchor, positive and negatives, in that order.
        whole_file: False = its beginning, of which more than half may be left out.
    Returns: the columns by the names that methods know, what was left out and why ("" if nothing), how many rows.
    Raises: DataError where more than half of the rows lack a text.
    """
    rows, lost, notes = len(read.lines), set[int](), list[str]()
    texts: dict[str, Sequence[str]] = {}
    for role, column in read.columns.items():
        short, name = lost.union(without_text([column])), "negative" if role == "negative_1" else role
        if name not in TRIPLET and 2 * len(short) > rows:
            last = list(read.columns)[-1]
            which = f"{role} is" if role == last else f"{role} to {last} are"
            notes.append(f"{path}: {which} left out: {rows - len(short)} of {rows} rows have all texts up to {role}")
            break
        texts[name], lost = column, short
    if lost:
        if whole_file and 2 * len(lost) > rows:
            raise DataError(
                f"{path}:{read.lines[min(lost)]}: a text of the triplet is missing in {len(lost)} of {rows} rows, more "
                f"than half; expected {', '.join(texts)} in most; if those are not to be trained on, take them out"
            )
        notes.insert(0, left_out(path, read.lines, sorted(lost), "a text of the triplet is missing", "rows"))
        keep = others(rows, lost)
        texts = {role: [column[i] for i in keep] for role, column in texts.items()}
    return texts, "; ".join(notes), len(lost)
