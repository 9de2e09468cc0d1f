"""Options that several subcommands share."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from analysis.errors import InputError
from analysis.writing.output import FORMATS
from search.schema import DEFAULT_STORAGE

if TYPE_CHECKING:
    from analysis.reading.store import Store, StoredRun
    from analysis.tables.study import Study

Command = Callable[..., Any]

METRIC = click.option(
    "--metric",
    metavar="METRIC",
    help="dev metric, or mean(a_dev,b_dev); min(...) or max(...) of it where nothing says which is"
    " better [the one that selected in the search]",
)
STORAGE = click.option(
    "--storage",
    default=DEFAULT_STORAGE,
    envvar="SEARCH_STORAGE",
    show_default=True,
    show_envvar=True,
    metavar="FOLDER|URI",
    help="where studies and mlflow.db lie",
)
TRACKING = click.option("--tracking-uri", metavar="URI", help="[MLFLOW_TRACKING_URI, else mlflow.db in the storage]")
FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="table prints correlations x 100, the others as they are stored",
)


def study_argument(command: Command) -> Command:
    """Adds `[STUDY]`, which may also be written `--study NAME`; the command gets one `study`."""

    @functools.wraps(command)
    def wrapped(*args: Any, positional: str | None, study: str | None, **kwargs: Any) -> Any:
        if positional and study and positional != study:
            raise InputError(f"two studies named, {positional} and {study}; expected one")
        return command(*args, study=study or positional, **kwargs)

    option = click.option("--study", metavar="NAME", help="study, or space: its newest [newest study]")
    return click.argument("positional", metavar="[STUDY]", required=False)(option(wrapped))


def studies_option(default: str) -> Callable[[Command], Command]:
    """Adds `--study`, which may be repeated; `default` says what is taken where none is named."""
    return click.option("--study", "studies", multiple=True, metavar="NAME", help=f"may be repeated [{default}]")


def studies_argument(default: str) -> Callable[[Command], Command]:
    """Adds `[STUDY]...`, which may also be written `--study NAME`; the command gets `studies`, each once."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*args: Any, positional: tuple[str, ...], studies: tuple[str, ...], **kwargs: Any) -> Any:
            return command(*args, studies=tuple(dict.fromkeys((*positional, *studies))), **kwargs)

        return click.argument("positional", metavar="[STUDY]...", nargs=-1)(studies_option(default)(wrapped))

    return decorate


def where(command: Command) -> Command:
    """The options that say which store to read."""
    return STORAGE(TRACKING(command))


def opened(storage: str, uri: str | None) -> Store:
    from analysis.reading.store import open_store
    from search.schema import tracking_uri

    return open_store(tracking_uri(uri, storage))


def study_of(storage: str, uri: str | None, name: str | None, metric: str | None) -> Study:
    """The study a command is about, valued by its metric."""
    from concurrent.futures import ThreadPoolExecutor

    from analysis.reading.store import find_study

    store = opened(storage, uri)
    study = find_study(store, name)
    with _without_collecting(), ThreadPoolExecutor(1) as pool:
        trials = pool.submit(store.trials, study)  # a server takes a while to answer, and so does importing pandas
        from analysis.tables.study import read_study

        return read_study(store, study, metric, trials.result())


def studies_with_trials(
    store: Store, runs: Sequence[StoredRun], metric: str | None, named: bool
) -> tuple[list[Study], list[str]]:
    """Those of the studies that have trials, and of each other one a line that says so.

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


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """No garbage collection: hundreds of thousands of small objects are made of a large study, none of them garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
