"""The first half minute of a search: what is being done, from the first second, each with the time that it takes."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from search.store.ledger import Event

BAR = 20  # characters
FIRST_PROCESS = "starting a trial's process"
ENDS_THE_OPENING = ("eval", "end", "pause")


class Phases:
    """One line per phase when it is over, `  starting Ray  6.1 s`; on a terminal also the one that is going on.

    Usable as a context: whatever happens inside, the terminal is as it was afterwards.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.open = True  # until a trial's first evaluation
        self._began = self._since = time.monotonic()
        self._what, self._done, self._of = "", 0, 0
        self._followed = ""  # id of the trial whose phases are shown: several at once would alternate
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=2, transient=True)

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def begin(self, what: str, done: int = 0, of: int = 0) -> None:
        """A phase begins, or (the same one again) has come so far."""
        if not self.open:
            return
        if what != self._what:
            self._over()
            with self._lock:
                self._what, self._since = what, time.monotonic()
        with self._lock:
            self._done, self._of = done, of
        if self.console.is_terminal and not self.console.quiet:
            self._live.start()  # once: it does nothing when it runs
            self._live.refresh()

    def observe(self, event: Event) -> bool:
        """Follow the first trial; whether the opening goes on."""
        if not self.open:
            return False
        kind = event["e"]
        if kind in ("start", "again") and not self._followed:
            self._followed = event["id"]
            self.begin(FIRST_PROCESS)
        elif kind == "phase" and event["id"] == self._followed:
            self.begin(event["what"], event["done"], event["of"])
        elif kind in ENDS_THE_OPENING:
            self.close()
            self.console.print(f"  first result after {time.monotonic() - self._began:.0f} s", highlight=False)
        return self.open

    def close(self) -> None:
        """The opening is over."""
        if self.open:
            self._over()
            self.open = False
        self._live.stop()

    def _over(self) -> None:
        """Print the phase that has ended."""
        with self._lock:
            what, self._what = self._what, ""
            took = time.monotonic() - self._since
        if what:
            self.console.print(f"  {what:<34} {took:6.1f} s", highlight=False, markup=False)

    def _draw(self) -> Text:
        with self._lock:
            if not self._what:
                return Text("")
            took = time.monotonic() - self._since
            share = self._done / self._of if self._of else None
            what = self._what
        if share is None:
            return Text(f"  {what:<34} {took:6.0f} s ...")
        full = round(share * BAR)
        return Text(f"  {what:<34} {took:6.0f} s  [{'#' * full}{'.' * (BAR - full)}] {share:.0%}")
