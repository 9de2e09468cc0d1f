"""A study's own files on their way to a remote storage, on a clock of their own: no slow tracker holds them up.

The journal goes in parts, so that a push sends what is new. `optuna.log` stays: it is made again from the journal.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import fsspec

from search.store.layout import SMALL, StudyFolder, is_remote
from search.store.lease import Lease
from search.store.parts import Parts
from trainables.contract.errors import first_line

EVERY_S = 2.0  # between two pushes, where a push is quick
SHARE = 20  # between two pushes at least so many times what the last one took


class Mirror:
    """Sends a study's files from the working copy to a remote storage; does nothing on a local one.

    Attributes: trouble: the last push's failure in one line, "" when all is well.
    Args: lease: under which it writes; nothing is sent any more when another driver has taken the study over.
        lost: called then.
    """

    def __init__(
        self, folder: StudyFolder, lease: Lease | None = None, lost: Callable[[str], object] = lambda _: None
    ) -> None:
        self._folder, self._lease, self._lost = folder, lease, lost
        self._sent: dict[str, tuple[int, int]] = {}  # (time of change, bytes) of each small file that is there
        self._journal: Parts | None = None
        self._given_up = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="mirror", daemon=True)
        self._beats = threading.Thread(target=self._beat, name="lease", daemon=True)
        self.trouble = ""

    def push(self) -> None:
        """Send the files that have changed, the journal last."""
        if not is_remote(self._folder.storage) or self._given_up:
            return
        if self._lease is not None and not self._lease.beat():
            self._given_up = True
            self._lost(f"another driver has taken study {self._folder.study} over")
            return
        filesystem, root = fsspec.core.url_to_fs(self._folder.uri)
        for name in SMALL:
            here = self._folder.local / name
            if here.exists() and (now := (here.stat().st_mtime_ns, here.stat().st_size)) != self._sent.get(name):
                filesystem.put_file(str(here), f"{root}/{name}")
                self._sent[name] = now
        self._journal = self._journal or Parts(filesystem, f"{root}/{self._folder.journal.name}")
        if self._folder.journal.exists():
            self._journal.push(self._folder.journal)

    def start(self) -> None:
        """Push now and then, in a thread, until `finish` or `stop`."""
        if is_remote(self._folder.storage):
            self._thread.start()
            self._beats.start()

    def stop(self) -> None:
        """Push no more."""
        self._stop.set()

    def finish(self, patience_s: float) -> None:
        """Push what is left; a storage in trouble is tried again for `patience_s` seconds."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        until = time.monotonic() + patience_s
        while not self._try() and time.monotonic() < until:
            time.sleep(1.0)

    def _loop(self) -> None:
        took = 0.0
        while not self._stop.wait(max(EVERY_S, SHARE * took)):
            began = time.monotonic()
            self._try()
            took = time.monotonic() - began

    def _beat(self) -> None:
        """Signs of life however long a push takes; a push looks itself whether the study is still ours."""
        while self._lease is not None and not self._stop.wait(EVERY_S):
            with contextlib.suppress(Exception):  # a store in trouble: the push says so
                self._lease.beat()

    def _try(self) -> bool:
        self.trouble = ""
        try:
            self.push()
        except Exception as error:  # stores raise what they like; nothing of it may reach the search
            self.trouble = f"{self._folder.storage}: {first_line(error)}"
        return not self.trouble
