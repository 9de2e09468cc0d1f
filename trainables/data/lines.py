"""The lines of text files as a sequence that lies on the disk: a corpus may be larger than memory.

Kept in memory is where each line begins, 8 bytes a line; a block of lines is read when it is asked for. What is gzipped
is unpacked into the cache first, once per content.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError
from trainables.contract.trial import phase, whole_file
from trainables.data.files import UNREADABLE
from trainables.data.token_cache import cache_dir, ready
from trainables.data.tokens import StoredTexts

BLOCK = 1 << 24  # bytes that are looked through for line ends at once
LINES = 8192  # that are read at once
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineTexts(StoredTexts):
    """The lines of one or several text files, in order, as `files.read_lines` gives them; an empty one is one blank.

    Args:
        files: plain text, UTF-8.
        identity: changes when their content does; stands for them in the keys of caches.
        names: what messages call them, where they are unpacked copies.
    Raises: DataError for lines that end in CR alone; when a line is asked for that is no UTF-8.
    """

    def __init__(self, files: Sequence[Path], identity: str, names: Sequence[Path] | None = None) -> None:
        self.files, self.identity, self.names = list(files), identity, list(names or files)
        self._starts = [line_starts(file, name) for file, name in zip(self.files, self.names, strict=True)]
        self._ends = np.cumsum([len(starts) - 1 for starts in self._starts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return [self[i] for i in range(first, last, step)] if step != 1 else list(self._between(first, last))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return next(self._between(index, index + 1))

    def __iter__(self) -> Iterator[str]:
        return self._between(0, len(self))

    def _between(self, first: int, last: int) -> Iterator[str]:
        begin = 0
        for number, end in enumerate(self._ends.tolist()):
            if first < end and last > begin:
                yield from self._of_file(number, max(first - begin, 0), min(last, end) - begin)
            begin = end

    def _of_file(self, number: int, first: int, last: int) -> Iterator[str]:
        starts = self._starts[number]
        with self.files[number].open("rb") as file:
            for at in range(first, last, LINES):
                until = min(at + LINES, last)
                file.seek(int(starts[at]))
                block = file.read(int(starts[until] - starts[at]))
                for line, text in enumerate(block.split(b"\n", until - at - 1), start=at):
                    yield self._decoded(number, line, text)

    def _decoded(self, number: int, line: int, text: bytes) -> str:
        try:
            return text.removesuffix(b"\n").removesuffix(b"\r").decode() or " "
        except UnicodeDecodeError as error:
            raise DataError(f"{self.names[number]}:{line + 1}: cannot be read as UTF-8 text: {error}") from error


def line_starts(file: Path, name: Path | None = None) -> NDArray[np.int64]:
    """(n + 1,) offsets of a file's n lines, and behind the last; an empty line behind the last line end is none."""
    found: list[NDArray[np.int64]] = []
    at, carriage = 0, False
    size = file.stat().st_size
    with file.open("rb") as source:
        first = len(BYTE_ORDER_MARK) if source.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0
        source.seek(0)
        while block := source.read(BLOCK):
            phase("finding lines (MB)", at >> 20, size >> 20)
            found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + (at + 1))
            carriage = carriage or b"\r" in block
            at += len(block)
    if carriage and not any(map(len, found)):
        raise DataError(f"{name or file}:1: its lines end in CR alone, expected LF; convert it, as by tr '\\r' '\\n'")
    starts = np.concatenate([np.array([first], dtype=np.int64), *found])
    del found
    return starts if starts[-1] == at else np.append(starts, at)


def unpacked(file: Path, identity: str) -> Path:
    """The plain copy of a gzipped file in the cache; made once per content.

    Raises: DataError if it cannot be read.
    """
    copy = ready(cache_dir()) / f"text-{identity}.txt"
    if not copy.exists():
        phase("unpacking")
        try:
            with gzip.open(file) as source, whole_file(copy) as target:
                shutil.copyfileobj(source, target, BLOCK)
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # the cache's disk
            raise DataError(f"{file}: cannot be read as UTF-8 text: {error}") from error
    return copy
