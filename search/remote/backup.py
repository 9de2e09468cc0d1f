"""The head's MLflow database, copied to where the studies are before the head goes, and back on a new head."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import fsspec

from search.schema import DATABASE, SQLITE, tracking_uri
from search.store.errors import UserError
from search.store.layout import CLUSTER_FILE, absolute, is_remote

HEAD_STORE = "~/search/mlflow.db"  # what `search ui` serves where MLFLOW_TRACKING_URI names this machine itself
FOLDER = "mlflow-backup"  # in the storage
ARTIFACTS = "artifacts"  # beside the database


def store_path(storage: str) -> Path:
    """The SQLite file that MLflow's runs are in on this machine.

    Raises: UserError when they are on another machine's server.
    """
    uri = tracking_uri(storage=storage)
    if uri.startswith(SQLITE):
        return Path(uri.removeprefix(SQLITE))
    if is_loopback(uri):
        return Path(HEAD_STORE).expanduser()
    raise UserError(f"MLflow is at {uri}, which keeps its own runs: nothing to do here")


def is_loopback(uri: str) -> bool:
    """Whether a tracking address is a server of this machine."""
    return uri.startswith(("http://127.0.0.1", "http://localhost"))


def out_of_reach(uri: str) -> bool:
    """Whether the user is on a laptop, and the tracking address is the head's own: `search ui` has the way."""
    return CLUSTER_FILE in os.environ and is_loopback(uri)


def backup(storage: str) -> str:
    """Copy the MLflow database and its artifacts into the storage; the URI of the copy.

    Safe while the server writes: SQLite makes a consistent copy.

    Raises: UserError when there is no database, or the storage is a folder of this machine, which dies with it.
    """
    store = store_path(storage)
    if not is_remote(storage):
        raise UserError(
            f"storage {storage} is a folder, not a bucket: nothing was copied. If it lies on this machine's own disk, "
            f"`ray down` deletes the studies and {store} with the machine; copy both first"
        )
    if not store.exists():
        raise UserError(f"no MLflow database in {store}: nothing to back up")
    filesystem, root = fsspec.core.url_to_fs(f"{absolute(storage)}/{FOLDER}")
    filesystem.makedirs(root, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = os.path.join(scratch, DATABASE)
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        filesystem.put_file(copy, f"{root}/{DATABASE}")
    artifacts = store.parent / ARTIFACTS
    if artifacts.is_dir():
        filesystem.put(f"{artifacts}/", f"{root}/{ARTIFACTS}/", recursive=True)
    return f"{absolute(storage)}/{FOLDER}"


def restore(storage: str) -> bool:
    """Fetch the copy on a machine that has no database yet; whether there was anything to fetch."""
    store = store_path(storage)
    if store.exists() or not is_remote(storage):
        return False
    filesystem, root = fsspec.core.url_to_fs(f"{absolute(storage)}/{FOLDER}")
    if not filesystem.exists(f"{root}/{DATABASE}"):
        return False
    store.parent.mkdir(parents=True, exist_ok=True)
    if filesystem.isdir(f"{root}/{ARTIFACTS}"):
        filesystem.get(f"{root}/{ARTIFACTS}/", f"{store.parent / ARTIFACTS}/", recursive=True)
    draft = store.with_suffix(".tmp")
    filesystem.get_file(f"{root}/{DATABASE}", str(draft))
    os.replace(draft, store)  # last: a database is there only when everything is
    return True
