"""Tables of texts, whatever file holds them, by role: the one reader for training data, dev sets and what checks them.

`.csv` and `.tsv` (a header line; a TSV is quoted where all its fields are consistently so), `.jsonl`, `.json` (an array
of objects, or lines), `.parquet`, `.arrow` (as `datasets` saves to disk). What a cell means is in `cells`. No torch.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from trainables.contract.errors import DataError, first_line
from trainables.data.cells import replaced_note, shown, text_of
from trainables.data.columns import NUMBERED, check_once
from trainables.data.files import is_cut, kind_of, lines_of, matching, read_text

LONG_FIELD = 1 << 17  # characters of a CSV field at the end of a head; above, the rest of the file is read, too
LABELS = ("score", "subset")  # roles that may be true or false
LISTS = ("sentence", "positive", "negative")  # roles that may be a list of texts

Pick = Callable[[Sequence[str]], Mapping[str, str]]  # column names of a file -> role: column name
Cell = str | list[str]
Row = tuple[int, list[str]]


@dataclass(frozen=True)
class Table:
    """columns: role -> values, all of one length, missing ones as empty texts; lines: of the file, one for each row.

    notes: what was read otherwise than it is written, or left out, a line each.
    """

    columns: dict[str, list[str]]
    lines: list[int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """As `Table`, with cells that may still be lists."""

    columns: dict[str, list[Cell]]
    lines: list[int]
    notes: tuple[str, ...] = ()


def read_table(path: Path, pick: Pick, head: int | None = None) -> Table:
    """Columns of a table by role. Blank lines are no rows (in a TSV of one column, at its end).

    A list of texts in a cell is one row for each, of sentences and positives. Of negatives it is `negative_1` and on,
    as many as at least half of the rows have; a shorter list is repeated, as BGE's training does.

    Args: head: only the rows that are whole in the first `head` characters (of a Parquet file: so many rows).
    Raises: DataError naming file and line where a row does not fit the header, or a column is there twice.
    """
    if "*" not in path.name:
        return _spread(path, _read(path, pick, head))
    tables = [_one_of(path, file, pick, head) for file in matching(path)]
    for file, table in zip(matching(path), tables, strict=True):
        differ = table.columns.keys() ^ tables[0].columns.keys()
        if differ and (kind_of(path) not in (".jsonl", ".json") or not all(map(NUMBERED.fullmatch, differ))):
            first, other = (", ".join(t.columns) for t in (tables[0], table))  # rows of JSON may lack some
            raise DataError(f"{file}: expected the columns of {matching(path)[0].name} ({first}), got {other}")
    found = dict.fromkeys(role for t in tables for role in t.columns)
    columns = {role: [v for t in tables for v in t.columns.get(role, [""] * len(t.lines))] for role in found}
    lines, notes = [line for t in tables for line in t.lines], tuple(note for t in tables for note in t.notes)
    return _spread(path, _Rows(columns, lines, notes))


def _one_of(path: Path, file: Path, pick: Pick, head: int | None) -> _Rows:
    try:
        return _read(file, pick, head)
    except DataError as error:  # `pick` names the path with `*`
        raise DataError(str(error).replace(str(path), str(file))) from error


def _read(path: Path, pick: Pick, head: int | None) -> _Rows:
    kind = kind_of(path)
    if kind in (".parquet", ".arrow"):
        return _read_arrow(path, pick, head)
    text = read_text(path, head)
    if kind in (".jsonl", ".json"):
        return _read_json(path, text, pick, head)
    notes: list[str] = []
    rows = _tsv_rows(path, text, head, notes) if kind == ".tsv" else _csv_rows(path, text, head, notes)
    return _read_rows(path, rows, pick, notes)


# ------------------------------------------------------------ CSV and TSV
def _read_rows(path: Path, rows: list[Row], pick: Pick, notes: list[str]) -> _Rows:
    (_, header), *body = list(itertools.dropwhile(lambda row: _blank(row[1]), rows)) or [(1, list[str]())]
    roles = pick(header)
    check_once(path, header, roles)
    while body and len(header) > 1 and not any(body[-1][1]):
        body.pop()
    if blank := [number for number, row in body if not row or (len(header) > 1 and _blank(row))]:
        notes.append(f"{path}:{blank[0]}: a blank line; {len(blank)} such are no rows")
        body = [(number, row) for number, row in body if row and not (len(header) > 1 and _blank(row))]
    for number, row in body:
        if len(row) != len(header):
            raise DataError(f"{path}:{number}: expected {len(header)} fields, got {len(row)}")
    places = {role: header.index(column) for role, column in roles.items()}
    columns: dict[str, list[Cell]] = {role: [row[i] for _, row in body] for role, i in places.items()}
    return _Rows(columns, [number for number, _ in body], tuple(notes))


def _blank(row: Sequence[str]) -> bool:
    return len(row) < 2 and not "".join(row).strip()


def _tsv_rows(path: Path, text: str, head: int | None, notes: list[str]) -> list[Row]:
    lines = lines_of(path, text, head)
    marks = any(line.startswith('"') or '\t"' in line for line in lines)
    if marks and _quoted("\n".join(lines)):
        notes.append(f"{path}: read as a quoted table: the quotation marks around its fields are no part of the texts")
        return _csv_rows(path, text, head, notes, "\t")
    if marks and any(_DOUBLED.search(line) for line in lines):
        notes.append(f"{path}: read as a plain table: the quotation marks around some fields are part of the texts")
    return [(number, line.split("\t")) for number, line in enumerate(lines, start=1)]


_DOUBLED = re.compile(
    r'(?:^|\t)"(?:[^"\t]|"")*""(?:[^"\t]|"")*"(?:\t|$)'
)  # a field as only a writer that quotes has it
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^"\t\n]*))(?:\t|\n|$)')


def _quoted(text: str) -> bool:
    """Whether the fields of a TSV are quoted by a rule that some writer has: those that need it (pandas), also those
    with a comma (Excel), or all that are no numbers."""
    at, bare, quoted = 0, [], []
    while at < len(text):
        if (field := _FIELD.match(text, at)) is None:
            return False  # a quotation mark somewhere else
        if field[1] is None:
            bare.append(field[2])
        else:
            quoted.append(field[1])
        at = field.end()
    unneeded = [value for value in quoted if not re.search(r'["\t\n\r]', value)]
    if not unneeded or (all("," in value for value in unneeded) and not any("," in value for value in bare)):
        return bool(quoted)
    return not any(re.search(r"[^\d\s.eE+-]", value) for value in bare)


def _csv_rows(path: Path, text: str, head: int | None, notes: list[str], delimiter: str = ",") -> list[Row]:
    """(line where it ends, fields) of every row; of a head without the last, which may be cut off."""
    rows = _parsed(path, io.StringIO(text, newline=""), delimiter)
    if is_cut(text, head) and any(len(field) > LONG_FIELD for field in rows[-1][1]):
        # a very long text, or a quotation mark that is never closed: only the whole file shows which
        return _csv_rows(path, read_text(path), None, notes, delimiter)
    rows = rows[:-1] if is_cut(text, head) else rows
    if loose := _check_quotes(path, text, rows, delimiter):
        rest = f" (and {len(loose) - 1} more rows)" if len(loose) > 1 else ""
        notes.append(f"{path}:{loose[0]}: text behind a closing quotation mark{rest}: read without the marks")
    return rows


def _check_quotes(path: Path, text: str, rows: list[Row], delimiter: str) -> list[int]:
    """That rows of several lines are written as such: a quotation mark without its partner takes in the next ones.

    Returns: the lines of rows with text behind a closing quotation mark, which change as they are read.
    """
    try:
        _parsed(path, io.StringIO(text, newline=""), delimiter, strict=True)
        return []
    except DataError:
        lines, loose = list(io.StringIO(text, newline="")), list[int]()
    for start, end in itertools.pairwise([0, *(end for end, _ in rows)]):
        try:
            _parsed(path, lines[start:end], delimiter, start, strict=True)
        except DataError:
            if end > start + 1:
                raise
            loose.append(end)
    return loose


def _parsed(path: Path, lines: Iterable[str], delimiter: str, before: int = 0, strict: bool = False) -> list[Row]:
    """(line where it ends, fields) of every row; before: lines of the file before these."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, strict=strict, delimiter=delimiter)
    rows: list[Row] = []
    try:
        rows.extend((before + reader.line_num, row) for row in reader)
    except csv.Error as error:
        line = (rows[-1][0] if rows else before) + 1
        raise DataError(f"{path}:{line}: {error}; is a quotation mark missing?") from error
    return rows


# ------------------------------------------------------------ JSON
def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"key {shown(Counter(key for key, _ in pairs).most_common(1)[0][0])} is there twice")
    return found


_JSON = json.JSONDecoder(  # numbers as they are written
    object_pairs_hook=_object,
    parse_float=str,
    parse_int=str,
    parse_constant=lambda name: None if name == "NaN" else name,
)
_BETWEEN = re.compile(r"\s*(,|\])\s*")


def _read_json(path: Path, text: str, pick: Pick, head: int | None) -> _Rows:
    array = text.lstrip()[:1] == "["
    rows = list(_json_array(path, text, head) if array else _json_lines(path, text, head))
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected an object, got {shown(row)}")
    header = list(dict.fromkeys(itertools.chain.from_iterable(row for _, row in rows)))
    roles = pick(header)  # a row may lack what others have
    cells = _Cells(path, roles)
    numbers = [number for number, _ in rows]
    for role, column in roles.items():
        cells.add(role, numbers, [row.get(column) for _, row in rows])
    return cells.rows(numbers)


def _json_lines(path: Path, text: str, head: int | None) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines_of(path, text, head), start=1):
        if line.strip():
            try:
                yield number, _JSON.decode(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number}: not JSON: {getattr(error, 'msg', error)}") from error


def _json_array(path: Path, text: str, head: int | None) -> Iterator[tuple[int, Any]]:
    """(line where it begins, value) of every element; of a head, up to the one that is cut off."""
    at, line, counted = text.index("[") + 1, 1, 0
    at += len(text[at:]) - len(text[at:].lstrip())
    if text[at : at + 1] == "]":
        at += 1
    else:
        while True:
            line, counted = line + text.count("\n", counted, at), at
            try:
                value, at = _JSON.raw_decode(text, at)
                if (found := _BETWEEN.match(text, at)) is None:
                    raise ValueError(
                        "expected ',' or ']'" if at < len(text) else "the array is not closed; is it cut off?"
                    )
            except (ValueError, RecursionError) as error:
                if is_cut(text, head):
                    return
                raise DataError(f"{path}:{line}: not JSON: {getattr(error, 'msg', error)}") from error
            yield line, value
            at = found.end()
            if found[1] == "]":
                break
    if text[at:].strip():
        raise DataError(f"{path}:{line + text.count(chr(10), counted, at)}: not JSON: text behind the end of the array")


# ------------------------------------------------------------ Parquet and Arrow
def _read_arrow(path: Path, pick: Pick, head: int | None) -> _Rows:
    """Parquet files, Arrow streams and Arrow files, batch by batch until `head` rows are read."""
    import pyarrow.ipc
    import pyarrow.parquet

    rows, parquet = 0, kind_of(path) == ".parquet"
    try:
        with pyarrow.memory_map(str(path)) as source:
            if parquet:
                opened = pyarrow.parquet.ParquetFile(source)
                header = list(opened.schema_arrow.names)
            else:
                stream = source.read(6) != b"ARROW1"
                source.seek(0)
                opened = pyarrow.ipc.open_stream(source) if stream else pyarrow.ipc.open_file(source)
                header = list(opened.schema.names)
            roles = pick(header)
            check_once(path, header, roles)
            cells = _Cells(path, roles)
            batches: Iterable[Any] = opened if not parquet and stream else ()
            if parquet:
                batches = opened.iter_batches(columns=list(roles.values()))
            elif not stream:
                batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
            for batch in batches:
                numbers = range(rows + 1, rows + len(batch) + 1)
                for role, column in roles.items():
                    cells.add(role, numbers, batch.column(column).to_pylist())
                rows += len(batch)
                if head is not None and rows >= head:
                    break
    except DataError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, pyarrow.ArrowException) as error:
        kind = "Parquet" if parquet else "Arrow"
        raise DataError(f"{path}: cannot be read as {kind}: {first_line(error)}") from error
    return cells.rows(list(range(1, rows + 1)))


# ------------------------------------------------------------ cells that may hold lists
class _Cells:
    """The cells of a file by role, as they are added, and what was replaced in them."""

    def __init__(self, path: Path, roles: Mapping[str, str]) -> None:
        self._path, self._roles = path, roles
        self._columns: dict[str, list[Cell]] = {role: [] for role in roles}
        self._replaced: list[int] = []

    def add(self, role: str, lines: Sequence[int], values: Sequence[object]) -> None:
        column = self._columns[role]
        for line, value in zip(lines, values, strict=True):
            note = partial(self._replaced.append, line)
            try:
                if isinstance(value, list) and role in LISTS:
                    column.append([text_of(one, note) for one in value])
                elif isinstance(value, bool) and role in LABELS:
                    column.append(str(value))
                else:
                    column.append(text_of(value, note))
            except ValueError as error:
                raise DataError(f"{self._path}:{line}: {self._roles[role]}: {error}") from None

    def rows(self, lines: list[int]) -> _Rows:
        first, count = min(self._replaced, default=0), len(self._replaced)
        return _Rows(self._columns, lines, (replaced_note(f"{self._path}:{first}", count),) if count else ())


def _spread(path: Path, read: _Rows) -> Table:
    """Rows with lists as rows without: one for each sentence or positive, negatives in columns of their own."""
    lists = [role for role, column in read.columns.items() if any(isinstance(cell, list) for cell in column)]
    if not lists:
        return Table(cast(dict[str, list[str]], read.columns), read.lines, read.notes)
    columns, note = dict(read.columns), ""
    if "negative" in lists:
        given = [[text for text in _listed(cell) if text.strip()] for cell in columns.pop("negative")]
        lengths = sorted(filter(None, map(len, given)))
        many = min(lengths[len(lengths) // 2], 99) if lengths else 1
        note = f"; shorter lists than {many} negatives are repeated, longer ones cut"
        columns |= {f"negative_{k + 1}": [(texts * many)[k] if texts else "" for texts in given] for k in range(many)}
    out: dict[str, list[str]] = {role: [] for role in columns}
    lines = []
    for line, *row in zip(read.lines, *columns.values(), strict=True):
        for texts in itertools.product(*map(_listed, row)):
            lines.append(line)
            for column, text in zip(out.values(), texts, strict=True):
                column.append(text)
    what = " and ".join(lists)
    summary = f"{path}: lists of {what}: {len(read.lines)} rows give {len(lines)} with {', '.join(columns)}{note}"
    return Table(out, lines, (*read.notes, summary))


def _listed(cell: Cell) -> list[str]:
    return [cell] if isinstance(cell, str) else cell or [""]
