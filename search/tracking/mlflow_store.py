"""MLflow's SQLite database on this machine, made whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sqlite3
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from search.schema import SQLITE
from trainables.contract.errors import DataError, first_line
from trainables.contract.trial import whole_file
from trainables.data.token_cache import cache_dir

ANSWER_S = 4.0  # how long a tracking server may take to accept a connection


def make_store(uri: str) -> None:
    """Make the database that a sqlite URI names, where there is none yet.

    MLflow makes it in place, by dozens of migrations that take seconds; killed among them, it leaves a database that it
    refuses ever after ("out-of-date database schema"). So it is made aside, and linked to its name when it is whole;
    and migrated once for each release of MLflow: an empty one is kept in the cache.
    """
    store = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or store.exists():
        return
    from mlflow import MlflowClient

    quiet_loggers()
    store.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=store.parent) as scratch:
        draft = Path(scratch) / store.name
        kept = _kept_empty()
        if kept is None or not kept.exists():
            MlflowClient(f"{SQLITE}{draft}")
            if kept is not None:
                _keep_empty(draft, kept)
        else:
            shutil.copyfile(kept, draft)
        # Another process was first; or the disk has no links, and MLflow makes the database in its own way.
        with contextlib.suppress(OSError):
            os.link(draft, store)


def _kept_empty() -> Path | None:
    """Where the cache keeps this MLflow's empty database; None where there is no cache to be trusted."""
    with contextlib.suppress(DataError):
        return cache_dir() / f"mlflow-{version('mlflow-skinny')}.db"
    return None


def _keep_empty(whole: Path, kept: Path) -> None:
    """Keep a new database without its one experiment, whose artifacts lie in the folder where it was made: MLflow makes
    another when it opens a copy."""
    empty = whole.with_name("empty.db")
    with contextlib.suppress(OSError, sqlite3.Error):
        shutil.copyfile(whole, empty)
        with contextlib.closing(sqlite3.connect(empty)) as database:
            database.execute("delete from experiments")
            database.commit()
        kept.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(kept) as file:
            file.write(empty.read_bytes())


def client_of(uri: str) -> Any:
    """MLflow's client of a store; a server in trouble is asked twice, not for minutes as MLflow would by itself."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial of a server
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    quiet_loggers()
    make_store(uri)
    return MlflowClient(uri)


def quiet_loggers() -> None:
    """MLflow and Alembic say nothing of their migrations. To be called after MLflow's import, which sets levels."""
    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its errors are ours to tell, in one line


def trouble(error: BaseException) -> str:
    """What keeps MLflow from being written, one line: of a database what it says itself, not SQLAlchemy's hints."""
    cause: BaseException | None = error
    while cause is not None:
        if (said := getattr(cause, "orig", None)) is not None:
            return f"MLflow's database: {first_line(said)}"
        cause = cause.__cause__
    return first_line(error)


def unreachable(uri: str) -> str:
    """Why nothing answers at a server's address, in a few seconds; "" for other stores, and where something does."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=ANSWER_S).close()
    except (OSError, ValueError) as error:
        return f"{uri} does not answer ({getattr(error, 'strerror', None) or error})"
    return ""
