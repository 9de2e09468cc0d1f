"""The report of a study: one HTML file with everything in it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from analysis.errors import AnalysisError
from analysis.plots.gallery import Picture, gallery
from analysis.plots.style import WIDTH, style
from analysis.statistics.importance import Importance, Share, importance
from analysis.statistics.verdict import study_verdict
from analysis.tables.record import commands, cost, environment, openings, scores_by_configuration, space_text
from analysis.tables.study import Study
from analysis.tables.trials import failures, rank_points
from analysis.writing.answer import answer, state_lines, value_unit
from analysis.writing.output import printed, records
from search.schema import masked

SHOWN = 15  # rows of the ranking


def report(study: Study, rng: np.random.Generator, now: datetime | None = None) -> str:
    """The page; a study without a completed trial gets one too.

    Args: rng: of the importance's bootstrap.
    """
    ranked = rank_points(study.points, study.metric)
    ranked = ranked[ranked["value"].notna()]
    measured, note = _measured(study, rng)
    runs = [run for run in study.stored_trials if len(scores_by_configuration([run]))]
    when = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template("report.html")
    return template.render(
        title=f"{study.name}: {study.stored.tags.get('method', 'search')} by {study.metric.name}",
        state=state_lines(study),
        unit=value_unit(study),
        answer=_answer(study),
        ranking=_marked(_filled(printed(records(ranked.head(SHOWN), study.searched), study.metric))),
        more=max(len(ranked) - SHOWN, 0),
        all_of_them=study.command("analysis table"),
        tests=_tests(runs),
        openings=openings(study.stored),
        figures=[_embedded(picture) for picture in gallery(study, measured)],
        importance=importance_rows(measured) if measured else [],
        importance_note=note,
        failures=failures(study.trials).to_dict("records"),
        cost=cost(study).lines(),
        environment=[{"what": k, "value": v} for k, v in environment(study).items()],
        commands=commands(study),
        space=space_text(study),
        space_name=study.stored.space,
        made=when,
        source=masked(study.store.uri),
    )


def importance_rows(measured: Importance, ped: str = "among the best (PED-ANOVA)") -> list[dict[str, str]]:
    """Importance as cells of a table: shares in percent with their 90 % intervals. ped: heading of that column."""
    rows = [
        {
            "parameter": p.name,
            "variance (fANOVA)": _share(p.fanova),
            ped: _share(p.ped_anova),
            "points": f"{p.points}{' in which it existed' if p.conditional else ''}",
        }
        for p in measured.params
    ]
    if measured.seed:
        share, points = _share(measured.seed), str(measured.completed)
        rows.append({"parameter": "seed", "variance (fANOVA)": share, ped: "", "points": points})
    return rows


def _embedded(picture: Picture) -> dict[str, Any]:
    """The figure as SVG in a data URI: scripts and styles of several SVGs cannot meet in one page that way.

    wide: made for more than one column; small screens scroll it rather than shrink it.
    """
    buffer = io.BytesIO()
    with style():
        picture.figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    wide = picture.figure.get_size_inches()[0] > 1.3 * WIDTH
    source = f"data:image/svg+xml;base64,{data}"
    return {"name": picture.name, "caption": picture.caption, "source": source, "wide": wide}


def _answer(study: Study) -> list[tuple[str, str]]:
    try:
        return answer(study, study_verdict(study))
    except AnalysisError as reason:
        return [("Best", f"none: {reason}")]


def _measured(study: Study, rng: np.random.Generator) -> tuple[Importance | None, str]:
    try:
        measured = importance(study, rng)
    except AnalysisError as reason:
        return None, f"Not measured: {reason}."
    return measured, measured.note


def _share(share: Share | None) -> str:
    if share is None:
        return ""
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"


def _filled(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Without the columns that are empty throughout."""
    names = [name for name in (rows[0] if rows else {}) if any(row[name] for row in rows)]
    return [{name: row[name] for name in names} for row in rows]


def _marked(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The notes beside the trials' names: a page that is too narrow for all columns scrolls what comes last."""
    first = ("stage", "rank", "trial", "note")
    return [{name: row[name] for name in (*first, *row) if name in row} for row in rows]


def _tests(runs: Sequence[Any]) -> list[dict[str, str]]:
    def cell(value: float) -> str:
        return f"{100 * value:.2f}" if np.isfinite(value) else ""

    rows = [
        {
            "trials": row["trials"] + (" (baseline)" if row["baseline"] else ""), "metric": row["metric"],
            "mean": cell(row["mean"]), "sd over seeds": cell(row["sd"]), "seeds": str(row["n"]),
            "interval over pairs": f"{cell(row['low'])} to {cell(row['high'])}" if np.isfinite(row["low"]) else "",
        }
        for row in scores_by_configuration(runs).to_dict("records")
    ]  # fmt: skip
    return _filled(rows)
