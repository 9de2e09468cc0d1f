"""Rows of results, printed: an aligned table for people; JSON, CSV and YAML, in the metric's own unit, for programs."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from analysis.tables.metric import Metric

FORMATS = ("table", "json", "csv", "yaml")
GAP = 2  # blanks between two columns


def terminal_width() -> int | None:
    """Characters of a line of the terminal; None for files and pipes, which get all columns."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paragraphs(lines: Sequence[str], width: int | None) -> str:
    """Each line wrapped at words to `width`, or as it is."""
    if width is None:
        return "\n".join(lines)
    wrap = functools.partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(part for line in lines for part in (wrap(line) or [""]))


def text_table(rows: Sequence[Mapping[str, str]], width: int | None = None, least: Sequence[str] = ()) -> str:
    """Columns aligned, to the right where every cell is a number; columns that are empty throughout are left out.

    Args: width: of a line; columns are left out until they fit it, those of `least` first, and named below.
    """
    if not rows:
        return ""
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    hidden = []
    for name in [name for name in least if name in columns]:
        if width is not None and sum(widths[n] + GAP for n in columns) - GAP > width:
            columns.remove(name)
            hidden.append(name)
    right = {name for name in columns if all(_is_number(row[name]) for row in rows if row[name])}
    lines = [{name: name for name in columns}, *rows]
    shown = [
        "  ".join(f"{line[n]:>{widths[n]}}" if n in right else f"{line[n]:<{widths[n]}}" for n in columns).rstrip()
        for line in lines
    ]
    if hidden:
        shown.append(paragraphs([f"(not shown at {width} columns: {', '.join(hidden)})"], width))
    return "\n".join(shown)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Nested mappings become `outer.inner` columns, lists are joined by blanks."""
    flat = [_flat(row) for row in rows]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue().rstrip("\n")


def as_document(content: Mapping[str, Any], style: str) -> str:
    """JSON or YAML; NaN becomes null, numpy numbers plain ones."""
    clean = plain(content)
    if style == "json":
        return json.dumps(clean, indent=2, ensure_ascii=False, allow_nan=False)
    import yaml

    return yaml.safe_dump(clean, sort_keys=False, allow_unicode=True).rstrip("\n")


def plain(value: Any) -> Any:
    """Only dicts, lists, texts, bools, ints and finite floats; everything that means "nothing" is None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if str(value) in ("NaT", "<NA>") else str(value)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            clean = plain(value)
            flat[prefix + name] = " ".join(map(str, clean)) if isinstance(clean, list) else clean
    return flat


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FIELDS = (
    "rank", "trial", "point", "run_id", "value", "sd", "n", "gain", "confirmed", "baseline", "origin", "stage", "stop",
)  # fmt: skip
DETAILS = ("examples", "seconds", "reason")


def records(ranked: pd.DataFrame, searched: Sequence[str]) -> list[dict[str, Any]]:
    """One dict per row in the metric's own unit: the ranking, `seed` (one) or `seeds`, and the searched `params`."""
    from analysis.tables.trials import PARAM  # here: `analysis --help` loads this module, and need not wait for pandas

    rows = []
    for row in ranked.to_dict("records"):
        found = {name: row[name] for name in FIELDS if name in row}
        found["seed"] = row["seed"]
        if "seeds" in row:
            found["seeds"] = row["seeds"]
        found |= {name: row[name] for name in DETAILS}
        found["params"] = {name: row.get(PARAM + name) for name in searched}
        rows.append(found)
    return rows


def printed(records: Sequence[Mapping[str, Any]], metric: Metric) -> list[dict[str, str]]:
    """Records as cells of a table for people: values times the metric's scale, marks in words.

    Where some are confirmed, `stage` separates those from the rest.
    """
    stages = ["confirmed" if record.get("confirmed") else "search" for record in records]
    heads = [stage if stage != before else "" for before, stage in zip(["", *stages], stages, strict=False)]
    return [
        _cells(record, metric, head if "confirmed" in stages else "")
        for record, head in zip(records, heads, strict=True)
    ]


def least_important(searched: Sequence[str]) -> list[str]:
    """Columns of the table in the order in which a narrow terminal does without them."""
    return ["seconds", "examples", "seed", *reversed(searched), "sd", "n"]


def _cells(record: Mapping[str, Any], metric: Metric, stage: str) -> dict[str, str]:
    seeds = record.get("seeds") or [record["seed"]]
    cells = {
        "stage": stage,
        "rank": short(record["rank"]),
        "trial": record["trial"],
        metric.name: _scaled(record["value"], metric),
        "sd": _scaled(record.get("sd"), metric),
        "n": str(record["n"]) if record.get("n", 1) > 1 else "",
        "gain": _scaled(record.get("gain"), metric, "+"),
        "seed": ",".join(map(short, seeds)),
        "examples": short(record["examples"]),
        "seconds": short(record["seconds"]),
    }
    # a script may call a parameter as a column is called
    for name, value in record["params"].items():
        cells[f"params.{name}" if name in cells or name == "note" else name] = short(value)
    stop = record["stop"]
    marks = [
        "baseline" if record["baseline"] else "",
        f"from {record['origin']}" if record.get("origin") else "",
        "confirm" if "n" not in record and record["stage"] == "confirm" else "",
        "" if stop == "completed" else stop,
        str(record["reason"] or "")[:60],
    ]
    cells["note"] = ", ".join(mark for mark in marks if mark)
    return cells


def _scaled(value: Any, metric: Metric, sign: str = "") -> str:
    return "" if missing_value(value) else f"{value * metric.scale:{sign}.2f}"


def short(value: Any) -> str:
    if missing_value(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.3g}"
    return str(value)


def missing_value(value: Any) -> bool:
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "<NA>"))
