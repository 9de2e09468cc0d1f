"""Where `search` prints: output that cannot be written ends no search; on a terminal lines break between words."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import IO, Any

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
    """A console that goes on in silence when its reader is gone (`search run … | head`, a `tee` that was killed), and
    without what a full disk does not take. rich raises instead, in the middle of whatever was to be printed.
    """

    def __init__(self, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=_Lossy(file), **options)  # type: ignore[arg-type]  # what of a file rich uses


class _Lossy:
    """A text file (None = sys.stdout at the time) whose failed writes are a warning, once."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file, self._failed = file, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file or sys.stdout, name)

    def write(self, text: str) -> int:
        self._try(lambda file: file.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda file: file.flush())

    def _try(self, action: Callable[[IO[str]], object]) -> None:
        try:
            action(self._file or sys.stdout)
        except OSError as error:
            if error.errno == errno.EPIPE:
                print_nowhere()
            elif not self._failed:
                self._failed = True
                log.warning(UNWRITTEN, error.strerror or error)


def print_nowhere() -> None:
    """Send standard output, and standard error where it goes to the same pipe or file, to /dev/null from here on."""
    lost = os.fstat(sys.stdout.fileno())
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if os.path.samestat(os.fstat(stream.fileno()), lost):
            os.dup2(null, stream.fileno())
    os.close(null)
