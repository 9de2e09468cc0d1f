"""The head's MLflow database, copied to where the studies are while the head lives, and back on a new head."""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import fsspec
from filelock import FileLock, Timeout

from search.schema import DATABASE, SQLITE, tracking_uri
from search.store.layout import CLUSTER_FILE, UserError, absolute, is_remote
from trainables.contract.errors import first_line

HEAD_STORE = "~/search/mlflow.db"  # what `search ui` serves where MLFLOW_TRACKING_URI names this machine itself
FOLDER = "mlflow-backup"  # in the storage
ARTIFACTS = "artifacts"  # beside the database
KEEPER = "keeper"  # in the backup: the token of the head that keeps it
EVERY_S = 30.0  # between two looks at whether something has changed
SHARE = 20  # between two copies at least so many times what the last one took


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
    Copy(store, storage).send()
    return f"{absolute(storage)}/{FOLDER}"


class Copy:
    """What the storage has of a database and its artifacts; sends what it lacks."""

    def __init__(self, store: Path, storage: str) -> None:
        self._store = store
        self._filesystem, self._root = fsspec.core.url_to_fs(f"{absolute(storage)}/{FOLDER}")
        self._sent: dict[Path, tuple[int, int]] = {}  # (time of change, bytes) of each file that was sent

    def send(self) -> bool:
        """Send the artifacts that are new, then the database if it has changed; whether it had.

        Safe while the server writes: SQLite makes a consistent copy, and its artifacts are there before it is.
        """
        self._filesystem.makedirs(self._root, exist_ok=True)
        database = self._changed([self._store, self._store.with_name(f"{self._store.name}-wal")])
        artifacts = self._changed(path for path in (self._store.parent / ARTIFACTS).rglob("*") if path.is_file())
        names = [path.relative_to(self._store.parent).as_posix() for path in artifacts]
        self._filesystem.put([str(path) for path in artifacts], [f"{self._root}/{name}" for name in names])
        self._sent |= artifacts
        if database:
            with tempfile.TemporaryDirectory() as scratch:
                copy = os.path.join(scratch, DATABASE)
                with closing(sqlite3.connect(self._store)) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                self._filesystem.put_file(copy, f"{self._root}/{DATABASE}")
            self._sent |= database  # as it was before the copy: what was written meanwhile goes with the next one
        return bool(database)

    def take(self) -> str:
        """Become the one who keeps this copy; a token."""
        token = secrets.token_hex(8)
        self._filesystem.makedirs(self._root, exist_ok=True)
        self._filesystem.pipe_file(f"{self._root}/{KEEPER}", token.encode())
        return token

    def keeper(self) -> str:
        """The token of who took it last."""
        return str(self._filesystem.cat_file(f"{self._root}/{KEEPER}").decode())

    def _changed(self, paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
        """Those that are there and were not sent as they are."""
        states = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()}
        return {path: state for path, state in states.items() if self._sent.get(path) != state}


def keep(storage: str) -> None:
    """Copy the head's database whenever it has changed, until SIGTERM, and then once more.

    One process of a machine does it; the others return. A head that was given up but lives on stops when a new one
    has begun: the copy is the new one's.
    """
    store = store_path(storage)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        with FileLock(store.with_name("backup.lock"), timeout=0):
            keep_until(ended, Copy(store, storage), print)
    except Timeout:
        return


def keep_until(ended: threading.Event, copy: Copy, say: Callable[[str], object]) -> None:
    """The loop of `keep`; a bucket in trouble is tried again."""
    token, took, last = "", 0.0, False
    while not last:
        last = ended.wait(max(EVERY_S, SHARE * took) if token else 0.0)
        began = time.monotonic()
        try:
            token = token or copy.take()
            if copy.keeper() != token:
                say("another head keeps MLflow's copy now: this one's database goes there no more")
                return
            copy.send()
        except Exception as error:  # stores raise what they like; the next round may do
            say(f"MLflow's copy: {first_line(error)}")
        took = time.monotonic() - began


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
