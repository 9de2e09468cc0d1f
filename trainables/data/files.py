"""How data files are read: UTF-8, optionally gzipped. No torch, no pandas: a pre-flight check imports this.

`.tsv` (header line, no quoting), `.csv` (header line, quoted as usual), `.jsonl`, `.parquet`, `.arrow` (as `datasets`
saves to disk), or `.txt` (one sentence a line, no header). A name with `*` is all files that it matches, one after the
other in the order of their names. The lines of a corpus larger than memory stay on the disk (`LineTexts`).
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError, first_line
from trainables.contract.trial import only_one, phase, whole_file
from trainables.data.tokens import StoredTexts, cache_dir, ready

TABLES = (".tsv", ".csv", ".jsonl", ".parquet", ".arrow")
SUFFIXES = (*TABLES, ".txt")
LONG_FIELD = 1 << 17  # characters of a CSV field at the end of a head; above, the rest of the file is read, too
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)  # what a damaged file raises

ROLES: dict[str, tuple[str, ...]] = {  # of columns; `data.columns` of a space maps them to a file's names
    "sentence": ("sentence", "text"),
    "anchor": ("anchor", "sent0"),
    "positive": ("positive", "sent1"),
    "negative": ("negative", "hard_neg"),
    "first": ("sentence1",),
    "second": ("sentence2",),
    "score": ("score",),
    "subset": ("subset",),
}
NUMBERED = re.compile(r"negative_([1-9]\d?)")  # of several hard negatives

Pick = Callable[[Sequence[str]], Mapping[str, str]]  # column names of a file -> role: column name


def is_role(name: str) -> bool:
    """Whether `data.columns` may name it."""
    return name in ROLES or NUMBERED.fullmatch(name) is not None


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
    if len(kinds) != 1:
        got = " and ".join(sorted(kinds)) or "none"
        raise DataError(f"data folder {str(folder)!r}: expected files of one kind of {', '.join(SUFFIXES)}, got {got}")
    return folder / f"*{kinds.pop()}"


@dataclass(frozen=True)
class Table:
    """columns: role -> values, all of one length, missing ones as empty texts; lines: of the file, one for each row."""

    columns: dict[str, list[str]]
    lines: list[int]


def read_lines(path: Path, head: int | None = None) -> list[str]:
    """The lines of a text file, without the empty one behind the last line end; those whole in its first `head`
    characters."""
    if "*" in path.name:
        return [line for file in matching(path) for line in read_lines(file, head)]
    text = _text(path, head)
    if "\r" in text and "\n" not in text:
        raise DataError(f"{path}:1: its lines end in CR alone, expected LF; convert it, as by tr '\\r' '\\n'")
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines(): U+0085 and the like belong to sentences
    return lines[:-1] if not lines[-1] or (_cut(text, head) and len(lines) > 1) else lines


def read_table(path: Path, pick: Pick, head: int | None = None) -> Table:
    """Columns of a table by role. Blank lines at its end are no rows.

    Args: head: only the rows that are whole in the first `head` characters (of a Parquet file: so many rows).
    Raises: DataError naming file and line where a row does not fit the header, or a column is there twice.
    """
    kind = kind_of(path)
    if "*" in path.name:
        tables = [_one_of(path, file, pick, head) for file in matching(path)]
        for file, table in zip(matching(path), tables, strict=True):
            differ = table.columns.keys() ^ tables[0].columns.keys()
            if differ and (kind != ".jsonl" or not all(map(NUMBERED.fullmatch, differ))):  # whose rows may lack some
                first, other = (", ".join(t.columns) for t in (tables[0], table))
                raise DataError(f"{file}: expected the columns of {matching(path)[0].name} ({first}), got {other}")
        found = dict.fromkeys(role for t in tables for role in t.columns)
        columns = {role: [v for t in tables for v in t.columns.get(role, [""] * len(t.lines))] for role in found}
        return Table(columns, [line for t in tables for line in t.lines])
    if kind in (".parquet", ".arrow"):
        return _read_arrow(path, pick, head)
    if kind == ".jsonl":
        return _read_jsonl(path, pick, head)
    if kind == ".tsv":
        rows = [(number, line.split("\t")) for number, line in enumerate(read_lines(path, head), start=1)]
    else:
        rows = _csv_rows(path, _text(path, head), head)
    (_, header), *body = rows or [(1, list[str]())]
    roles = pick(header)
    for column in roles.values():
        if header.count(column) > 1:
            raise DataError(f"{path}:1: column {column} is there {header.count(column)} times; rename all but one")
    while body and len(header) > 1 and not any(body[-1][1]):
        body.pop()
    for number, row in body:
        if len(row) != len(header):
            got = str(len(row)) if any(row) else "a blank line"
            raise DataError(f"{path}:{number}: expected {len(header)} fields, got {got}")
    columns = {role: [row[i] for _, row in body] for role, i in ((r, header.index(c)) for r, c in roles.items())}
    return Table(columns, [number for number, _ in body])


def _one_of(path: Path, file: Path, pick: Pick, head: int | None) -> Table:
    try:
        return read_table(file, pick, head)
    except DataError as error:  # `pick` names the path with `*`
        raise DataError(str(error).replace(str(path), str(file))) from error


def _csv_rows(path: Path, text: str, head: int | None) -> list[tuple[int, list[str]]]:
    """(line where it ends, fields) of every row; of a head without the last, which may be cut off."""
    rows = _parsed(path, io.StringIO(text, newline=""))
    if _cut(text, head) and any(len(field) > LONG_FIELD for field in rows[-1][1]):
        # a very long text, or a quotation mark that is never closed: only the whole file shows which
        return _csv_rows(path, _text(path), None)
    rows = rows[:-1] if _cut(text, head) else rows
    _check_quotes(path, text, rows)
    return rows


def _check_quotes(path: Path, text: str, rows: list[tuple[int, list[str]]]) -> None:
    """That rows of several lines are written as such: a quotation mark without its partner takes in the next ones."""
    ends = [0, *(end for end, _ in rows)]
    several = [(start, end) for start, end in itertools.pairwise(ends) if end > start + 1]
    lines = list(io.StringIO(text, newline="")) if several else []
    for start, end in several:
        _parsed(path, lines[start:end], start, strict=True)


def _parsed(path: Path, lines: Iterable[str], before: int = 0, strict: bool = False) -> list[tuple[int, list[str]]]:
    """(line where it ends, fields) of every row; before: lines of the file before these."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, strict=strict)
    rows: list[tuple[int, list[str]]] = []
    try:
        rows.extend((before + reader.line_num, row) for row in reader)
    except csv.Error as error:
        line = (rows[-1][0] if rows else before) + 1
        raise DataError(f"{path}:{line}: {error}; is a quotation mark missing?") from error
    return rows


def _read_jsonl(path: Path, pick: Pick, head: int | None) -> Table:
    lines = [(i, line) for i, line in enumerate(read_lines(path, head), start=1) if line.strip()]
    objects = [_json_object(path, i, line) for i, line in lines]
    roles = pick(list(dict.fromkeys(itertools.chain.from_iterable(objects))))  # a row may lack what others have
    numbers = [i for i, _ in lines]
    columns = {role: _cells(path, c, numbers, [o.get(c) for o in objects]) for role, c in roles.items()}
    return Table(columns, numbers)


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{number}: not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}:{number}: expected an object, got {type(value).__name__}")
    return value


def _read_arrow(path: Path, pick: Pick, head: int | None) -> Table:
    """Parquet files and Arrow streams, batch by batch until `head` rows are read."""
    import pyarrow.ipc
    import pyarrow.parquet

    columns: dict[str, list[str]] = {}
    rows, parquet = 0, kind_of(path) == ".parquet"
    try:
        with pyarrow.memory_map(str(path)) as source:
            opened = pyarrow.parquet.ParquetFile(source) if parquet else pyarrow.ipc.open_stream(source)
            roles = pick(list((opened.schema_arrow if parquet else opened.schema).names))
            columns = {role: [] for role in roles}
            for batch in opened.iter_batches(columns=list(roles.values())) if parquet else opened:
                numbers = range(rows + 1, rows + len(batch) + 1)
                for role, column in roles.items():
                    columns[role] += _cells(path, column, numbers, batch.column(column).to_pylist())
                rows += len(batch)
                if head is not None and rows >= head:
                    break
    except DataError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        kind = "Parquet" if parquet else "an Arrow stream"
        raise DataError(f"{path}: cannot be read as {kind}: {first_line(error)}") from error
    return Table(columns, list(range(1, rows + 1)))


def _cells(path: Path, column: str, rows: Sequence[int], values: Sequence[object]) -> list[str]:
    """The values of a column as texts.

    Raises: DataError for a list or a mapping: its notation would be trained on.
    """
    for row, value in zip(rows, values, strict=True):
        if isinstance(value, (list, dict)):
            raise DataError(f"{path}:{row}: {column}: expected a text or a number, got {str(value)[:60]}")
    return ["" if value is None else str(value) for value in values]


def _text(path: Path, head: int | None = None) -> str:
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            return str(file.read(-1 if head is None else head))
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _cut(text: str, head: int | None) -> bool:
    """Whether a head is not the whole file, so that its last line may be half of one."""
    return head is not None and len(text) >= head


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
