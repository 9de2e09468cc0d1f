"""Points proposed ahead, in a thread: a Gaussian process takes half a second for one, and no trial waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

import optuna

POLL_S = 0.5  # how soon a thread that waits notices the session's end
DEPTH = 2  # points in the queue; these and the one being proposed delay the sampler like as many more slots


class Ahead:
    """Proposes points before slots are free, in order.

    A thread suffices: most of a fit is in torch, which lets other threads run. Points that are still in the queue when
    the session ends were never started: a later session proposes them anew.

    Args: ask: makes the next of Optuna's trials; point_of: completes it; count: how many there may be.
    """

    def __init__(
        self, ask: Callable[[], optuna.Trial], point_of: Callable[[optuna.Trial], dict[str, object]], count: float
    ) -> None:
        self._ask, self._point_of, self._count = ask, point_of, count
        self._ready: queue.Queue[tuple[optuna.Trial, dict[str, object]] | Exception] = queue.Queue(DEPTH)
        self._stop = threading.Event()
        # no daemon: torch aborts a process that ends in the middle of a fit
        threading.Thread(target=self._loop, name="proposals").start()

    def take(self, wait: bool) -> tuple[optuna.Trial, dict[str, object]] | None:
        """The next point; None when it is not ready, unless it is waited for. Raises: what the sampler raised."""
        try:
            found = self._ready.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread, after the point that is in work."""
        self._stop.set()

    def _loop(self) -> None:
        while self._count > 0 and self._goes_on():
            self._count -= 1
            try:
                asked = self._ask()
                found: tuple[optuna.Trial, dict[str, object]] | Exception = (asked, self._point_of(asked))
            except Exception as error:
                found, self._count = error, 0
            while self._goes_on():
                with contextlib.suppress(queue.Full):
                    self._ready.put(found, timeout=POLL_S)
                    break

    def _goes_on(self) -> bool:
        return not self._stop.is_set() and threading.main_thread().is_alive()
