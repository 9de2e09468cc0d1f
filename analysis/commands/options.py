"""What subcommands share: options that name studies, reading them, and printing a result in the wanted format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from analysis.errors import InputError
from analysis.writing.output import FORMATS, as_csv, as_document
from search.schema import DEFAULT_STORAGE, masked

if TYPE_CHECKING:
    from analysis.reading.store import Store, StoredRun
    from analysis.tables.study import Study

Command = Callable[..., Any]

METRIC = click.option(
    "--metric",
    metavar="METRIC",
    help="dev metric or mean(a_dev,b_dev); wrap it in min() or max() if its direction is unknown"
    " [the metric of the search]",
)
FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="table prints correlations x 100; csv and json print stored values",
)
TRACKING = click.option(
    "--tracking-uri", metavar="URI", help="MLflow to read [MLFLOW_TRACKING_URI, else mlflow.db in the storage]"
)


def storage_option(name: str, note: str = "") -> Callable[[Command], Command]:
    """Where studies lie, as the option of that name; the command gets it as `storage`."""
    return click.option(
        name,
        "storage",
        default=DEFAULT_STORAGE,
        envvar="SEARCH_STORAGE",
        show_default=True,
        show_envvar=True,
        metavar="FOLDER|URI",
        help=f"where studies and mlflow.db are stored{note}",
    )


def where(command: Command) -> Command:
    """The options that name the store to read."""
    return storage_option("--storage")(TRACKING(command))


def on_study(command: Command) -> Command:
    """Adds `[STUDY]`, which may also be written `--study NAME`; the command gets the study, valued by its --metric."""

    @functools.wraps(command)
    def wrapped(
        *, positional: str | None, named: str | None, storage: str, tracking_uri: str | None,
        metric: str | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        if positional and named and positional != named:
            raise InputError(f"two studies named, {positional} and {named}; expected one")
        study = _study(opened(storage, tracking_uri), named or positional, metric)
        return command(replace(study, options=_given(storage, tracking_uri)), **options)

    option = click.option(
        "--study",
        "named",
        metavar="NAME",
        help="name or UUID of a study, or a space for its newest study [your newest study]",
    )
    return click.argument("positional", metavar="[STUDY]", required=False)(option(wrapped))


def studies_option(default: str) -> Callable[[Command], Command]:
    """Adds `--study`, which may be repeated; `default` describes what is taken where none is named."""
    return click.option(
        "--study", "studies", multiple=True, metavar="NAME", help=f"study to read; repeatable [{default}]"
    )


def on_studies(default: str) -> Callable[[Command], Command]:
    """Adds `[STUDY]...`, which may also be written `--study NAME`; the command gets the store and each name once."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *, positional: tuple[str, ...], studies: tuple[str, ...], storage: str, tracking_uri: str | None,
            **options: Any,
        ) -> Any:  # fmt: skip
            return command(opened(storage, tracking_uri), tuple(dict.fromkeys((*positional, *studies))), **options)

        return click.argument("positional", metavar="[STUDY]...", nargs=-1)(studies_option(default)(wrapped))

    return decorate


def opened(storage: str, uri: str | None) -> Store:
    from analysis.reading.store import open_store
    from search.schema import tracking_uri

    return open_store(tracking_uri(uri, storage), storage)


def _given(storage: str, uri: str | None) -> dict[str, str]:
    """Option -> value of what the next command has to repeat: no default, and nothing of the environment."""
    usual = os.environ.get("SEARCH_STORAGE") or DEFAULT_STORAGE
    given = {"--storage": storage if storage != usual else "", "--tracking-uri": masked(uri or "")}
    return {option: value for option, value in given.items() if value}


def _study(store: Store, name: str | None, metric: str | None) -> Study:
    from concurrent.futures import ThreadPoolExecutor

    from analysis.reading.store import find_study, without_garbage_collection

    study = find_study(store, name)
    with without_garbage_collection(), ThreadPoolExecutor(1) as pool:
        trials = pool.submit(store.trials, study)  # a server takes a while to answer, and so does importing pandas
        from analysis.tables.study import read_study

        return read_study(store, study, metric, trials.result())


def runs_of(store: Store, studies: Sequence[str]) -> list[StoredRun]:
    """The named studies, or all of the store, newest first."""
    from analysis.reading.store import find_study
    from analysis.reading.store import studies as all_studies

    return [find_study(store, name) for name in studies] if studies else all_studies(store)


def studies_with_trials(
    store: Store, runs: Sequence[StoredRun], metric: str | None, named: bool
) -> tuple[list[Study], list[str]]:
    """Those of the studies that have trials, and of each other one a line with the reason.

    Raises: NoTrialsError for a study without trials that was named.
    """
    from analysis.errors import NoTrialsError
    from analysis.tables.study import read_study

    found, left_out = [], []
    for run in runs:
        try:
            found.append(read_study(store, run, metric))
        except NoTrialsError as reason:
            if named:
                raise
            left_out.append(str(reason))
    return found, left_out


def show(
    style: str, text: Callable[[], str], rows: Sequence[Mapping[str, Any]], document: Callable[[], Mapping[str, Any]]
) -> None:
    """Print a result: `text` for people, `rows` as CSV, `document` as JSON or YAML."""
    click.echo(text() if style == "table" else as_csv(rows) if style == "csv" else as_document(document(), style))
