"""Reading the rows of a printed table: what was printed, and which parameters of ours make the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Params = Mapping[str, Any]
Entry = Mapping[str, Any]  # of published.yaml: columns, rows

SETS_EN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
SETS_ZH = ("ATEC", "BQ", "LCQMC", "PAWS-X", "STS-B")
FOUR_SETS = SETS_EN[:4]
FOUR_AVERAGE = "avg_sts12_15_test"  # GCLSR's ablations average STS12 to STS15 only
TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "SST", "TREC", "MRPC")


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


Reader = Callable[[Entry], list[PaperRow]]


def metric_of(column: str) -> str:
    """Our metric for a printed column: ATEC -> atec_test, STS-B_dev -> stsb_dev, Avg and Mean -> avg_test."""
    if column.endswith("_dev"):
        return column.removesuffix("_dev").replace("-", "").lower() + "_dev"
    if column in ("Avg", "Mean", "avg_STS"):
        return "avg_test"
    return column.removesuffix("-zh").replace("-", "").lower() + "_test"


def wanted(*columns: str) -> dict[str, str]:
    """Printed column -> metric."""
    return {column: metric_of(column) for column in columns}


STS, ZH = wanted(*SETS_EN, "Avg"), wanted(*SETS_ZH, "Avg", "Mean")
FOUR = {**wanted(*FOUR_SETS), "Avg": FOUR_AVERAGE}
DEV = wanted("STS-B_dev")
TRANSFER = {task: f"transfer_{task.replace('-', '').lower()}_test" for task in TASKS} | {
    "SST": "transfer_sst2_test", "Avg": "transfer_avg_test",
}  # fmt: skip


def _cells(columns: Sequence[Any], row: Sequence[Any], columns_of: Mapping[str, str]) -> dict[str, float]:
    return {columns_of[c]: float(v) for c, v in zip(columns, row, strict=True) if c in columns_of and v is not None}


def by_value(
    entry: Entry, parameter: str, columns: Mapping[str, str], values: Mapping[Any, Any] | None = None
) -> list[PaperRow]:
    """Rows whose first cell is a parameter's value; `values` translates printed ones; a text it lacks is none."""
    rows = []
    for row in entry["rows"]:
        value = (values or {}).get(row[0], row[0])
        known = not isinstance(row[0], str) or row[0] in (values or {}) or values is None
        params = {parameter: value} if known else None
        rows.append(PaperRow(str(row[0]), params, _cells(entry["columns"], row, columns)))
    return rows


def by_name(
    entry: Entry,
    columns: Mapping[str, str],
    rows: Mapping[str, Params],
    untrained: Mapping[str, Params] | None = None,
    variants: Mapping[str, Params] | None = None,
) -> list[PaperRow]:
    """The rows, the named ones with the parameters that make them; where names repeat, `name strength` or `name (2)`.

    untrained: rows that are an encoder before training, with the parameters of the trials that have it. variants: rows
    that are run a second time, with what differs then.
    """
    names = Counter(str(row[0]) for row in entry["rows"])
    seen: Counter[str] = Counter()
    found = []
    for row in entry["rows"]:
        name = str(row[0])
        seen[name] += 1
        if names[name] > 1 and f"{name} {row[1]}" in rows:
            name = f"{name} {row[1]}"
        elif names[name] > 1 and seen[name] > 1:
            name = f"{name} ({seen[name]})"
        cells = _cells(entry["columns"], row, columns)
        before = (untrained or {}).get(name)
        found.append(PaperRow(name, rows.get(name, before), cells, untrained=before is not None))
        if change := (variants or {}).get(name):
            what = ", ".join(f"{key} {value}" for key, value in change.items())
            found.append(PaperRow(f"{name} ({what})", {**rows[name], **change}, cells))
    return found


def across(entry: Entry, name: str, parameter: str, metric: str) -> list[PaperRow]:
    """One row whose columns are a parameter's values; the table's other rows as printed."""
    own = [row for row in entry["rows"] if row[0] == name]
    others = [row for row in entry["rows"] if row[0] != name]
    return [
        PaperRow(
            f"{value:g}" if row in own else f"{row[0]} {value:g}",
            {parameter: value} if row in own else None,
            {metric: float(cell)},
        )
        for row in [*own, *others]
        for value, cell in zip(entry["columns"][1:], row[1:], strict=True)
    ]


def by_post(entry: Entry, mode: str | None = None) -> list[PaperRow]:
    """The reproduction post's rows: learning rate, batch size and dropout; printed in [0, 1]."""
    rows = []
    for cells in entry["rows"]:
        row = dict(zip(entry["columns"], cells, strict=True))
        own = row.get("mode", mode) == mode
        params = {"learning_rate": row["lr"], "batch_size": row["batch"], "dropout": row["dropout"]}
        label = f"lr {row['lr']:g}, batch {row['batch']}, dropout {row['dropout']:g}"
        printed = {name: round(100 * row[name], 2) for name in ("stsb_dev", "stsb_test")}
        rows.append(PaperRow(label if own else f"{row['mode']}: {label}", params if own else None, printed))
    return rows
