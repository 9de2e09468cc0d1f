"""`analysis report`: everything about a study on one page."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.options import METRIC, study_argument, study_of, where


@click.command(short_help="Everything about a study as one HTML file")
@study_argument
@METRIC
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="file [STUDY.html]")
@where
def report(study: str | None, metric: str | None, out: Path | None, storage: str, tracking_uri: str | None) -> None:
    """Write one self-contained HTML file: verdict, table, figures, importance, failures, cost, how to run it again."""
    import numpy as np

    from analysis.writing.report import report as make

    found = study_of(storage, tracking_uri, study, metric)
    path = out or Path(f"{found.name}.html")
    path.parent.mkdir(parents=True, exist_ok=True)  # a place that cannot be written is said before the work
    path.write_text(make(found, np.random.default_rng(0)), encoding="utf-8")
    click.echo(str(path))
