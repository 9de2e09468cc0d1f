"""`analysis importance`: which parameter moved the score."""

from __future__ import annotations

import click

from analysis.commands.options import FORMAT, METRIC, study_argument, study_of, where

ROOMY = 100  # characters of a terminal that takes the headings in full


@click.command(short_help="Which hyperparameters moved the score")
@study_argument
@METRIC
@click.option("--draws", default=20, show_default=True, type=click.IntRange(2), help="bootstrap draws of the intervals")
@FORMAT
@where
def importance(
    study: str | None, metric: str | None, draws: int, style: str, storage: str, tracking_uri: str | None
) -> None:
    """fANOVA and PED-ANOVA of the searched parameters, and the share of the seed."""
    from dataclasses import asdict

    import numpy as np

    from analysis.statistics.importance import importance as measure
    from analysis.writing.output import as_csv, as_document, paragraphs, terminal_width, text_table
    from analysis.writing.report import importance_rows

    found = study_of(storage, tracking_uri, study, metric)
    measured = measure(found, np.random.default_rng(0), draws)
    if style == "csv":
        click.echo(as_csv([asdict(p) for p in measured.params]))
    elif style != "table":
        content = {"study": found.name, "metric": found.metric.name, **asdict(measured), "note": measured.note}
        click.echo(as_document(content, style))
    else:
        rows, width = importance_rows(measured), terminal_width()
        if width is not None and width < ROOMY:
            rows = [
                {name.replace("among the best (PED-ANOVA)", "PED-ANOVA"): v for name, v in row.items()} for row in rows
            ]
        table = text_table(rows, width, ["points", "PED-ANOVA"])
        click.echo(f"{table}\n\n{paragraphs([measured.note], width)}")
