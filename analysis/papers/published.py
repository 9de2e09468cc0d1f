"""The papers' result tables as data: published.yaml has the numbers, links.yaml the spaces of ours that run their rows.

Numbers are as printed, misprints included; nothing is corrected, notes name what is doubtful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.errors import unknown

Params = Mapping[str, Any]
Entry = Mapping[str, Any]  # of published.yaml: columns, rows


@dataclass(frozen=True)
class PaperRow:
    """One row.

    params: what tells our trials of that row from others of the grid; None for a row that the space does not run.
    cells: metric -> printed, x 100. untrained: the row is the encoder before training, scored by
    `analysis test --untrained`.
    """

    label: str
    params: Params | None
    cells: Mapping[str, float]
    untrained: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A published table and the space that runs rows of it.

    name: of the comparison; parameter: searched along the rows, None if several are; elsewhere: label of a row
    that another space runs -> the name under which its runs are compared; unfit: metrics whose printed values are no
    target.
    """

    name: str
    space: str
    source: str
    table: str
    what: str
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    unfit: frozenset[str]
    parameter: str | None
    elsewhere: dict[str, str]


@cache
def published() -> dict[str, Any]:
    """published.yaml."""
    return _read("published.yaml")


@cache
def _linked() -> dict[str, Any]:
    return _read("links.yaml")


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return content


def comparisons() -> dict[str, dict[str, Any]]:
    """Name of a comparison -> its entry of links.yaml."""
    found: dict[str, dict[str, Any]] = _linked()["comparisons"]
    return found


def columns(name: str) -> dict[str, str]:
    """Printed column -> our metric, of a named set of columns (links.yaml)."""
    found: dict[str, str] = _linked()["columns"][name]
    return found


def paper_table(name: str) -> PaperTable:
    """A published table with all its rows, those that a space of ours runs with their parameters.

    Raises: InputError for an unknown name.
    """
    if name not in comparisons():
        raise unknown("table", name, comparisons())
    link = comparisons()[name]
    source, table = link["source"], link["table"]
    entry = published()[source][table]
    elsewhere = {
        row.label: other
        for other, there in comparisons().items()
        if other != name and (there["source"], there["table"]) == (source, table)
        for row in _rows(entry, there)
        if row.params is not None
    }
    return PaperTable(
        name=name,
        space=link.get("space", name),
        source=source,
        table=table,
        what=entry.get("what", ""),
        rows=tuple(row for row in _rows(entry, link) if row.cells),
        notes=tuple(notes(source, table)),
        unfit=frozenset(_linked()["unfit"].get(source, ())),
        parameter=link.get("parameter"),
        elsewhere=elsewhere,
    )


def tables(name: str) -> list[PaperTable]:
    """All tables whose name begins with `name`: `edacse_table15` gives its three models.

    Raises: InputError if there is none.
    """
    found = [name] if name in comparisons() else [known for known in comparisons() if known.startswith(f"{name}_")]
    if not found:
        raise unknown("table", name, comparisons())
    return [paper_table(known) for known in found]


def notes(source: str, table: str) -> list[str]:
    """What is doubtful about a table: decisions, printed means that are not the mean of their cells, contradictions."""
    doubts = [note for note in _linked()["notes"] if note["source"] == source and table in note["tables"]]
    found = [f"{note['number']}: {note['text']}" for note in doubts]
    checks = published()["mean_checks"]
    for row in checks["rows"]:
        check = dict(zip(checks["columns"], row, strict=True))
        if (check["source"], check["table"], check["kind"]) == (source, table, "mismatch"):
            found.append(
                f"row {check['row']}: the printed mean {check['printed_mean']} is not the mean of its cells, "
                f"{check['recomputed_mean']:.2f}"
            )
    return found


def _rows(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    if "mode" in link:
        return _rows_of_post(entry, link["mode"])
    if "row" in link:
        return _rows_of_columns(entry, link)
    return _named_rows(entry, link)


def _named_rows(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    """The rows, the linked ones with the parameters that make them."""
    wanted = columns(link["columns"]) if isinstance(link["columns"], str) else link["columns"]
    rows, untrained, variants = (link.get(key, {}) for key in ("rows", "untrained", "variants"))
    if parameter := link.get("parameter"):
        values = link.get("values")
        rows = {
            str(row[0]): {parameter: (values or {}).get(row[0], row[0])}
            for row in entry["rows"]
            if values is None or row[0] in values or not isinstance(row[0], str)
        }
    names = Counter(str(row[0]) for row in entry["rows"])
    seen: Counter[str] = Counter()
    for row in entry["rows"]:
        name = str(row[0])
        seen[name] += 1
        if names[name] > 1 and f"{name} {row[1]}" in rows:
            name = f"{name} {row[1]}"
        elif seen[name] > 1:
            name = f"{name} ({seen[name]})"
        printed = zip(entry["columns"], row, strict=True)
        cells = {wanted[column]: float(v) for column, v in printed if column in wanted and v is not None}
        yield PaperRow(name, rows.get(name, untrained.get(name)), cells, untrained=name in untrained)
        if change := variants.get(name):
            what = ", ".join(f"{key} {value}" for key, value in change.items())
            yield PaperRow(f"{name} ({what})", {**rows[name], **change}, cells)


def _rows_of_columns(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    """One row whose columns are a parameter's values; the table's other rows as printed."""
    for row in sorted(entry["rows"], key=lambda row: row[0] != link["row"]):
        own = row[0] == link["row"]
        for value, cell in zip(entry["columns"][1:], row[1:], strict=True):
            label = f"{value:g}" if own else f"{row[0]} {value:g}"
            yield PaperRow(label, {link["parameter"]: value} if own else None, {link["metric"]: float(cell)})


def _rows_of_post(entry: Entry, mode: str | None) -> Iterator[PaperRow]:
    """The reproduction post's rows: learning rate, batch size and dropout; printed in [0, 1]."""
    for cells in entry["rows"]:
        row = dict(zip(entry["columns"], cells, strict=True))
        own = row.get("mode", mode) == mode
        params = {"learning_rate": row["lr"], "batch_size": row["batch"], "dropout": row["dropout"]}
        label = f"lr {row['lr']:g}, batch {row['batch']}, dropout {row['dropout']:g}"
        printed = {name: round(100 * row[name], 2) for name in ("stsb_dev", "stsb_test")}
        yield PaperRow(label if own else f"{row['mode']}: {label}", params if own else None, printed)
