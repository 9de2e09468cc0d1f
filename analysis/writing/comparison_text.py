"""A published table beside our runs, for people: a line per printed row, our values and their distance below it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.writing.output import text_table


def comparison_text(cells: pd.DataFrame) -> str:
    """`compare.compare`'s cells as a table, metrics as columns; * marks printed values that are no target."""
    metrics = list(dict.fromkeys(cells["metric"]))
    lines: list[dict[str, str]] = []
    for (row, kind), rows in cells.groupby(["row", "from"], sort=False):
        published = dict(zip(rows["metric"], rows["published"], strict=True))
        doubtful = {m for m, target in zip(rows["metric"], rows["target"], strict=True) if not target}
        printed = {m: _number(v, "*" * (m in doubtful)) for m, v in published.items()}
        ran = bool(rows["n"].any())
        who = {"printed": "printed only", "run": "printed" if ran else "printed, not run yet"}.get(
            str(kind), f"run in {kind}"
        )
        lines.append(_line(str(row), who, printed, metrics))
        for departs, mine in rows.groupby("departs", sort=False):
            if not mine["n"].any():
                continue
            cells_of = [{str(k): v for k, v in cell.items()} for cell in mine.to_dict("records")]
            most = mine["n"].max()
            ours = {
                c["metric"]: _number(
                    c["ours"],
                    f" ±{c['sd']:.2f}" * bool(np.isfinite(c["sd"])) + f" (n {c['n']})" * bool(0 < c["n"] < most),
                )
                for c in cells_of
            }
            apart = {c["metric"]: f"{c['difference']:+.2f}" for c in cells_of if np.isfinite(c["difference"])}
            lines.append(_line("", f"ours, n {most}", ours, metrics, str(departs)))
            if apart:
                lines.append(_line("", "difference", apart, metrics))
    return text_table(lines)


def _line(row: str, who: str, values: dict[str, str], metrics: list[str], departs: str = "") -> dict[str, str]:
    return {"row": row, "": who, **{_head(m): values.get(m, "") for m in metrics}, "departs in": departs}


def _head(metric: str) -> str:
    return metric.removesuffix("_test").removeprefix("transfer_") if metric.endswith("_test") else metric


def _number(value: float, mark: str = "") -> str:
    return f"{value:.2f}{mark}" if np.isfinite(value) else ""
