"""Where a search prints: losing it is no reason to end the search."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class Output(Console):
    """A console that goes on in silence when nobody reads it any more (`search run … | head`, a `tee` that was killed).

    rich raises SystemExit instead, in the middle of whatever was to be printed.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True
        lost = os.fstat(sys.stdout.fileno())
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if os.path.samestat(os.fstat(stream.fileno()), lost):  # `2>&1` goes into the same pipe
                os.dup2(null, stream.fileno())
        os.close(null)
