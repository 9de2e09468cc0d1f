"""The time that a journal is written by."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970 that go on evenly, whatever becomes of the machine's clock: its time at the start, from there
    on what has passed.

    A clock that is set, an hour back or right after a machine's start, would else stretch or spend budgets of time and
    let MLflow's runs end before they began. Args: after: seconds since 1970 of the last event; time goes on from there.
    """

    def __init__(self, after: float = 0.0) -> None:
        self._start = max(time.time(), after) - passed()

    def __call__(self) -> float:
        return self._start + passed()


def passed() -> float:
    """Seconds since some moment, those of a sleeping machine included where the system tells them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
