"""Ranked trials or points as rows to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.tables.metric import Metric
from analysis.tables.trials import PARAM

FIELDS = (
    "rank",
    "trial",
    "point",
    "run_id",
    "value",
    "sd",
    "n",
    "gain",
    "confirmed",
    "baseline",
    "origin",
    "stage",
    "stop",
)
DETAILS = ("examples", "seconds", "reason")


def records(ranked: pd.DataFrame, searched: Sequence[str]) -> list[dict[str, Any]]:
    """One dict per row in the metric's own unit: the ranking, `seed` (one) or `seeds`, and the searched `params`."""
    rows = []
    for row in ranked.to_dict("records"):
        kept = {name: row[name] for name in FIELDS if name in row}
        kept["seed"] = row["seed"]
        if "seeds" in row:
            kept["seeds"] = row["seeds"]
        kept |= {name: row[name] for name in DETAILS}
        kept["params"] = {name: row.get(PARAM + name) for name in searched}
        rows.append(kept)
    return rows


def printed(records: Sequence[Mapping[str, Any]], metric: Metric) -> list[dict[str, str]]:
    """Records as cells of a table for people: values times the metric's scale, marks in words."""
    return [_cells(record, metric) for record in records]


def least_important(searched: Sequence[str]) -> list[str]:
    """Columns of the table in the order in which a narrow terminal does without them."""
    return ["seconds", "examples", "seed", *reversed(searched), "sd", "n"]


def _cells(record: Mapping[str, Any], metric: Metric) -> dict[str, str]:
    seeds = record.get("seeds") or [record["seed"]]
    cells = {
        "study": record.get("study", ""),
        "rank": _short(record["rank"]),
        "trial": record["trial"],
        metric.name: _scaled(record["value"], metric),
        "sd": _scaled(record.get("sd"), metric),
        "n": str(record["n"]) if record.get("n", 1) > 1 else "",
        "gain": _scaled(record.get("gain"), metric, "+"),
        "seed": ",".join(map(_short, seeds)),
        "examples": _short(record["examples"]),
        "seconds": _short(record["seconds"]),
    }
    # a script may call a parameter as a column is called
    for name, value in record["params"].items():
        cells[f"params.{name}" if name in cells or name == "note" else name] = _short(value)
    stop = record["stop"]
    marks = [
        "confirmed" if record.get("confirmed") else "",
        "baseline" if record["baseline"] else "",
        f"from {record['origin']}" if record.get("origin") else "",
        "confirm" if "n" not in record and record["stage"] == "confirm" else "",
        "" if stop == "completed" else stop,
        str(record["reason"] or "")[:60],
    ]
    cells["note"] = ", ".join(mark for mark in marks if mark)
    return cells


def _scaled(value: Any, metric: Metric, sign: str = "") -> str:
    return "" if _missing(value) else f"{value * metric.scale:{sign}.2f}"


def _short(value: Any) -> str:
    if _missing(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.3g}"
    return str(value)


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)
