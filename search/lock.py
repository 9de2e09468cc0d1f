"""One driver per study: a lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from search.layout import StorageError, StudyFolder

TRIES, PAUSE_S = 3, 0.1  # `alive` holds the lock for a moment


@contextmanager
def exclusive(folder: StudyFolder) -> Iterator[None]:
    """Hold the study for this process.

    Raises: StorageError when another process holds it.
    """
    with folder.lock.open("w") as f:
        for _ in range(TRIES):
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(PAUSE_S)
        else:
            raise StorageError(f"study {folder.study} is being run by another process; see `search status`")
        yield


def alive(folder: StudyFolder) -> bool:
    """Whether a driver of this study runs (on this machine, or on another one that shares the disk)."""
    try:
        with exclusive(folder):
            return False
    except StorageError:
        return True
