"""What a driver writes into a study's storage beside the journal: markers for trials, and deletions.

On a disk that is done at once. A bucket may be slow or out of reach: there a thread does it, one thing after another,
and tries each again until it succeeds. Nothing of it is raised, and nothing is written once the study is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from search.store.layout import StudyFolder, is_remote

RETRY_S = 1.0  # between two attempts
MARKS_S = 30.0  # how long a trial waits for its marker before it goes on without


class Housekeeper:
    """One study's markers and deletions; its methods never wait and never raise.

    Args: owned: whether this process may write the study now; unsure: whether trials are to wait until that is known.
    """

    def __init__(
        self,
        folder: StudyFolder,
        owned: Callable[[], bool] = lambda: True,
        unsure: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder, self._owned, self._unsure = folder, owned, unsure
        self._remote = is_remote(folder.storage)
        self._marks: dict[str | None, tuple[bool, float]] = {}  # of a trial (None: the study) -> (wanted, since when)
        self._deletion: Callable[[], object] | None = None
        self._one, self._stop = threading.Condition(), threading.Event()
        self._thread: threading.Thread | None = None

    def mark(self, trial_id: str | None, pausing: bool) -> None:
        """Put up or take away the marker that makes a trial (None: every trial that stops) save its state."""
        self._do(lambda: self._marks.update({trial_id: (pausing, time.monotonic())}))

    def delete(self, deletion: Callable[[], object]) -> None:
        """Call this some time; a later one takes its place."""

        def later() -> None:
            self._deletion = deletion

        self._do(later)

    def waiting(self, trial_id: str) -> bool:
        """Whether a marker that this trial reads is not written yet (false after `MARKS_S`), or another driver may have
        taken the study."""
        if self._unsure():
            return True
        with self._one:
            found = [self._marks[name][1] for name in (trial_id, None) if name in self._marks]
        return any(time.monotonic() - since < MARKS_S for since in found)

    def finish(self, patience_s: float) -> None:
        """Do what is left, for at most `patience_s` seconds."""
        self._stop.set()
        with self._one:
            self._one.notify()
        if self._thread is not None:
            self._thread.join(patience_s)
        with self._one:
            self._marks, self._deletion = {}, None

    def _do(self, note: Callable[[], object]) -> None:
        with self._one:
            note()
            if self._remote and self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="housekeeper", daemon=True)
                self._thread.start()
            self._one.notify()
        if not self._remote:
            self._work()

    def _loop(self) -> None:
        while True:
            with self._one:
                while not (self._marks or self._deletion or self._stop.is_set()):
                    self._one.wait()
                if not (self._marks or self._deletion):
                    return
            if not self._work():
                time.sleep(RETRY_S)

    def _work(self) -> bool:
        """Do one thing. Returns: whether it is done."""
        with self._one:
            name, (pausing, since) = next(iter(self._marks.items()), ("", (False, 0.0)))
            deletion = None if since else self._deletion
        if not self._owned():
            return False
        try:
            if deletion:
                deletion()
            elif name is None:
                self._folder.mark_pause(pausing)
            else:
                self._folder.mark_trial(name, pausing)
        except Exception:  # stores raise what they like; a full disk does no harm beyond a state that is not saved
            done = not self._remote
        else:
            done = True
        with self._one, contextlib.suppress(KeyError):
            if done and deletion is not None and deletion is self._deletion:
                self._deletion = None
            elif done and since and self._marks[name] == (pausing, since):
                del self._marks[name]
        return done
