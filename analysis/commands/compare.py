"""`analysis compare`: published tables beside our grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.commands.common import FORMAT, STUDIES, opened, where


@click.command()
@click.argument("table", required=False)
@STUDIES
@click.option("--plot", "out", type=click.Path(path_type=Path, file_okay=False), help="folder for the curves")
@FORMAT
@where
def compare(
    table: str | None,
    studies: tuple[str, ...],
    out: Path | None,
    style: str,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Print TABLE (a paper grid such as edacse_table15_bert, or edacse_table15 for all models) beside our runs of it.

    Without TABLE: list the tables there are. Test scores of ours appear once `analysis test` has opened them.
    """
    import numpy as np

    from analysis.compare import compare as cells_of
    from analysis.errors import AnalysisError
    from analysis.output import as_csv, as_document, text_table
    from analysis.plots.collect import ablation
    from analysis.plots.draw_models import ablation as draw
    from analysis.plots.style import save
    from analysis.published import LINKS, paper_table, tables
    from analysis.store import find_study
    from analysis.store import studies as all_studies
    from analysis.study import read_study

    if table is None:
        listed = [paper_table(space) for space in LINKS]
        entries = [{"table": t.space, "source": f"{t.source} {t.table}", "what": t.what} for t in listed]
        if style == "table":
            click.echo(text_table(entries))
        else:
            click.echo(as_csv(entries) if style == "csv" else as_document({"tables": entries}, style))
        return
    chosen = tables(table)
    try:
        store = opened(storage, tracking_uri)
        runs = [find_study(store, name) for name in studies] if studies else all_studies(store)
    except AnalysisError:
        if studies or storage or tracking_uri:
            raise
        runs = []  # nothing was run here yet: the published numbers alone
    found: list[dict[str, Any]] = []
    texts = []
    for one in chosen:
        mine = runs if studies else [run for run in runs if run.experiment == one.space]
        cells = cells_of(one, [read_study(store, run) for run in mine])
        rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in cells.to_dict("records")]
        found += [{"table": one.space, **row} for row in rows]

        def number(value: float, sign: str = "") -> str:
            return f"{value:{sign}.2f}" if np.isfinite(value) else ""

        shown = [
            {
                "row": row["row"], "metric": row["metric"], "published": number(row["published"]),
                "ours": number(row["ours"]), "sd": number(row["sd"]), "n": str(row["n"] or ""),
                "difference": number(row["difference"], "+"), "": "" if row["target"] else "no target",
            }
            for row in rows
        ]  # fmt: skip
        head = f"{one.space}: {one.source} {one.table.replace('_', ' ')}, {one.what}"
        ours = f"Ours: {', '.join(run.name for run in mine) or f'none yet; search run spaces/papers/{one.space}.yaml'}."
        texts.append("\n".join([head, ours, "", text_table(shown), "", *(f"Note {note}" for note in one.notes)]))
        if out:
            printed = list(dict.fromkeys(row["metric"] for row in rows if np.isfinite(row["published"])))
            path = save(draw(ablation(one, cells, printed[-1])), out, one.space)
            texts.append("\n".join(map(str, path)))
    if style == "table":
        click.echo("\n\n".join(texts))
    elif style == "csv":
        click.echo(as_csv(found))
    else:
        notes = {one.space: list(one.notes) for one in chosen}
        click.echo(as_document({"cells": found, "notes": notes}, style))
