"""Comparisons as tables: gains on test sets, leagues of methods, papers' tables. Values times the metric's scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.statistics.league import CONFIRMED, SEARCHED, League
from analysis.statistics.pairs import PairedGain
from analysis.tables.record import TrainingGain
from analysis.writing.answer import two_decimals
from analysis.writing.output import text_table


def gain_text(gains: Sequence[PairedGain], baseline: str) -> str:
    """A table of the gains over the baseline and what their intervals are over; scores x 100."""
    if not gains:
        return f"Gain over {baseline} on the test sets: unknown, since weights of both configurations are needed."
    number = two_decimals(100)
    what = " or ".join(dict.fromkeys(gain.over for gain in gains))
    rows = [
        {
            "test set": gain.name,
            "best": number(gain.first),
            "baseline": number(gain.second),
            "gain": number(gain.gain, "+"),
            "95 % interval": f"{number(gain.low, '+')} to {number(gain.high, '+')}",
            f"over {what} alone": f"{number(gain.pairs_low, '+')} to {number(gain.pairs_high, '+')}",
        }
        for gain in gains
    ]
    seeds = gains[0].seeds
    over = (
        f"paired over {what} and the {seeds} seeds that both have"
        if seeds > 1
        else f"paired over {what}; one common seed, so seed noise is not included"
        if seeds
        else f"paired over {what}; no common seed, so the seed noise of both sides is included"
    )
    return f"{text_table(rows)}\n\nGain over {baseline}, {over}."


def training_text(gains: Sequence[TrainingGain]) -> str:
    """A table of trained less untrained; scores x 100."""
    number = two_decimals(100)
    rows = [
        {
            "metric": gain.metric,
            "trained": number(gain.trained),
            "untrained": number(gain.untrained),
            "difference": number(gain.trained - gain.untrained, "+"),
            "95 % interval": f"{number(gain.low, '+')} to {number(gain.high, '+')}" if np.isfinite(gain.low) else "",
        }
        for gain in gains
    ]
    paired = ", paired over pairs or queries" if any(np.isfinite(gain.low) for gain in gains) else ""
    what = f"Difference of the trained trials, scored earlier, to the encoder before training{paired}."
    return f"{text_table(rows)}\n\n{what}"


def league_text(found: League) -> str:
    """Bests at an equal budget, and each against each."""
    number = two_decimals(found.metric.scale)
    rows = [
        {
            "method": entry.label,
            f"best of the first {found.budget}, corrected": number(entry.verdict.expected),
            "interval": f"{number(entry.verdict.low)} to {number(entry.verdict.high)}",
            "confirmed": "yes" if entry.verdict.confirmed else "no",
            "trials": str(entry.trials),
            "seconds per trial": f"{entry.seconds:.0f}",
            "study": entry.study,
        }
        for entry in found.entries
    ]
    duels = [
        {
            "first": duel.first,
            "second": duel.second,
            "of": duel.of,
            "difference": number(duel.difference, "+"),
            "interval": f"{number(duel.low, '+')} to {number(duel.high, '+')}",
            "p": "" if duel.p_value is None else f"{duel.p_value:.2g}",
            "": "significant" if duel.significant else "not tested" if duel.p_value is None else "not significant",
        }
        for duel in found.duels
    ]
    kinds = {
        CONFIRMED: "Confirmed bests: the two configurations found, over fresh seeds and dev pairs; not other searches.",
        SEARCHED: "Bests of the search: corrected for selection, not tested; `search confirm` both studies for that.",
    }
    head = f"{found.metric.name}, methods at an equal budget of {found.budget} trials."
    of = {duel.of for duel in found.duels}
    return "\n\n".join(
        [head, text_table(rows), text_table(duels), *(text for kind, text in kinds.items() if kind in of)]
    )


def comparison_text(cells: pd.DataFrame) -> str:
    """`compare.compare`'s cells as a table, metrics as columns; * marks printed values that are no target."""
    metrics = list(dict.fromkeys(cells["metric"]))
    lines: list[dict[str, str]] = []
    for (row, kind), rows in cells.groupby(["row", "from"], sort=False):
        published = dict(zip(rows["metric"], rows["published"], strict=True))
        doubtful = {m for m, target in zip(rows["metric"], rows["target"], strict=True) if not target}
        printed = {m: _cell(v, "*" * (m in doubtful)) for m, v in published.items()}
        ran = bool(rows["n"].any())
        who = {"printed": "printed only", "run": "printed" if ran else "printed, not run yet"}.get(
            str(kind), f"run in {kind}"
        )
        lines.append(_cells(str(row), who, printed, metrics))
        for departs, mine in rows.groupby("departs", sort=False):
            if not mine["n"].any():
                continue
            cells_of = [{str(k): v for k, v in cell.items()} for cell in mine.to_dict("records")]
            most = mine["n"].max()
            ours = {
                c["metric"]: _cell(
                    c["ours"],
                    f" ±{c['sd']:.2f}" * bool(np.isfinite(c["sd"])) + f" (n {c['n']})" * bool(0 < c["n"] < most),
                )
                for c in cells_of
            }
            apart = {c["metric"]: f"{c['difference']:+.2f}" for c in cells_of if np.isfinite(c["difference"])}
            lines.append(_cells("", f"ours, n {most}", ours, metrics, str(departs)))
            if apart:
                lines.append(_cells("", "difference", apart, metrics))
    return text_table(lines)


def _cells(row: str, who: str, values: dict[str, str], metrics: list[str], departs: str = "") -> dict[str, str]:
    return {"row": row, "": who, **{_head(m): values.get(m, "") for m in metrics}, "departs in": departs}


def _head(metric: str) -> str:
    return metric.removesuffix("_test").removeprefix("transfer_") if metric.endswith("_test") else metric


def _cell(value: float, mark: str = "") -> str:
    return f"{value:.2f}{mark}" if np.isfinite(value) else ""
