"""Where `search` prints: losing it is no reason to end a search, and on a terminal lines break between words."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap

from rich.console import Console

COMMAND = re.compile(r"\b(search|analysis) [a-z]+ \S|https?://")
KEPT = "\u00a0"  # a blank where no line is broken
UNWRITTEN = "what the search prints cannot be written (%s); it goes on"
HANGING = 4  # blanks before what is left of a broken line
log = logging.getLogger(__name__)


def parted(line: str, width: int | None = None) -> str:
    """`fitted` for a list of facts: broken between them, at commas, as far as one fits into a line."""
    return fitted(line.replace(" ", KEPT).replace("," + KEPT, ", "), width).replace(KEPT, " ")


def fitted(line: str, width: int | None = None) -> str:
    """A line broken between words where a terminal would break inside one; as it is in files and pipes.

    One with a command or an address stays whole: what is copied from a terminal is one line then.

    Args: width: of the terminal, in characters; None = of the one that reads along, if any.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if width is None or len(line) <= width or COMMAND.search(line):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(), width, initial_indent=indent, subsequent_indent=indent + " " * HANGING,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


class Output(Console):
    """A console that goes on in silence when nobody reads it any more (`search run … | head`, a `tee` that was
    killed), and without what a full disk does not take.

    rich raises instead, in the middle of whatever was to be printed.
    """

    _failed = False

    def on_broken_pipe(self) -> None:
        self.quiet = True
        let_go()

    def _check_buffer(self) -> None:  # where rich writes, whatever is printed
        try:
            super()._check_buffer()
        except OSError as error:
            del self._buffer[:]
            if not self._failed:
                self._failed = True
                log.warning(UNWRITTEN, error.strerror or error)


def let_go() -> None:
    """Print nowhere from here on."""
    lost = os.fstat(sys.stdout.fileno())
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if os.path.samestat(os.fstat(stream.fileno()), lost):  # `2>&1` goes into the same pipe or file
            os.dup2(null, stream.fileno())
    os.close(null)
