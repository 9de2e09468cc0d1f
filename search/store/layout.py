"""Where everything of a study lies: every path in one place, on a local disk or behind an fsspec URI.

<storage>/<study>/space.yaml        the resolved space
<storage>/<study>/environment.json  versions, commit, machine of the first life
<storage>/<study>/tracking.jsonl    the journal: what happened, in order; the truth about runs
<storage>/<study>/optuna.log        the Optuna study (JournalStorage; optuna-dashboard opens it)
<storage>/<study>/trials/<id>/      a trial's checkpoints
<storage>/<study>/PAUSE             while the study is being interrupted
<storage>/mlflow.db                 the default tracking store

The driver writes its own files on a local disk. Behind a URI that is a working copy in the cache folder, sent on by
`push` and fetched by `pull`; the files only grow, so that the longer one is the newer one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import fsspec
import platformdirs

from search.errors import UserError

SENT = ("space.yaml", "environment.json", "optuna.log", "tracking.jsonl")  # what `push` sends, the journal last
CLUSTER_FILE = "SEARCH_CLUSTER"  # environment variable: the cluster file that the laptop's user gave with --cluster
PAUSE_FILE = "PAUSE"  # trainables.ray_job looks for this name


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


def storage_option(storage: str) -> str:
    """` --storage ...` as the user's next command needs it, empty for the default storage.

    On a cluster that is followed from a laptop (CLUSTER_FILE says so) it is ` --cluster FILE`: the laptop's commands.
    """
    if cluster := os.environ.get(CLUSTER_FILE):
        return f" --cluster {cluster}"
    return "" if storage == absolute("runs") else f" --storage {storage}"


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
        return self.local / "tracking.jsonl"

    @property
    def optuna(self) -> Path:
        return self.local / "optuna.log"

    @property
    def lock(self) -> Path:
        return self.local / "lock"

    @property
    def tracked(self) -> Path:
        """How much of the journal the tracker has (a byte offset)."""
        return self.local / "tracked.json"

    def trial(self, trial_id: str) -> str:
        """Absolute path or URI of a trial's folder."""
        return f"{self.uri}/trials/{trial_id}"

    def exists(self) -> bool:
        if is_remote(self.storage):
            filesystem, path = fsspec.core.url_to_fs(f"{self.uri}/space.yaml")
            return bool(filesystem.exists(path)) or self.journal.exists()
        return self.journal.exists()

    def mark_pause(self, pausing: bool) -> None:
        """Put up or take away the marker that tells stopping trials to save their state."""
        filesystem, path = fsspec.core.url_to_fs(f"{self.uri}/{PAUSE_FILE}")
        if pausing:
            filesystem.pipe_file(path, b"")
        elif filesystem.exists(path):
            filesystem.rm_file(path)

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

    def pull(self) -> None:
        """Fetch from a remote storage what is missing here or longer there (another machine went on)."""
        if not is_remote(self.storage):
            return
        filesystem, root = fsspec.core.url_to_fs(self.uri)
        self.local.mkdir(parents=True, exist_ok=True)
        for name in SENT:
            here, there = self.local / name, f"{root}/{name}"
            if filesystem.exists(there) and (not here.exists() or filesystem.size(there) > here.stat().st_size):
                filesystem.get_file(there, str(here))


class Mirror:
    """Sends a study's files from the working copy to a remote storage; does nothing on a local one."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._sent: dict[str, int] = {}  # bytes of each file that are there

    def push(self) -> None:
        """Send the files that have grown. Object stores cannot append: a file goes as a whole."""
        if not is_remote(self._folder.storage):
            return
        filesystem, root = fsspec.core.url_to_fs(self._folder.uri)
        for name in SENT:
            here = self._folder.local / name
            if here.exists() and (size := here.stat().st_size) != self._sent.get(name):
                filesystem.put_file(str(here), f"{root}/{name}")
                self._sent[name] = size


def studies(storage: str) -> list[StudyFolder]:
    """The studies of a storage, oldest first.

    Raises: StorageError when the storage cannot be listed.
    """
    found = []
    try:
        filesystem, root = fsspec.core.url_to_fs(storage)
        if not filesystem.exists(root):
            return []
        for entry in filesystem.ls(root, detail=False):
            folder = StudyFolder(storage, entry.rstrip("/").rsplit("/", 1)[-1])
            space = f"{entry.rstrip('/')}/space.yaml"
            if filesystem.isdir(entry) and filesystem.exists(space):
                found.append((filesystem.modified(space), folder))
    except OSError as error:
        raise StorageError(f"storage {storage}: cannot be listed: {error}") from error
    return [folder for _, folder in sorted(found, key=lambda pair: (pair[0], pair[1].study))]


def new_study(storage: str, name: str, wanted: str | None = None) -> StudyFolder:
    """A fresh folder for a study: `wanted`, or the space's name with the first free number (`edacse-3`).

    Raises: StorageError when `wanted` is taken or the storage cannot be written.
    """
    if wanted is not None and ("/" in wanted or wanted in (".", "..", "")):
        raise StorageError(f"--name: expected a name without '/', got {wanted!r}")
    number = 1
    while True:
        folder = StudyFolder(storage, wanted or f"{name}-{number}")
        try:
            if is_remote(storage) and folder.exists():
                raise FileExistsError(folder.uri)
            folder.local.parent.mkdir(parents=True, exist_ok=True)
            folder.local.mkdir()
            return folder
        except FileExistsError as error:
            if not Path(folder.storage).is_dir() and not is_remote(storage):
                raise StorageError(f"storage {storage}: expected a folder, got a file") from error
            if wanted is not None:
                raise StorageError(
                    f"study {wanted} exists in {storage}; choose another --name or `search resume {wanted}`"
                ) from error
            number += 1
        except OSError as error:
            raise StorageError(f"storage {storage}: cannot be written: {error.strerror or error}") from error


def find_study(storage: str, name: str | None) -> StudyFolder:
    """The study called `name`, or the newest one.

    Raises: StorageError when there is none, with the names there are.
    """
    if name is not None and (folder := StudyFolder(storage, name)).exists():
        return folder
    there = studies(storage)
    if not there:
        raise StorageError(f"no study in {storage}; start one with `search run SPACE.yaml`")
    if name is None:
        return there[-1]
    names = ", ".join(folder.study for folder in there[-5:])
    raise StorageError(f"no study {name!r} in {storage}; the newest there: {names}")
