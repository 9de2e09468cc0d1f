"""`analysis compare`: published tables beside our grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.commands.options import FORMAT, opened, studies_option, studies_with_trials, where


@click.command(short_help="A paper's table beside our runs of it")
@click.argument("table", required=False)
@studies_option("every study of the table")
@click.option("--plot", "out", type=click.Path(path_type=Path, file_okay=False), help="folder for the curves")
@FORMAT
@where
def compare(
    table: str | None,
    studies: tuple[str, ...],
    out: Path | None,
    style: str,
    storage: str,
    tracking_uri: str | None,
) -> None:
    """Print TABLE (such as edacse_table15_bert, or edacse_table15 for all models) beside our runs of its grid.

    Every printed row is shown. Runs that depart from the paper's setting (another encoder, corpus, length, rule set, a
    smoke study) stand in lines of their own that say in what. Without TABLE: list the tables there are. Test scores of
    ours appear once `analysis test` has opened them.
    """
    import numpy as np

    from analysis.errors import AnalysisError
    from analysis.papers.compare import compare as cells_of
    from analysis.papers.links import LINKS
    from analysis.papers.published import paper_table, tables
    from analysis.plots.model_figures import Ablation, ablation
    from analysis.plots.style import save
    from analysis.reading.store import find_study
    from analysis.reading.store import studies as all_studies
    from analysis.writing.comparison_text import comparison_text
    from analysis.writing.output import as_csv, as_document, text_table
    from search.schema import DEFAULT_STORAGE

    if table is None:
        listed = [paper_table(space) for space in LINKS]
        entries = [{"table": t.name, "source": f"{t.source} {t.table}", "what": t.what} for t in listed]
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
        if studies or tracking_uri or storage != DEFAULT_STORAGE:
            raise
        runs = []  # nothing was run here yet: the published numbers alone
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    left_out: list[str] = []
    for one in chosen:
        mine = runs if studies else [run for run in runs if run.experiment == one.space]
        read, without = studies_with_trials(store, mine, None, named=bool(studies))
        left_out += without
        cells = cells_of(one, read)
        rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in cells.to_dict("records")]
        found += [{"table": one.name, **row} for row in rows]
        title = f"{one.name}: {one.source} {one.table.replace('_', ' ')}, {one.what}"
        names = ", ".join(study.name for study in read) or f"none yet; search run spaces/papers/{one.space}.yaml"
        head = [title, f"Ours: {names}.", *(f"Left out: {line}" for line in without)]
        texts.append("\n".join([*head, "", comparison_text(cells), "", *(f"Note {note}" for note in one.notes)]))
        if out:
            printed = list(dict.fromkeys(row["metric"] for row in rows if np.isfinite(row["published"])))
            path = save(ablation(Ablation.of(one, cells, printed[-1])), out, one.name)
            texts.append("\n".join(map(str, path)))
    if style == "table":
        click.echo("\n\n".join(texts))
    elif style == "csv":
        click.echo(as_csv(found))
    else:
        notes = {one.name: list(one.notes) for one in chosen}
        click.echo(as_document({"cells": found, "notes": notes, "left_out": list(dict.fromkeys(left_out))}, style))
