"""A study's own files on their way to a remote storage, on a clock of their own: no slow tracker holds them up."""

from __future__ import annotations

import threading
import time

import fsspec

from search.store.layout import SENT, StudyFolder, is_remote
from trainables.contract.errors import first_line

EVERY_S = 2.0  # between two pushes, where a push is quick
SHARE = 20  # between two pushes at least so many times what the last one took: object stores take whole files only


class Mirror:
    """Sends a study's files from the working copy to a remote storage; does nothing on a local one.

    Attributes: trouble: the last push's failure in one line, "" when all is well.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._sent: dict[str, int] = {}  # bytes of each file that are there
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="mirror", daemon=True)
        self.trouble = ""

    def push(self) -> None:
        """Send the files that have changed in size, the journal last."""
        if not is_remote(self._folder.storage):
            return
        filesystem, root = fsspec.core.url_to_fs(self._folder.uri)
        for name in SENT:
            here = self._folder.local / name
            if here.exists() and (size := here.stat().st_size) != self._sent.get(name):
                filesystem.put_file(str(here), f"{root}/{name}")
                self._sent[name] = size

    def start(self) -> None:
        """Push now and then, in a thread."""
        if is_remote(self._folder.storage):
            self._thread.start()

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

    def _try(self) -> bool:
        self.trouble = ""
        try:
            self.push()
        except Exception as error:  # stores raise what they like; nothing of it may reach the search
            self.trouble = f"{self._folder.storage}: {first_line(error)}"
        return not self.trouble
