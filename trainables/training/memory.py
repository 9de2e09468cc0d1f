"""Handing freed memory back to the system: batches of ever new shapes leave glibc's heap full of holes."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

SECONDS_BETWEEN = 10.0  # a call costs up to 0.2 s per GB that it frees
_called = float("-inf")


def give_back(at_once: bool = False) -> None:
    """Return the holes to the system, at most every `SECONDS_BETWEEN` unless `at_once`; does nothing without glibc.

    Without it a trial process on 42,000 dev pairs grew to 3 GB in two trials of a 20 MB encoder; half a GB was in use.
    """
    global _called
    libc = _libc()
    if libc is not None and (at_once or time.monotonic() - _called >= SECONDS_BETWEEN):
        libc.malloc_trim(0)
        _called = time.monotonic()


@cache
def _libc() -> Any:
    """The C library if it is glibc (musl and macOS have no malloc_trim)."""
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return libc if hasattr(libc, "malloc_trim") else None
