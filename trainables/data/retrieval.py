"""Retrieval sets in BEIR's layout (Thakur et al. 2021): documents, queries, and which documents answer which query.

A folder, or a data set repository of the hub at a pinned commit, with

    corpus.jsonl     {"_id": ..., "title": ..., "text": ...} a line     or corpus/*.parquet
    queries.jsonl    {"_id": ..., "text": ...} a line                   or queries/*.parquet
    qrels/dev.tsv    query-id, corpus-id, score; with a header          or qrels/dev*.parquet (or one other split)

(`.jsonl` also gzipped.) NanoBEIR's sets are known by name (`NanoNFCorpus`); their one split selects here. So are the
generated ones, `builtin_retrieval` and `builtin_retrieval_zh`. No torch.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.contract.errors import DataError
from trainables.contract.trial import DEV_SUFFIX, RETRIEVAL_MEASURES
from trainables.data import builtin
from trainables.data.catalogue import BUILTIN, hub_name, is_hub, set_name, snapshot
from trainables.data.files import UNREADABLE, kind_of

log = logging.getLogger(__name__)

CORPUS, QUERIES, QRELS = "corpus", "queries", "qrels"
PATTERNS = ("corpus.jsonl*", "queries.jsonl*", "qrels/dev.tsv", "corpus/*.parquet", "queries/*.parquet", "qrels/*")
_ID, _TEXT, _QUERY, _DOCUMENT, _GRADE = ("_id", "id"), ("text",), ("query-id",), ("corpus-id",), ("score",)

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
    return folder.is_dir() and (folder / QRELS).is_dir()


def is_retrieval(name: str) -> bool:
    """Whether an entry of `data.dev` is a retrieval set: a folder, a whole repository, or a known name."""
    if is_hub(name):
        return name.count(":") == 1
    return name in NANO or name in BUILTIN_RETRIEVAL.values() or (os.sep in name and kind_of(Path(name)) is None)


def dev_metrics(name: str) -> list[str]:
    """The metrics that an entry of `data.dev` gives, the first as its main one.

    >>> dev_metrics("stsb"), dev_metrics("my/nfcorpus")[:2]
    (['stsb_dev'], ['nfcorpus_ndcg10_dev', 'nfcorpus_mrr10_dev'])
    """
    short = set_name(name)
    return [f"{short}_{m}{DEV_SUFFIX}" for m in RETRIEVAL_MEASURES] if is_retrieval(name) else [short + DEV_SUFFIX]


def load_retrieval(name: str) -> Retrieval:
    """A retrieval set by folder, hub repository or name.

    Raises: DataError in one line, naming file and line where something is not in the promised form.
    """
    folder, revision = _folder(name)
    digest = hashlib.sha256()
    documents: dict[str, str] = {}
    for where, row in _rows(folder, CORPUS, digest):
        title = str(row.get("title") or "").strip()
        text = _field(where, row, _TEXT)
        documents[_fresh(where, row, documents)] = f"{title} {text}".strip() if title else text
    queries: dict[str, str] = {}
    for where, row in _rows(folder, QUERIES, digest):
        queries[_fresh(where, row, queries)] = _field(where, row, _TEXT)
    grades: dict[str, dict[str, int]] = {}
    missing = 0
    for where, row in _judgements(folder, digest):
        query, document = _field(where, row, _QUERY), _field(where, row, _DOCUMENT)
        if query not in queries:
            raise DataError(f"{where}: query {query!r} is not in {QUERIES}")
        grades.setdefault(query, {})[document] = _grade(where, row)
        missing += document not in documents
    if not documents or not grades:
        raise DataError(f"{folder}: expected documents and judged queries, got {len(documents)} and {len(grades)}")
    if not any(grade > 0 for judged in grades.values() for grade in judged.values()):
        raise DataError(f"{folder}: no query has a relevant document (a score above 0 in {QRELS})")
    if missing:
        log.warning("%s: %d judged documents are not in the corpus; they count as never found", name, missing)
    return Retrieval(
        set_name(name),
        list(documents),
        list(documents.values()),
        list(grades),
        [queries[query] for query in grades],
        list(grades.values()),
        revision or f"sha256:{digest.hexdigest()[:12]}",
    )


def check_retrieval(name: str, local_only: bool = False) -> str:
    """Pre-flight: the files are there (a repository: it answers) and begin as they should.

    Args:
        local_only: skip repositories; else the hub is asked.
    Returns: "", nothing is left out.
    Raises: DataError as `load_retrieval`.
    """
    repository = name in NANO or is_hub(name)
    if local_only and repository:
        return ""
    folder, _ = _folder(name, download=False)
    if repository and not folder.is_dir():
        return ""
    for part in (CORPUS, QUERIES):
        where, row = next(_rows(folder, part), (str(folder), {}))
        _fresh(where, row, {})
        _field(where, row, _TEXT)
    where, row = next(_judgements(folder), (str(folder), {}))
    _field(where, row, _QUERY)
    _field(where, row, _DOCUMENT)
    _grade(where, row)
    return ""


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
            f"data folder {name!r}: does not exist (looked in {folder.absolute().parent}); expected a retrieval set "
            "with corpus.jsonl, queries.jsonl and qrels/dev.tsv"
        )
    return folder


def _rows(folder: Path, part: str, digest: Any = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of the documents or queries; what was read goes into the digest."""
    for path in (folder / f"{part}.jsonl", folder / f"{part}.jsonl.gz"):
        if path.is_file():
            yield from _json_lines(path, digest)
            return
    yield from _parquet(folder, sorted((folder / part).glob("*.parquet")), f"{part}.jsonl", digest)


def _json_lines(path: Path, digest: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if digest:
                    digest.update(line)
                if not line.strip():
                    continue
                where = f"{path}: line {number}"
                try:
                    row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except json.JSONDecodeError as error:
                    raise DataError(f"{where}: not JSON: {error.msg}") from error
                if not isinstance(row, dict):
                    raise DataError(f"{where}: expected an object, got {type(row).__name__}")
                yield where, row
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _parquet(folder: Path, files: list[Path], instead: str, digest: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if not files:
        raise DataError(f"{folder}: expected {instead} (a retrieval set in BEIR's layout), found no such file")
    from pyarrow.parquet import ParquetFile

    for path in files:
        number = 0
        for batch in ParquetFile(path).iter_batches(4096):
            for row in batch.to_pylist():
                number += 1
                if digest:
                    digest.update(repr(row).encode())
                yield f"{path}: row {number}", row


def _judgements(folder: Path, digest: Any = None) -> Iterator[tuple[str, dict[str, Any]]]:
    path = folder / QRELS / "dev.tsv"
    if not path.is_file():
        files = sorted((folder / QRELS).glob("*.parquet"))
        dev = [f for f in files if f.name.startswith("dev")]
        if not dev and len({f.name.split("-")[0] for f in files}) > 1:
            raise DataError(
                f"{folder / QRELS}: expected dev.tsv or dev*.parquet, got {', '.join(f.name for f in files)}"
            )
        yield from _parquet(folder, dev or files, f"{QRELS}/dev.tsv", digest)
        return
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline().rstrip("\r\n").split("\t")
            for number, line in enumerate(file, start=2):
                if digest:
                    digest.update(line.encode())
                if cells := line.rstrip("\r\n").split("\t"):
                    if len(cells) != len(header):
                        raise DataError(f"{path}: line {number}: expected {len(header)} fields, got {len(cells)}")
                    yield f"{path}: line {number}", dict(zip(header, cells, strict=True))
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _fresh(where: str, row: Mapping[str, Any], known: Mapping[str, str]) -> str:
    name = _field(where, row, _ID)
    if name in known:
        raise DataError(f"{where}: id {name!r} is given twice")
    return name


def _field(where: str, row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if name in row and isinstance(row[name], (str, int)):
            return str(row[name])
    raise DataError(f"{where}: expected a field {' or '.join(names)} with text, got {', '.join(row) or 'nothing'}")


def _grade(where: str, row: Mapping[str, Any]) -> int:
    """Relevance; files without the column judge by being there."""
    value = row.get(_GRADE[0], 1)
    try:
        grade = int(value)
        if grade == float(value):
            return grade
    except (TypeError, ValueError):
        pass
    raise DataError(f"{where}: expected a whole number as score, got {value!r}")
