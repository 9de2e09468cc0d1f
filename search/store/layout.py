"""Where everything of a study lies: every path in one place, on a local disk or behind an fsspec URI.

<storage>/<study>/space.yaml        the resolved space
<storage>/<study>/environment.json  versions, commit, machine of the first session
<storage>/<study>/tracking.jsonl    the journal: what happened, in order; the truth about runs
<storage>/<study>/trials/<id>/      a trial's checkpoints
<storage>/<study>/trials/<id>/PAUSE while the trial is to pause at its rung, or waits there
<storage>/<study>/openings/<n>.txt  an opening of its test sets (`analysis test` writes it before it scores anything)
<storage>/<study>/PAUSE             while the study is being interrupted
<storage>/<study>/STOP              somebody wants its driver to pause it (in the driver's working copy)
<storage>/<study>/trials/<id>/STOP  somebody wants this trial to end at its next evaluation
<storage>/<study>/trials/<id>/log.txt what the trial printed and warned
<storage>/mlflow.db                 the default tracking store

The driver writes its own files on a local disk. Behind a URI that is a local copy in the cache folder, which
`search.store.bucket` sends and fetches.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import fsspec
import platformdirs

from trainables.contract.errors import first_line
from trainables.contract.origin import JOURNAL, TRACKED
from trainables.contract.trial import PAUSE_FILE, TRIALS

SMALL = ("space.yaml", "environment.json")  # what goes to a remote storage whole, before the journal
STOP_FILE = "STOP"
CLUSTER_FILE = "SEARCH_CLUSTER"  # environment variable: the cluster file that the laptop's user gave with --cluster
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a study: a folder, a tag in filters, a word in a shell
TAKEN = ("mlflow.db", "mlruns", "mlartifacts")  # what MLflow puts into a storage
DRAFT_S = 600.0  # a study's folder is made in milliseconds: older drafts are left-overs
UNQUOTED = "?%#"  # MLflow makes a second folder of the address of a database below such a path


class UserError(ValueError):
    """The request cannot be carried out as it was made: its exit code, the message and no traceback."""

    exit_code = 2


class MachineError(UserError):
    """The request is valid, but this machine cannot fulfil it."""

    exit_code = 1


class StorageError(UserError):
    """The storage or a study in it cannot be used."""


def is_remote(storage: str) -> bool:
    return "://" in storage and not storage.startswith("file://")


def absolute(storage: str | os.PathLike[str]) -> str:
    """An absolute path, or the URI without a trailing slash."""
    text = os.fspath(storage)
    if is_remote(text):
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


@contextlib.contextmanager
def asking(storage: str) -> Iterator[None]:
    """Wrap the first request to a storage.

    Raises: StorageError, one line, for whatever a store raises that has no credentials, no bucket or no network.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_remote(storage) and not isinstance(error, OSError):
            raise
        raise StorageError(f"storage {storage}: cannot be listed: {first_line(error)}") from error


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises: StorageError, one line, where the system does not let a file of a study be read."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error


def storage_option(storage: str) -> str:
    """` --storage ...` as the user's next command needs it, empty for the default storage.

    On a cluster that is followed from a laptop (CLUSTER_FILE is set) it is ` --cluster FILE`: the laptop's commands.
    """
    if cluster := os.environ.get(CLUSTER_FILE):
        return f" --cluster {shlex.quote(cluster)}"
    return "" if storage == absolute("runs") else f" --storage {shlex.quote(storage)}"


@dataclass(frozen=True)
class StudyFolder:
    """Paths of one study. `storage` is absolute (see `absolute`)."""

    storage: str
    study: str

    @property
    def uri(self) -> str:
        return f"{self.storage}/{self.study}"

    @property
    def local(self) -> Path:
        """Where the driver's own files are."""
        if not is_remote(self.storage):
            return Path(self.uri)
        key = hashlib.sha256(self.storage.encode()).hexdigest()[:12]
        return Path(platformdirs.user_cache_dir("contrastive-search")) / "studies" / key / self.study

    @property
    def space(self) -> Path:
        return self.local / "space.yaml"

    @property
    def environment(self) -> Path:
        return self.local / "environment.json"

    @property
    def journal(self) -> Path:
        return self.local / JOURNAL

    @property
    def lock(self) -> Path:
        return self.local / "lock"

    @property
    def tracked(self) -> Path:
        """How much of the journal the tracker has (JSON: store, run, byte offset)."""
        return self.local / TRACKED

    @property
    def session(self) -> Path:
        """The token of the last session that this copy of a study in a bucket had."""
        return self.local / "session"

    def trial(self, trial_id: str) -> str:
        """Absolute path or URI of a trial's folder."""
        return f"{self.uri}/{TRIALS}/{trial_id}"

    def exists(self) -> bool:
        if is_remote(self.storage):
            with asking(self.storage):
                filesystem, path = fsspec.core.url_to_fs(f"{self.uri}/space.yaml")
                return bool(filesystem.exists(path)) or self.journal.exists()
        with reading(self.journal):
            return self.journal.exists()

    def mark_pause(self, pausing: bool) -> None:
        """Put up or take away the marker that makes stopping trials save their state."""
        self._mark(self.uri, pausing)

    def mark_trial(self, trial_id: str, pausing: bool) -> None:
        """The same for one trial, which is to pause at its rung."""
        self._mark(self.trial(trial_id), pausing)

    def _mark(self, folder: str, pausing: bool) -> None:
        filesystem, path = fsspec.core.url_to_fs(f"{folder}/{PAUSE_FILE}")
        if pausing:
            filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            filesystem.pipe_file(path, b"")
        elif filesystem.exists(path):
            filesystem.rm_file(path)

    def ask_to_stop(self, trial_id: str | None = None) -> None:
        """Leave word for the driver, on this machine: pause the study, or end a trial at its next evaluation."""
        place = self._stop(trial_id)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        except OSError as error:
            raise StorageError(f"{place}: cannot be written: {error.strerror or error}") from error

    def asked_to_stop(self, trial_id: str | None = None) -> bool:
        """Whether there is such a request; it is read once."""
        try:
            self._stop(trial_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def _stop(self, trial_id: str | None) -> Path:
        return self.local / STOP_FILE if trial_id is None else self.local / TRIALS / trial_id / STOP_FILE

    def delete(self, path: str) -> bool:
        """Remove a file or folder (absolute path or URI); whether it was there."""
        if not is_remote(path):
            try:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            except FileNotFoundError:
                return False
            return True
        filesystem, inner = fsspec.core.url_to_fs(path)
        if not filesystem.exists(inner):
            return False
        filesystem.rm(inner, recursive=True)
        return True

    def size(self, path: str) -> int:
        """Bytes of a file or folder (absolute path or URI); 0 where there is none."""
        filesystem, inner = fsspec.core.url_to_fs(path)
        return int(filesystem.du(inner)) if filesystem.exists(inner) else 0


def studies(storage: str) -> list[StudyFolder]:
    """The studies of a storage, oldest first.

    Raises: StorageError when the storage cannot be listed.
    """
    found = []
    with asking(storage):
        filesystem, root = fsspec.core.url_to_fs(storage)
        if not filesystem.exists(root):
            return []
        for entry in filesystem.ls(root, detail=False):
            folder = StudyFolder(storage, entry.rstrip("/").rsplit("/", 1)[-1])
            if folder.study.startswith("."):
                continue  # being made
            space = f"{entry.rstrip('/')}/space.yaml"
            if filesystem.isdir(entry) and filesystem.exists(space):
                found.append((filesystem.modified(space), folder))
    return [folder for _, folder in sorted(found, key=lambda pair: (pair[0], pair[1].study))]


def check_name(wanted: str) -> None:
    """Raises: StorageError for what cannot be a study's name."""
    if not NAME.fullmatch(wanted) or wanted.startswith(TAKEN):
        rule = f"letters, digits, '.', '_', '-', at most 100, a letter or digit first, not {', '.join(TAKEN)}"
        raise StorageError(f"--name: expected {rule}; got {wanted!r}")


def new_study(
    storage: str, name: str, wanted: str | None = None, *, write: Callable[[StudyFolder], object] = lambda _: None
) -> StudyFolder:
    """A study, whole from its first moment: `write` fills a hidden folder that then gets its name in one step.

    Args:
        storage: absolute; name: of the space; wanted: of the study, else the space's with the first free number.
        write: writes space, environment and the journal's first line into the folder that it is given.
    Raises: StorageError when `wanted` is taken or no name, or the storage cannot be written.
    """
    if wanted is not None:
        check_name(wanted)
    local_store = not is_remote(storage) and not os.environ.get("MLFLOW_TRACKING_URI")
    if local_store and (odd := sorted(set(storage) & set(UNQUOTED))):
        raise StorageError(f"storage {storage}: {' '.join(odd)} cannot stand in the path of MLflow's database")
    draft = StudyFolder(storage, f".new-{uuid4().hex}")
    try:
        _drop_drafts(draft.local.parent)
        draft.local.mkdir(parents=True)
        write(draft)
        for number in itertools.count(1):
            folder = StudyFolder(storage, wanted or f"{name}-{number}")
            if folder.local.exists() or folder.exists() or not _renamed(draft.local, folder.local):
                if wanted is not None:
                    raise StorageError(
                        f"study {wanted} exists in {storage}; choose another --name or `search resume {wanted}`"
                    )
                continue
            return folder
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(f"storage {storage}: expected a folder, got a file") from error
    except OSError as error:
        working_copy = f" ({draft.local.parent}, its working copy)" if is_remote(storage) else ""
        raise StorageError(f"storage {storage}{working_copy}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft.local, ignore_errors=True)
    raise AssertionError("numbers do not end")


def _renamed(draft: Path, wanted: Path) -> bool:
    """Whether the draft could take the name; not where another process was first."""
    try:
        draft.rename(wanted)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _drop_drafts(parent: Path) -> None:
    """Remove drafts left by processes that crashed while they created a study."""
    for path in parent.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > DRAFT_S:
                shutil.rmtree(path, ignore_errors=True)


def find_study(storage: str, name: str | None) -> StudyFolder:
    """The study called `name`, or the newest one.

    Raises: StorageError when there is none, with the names there are.
    """
    name = name if name is None else name.rstrip("/")  # as shells complete a folder's name
    if name is not None and NAME.fullmatch(name) and (folder := StudyFolder(storage, name)).exists():
        return folder
    there = studies(storage)
    if not there:
        start = "start one with `search run SPACE.yaml`, or name its storage with --storage"
        raise StorageError(f"no study in {storage}; {start}")
    if name is None:
        return there[-1]
    names = ", ".join(folder.study for folder in there[-5:])
    raise StorageError(f"no study {name!r} in {storage}; the newest there: {names}; --storage names another storage")
