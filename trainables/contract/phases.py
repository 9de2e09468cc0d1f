"""What a trial is busy with before its first evaluation, for whoever waits and watches.

Whatever takes seconds says so (`phase`); whoever runs the trial listens (`heard`). With no listener nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]  # (what, done, of); of = 0: no measure of how far
EVERY_S = 1.0  # between two words about the same phase: each travels to the driver

_listener: Listener | None = None  # of this process, which runs one trial at a time
_last: tuple[str, float] = ("", 0.0)


def phase(what: str, done: int = 0, of: int = 0) -> None:
    """Say what begins (`tokenising`), or how far it has come: `done` of `of`."""
    global _last
    if _listener is None:
        return
    now = time.monotonic()
    if what == _last[0] and now - _last[1] < EVERY_S:
        return
    _last = (what, now)
    _listener(what, done, of)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Inside, `listener` hears the phases of this process."""
    global _listener, _last
    _listener, _last = listener, ("", 0.0)
    try:
        yield
    finally:
        _listener = None
