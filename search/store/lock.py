"""One driver per study: a lock that the operating system releases when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from search.store.layout import StorageError, StudyFolder, is_remote, studies

WAIT_S = 0.3  # `alive` shares the lock for a moment


class StudyHeldError(StorageError):
    """Another process runs the study."""


@contextmanager
def exclusive(folder: StudyFolder) -> Iterator[None]:
    """Hold the study for this process.

    Raises: StudyHeldError when another process holds it; StorageError when its disk knows no locks.
    """
    # No soft lock where the disk has no other: it would outlive its holder.
    lock = FileLock(folder.lock, timeout=WAIT_S, poll_interval=WAIT_S / 3, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StudyHeldError(f"study {folder.study} is being run by another process; see `search status`") from None
    except OSError as error:
        raise StorageError(f"{folder.lock}: cannot be locked: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def tracking_lock(folder: StudyFolder) -> FileLock:
    """Held by who tells MLflow of the study, the driver or a look at a study that nobody drives: two at once would make
    runs twice. Not the driver's lock, by which a study is taken for running."""
    return FileLock(folder.local / "tracked.lock", timeout=0, fallback_to_soft=False, thread_local=False)


def running_beside(folder: StudyFolder) -> list[str]:
    """The other studies of a storage on disk that are being run now, as far as this user may ask."""
    beside = [] if is_remote(folder.storage) else studies(folder.storage)
    return [other.study for other in beside if other != folder and _seen_alive(other)]


def running_here(storage: str) -> list[str]:
    """Studies of a storage that are being run now: on this machine, or on another one that shares the disk."""
    there = _working_copies(storage) if is_remote(storage) else studies(storage)
    return [folder.study for folder in there if alive(folder)]


def _working_copies(storage: str) -> list[StudyFolder]:
    """Of a bucket's studies on this machine; the bucket is not asked."""
    copies = StudyFolder(storage, "any").local.parent
    return [StudyFolder(storage, path.name) for path in sorted(copies.glob("[!.]*"))]


def alive(folder: StudyFolder) -> bool:
    """Whether a driver of this study runs (on this machine, or on another one that shares the disk).

    The lock is shared for a moment, for which the file need only be readable: the driver may be another user's.

    Raises: StorageError when its disk knows no locks, or this user may not read the file.
    """
    try:
        with folder.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    except OSError as error:
        raise StorageError(f"{folder.lock}: cannot be locked: {error.strerror or error}") from error
    return False


def _seen_alive(folder: StudyFolder) -> bool:
    try:
        return alive(folder)
    except StorageError:
        return False
