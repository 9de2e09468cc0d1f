"""MLflow's SQLite database on this machine, made whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from search.schema import SQLITE
from trainables.contract.errors import first_line

ANSWER_S = 4.0  # how long a tracking server may take to accept a connection


def make_store(uri: str) -> None:
    """Make the database that a sqlite URI names, where there is none yet.

    MLflow makes it in place, by dozens of migrations that take seconds; killed among them, it leaves a database that it
    refuses ever after ("out-of-date database schema"). So it is made aside, and linked to its name when it is whole.
    """
    store = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or store.exists():
        return
    from mlflow import MlflowClient

    quiet_loggers()
    store.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=store.parent) as scratch:
        draft = Path(scratch) / store.name
        MlflowClient(f"{SQLITE}{draft}")
        # Another process was first; or the disk has no links, and MLflow makes the database in its own way.
        with contextlib.suppress(OSError):
            os.link(draft, store)


def quiet_loggers() -> None:
    """MLflow and Alembic say nothing of their migrations. To be called after MLflow's import, which sets levels."""
    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


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
