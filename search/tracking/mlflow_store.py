"""MLflow's client of a tracking store: an SQLite database made whole or not at all, runs removed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from search import schema
from search.schema import SQLITE
from search.space import Space
from search.store.journal import Identity, identity, read
from search.store.layout import StudyFolder
from search.tracking.runs import VIEW, of_study, saved_views, shared_view, view_address
from trainables.contract.errors import DataError, first_line
from trainables.contract.trial import whole_file
from trainables.data.tokens import cache_dir

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # two lines per trial of a server
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # two attempts; MLflow's default retries for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def client_of(uri: str, owned: Callable[[], bool] | None = None) -> Any:
    """MLflow's client of a store; a missing SQLite database is created.

    Args: owned: checked before every call, which is rejected if it is false; None = no check.
    """
    client = _client_class()
    make_store(uri)
    _follow_artifacts(uri)
    return Guarded(client(uri), owned) if owned else client(uri)


class Guarded:
    """An MLflow client for as long as this process may write the study. Raises: NotOwnedError from then on."""

    def __init__(self, client: Any, owned: Callable[[], bool]) -> None:
        self._client, self._owned = client, owned

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            if not self._owned():
                raise NotOwnedError(NOT_OWNED)
            return getattr(self._client, name)(*given, **more)

        return call


NOT_OWNED = "the study is not this process's to write now"


class NotOwnedError(Exception):
    """Another driver has taken the study, or its bucket does not answer."""


def _client_class() -> Any:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # after the import, which sets levels
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the caller reports errors, in one line
    return MlflowClient


def view_links(url: str) -> list[tuple[str, str]]:
    """(name, address) of each saved view of a server, the space that was changed last first, and of a space the study
    with the highest number first. Raises: what MLflow raises."""
    links: list[tuple[str, str]] = []
    for experiment in pages(client_of(url).search_experiments, order_by=["last_update_time DESC"]):
        views = {tag: json.loads(view)["name"] for tag, view in experiment.tags.items() if tag.startswith(VIEW)}
        links += [
            (name, view_address(url, experiment.experiment_id, tag.removeprefix(VIEW)))
            for tag, name in sorted(views.items(), key=lambda view: _natural(view[1]), reverse=True)
        ]
    return links


def _natural(name: str) -> list[str | int]:
    """Sorts simcse-9 before simcse-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def make_store(uri: str) -> None:
    """Make the database that a sqlite URI names, where there is none yet.

    MLflow makes it in place, by dozens of migrations that take seconds. Killed among them, it leaves a database that it
    rejects ever after ("out-of-date database schema"). So it is made in a scratch folder and linked to its name when it
    is whole. The migrations run once for each release of MLflow: an empty database is saved in the cache.
    """
    store = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or store.exists():
        return
    client = _client_class()
    store.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=store.parent) as scratch:
        draft = Path(scratch) / store.name
        cached = None
        with contextlib.suppress(DataError):  # a cache that others can write is not used
            cached = cache_dir() / f"mlflow-{version('mlflow')}.db"
        if cached is not None and cached.exists():
            shutil.copyfile(cached, draft)
        else:
            client(f"{SQLITE}{draft}")
            if cached is not None:
                _save_empty(draft, cached)
        # Another process was first; or the disk has no links, and MLflow makes the database in its own way.
        with contextlib.suppress(OSError):
            os.link(draft, store)


def _follow_artifacts(uri: str) -> None:
    """Let a database that was moved or copied with its `artifacts` name those beside it: MLflow shows them, and nothing
    is written to or deleted from the old place. MLflow's client cannot change these addresses."""
    if (store := schema.database(uri)) is None or not store.exists():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(store, timeout=10)) as connection:
        for number, old in connection.execute("select experiment_id, artifact_location from experiments").fetchall():
            if old is None or (here := schema.moved_artifacts(uri, old)) is None:
                continue
            new = here.as_uri()
            connection.execute("update experiments set artifact_location = ? where experiment_id = ?", (new, number))
            connection.execute(
                "update runs set artifact_uri = ? || substr(artifact_uri, ?) where experiment_id = ? "
                "and substr(artifact_uri, 1, ?) = ?",
                (new, len(old) + 1, number, len(old) + 1, f"{old}/"),
            )
        connection.commit()


def _save_empty(database: Path, cached: Path) -> None:
    """Save a new database without its default experiment, whose artifacts would lie where this one was made: MLflow
    makes another when it opens a copy."""
    empty = database.with_name("empty.db")
    with contextlib.suppress(OSError, sqlite3.Error):
        shutil.copyfile(database, empty)
        with contextlib.closing(sqlite3.connect(empty)) as connection:
            connection.execute("delete from experiments")
            connection.commit()
        cached.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(cached) as file:
            file.write(empty.read_bytes())


def pages(call: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """All results of a paged call of MLflow's client."""
    found, token = [], None
    while True:
        page = call(*args, **kwargs, page_token=token)
        found.extend(page)
        if not (token := page.token):
            return found


def runs_of(client: Any, experiments: list[str], folder: StudyFolder, which: Identity) -> list[Any]:
    """The study's run and those of its trials that are not deleted.

    Runs of a version that wrote no uuid get it here, where they are surely the study's: a trial with the id and the
    start, in milliseconds, of a `start` event in the journal; and the study's run if it names the study's folder, or
    only such trials are below it. Raises: what MLflow raises.
    """
    found = pages(client.search_runs, experiments, of_study(which.uuid), max_results=5000)
    if which.stored or any(run.data.tags.get(schema.ROLE) == "study" for run in found):
        return found
    starts = {event["id"]: event["t"] for event in read(folder.journal) if event["e"] == "start"}
    named = pages(client.search_runs, experiments, f"tags.{schema.STUDY_ID} = '{folder.study}'", max_results=5000)
    older = [run for run in named if schema.STUDY_UUID not in run.data.tags]
    trials = [run for run in older if starts.get(run.data.tags.get(schema.TRIAL_ID)) == run.info.start_time]
    ours = {run.info.run_id for run in trials}
    below: dict[str, set[str]] = {}
    for run in older:
        below.setdefault(run.data.tags.get(schema.PARENT, ""), set()).add(run.info.run_id)
    for run in older:
        if run.data.tags.get(schema.ROLE) == "study":
            children = below.get(run.info.run_id, set())
            if run.data.tags.get(schema.FOLDER) == folder.uri or (children and children <= ours):
                trials.append(run)  # the last: until it has the uuid all of this is done again
    for run in trials:
        client.set_tag(run.info.run_id, schema.STUDY_UUID, which.uuid)
    return [*found, *trials]


def remove_runs(uri: str, space: Space, folder: StudyFolder) -> int:
    """Mark all runs of a study as deleted, and remove their artifacts where those lie on this machine.

    Returns: how many runs there were.
    Raises: whatever MLflow raises when the store is locked, down or broken.
    """
    which = identity(folder.journal)
    if which is None or (uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists()):
        return 0
    client = client_of(uri)
    experiments = {experiment.experiment_id: experiment for experiment in pages(client.search_experiments)}
    runs = runs_of(client, list(experiments), folder, which)
    for run in runs:
        client.delete_run(run.info.run_id)
        parts = urlsplit(run.info.artifact_uri)
        if parts.scheme in ("", "file"):
            shutil.rmtree(Path(url2pathname(parts.path)).parent, ignore_errors=True)
    for experiment in {run.info.experiment_id for run in runs}:
        left = client.search_runs([experiment], f"tags.{schema.ROLE} = 'study'", max_results=1)
        views = saved_views(space, folder.study, which.uuid).keys() - ({shared_view(space)} if left else set())
        for tag in experiments[experiment].tags.keys() & views:
            client.delete_experiment_tag(experiment, tag)
    return len(runs)


def trouble(error: BaseException) -> str:
    """Why MLflow cannot be written, one line: of a database its own message, not SQLAlchemy's hints around it."""
    cause: BaseException | None = error
    while cause is not None:
        if (own := getattr(cause, "orig", None)) is not None:
            return schema.masked(f"MLflow's database: {first_line(own)}")
        cause = cause.__cause__
    return schema.masked(first_line(error))
