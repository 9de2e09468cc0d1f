"""Data files as paths and as text: UTF-8, optionally gzipped. No torch, no pandas: a pre-flight check imports this.

A name with `*` is all files that it matches, one after the other in the order of their names. What tables hold is read
in `tables`. The lines of a corpus larger than memory stay on the disk (`LineTexts`).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError
from trainables.contract.trial import only_one, phase, whole_file
from trainables.data.tokens import StoredTexts, cache_dir, ready

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".arrow")
SUFFIXES = (*TABLES, ".txt")
BLOCK = 1 << 24  # bytes that are searched at once
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)  # what a damaged file raises

PACKED = {
    b"\x1f\x8b": "gzip: add .gz to its name",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"PAR1": "Parquet",
}


def kind_of(path: Path) -> str | None:
    """The suffix by which a file is read (".tsv" for "x.tsv.gz"), or None."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in SUFFIXES else None


def matching(path: Path) -> list[Path]:
    """The files that a path means: itself, or what its `*` matches, by name; empty if there is none."""
    return [p for p in (sorted(path.parent.glob(path.name)) if "*" in path.name else [path]) if p.is_file()]


def text_size(path: Path) -> int:
    """Bytes of text in the files of a path, roughly: what is gzipped counts four times."""
    return sum(file.stat().st_size * (4 if file.suffix == ".gz" else 1) for file in matching(path))


def folder_files(folder: Path) -> Path:
    """The data files in a folder as one path with `*`.

    Raises: DataError if there are none, or of several kinds.
    """
    kinds = {"".join(p.suffixes[-2:] if p.suffix == ".gz" else p.suffixes[-1:]) for p in folder.iterdir() if kind_of(p)}
    kinds = {kind for kind in kinds if kind != ".json"} or kinds  # beside data: the notes that `datasets` saves
    if len(kinds) != 1:
        got = " and ".join(sorted(kinds)) or "none"
        raise DataError(f"data folder {str(folder)!r}: expected files of one kind of {', '.join(SUFFIXES)}, got {got}")
    return folder / f"*{kinds.pop()}"


def read_lines(path: Path, head: int | None = None) -> list[str]:
    """The lines of a text file, without the empty one behind the last line end; those whole in its first `head`
    characters."""
    if "*" in path.name:
        return [line for file in matching(path) for line in read_lines(file, head)]
    return lines_of(path, read_text(path, head), head)


def lines_of(path: Path, text: str, head: int | None = None) -> list[str]:
    """The lines of a file's text; see `read_lines`."""
    if "\r" in text and "\n" not in text:
        raise DataError(f"{path}:1: its lines end in CR alone, expected LF; convert it, as by tr '\\r' '\\n'")
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines(): U+0085 and the like belong to sentences
    return lines[:-1] if not lines[-1] or (is_cut(text, head) and len(lines) > 1) else lines


def read_text(path: Path, head: int | None = None) -> str:
    """The text of a file, or its first `head` characters.

    Raises: DataError if it is no UTF-8, naming what it is where that is known.
    """
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            text = str(file.read(-1 if head is None else head))
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}{_encoding(path, error)}") from error
    if 4 * text.count("\0", 0, 4096) > len(text[:4096]):
        even, odd = text[:4096:2].count("\0"), text[1:4096:2].count("\0")
        what = "it is UTF-16; save it as UTF-8" if even * odd == 0 else "it has many zero bytes: is it damaged?"
        raise DataError(f"{path}: cannot be read as UTF-8 text: {what}")
    return text


def check_text(path: Path) -> None:
    """Read files of any size to their ends, a part at a time.

    Raises: DataError as `read_text`.
    """
    for file in matching(path):
        read_text(file, 4096)
        opener = gzip.open if file.name.endswith(".gz") else open
        try:
            with opener(file, "rt", encoding="utf-8", newline="") as text:
                while text.read(BLOCK):
                    pass
        except UNREADABLE as error:
            raise DataError(f"{file}: cannot be read as UTF-8 text: {error}{_encoding(file, error)}") from error


def _encoding(path: Path, error: Exception) -> str:
    """What a file is that is no UTF-8, as a part of a message; "" where that is unknown."""
    if not isinstance(error, UnicodeDecodeError):
        return ""
    raw = bytes(error.object)
    if found := next((what for start, what in PACKED.items() if raw.startswith(start)), ""):
        return f"; it is {found}"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "; it is UTF-16; save it as UTF-8"
    if error.end >= len(raw) - 1 and error.reason.startswith("unexpected end"):
        return "; it ends within a character: is it cut off?"
    line = raw[raw.rfind(b"\n", 0, error.start) + 1 :].split(b"\n", 1)[0]
    for page, letters in (
        ("gb18030", r"[\u4e00-\u9fff]{2}"),
        ("cp1252", r"[^\W\d_][\xc0-\xff]|[\x80-\xbf\u2000-\u20ff]"),
    ):
        with contextlib.suppress(UnicodeDecodeError):
            if re.search(letters, text := line.decode(page)):
                semicolons = (
                    ", its fields separated by semicolons" if text.count(";") > 1 and kind_of(path) == ".csv" else ""
                )
                excel = '; in Excel, "CSV UTF-8"' if page == "cp1252" and kind_of(path) == ".csv" else ""
                return (
                    f"; it seems to be {page}{semicolons}; save it as UTF-8"
                    + (" with commas" if semicolons else "")
                    + excel
                )
    return ""


def is_cut(text: str, head: int | None) -> bool:
    """Whether a head is not the whole file, so that its last line may be half of one."""
    return head is not None and len(text) >= head


LINES = 8192  # that are read at once
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineTexts(StoredTexts):
    """The lines of one or several text files, in order, as `files.read_lines` gives them; an empty one is one blank.

    Args:
        files: plain text, UTF-8.
        identity: changes when their content does; stands for them in the keys of caches.
        names: what messages call them, where they are unpacked copies.
    Raises: DataError for lines that end in CR alone; when a line is read that is no UTF-8.
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
        with only_one(copy):
            _unpack(file, copy)
    os.utime(copy)  # used now: the cache deletes what was used longest ago
    return copy


def _unpack(file: Path, copy: Path) -> None:
    if copy.exists():  # another process made it meanwhile
        return
    phase("unpacking")
    try:
        with gzip.open(file) as source, whole_file(copy) as target:
            shutil.copyfileobj(source, target, BLOCK)
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the cache's disk
        raise DataError(f"{file}: cannot be read as UTF-8 text: {error}") from error
