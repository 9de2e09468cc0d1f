"""`analysis table`: every trial or every configuration of one or several studies."""

from __future__ import annotations

from typing import Any

import click

from analysis.commands.options import FORMAT, METRIC, opened, studies_argument, studies_with_trials, where


@click.command(short_help="All trials or configurations of one or several studies")
@studies_argument("newest study")
@METRIC
@click.option("--all", "every", is_flag=True, help="all studies of the store")
@click.option("--points", is_flag=True, help="configurations with mean, standard deviation and number of seeds")
@FORMAT
@where
def table(
    metric: str | None,
    studies: tuple[str, ...],
    every: bool,
    points: bool,
    style: str,
    storage: str,
    tracking_uri: str | None,
) -> None:
    """List all trials, best first; studies one after the other."""
    from analysis.reading.store import find_study
    from analysis.reading.store import studies as all_studies
    from analysis.tables.trials import rank_points, rank_trials
    from analysis.writing.output import as_csv, as_document, terminal_width, text_table
    from analysis.writing.ranking_rows import least_important, printed, records
    from analysis.writing.state_text import state_lines

    store = opened(storage, tracking_uri)
    runs = all_studies(store) if every else [find_study(store, name) for name in studies or (None,)]
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    read, left_out = studies_with_trials(store, runs, metric, named=not every)
    for study in read:
        ranked = rank_points(study.points, study.metric) if points else rank_trials(study.trials, study.metric)
        found = records(ranked, study.searched)
        rows += [{"study": study.name, **row} for row in found]
        least = least_important(study.searched)
        texts += [*state_lines(study), text_table(printed(found, study.metric), terminal_width(), least), ""]
    if style == "table":
        texts += [f"Left out: {line}" for line in left_out]
        click.echo("\n".join(texts).rstrip("\n"))
    elif style == "csv":
        click.echo(as_csv(rows))
    else:
        click.echo(as_document({"rows": rows, "left_out": left_out}, style))
