"""Options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from analysis.output import FORMATS

if TYPE_CHECKING:
    from analysis.store import Store
    from analysis.study import Study

STUDY = click.option("--study", metavar="NAME", help="study or space name [the newest study]")
STUDIES = click.option("--study", "studies", multiple=True, metavar="NAME", help="may be repeated [the newest study]")
METRIC = click.option(
    "--metric", metavar="METRIC", help="dev metric, or mean(a_dev,b_dev) [the one that selected in the search]"
)
STORAGE = click.option("--storage", metavar="FOLDER", help="where mlflow.db lies [./runs; MLFLOW_TRACKING_URI wins]")
TRACKING = click.option(
    "--tracking-uri", metavar="URI", help="sqlite:///file.db or http://server [MLFLOW_TRACKING_URI]"
)
FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="table prints values x 100",
)
Command = Callable[..., Any]


def where(command: Command) -> Command:
    """The options that say which store to read."""
    return STORAGE(TRACKING(command))


def opened(storage: str | None, uri: str | None) -> Store:
    from analysis.store import open_store, tracking_uri

    return open_store(tracking_uri(uri, storage))


def study_of(storage: str | None, uri: str | None, name: str | None, metric: str | None) -> Study:
    """The study a command is about, valued by its metric."""
    from concurrent.futures import ThreadPoolExecutor

    from analysis.store import find_study

    store = opened(storage, uri)
    run = find_study(store, name)
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(store.trials, run)  # a server takes a while to answer, and so does importing pandas
        from analysis.study import read_study

        return read_study(store, run, metric, runs.result())
