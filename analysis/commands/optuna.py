"""`analysis optuna`: a study for Optuna's own figures and its dashboard."""

from __future__ import annotations

import click

from analysis.commands.options import METRIC, TRACKING, study_argument, study_of
from search.schema import DEFAULT_STORAGE


@click.command(short_help="A copy for optuna.visualization and optuna-dashboard")
@study_argument
@METRIC
@click.option("--storage", "target", required=True, metavar="URL", help="Optuna's: sqlite:///optuna.db")
@click.option(
    "--from",
    "source",
    default=DEFAULT_STORAGE,
    envvar="SEARCH_STORAGE",
    show_default=True,
    show_envvar=True,
    metavar="FOLDER|URI",
    help="where studies and mlflow.db lie: --storage of the other commands",
)
@TRACKING
def optuna(study: str | None, metric: str | None, target: str, source: str, tracking_uri: str | None) -> None:
    """Copy a study's trials into an Optuna storage, under the study's name."""
    found = study_of(source, tracking_uri, study, metric)

    from analysis.statistics.importance import optuna_study

    written = optuna_study(found, target)
    click.echo(f"{found.name}: {len(written.trials)} trials written; optuna-dashboard {target} shows them")
