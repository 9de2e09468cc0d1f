"""Signals that end a search: Ctrl-C, and what schedulers and closing terminals send."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program now; `number` gives its exit code, 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def handled(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """`handle(signal)` is called for the ending signals; nothing changes outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal module's interface
        leave_lost_terminal()
        handle(signal.Signals(number))

    before = {number: signal.signal(number, caught) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_lost_terminal() -> None:
    """Print nowhere from here on where the terminal is gone (SIGHUP says so): writing to it raises, in the middle of
    closing the study."""
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The ending signals mean what they meant before: Ray takes SIGTERM for itself, from the middle of its start on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    except SystemExit as stop:  # Ray's answer to SIGTERM
        if stop.code == signal.SIGTERM:
            raise Interrupted(signal.SIGTERM) from stop
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_at_once(number: signal.Signals) -> None:
    """Raise what ends the program, cleaning up on its way out."""
    raise Interrupted(number)
