"""How data files are read: UTF-8, optionally gzipped. No torch, no pandas: a pre-flight check imports this.

`.tsv` (header line, no quoting), `.csv` (header line, quoted as usual), `.jsonl`, `.parquet`, or `.txt` (one sentence a
line, no header).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainables.contract.errors import DataError

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
SUFFIXES = (*TABLES, ".txt")
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)  # what a damaged file raises

Pick = Callable[[Sequence[str]], Mapping[str, str]]  # column names of a file -> role: column name


def kind_of(path: Path) -> str | None:
    """The suffix that says how a file is read (".tsv" for "x.tsv.gz"), or None."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in SUFFIXES else None


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without the empty one behind the last line end."""
    lines = _text(path).replace("\r\n", "\n").split("\n")  # not splitlines(): U+0085 and the like belong to sentences
    return lines[:-1] if lines and not lines[-1] else lines


def read_table(path: Path, pick: Pick) -> dict[str, list[str]]:
    """Columns of a table by role, all of the same length; missing values are empty texts.

    Raises: DataError naming file and line where a row does not fit the header.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        return _read_parquet(path, pick)
    if kind == ".jsonl":
        return _read_jsonl(path, pick)
    rows: Iterable[list[str]]
    if kind == ".tsv":
        rows = (line.split("\t") for line in read_lines(path))
    else:
        rows = csv.reader(io.StringIO(_text(path), newline=""))
    header, *body = list(rows) or [[]]
    roles = pick(header)
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise DataError(f"{path}: row {number}: expected {len(header)} fields, got {len(row)}")
    return {role: [row[i] for row in body] for role, i in ((r, header.index(c)) for r, c in roles.items())}


def header_of(path: Path) -> list[str] | None:
    """Column names of a table without reading its rows; None for a text file."""
    kind = kind_of(path)
    if kind == ".txt":
        return None
    if kind == ".parquet":
        return list(_parquet().read_schema(path).names)
    with _open(path) as file:
        try:
            line = file.readline().rstrip("\r\n")
        except UNREADABLE as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    if kind == ".jsonl":
        return list(_json_object(path, 1, line))
    return line.split("\t") if kind == ".tsv" else next(csv.reader([line]), [])


def _read_jsonl(path: Path, pick: Pick) -> dict[str, list[str]]:
    objects = [_json_object(path, i, line) for i, line in enumerate(read_lines(path), start=1) if line.strip()]
    roles = pick(list(objects[0]) if objects else [])
    return {role: [_cell(o.get(column)) for o in objects] for role, column in roles.items()}


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: line {number}: not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: line {number}: expected an object, got {type(value).__name__}")
    return value


def _read_parquet(path: Path, pick: Pick) -> dict[str, list[str]]:
    parquet = _parquet()
    roles = pick(list(parquet.read_schema(path).names))
    table = parquet.read_table(path, columns=list(roles.values()))
    return {role: [_cell(v) for v in table.column(column).to_pylist()] for role, column in roles.items()}


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow; install it with: pip install pyarrow") from error
    return pyarrow.parquet


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _open(path: Path) -> io.TextIOBase:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")  # type: ignore[return-value]
    return path.open(encoding="utf-8-sig", newline="")


def _text(path: Path) -> str:
    try:
        with _open(path) as file:
            return file.read()
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
