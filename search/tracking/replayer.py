"""The tracker in a thread of its own while trials run, or once when no driver is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from filelock import Timeout

from search.store.journal import tracking_lock
from search.tracking.mlflow_store import NOT_OWNED, NotOwnedError, trouble
from search.tracking.tracker import Tracker

POLL_S = 0.5  # how often the journal is read for new lines
BUSY_ELSEWHERE = "another process is bringing MLflow up to date"
RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)  # waits after failures in a row


class Replayer:
    """Runs a `Tracker` in a thread beside the search; a tracker in trouble never disturbs the search.

    Args: owned: whether this process may write the study now; while it may not, MLflow is left alone.
    """

    def __init__(self, tracker: Tracker, owned: Callable[[], bool] = lambda: True) -> None:
        self.tracker, self._owned = tracker, owned
        tracker.owned = owned
        self.trouble = ""  # the last failure, one line; empty when all is well
        self._lock = tracking_lock(tracker.folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tracking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, patience_s: float) -> bool:
        """Bring the tracker up to date; False when it made no progress for `patience_s` seconds."""
        self._stop.set()
        before, until = self.tracker.progress, time.monotonic() + patience_s
        try:
            while self._thread.is_alive() or not self._try(final=True):
                self._thread.join(timeout=min(1.0, patience_s / 4))
                if self.tracker.progress != before:
                    before, until = self.tracker.progress, time.monotonic() + patience_s
                elif time.monotonic() >= until:
                    self.trouble = self.trouble or "the tracker does not answer"
                    return False
                if not self._thread.is_alive() and self.trouble:
                    time.sleep(min(1.0, patience_s / 4))
            return True
        finally:
            self._lock.release()

    def _loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            failures = 0 if self._try() else failures + 1
            self._stop.wait(RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else POLL_S)

    def _try(self, final: bool = False) -> bool:
        try:
            if not self._owned():
                raise NotOwnedError(NOT_OWNED)
            if not self._lock.is_locked:
                self._lock.acquire()
            self.tracker.catch_up(final)
            self.trouble = ""
        except Timeout:  # `search status` was writing when the study was resumed
            self.trouble = BUSY_ELSEWHERE
        except Exception as error:  # stores raise what they like; nothing of it may reach the search
            self.trouble = trouble(error)
        return not self.trouble


def replay(tracker: Tracker) -> str:
    """Bring MLflow up to date once, and close what a dead driver left RUNNING. "" or what went wrong, one line."""
    try:
        tracker.catch_up(final=True)
        tracker.close_stale()
    except Exception as error:  # as in Replayer
        return trouble(error)
    return ""
