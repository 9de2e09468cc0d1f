"""Where MLflow's runs are: its address, and on this machine its SQLite database, made whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

from search.layout import is_remote

SQLITE = "sqlite:///"


def tracking_uri(storage: str) -> str:
    """MLFLOW_TRACKING_URI where it is set, else a database in the storage (behind a URI: in ./runs)."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given
    folder = Path("runs").absolute() if is_remote(storage) else Path(storage)
    return f"{SQLITE}{folder / 'mlflow.db'}"


def make_store(uri: str) -> None:
    """Make the database that a sqlite URI names, where there is none yet.

    MLflow makes it in place, by dozens of migrations that take seconds; killed among them, it leaves a database that it
    refuses ever after ("out-of-date database schema"). So it is made aside, and linked to its name when it is whole.
    """
    store = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or store.exists():
        return
    from mlflow import MlflowClient

    hush()
    store.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=store.parent) as scratch:
        draft = Path(scratch) / store.name
        MlflowClient(f"{SQLITE}{draft}")
        # Another process was first; or the disk has no links, and MLflow makes the database in its own way.
        with contextlib.suppress(OSError):
            os.link(draft, store)


def hush() -> None:
    """MLflow and Alembic say nothing of their migrations. To be called after MLflow's import, which sets levels."""
    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
