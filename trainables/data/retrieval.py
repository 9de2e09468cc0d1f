"""Retrieval sets in BEIR's layout (Thakur et al. 2021): documents, queries, and which documents answer which query.

A folder, or a data set repository of the hub at a pinned commit, with

    corpus.jsonl     {"_id": ..., "title": ..., "text": ...} a line     or corpus/*.parquet
    queries.jsonl    {"_id": ..., "text": ...} a line                   or queries/*.parquet
    qrels/dev.tsv    query-id, corpus-id, score; with a header          or qrels/dev*.parquet (or one other split)

(`.jsonl` also gzipped.) NanoBEIR's sets are known by name (`NanoNFCorpus`); their one split selects here. So are the
generated ones, `builtin_retrieval` and `builtin_retrieval_zh`. No torch.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.contract.errors import DataError, first_line
from trainables.contract.trial import DEV_SUFFIX, RETRIEVAL_MEASURES
from trainables.data import builtin
from trainables.data.catalogue import BUILTIN, hub_name, is_hub, set_name, snapshot
from trainables.data.cells import replaced_note, text_of
from trainables.data.files import UNREADABLE, kind_of

log = logging.getLogger(__name__)

CORPUS, QUERIES, QRELS = "corpus", "queries", "qrels"
PATTERNS = ("corpus.jsonl*", "queries.jsonl*", "corpus/*.parquet", "queries/*.parquet", "qrels/*")
CHECKED = 200e6  # bytes of each part that a check reads
_ID, _QUERY, _DOCUMENT, _GRADE = ("_id", "id"), ("query-id",), ("corpus-id",), ("score",)

BUILTIN_RETRIEVAL = {"en": "builtin_retrieval", "zh": "builtin_retrieval_zh"}  # names of the generated sets
# Commits are those that mteb 2.26 pins.
NANO = {
    "NanoArguAna": "mteb/NanoArguAnaRetrieval@63ac9f026e8f6b85dc0622f3d630ed7a1758e9ec",
    "NanoClimateFEVER": "mteb/NanoClimateFeverRetrieval@ccb5552bc17e87afe0f9479fb4346898213a71db",
    "NanoDBPedia": "mteb/NanoDBPediaRetrieval@2d088f80d7a640eac0be5c66408d68c3f782baa1",
    "NanoFEVER": "mteb/NanoFEVERRetrieval@a6490dfeed0f13c2a052e39c6ddaeb6086afd4a8",
    "NanoFiQA2018": "mteb/NanoFiQA2018Retrieval@ede84da4793cd2d4e61bba0dd08fc58de90f3681",
    "NanoHotpotQA": "mteb/NanoHotpotQARetrieval@a38a2615f29adba8b47a42905031aa9c137d8fae",
    "NanoMSMARCO": "mteb/NanoMSMARCORetrieval@5a5aa0c3df65d6883d85c8f5cdc88e679633595e",
    "NanoNFCorpus": "mteb/NanoNFCorpusRetrieval@2eec9d63140fb9af7c75ad0fdbf6350aaf20e94e",
    "NanoNQ": "mteb/NanoNQRetrieval@e3973b405feb9e94d07fd971d690d24d7f45264a",
    "NanoQuoraRetrieval": "mteb/NanoQuoraRetrieval@3ee153e5710da83a7f35df0cb1db4a0ad036072a",
    "NanoSCIDOCS": "mteb/NanoSCIDOCSRetrieval@cf39b8741a6f2e984d0b8f4796b2dd5bb65390f9",
    "NanoSciFact": "mteb/NanoSciFactRetrieval@8c5f7bbe90bb865f46c67710221afa7d9096251b",
    "NanoTouche2020": "mteb/NanoTouche2020Retrieval@ff81c0caff8b6febe1495eae9f2ca3eddad074b8",
}


@dataclass(frozen=True)
class Retrieval:
    """A retrieval set.

    name: short name, the `nfcorpus` of `nfcorpus_ndcg10_dev`.
    documents: (n,) title and text joined by a blank; document_ids: (n,) of them.
    queries, query_ids: (q,) those with judgements.
    grades: per query, document id -> grade, > 0 = relevant (also of documents that the corpus lacks).
    """

    name: str
    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    grades: Sequence[Mapping[str, int]]
    revision: str


def is_beir(folder: Path) -> bool:
    """Whether a folder is laid out as a retrieval set."""
    return os.path.isdir(folder / QRELS)


def folder_entry(name: str) -> str:
    """An entry of `data.dev` or a test set; a bare name of a BEIR folder here becomes its path."""
    return f".{os.sep}{name}" if name and os.sep not in name and is_beir(Path(name)) else name


def is_retrieval(name: str) -> bool:
    """Whether an entry of `data.dev` is a retrieval set: a folder, a whole repository, or a known name."""
    if is_hub(name):
        return name.count(":") == 1
    folder = os.sep in name and kind_of(Path(name)) is None and not os.path.isfile(os.path.expanduser(name))
    return name in NANO or name in BUILTIN_RETRIEVAL.values() or folder


def dev_metrics(name: str) -> list[str]:
    """The metrics that an entry of `data.dev` gives, the first as its main one.

    >>> dev_metrics("stsb"), dev_metrics("my/nfcorpus")[:2]
    (['stsb_dev'], ['nfcorpus_ndcg10_dev', 'nfcorpus_mrr10_dev'])
    """
    short = set_name(name)
    return [f"{short}_{m}{DEV_SUFFIX}" for m in RETRIEVAL_MEASURES] if is_retrieval(name) else [short + DEV_SUFFIX]


def load_retrieval(name: str, split: str = "dev") -> Retrieval:
    """A retrieval set by folder, hub repository or name.

    Args: split: "dev" or "test", whose judgements are read.

    Raises: DataError in one line, naming file and line where something is not in the expected form.
    """
    folder, revision = _folder(name)
    read = _Reading(folder, split)
    for note in read.notes:
        log.warning("%s: %s", name, note)
    return Retrieval(
        set_name(name),
        list(read.documents),
        list(read.documents.values()),
        list(read.grades),
        [read.queries[query] for query in read.grades],
        list(read.grades.values()),
        revision or f"sha256:{read.digest.hexdigest()[:12]}",
    )


def check_retrieval(name: str, local_only: bool = False) -> str:
    """Pre-flight: the set as a trial reads it, of each file the first CHECKED bytes (a repository: it answers).

    Args:
        local_only: skip repositories; else query the hub.
    Returns: what is replaced, not found or not read, in one line; "" if nothing.
    Raises: DataError as `load_retrieval`.
    """
    repository = name in NANO or is_hub(name)
    if local_only and repository:
        return ""
    folder, _ = _folder(name, download=False)
    if repository and not folder.is_dir():
        return ""
    notes = _Reading(folder, most=CHECKED).notes
    return f"{set_name(name)}: {'; '.join(notes)}" if notes else ""


def retrieval_files(name: str) -> list[Path]:
    """The files of a local retrieval set; none of a repository."""
    folder = Path(name).expanduser()
    if name in NANO or is_hub(name):
        return []
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()})


class _Reading:
    """A retrieval set that is read whole, or of each file the first `most` bytes.

    Attributes: documents, queries, grades: by id; notes: what is replaced, not found or not read; digest: of what was
        read.
    Raises: DataError as `load_retrieval`.
    """

    def __init__(self, folder: Path, split: str = "dev", most: float = math.inf) -> None:
        self.folder, self.split, self.most = folder, split, most
        self.digest = hashlib.sha256()
        self.notes: list[str] = []
        self._replaced: list[str] = []  # where half a surrogate pair was
        self._cut: set[str] = set()  # parts that were not read to their ends
        self.documents: dict[str, str] = {}
        self.queries: dict[str, str] = {}
        self.grades: dict[str, dict[str, int]] = {}
        for where, row in self._rows(CORPUS):
            title, text = self._text(where, row, "title").strip(), self._text(where, row, "text")
            self.documents[self._fresh(where, row, self.documents)] = f"{title} {text}".strip() if title else text
        for where, row in self._rows(QUERIES):
            self.queries[self._fresh(where, row, self.queries)] = self._text(where, row, "text")
        self._judge()
        if self._replaced:
            self.notes.append(replaced_note(self._replaced[0], len(self._replaced)))
        if self._cut:
            parts = ", ".join(part for part in (CORPUS, QUERIES, QRELS) if part in self._cut)
            self.notes.append(f"checked the first {most / 1e6:.0f} MB of {parts}")

    def _judge(self) -> None:
        judged: dict[tuple[str, str], str] = {}
        missing: list[str] = []
        for where, row in self._judgements():
            query, document = self._field(where, row, _QUERY), self._field(where, row, _DOCUMENT)
            grade, first = _grade(where, row), judged.setdefault((query, document), where)
            if query not in self.queries:
                if QUERIES in self._cut:
                    continue
                raise DataError(f"{where}: query {query!r} is not in {QUERIES}")
            if (known := self.grades.setdefault(query, {}).setdefault(document, grade)) != grade:
                raise DataError(
                    f"{where}: query {query!r}, document {document!r}: score {grade}, but {known} at {first}"
                )
            if document not in self.documents and first is where:
                missing.append(f"{where}: {document!r}")
        complete = not self._cut
        if complete and not (self.documents and self.grades):
            got = f"{len(self.documents)} and {len(self.grades)}"
            raise DataError(f"{self.folder}: expected documents and judged queries, got {got}")
        relevant = [d for grades in self.grades.values() for d, grade in grades.items() if grade > 0]
        if complete and not relevant:
            raise DataError(f"{self.folder}: no query has a relevant document (a score above 0 in {QRELS})")
        if complete and not any(document in self.documents for document in relevant):
            raise DataError(f"{self.folder}: no relevant document is in {CORPUS} (first {missing[0]})")
        if missing and CORPUS not in self._cut:
            count = len(missing)
            self.notes.append(
                f"{count} judged documents are not in the corpus (first {missing[0]}); they count as never found"
            )

    def _rows(self, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(place, row) of the documents or queries."""
        for path in (self.folder / f"{part}.jsonl", self.folder / f"{part}.jsonl.gz"):
            if path.is_file():
                yield from self._json_lines(part, path)
                return
        yield from self._parquet(part, sorted((self.folder / part).glob("*.parquet")), f"{part}.jsonl")

    def _json_lines(self, part: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        read = 0
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    read += len(line)
                    if read > self.most:
                        self._cut.add(part)
                        return
                    self.digest.update(line)
                    if line.strip():
                        yield f"{path}:{number}", _json_object(f"{path}:{number}", line, number == 1)
        except UNREADABLE as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error

    def _parquet(self, part: str, files: list[Path], instead: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if not files:
            raise DataError(f"{self.folder}: expected {instead} (a retrieval set in BEIR's layout), found no such file")
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        read = 0
        for path in files:
            number = 0
            try:
                for batch in ParquetFile(path).iter_batches(4096):
                    read += batch.nbytes
                    if read > self.most:
                        self._cut.add(part)
                        return
                    for row in batch.to_pylist():
                        number += 1
                        self.digest.update(repr(row).encode())
                        yield f"{path}:{number}", row
            except DataError:
                raise
            except (OSError, ValueError, ArrowException) as error:
                raise DataError(f"{path}: cannot be read as Parquet: {first_line(error)}") from error

    def _judgements(self) -> Iterator[tuple[str, dict[str, Any]]]:
        folder, split = self.folder / QRELS, self.split
        path = folder / f"{split}.tsv"
        if path.is_file():
            yield from self._tsv(path)
            return
        files = sorted(folder.glob("*.parquet"))
        wanted = [f for f in files if f.name.startswith(split)]
        if not wanted and len({f.name.split("-")[0] for f in files}) > 1:
            got = ", ".join(f.name for f in files)
            raise DataError(f"{folder}: expected {split}.tsv or {split}*.parquet, got {got}")
        yield from self._parquet(QRELS, wanted or files, f"{QRELS}/{split}.tsv")

    def _tsv(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Judgements as BEIR's own loader reads them: fields may be quoted, the first line is a header.

        Columns of other names are taken in their order: query, document, score.
        """
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(self._lines(file), delimiter="\t", strict=True)
                rows = _rows_of(path, reader)
                header = next(rows, [])
                if len(header) > 2 and _is_whole(header[2]):
                    raise DataError(f"{path}:1: expected a header such as query-id, corpus-id, score, got a judgement")
                if not {*_QUERY, *_DOCUMENT} <= set(header):
                    header = [*_QUERY, *_DOCUMENT, *_GRADE][: len(header)] + header[3:]
                for cells in rows:
                    where = f"{path}:{reader.line_num}"
                    if not any(cells):
                        continue
                    if len(cells) != len(header):
                        raise DataError(f"{where}: expected {len(header)} fields, got {len(cells)}")
                    if any("\n" in cell or "\r" in cell for cell in cells):
                        raise DataError(f"{where}: a field of several lines; is a quotation mark missing?")
                    yield where, dict(zip(header, cells, strict=True))
        except UNREADABLE as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error

    def _lines(self, file: Iterable[str]) -> Iterator[str]:
        read = 0
        for line in file:
            read += len(line)
            if read > self.most:
                self._cut.add(QRELS)
                return
            self.digest.update(line.encode())
            yield line

    def _fresh(self, where: str, row: Mapping[str, Any], known: Mapping[str, str]) -> str:
        name = self._field(where, row, _ID)
        if name in known:
            raise DataError(f"{where}: id {name!r} is given twice")
        return name

    def _field(self, where: str, row: Mapping[str, Any], names: tuple[str, ...]) -> str:
        for name in names:
            if isinstance(value := row.get(name), (str, int)) and not isinstance(value, bool):
                return str(value)
        got = next((f"{n}: {str(row[n])[:60]}" for n in names if n in row), ", ".join(row) or "nothing")
        raise DataError(f"{where}: expected a field {' or '.join(names)} with text, got {got}")

    def _text(self, where: str, row: Mapping[str, Any], name: str) -> str:
        """A title or a text by the rules of `cells`; only a title may be missing."""
        try:
            text = text_of(row.get(name), lambda: self._replaced.append(where))
        except ValueError as error:
            raise DataError(f"{where}: {name}: {error}") from None
        if not text and name != "title" and row.get(name) != "":
            got = row.get(name, ", ".join(row) or "nothing")
            raise DataError(f"{where}: expected a field {name} with text, got {got}")
        return text


def _folder(name: str, download: bool = True) -> tuple[Path, str | None]:
    """Where the files lie, and the revision of a repository or builtin set."""
    for language, known in BUILTIN_RETRIEVAL.items():
        if name == known:
            return builtin.FOLDER / f"{language}_retrieval", BUILTIN
    if name in NANO or is_hub(name):
        where = hub_name(f"hub:{NANO[name]}" if name in NANO else name)
        return snapshot(where, PATTERNS, download=download), where.revision
    return find_folder(name), None


def find_folder(name: str) -> Path:
    """A local retrieval set's folder.

    Raises: DataError if there is no such folder.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"data folder {name!r}: does not exist in {folder.absolute().parent}; expected a retrieval set "
            "with corpus.jsonl, queries.jsonl and qrels/dev.tsv"
        )
    return folder


def _rows_of(path: Path, reader: Any) -> Iterator[list[str]]:
    """What a `csv.reader` gives, its faults with their line."""
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; is a quotation mark missing?") from error


def _json_object(where: str, line: bytes, first: bool) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if first else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: cannot be read as UTF-8 text: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise DataError(f"{where}: not JSON: {first_line(error)}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object, got {type(row).__name__}")
    return row


def _grade(where: str, row: Mapping[str, Any]) -> int:
    """Relevance; files without the column judge by being there."""
    value = row.get(_GRADE[0], 1)
    if _is_whole(value):
        return int(float(value))
    raise DataError(f"{where}: expected a whole number as score, got {value!r}")


def _is_whole(value: Any) -> bool:
    try:
        return float(value).is_integer() and abs(float(value)) < 2**31 and not isinstance(value, bool)
    except (TypeError, ValueError, OverflowError):
        return False
