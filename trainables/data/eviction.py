"""The bound of the cache's folder: by size, and by the time since an entry was used. No torch."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

CACHE_BYTES = 20 * 10**9  # of the cache's folder; above, what was used longest ago is deleted
CACHE_DAYS = 90  # what was not used for so long is deleted
IN_USE_S = 3 * 86_400.0  # since its last use an entry may be in use: a running trial maps it
OURS = re.compile(r"\w+-[0-9a-f]{32}((\.flat|\.starts)?\.(npy|pickle)|\.lock)|text-[0-9a-f]{32}-\d+\.txt(\.lock)?")


def entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """The files of a cache with their sizes and times, those used longest ago first."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                if OURS.fullmatch(path.name):
                    found.append((path, path.stat()))
    return sorted(found, key=lambda entry: entry[1].st_mtime)


def evict(folder: Path) -> None:
    """Delete what was not used for CACHE_DAYS, and of the rest what was used longest ago until CACHE_BYTES are left.

    What was used within IN_USE_S stays. A missing entry is made anew.
    """
    files, now = entries(folder), time.time()
    total = sum(stat.st_size for _, stat in files)
    for path, stat in files:
        age = now - stat.st_mtime
        if age > max(IN_USE_S, CACHE_DAYS * 86_400) or (total > CACHE_BYTES and age > IN_USE_S):
            with contextlib.suppress(OSError):
                path.unlink()
                total -= stat.st_size


def clear(folder: Path) -> None:
    """Delete every entry of a cache."""
    for path, _ in entries(folder):
        with contextlib.suppress(OSError):
            path.unlink()
