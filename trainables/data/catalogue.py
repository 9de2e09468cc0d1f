"""Where named data sets live and how their files are read: `SEARCH_DATA_DIR` first, then the Hugging Face hub.

Files are UTF-8, optionally gzipped: `.tsv` (header line, no quoting), `.csv` (header line, quoted as usual), `.jsonl`,
`.parquet`, or `.txt` (one sentence a line, no header). No torch, no pandas: a pre-flight check imports this.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_DIR_VARIABLE = "SEARCH_DATA_DIR"
TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
SUFFIXES = (*TABLES, ".txt")
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)  # what a damaged file raises
HUB_SECONDS = 10.0  # how long the hub may take to answer before it counts as unreachable


class DataError(ValueError):
    """Data is missing, unreachable or not in the promised form; the message is one line for people."""


@dataclass(frozen=True)
class Hub:
    """A data set repository on the hub at a pinned commit; `files` maps a split to a file name pattern."""

    repo: str
    revision: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """A file that was found. revision: `repo@commit` on the hub, `sha256:<12 digits>` of a local file."""

    path: Path
    hub: Hub | None = None

    @property
    def revision(self) -> str:
        if self.hub is not None:
            return f"{self.hub.repo}@{self.hub.revision}"
        with self.path.open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()[:12]


_TEST_ONLY = {"test": "test.jsonl.gz"}
_MTEB = {"train": "train.jsonl.gz", "dev": "validation.jsonl.gz", **_TEST_ONLY}
_C_MTEB = {"train": "data/train-*.parquet", "dev": "data/validation-*.parquet", "test": "data/test-*.parquet"}
_SIMCSE = ("princeton-nlp/datasets-for-simcse", "e145e8bb659b2aa2669f32ef79cb4cdef6c58fef")

# Revisions are those that the MTEB and C-MTEB leaderboards pin. mteb/sickr-sts has the test part only.
HUB: dict[tuple[str, str], Hub] = {
    ("en", "stsb"): Hub("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", _MTEB),
    ("en", "sickr"): Hub("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", _TEST_ONLY),
    ("en", "sts12"): Hub("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", _TEST_ONLY),
    ("en", "sts13"): Hub("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", _TEST_ONLY),
    ("en", "sts14"): Hub("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", _TEST_ONLY),
    ("en", "sts15"): Hub("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", _TEST_ONLY),
    ("en", "sts16"): Hub("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", _TEST_ONLY),
    ("en", "wiki"): Hub(*_SIMCSE, {"train": "wiki1m_for_simcse.txt"}),
    ("en", "nli"): Hub(*_SIMCSE, {"train": "nli_for_simcse.csv"}),
    ("zh", "stsb"): Hub("C-MTEB/STSB", "0cde68302b3541bb8b3c340dc0644b0b745b3dc0", _C_MTEB),
    ("zh", "atec"): Hub("C-MTEB/ATEC", "0f319b1142f28d00e055a6770f3f726ae9b7d865", _C_MTEB),
    ("zh", "bq"): Hub("C-MTEB/BQ", "e3dda5e115e487b39ec7e618c0c6a29137052a55", _C_MTEB),
    ("zh", "lcqmc"): Hub("C-MTEB/LCQMC", "17f9b096f80380fce5ed12a9be8be7784b337daf", _C_MTEB),
    ("zh", "pawsx"): Hub("C-MTEB/PAWSX", "9c6a90e430ac22b5779fb019a23e820b11a8b5e1", _C_MTEB),
}


def data_dir() -> Path | None:
    """The folder of local data sets, or None when `SEARCH_DATA_DIR` is not set.

    Raises: DataError if it is set to something that is no folder.
    """
    value = os.environ.get(DATA_DIR_VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataError(f"{DATA_DIR_VARIABLE}: expected a folder, got {value!r}; correct or unset it")
    return folder


def kind_of(path: Path) -> str | None:
    """The suffix that says how a file is read (".tsv" for "x.tsv.gz"), or None."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in SUFFIXES else None


def is_path(name: str) -> bool:
    """Whether a `data:` entry means a file rather than a named set."""
    return kind_of(Path(name)) is not None or os.sep in name


def stems(language: str, name: str, split: str) -> list[str]:
    """File names without suffix under which a split of a named set is looked for, the first wins."""
    base = f"{language}_{name}"
    if split == "train":
        return [f"{base}_train", f"{base}_triplets", f"{base}_sentences", base]
    return [f"{base}_{split}", base] if split == "test" else [f"{base}_{split}"]


def find_local(name: str, language: str, split: str) -> Source | None:
    """The file of a named set in `SEARCH_DATA_DIR`, or None.

    A training file may carry an addition to its name that says which part it is (`zh_bq_train_part.tsv`).
    """
    folder = data_dir()
    if folder is None:
        return None
    files = {p.name.removesuffix(".gz").rsplit(".", 1)[0]: p for p in sorted(folder.iterdir()) if kind_of(p)}
    wanted = stems(language, name, split)
    found = [files[stem] for stem in wanted if stem in files]
    if not found and split == "train":
        found = [p for stem, p in files.items() if stem.startswith(wanted[0])]
    return Source(found[0]) if found else None


def find_named(name: str, language: str, split: str, *, download: bool = True) -> Source:
    """The file of a named set: `SEARCH_DATA_DIR`, then the hub's cache on this machine, then the hub.

    Args:
        download: False = only ask the hub whether the file is there; the path is then the name it would have.
    Raises: DataError saying what was looked for, where, and what to do.
    """
    if (local := find_local(name, language, split)) is not None:
        return local
    looked = f"{stems(language, name, split)[0]}.tsv in {data_dir() or DATA_DIR_VARIABLE + ' (not set)'}"
    remedy = f"put the file into the folder that {DATA_DIR_VARIABLE} names"
    hub = HUB.get((language, name))
    if hub is None:
        raise DataError(f"data set {name!r} ({language}): {_unknown(name, language)}; looked for {looked}; {remedy}")
    if split not in hub.files:
        has = ", ".join(hub.files)
        raise DataError(
            f"data set {name!r} ({language}): no {split} part; looked for {looked}; {hub.repo} has: {has}; {remedy}"
        )
    try:
        return Source(_from_hub(hub, hub.files[split], download), hub)
    except Exception as error:  # hub, HTTP client and operating system errors have no common base class
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"data set {name!r} ({language}): looked for {looked}, then {hub.files[split]} of {hub.repo}@"
            f"{hub.revision[:12]} on the hub: {reason[:200]}; check the network or {remedy}"
        ) from error


def _from_hub(hub: Hub, pattern: str, download: bool) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    where = {"repo_id": hub.repo, "repo_type": "dataset", "revision": hub.revision}
    try:
        cached = Path(snapshot_download(**where, local_files_only=True))
        if files := sorted(cached.glob(pattern)):
            return files[0]
    except LocalEntryNotFoundError:
        pass
    # One question with a time limit first: the download functions retry an unreachable hub for half a minute.
    info = HfApi().dataset_info(hub.repo, revision=hub.revision, timeout=HUB_SECONDS)
    names = sorted(s.rfilename for s in info.siblings or () if fnmatch.fnmatch(s.rfilename, pattern))
    if not names:
        raise DataError(f"the repository has no file {pattern}")
    return Path(hf_hub_download(filename=names[0], **where)) if download else Path(names[0])


def _unknown(name: str, language: str) -> str:
    known = sorted(n for lang, n in HUB if lang == language)
    others = sorted(lang for lang, n in HUB if n == name)
    if others:
        return f"known for language {', '.join(others)} only"
    close = difflib.get_close_matches(name, [*known, "builtin"], n=1)
    return f"unknown; did you mean {close[0]!r}?" if close else f"unknown; known: builtin, {', '.join(known)}"


def find_file(name: str, split: str) -> Source:
    """A data file by path; `{split}` in it stands for train, dev or test.

    Raises: DataError if it does not exist or its kind is unknown.
    """
    path = Path(name.replace("{split}", split)).expanduser()
    if not path.is_file():
        raise DataError(f"data file {str(path)!r}: does not exist (looked in {path.absolute().parent}); check the path")
    if kind_of(path) is None:
        raise DataError(
            f"data file {str(path)!r}: expected one of {', '.join(SUFFIXES)} (or with .gz), got {path.name}"
        )
    return Source(path)


Pick = Callable[[Sequence[str]], Mapping[str, str]]  # column names of a file -> role: column name


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
