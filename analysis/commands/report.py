"""`analysis report`: everything about a study on one page."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.common import METRIC, study_of, where
from analysis.commands.named import named


@click.command()
@named
@METRIC
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="file [STUDY.html]")
@where
def report(
    study: str | None, metric: str | None, out: Path | None, storage: str | None, tracking_uri: str | None
) -> None:
    """Write one self-contained HTML file: verdict, table, figures, importance, failures, cost, how to run it again."""
    import numpy as np

    from analysis.report import report as make

    found = study_of(storage, tracking_uri, study, metric)
    path = out or Path(f"{found.name}.html")
    text = make(found, np.random.default_rng(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(str(path))
