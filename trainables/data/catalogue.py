"""Where data sets are: files, `SEARCH_DATA_DIR`, the Hugging Face hub at pinned commits. No torch: checks import this.

A set is named (`stsb`), a path, or `hub:owner/name@<40 hexadecimal digits>`. A named set is looked up in
`SEARCH_DATA_DIR` first. What was downloaded once stays in the hub's cache: a later run needs no network.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainables.contract.errors import DataError, close_to
from trainables.data import builtin
from trainables.data.files import SUFFIXES, folder_files, kind_of, matching

DATA_DIR_VARIABLE = "SEARCH_DATA_DIR"
HUB_SECONDS = 10.0  # how long the hub may take to answer before it counts as unreachable
HUB_PREFIX = "hub:"
_HUB_NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})((?::[\w.-]+){0,2})")
BUILTIN, BUILTIN_LANGUAGES = "builtin", builtin.LANGUAGES
EDACSE = "edacse-zh"
EDACSE_PARTS = ("atec", "bq", "lcqmc", "pawsx", "stsb")  # methods 3.2
OTHER_KINDS = {  # files that people have, and that are not read
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "a spreadsheet"),
    **dict.fromkeys((".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz"), "an archive or compressed otherwise"),
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".npy", ".npz"), "an object that Python saved"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "a database"),
}
SUITES = {  # the test sets of a language, sealed until a study is tested
    "en": ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"),
    "zh": ("atec", "bq", "lcqmc", "pawsx", "stsb"),
}


@dataclass(frozen=True)
class Hub:
    """A data set repository on the hub at a pinned commit; `files` maps a split to a file name pattern."""

    repo: str
    revision: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class HubName:
    """A data set repository at a commit. parts: what follows it, `config` and `split` of a table; empty = the whole."""

    repo: str
    commit: str
    parts: tuple[str, ...] = ()

    @property
    def revision(self) -> str:
        return f"{self.repo}@{self.commit}"


@dataclass(frozen=True)
class Source:
    """A file that was found. pinned: what it is the file of, where that cannot change: `repo@commit`, `builtin`."""

    path: Path
    pinned: str = ""

    @property
    def revision(self) -> str:
        return self.pinned or "sha256:" + self.digest[:12]

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal digits: of the file, or of the digests of several files."""
        digests = []
        for path in matching(self.path):
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256"))
        return (digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(d.digest() for d in digests))).hexdigest()


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


def is_path(name: str) -> bool:
    """Whether a `data:` entry means a file rather than a named set."""
    return kind_of(Path(name)) is not None or os.sep in name or ("." in name and os.path.isfile(name))


def train_parts(train: str) -> list[str]:
    """The entries of `data.train`, joined by `+` unless that is in a file's name."""
    return [train] if os.path.isfile(os.path.expanduser(train)) else [part.strip() for part in train.split("+")]


def set_name(name_or_path: str) -> str:
    """The short name of a set in metrics: `stsb`; of a file, folder or repository, its name without `_dev` and such.

    >>> set_name("data/My pairs_dev.tsv.gz")
    'My_pairs'
    """
    if not is_path(name_or_path):
        return name_or_path
    path = name_or_path.partition("@")[0] if name_or_path.startswith("hub:") else name_or_path
    stem = Path(path).name.removesuffix(".gz").rsplit(".", 1)[0]
    return re.sub(r"[^\w-]+", "_", re.sub(r"[_-]?(dev|test|\{split\})$", "", stem)).strip("_") or "pairs"


_SPLIT = re.compile(r"(?:^|[\W_])(test|train)(?:ing|set)?(?:$|[\W_\d])", re.IGNORECASE)
_AGAINST = {"test": "what selects cannot be tested on afterwards", "train": "what selects is not to be trained on"}


def check_split(name: str) -> str:
    """A note where the name of an entry of `data.dev` is that of another split, "" if it is not.

    Raises: DataError for a sealed test set, by its place, content or repository: who selects on it has opened it.
    """
    if not is_path(name):
        return ""
    if (sealed := _sealed(name)) is not None:
        raise DataError(
            f"data.dev {name}: it is the sealed test set {sealed}; select on another set, and open this one with "
            "`analysis test`"
        )
    stem = name.rpartition(":")[2] if is_hub(name) else Path(name).name.removesuffix(".gz").rsplit(".", 1)[0]
    found = _SPLIT.search(stem)
    return f"data.dev {name}: its name contains {found[1]}: {_AGAINST[found[1].lower()]}" if found else ""


def _sealed(name: str) -> str | None:
    """The named set whose test part an entry of `data.dev` is."""
    if is_hub(name):
        where = hub_name(name)
        same = [key for key, hub in HUB.items() if hub.repo == where.repo and where.parts[-1:] == ("test",)]
        return next((f"{sealed} ({of})" for of, sealed in same if sealed in SUITES.get(of, ())), None)
    paths = matching(Path(name.replace("{split}", "dev")).expanduser())
    for of, sets in SUITES.items() if paths else ():
        for sealed in sets:
            test = find_local(sealed, of, "test")
            if test is not None and any(_same_file(path, test) for path in paths):
                return f"{sealed} ({of})"
    return None


def _same_file(path: Path, test: Source) -> bool:
    if path.samefile(test.path):
        return True
    return path.stat().st_size == test.path.stat().st_size and Source(path).digest == test.digest


def stems(language: str, name: str, split: str) -> list[str]:
    """File names without suffix that a split of a named set may have; the first found is taken."""
    base = f"{language}_{name}"
    if split == "train":
        return [f"{base}_train", f"{base}_triplets", f"{base}_sentences", base]
    return [f"{base}_{split}", base] if split == "test" else [f"{base}_{split}"]


def find_local(name: str, language: str, split: str) -> Source | None:
    """The file of a named set in `SEARCH_DATA_DIR`, or None.

    The name of a training file may go on after `train` (`zh_bq_train_part.tsv`).
    """
    folder = data_dir()
    if folder is None:
        return None
    wanted = stems(language, name, split)
    there = sorted(p for p in folder.iterdir() if p.name.startswith(wanted[-1]))
    files = {p.name.removesuffix(".gz").rsplit(".", 1)[0]: p for p in there if kind_of(p)}
    found = [files[stem] for stem in wanted if stem in files]
    if not found and split == "train":
        found = [p for stem, p in files.items() if stem.startswith(wanted[0])]
    return Source(found[0]) if found else None


def beside_dev(dev: str) -> str | None:
    """The path, from here if it lies below, of the test set that lies beside a dev set of own data."""
    folder, name = os.path.split(dev.rstrip("/"))
    path = os.path.join(folder, "test".join(name.rsplit("dev", 1)))
    if "dev" not in name or not os.path.exists(path):
        return None
    below = os.path.relpath(path)
    return path if below.startswith("..") else os.path.join(".", below)


def unlisted(name: str, language: str, split: str) -> str | None:
    """Why the catalogue has no such set or no such part of it, with what to do, in one line; None if it has."""
    hub = HUB.get((language, name))
    corpus = split == "train" and name == EDACSE
    if name == BUILTIN and language not in BUILTIN_LANGUAGES:
        return f"{name!r} is made in {', '.join(BUILTIN_LANGUAGES)} only, not in {language}"
    if name == BUILTIN or (hub and split in hub.files) or (corpus and language == "zh"):
        return None
    if hub:
        return f"{name!r} has no {split} part; {_remedy(name, language, split)}"
    if others := [other for other, known in HUB if known == name] or (["zh"] if corpus else []):
        return f"{name!r} is known for language {', '.join(others)} only, not {language}"
    names = [n for (lang, n), h in HUB.items() if lang == language and split in h.files]
    names += [BUILTIN, *([EDACSE] if split == "train" and language == "zh" else [])]
    if os.path.isfile(name):
        return f"{name!r} is a file without an ending; give it the one of its kind: {', '.join(SUFFIXES)}"
    unknown = f"unknown data set {name!r}"
    if hint := close_to(name, names):
        return unknown + hint
    layout = f"corpus.jsonl, queries.jsonl and qrels/{split}.tsv (BEIR's layout)"
    if split != "train" and os.path.isdir(name):
        return f"{name!r} is a folder without qrels: expected {layout}"
    folder = "" if split == "train" else f" or a folder with {layout}"
    return f"{unknown}; known: {', '.join(sorted(names))}; or give a file{folder}, or {_remedy(name, language, split)}"


def _remedy(name: str, language: str, split: str) -> str:
    return f"put {language}_{name}_{split}.tsv into the folder that {DATA_DIR_VARIABLE} names"


def find_named(name: str, language: str, split: str, *, download: bool = True) -> Source:
    """The file of a named set: `SEARCH_DATA_DIR`, then the hub's cache on this machine, then the hub.

    Args:
        split: train, dev or test; of the builtin set also sentences or triplets, its two train parts.
        download: False = only query the hub for the file, without a download; the path is then the name it would have.
    Raises: DataError with what is missing, where, and what to do.
    """
    if name == BUILTIN and language in BUILTIN_LANGUAGES:
        return Source(builtin.corpus_file(language, split), BUILTIN)
    if (local := find_local(name, language, split)) is not None:
        return local
    missing = f"no {stems(language, name, split)[0]}.tsv in {data_dir() or DATA_DIR_VARIABLE + ' (not set)'}"
    if wrong := unlisted(name, language, split):
        raise DataError(f"{wrong}; {missing}")
    hub = HUB[language, name]
    pattern, pinned = hub.files[split], HubName(hub.repo, hub.revision)
    try:
        folder = _download(pinned, [pattern], download)
        return Source(min(folder.glob(pattern), default=folder / pattern), pinned.revision)
    except Exception as error:  # hub, HTTP client and operating system errors have no common base class
        raise DataError(
            f"data set {name!r} ({language}): {missing}; {pattern} of {hub.repo}@{hub.revision[:12]} on the hub: "
            f"{_reason(error)}; check the network or {_remedy(name, language, split)}"
        ) from error


def find_table(name: str, *, download: bool = True) -> Source:
    """The Parquet files of `hub:owner/name@commit[:config]:split`; elsewhere CSV or JSON-lines of that name.

    Args:
        download: False = only query the hub for the repository; the path is then a name.
    Raises: DataError in one line for a name that is none, or that the hub does not have.
    """
    check_hub_name(name, whole=False)
    where = hub_name(name)
    *config, split = where.parts
    folders = [f"{config[0]}/"] if config else ["data/", ""]
    names = [f"{folder}{split}{rest}" for folder in folders for rest in ("-*.parquet", ".parquet", ".jsonl", ".csv")]
    folder = snapshot(where, names, download=download)
    found = [folder / n for n in names if matching(folder / n)]
    return Source(found[0] if found else folder / names[0], where.revision)


def find_file(name: str, split: str, *, download: bool = True) -> Source:
    """A data file by path, `*` in it standing for anything and `{split}` for train, dev or test; of training data also
    a folder of files of one kind; or a table of the hub (see `find_table`).

    Raises: DataError if it does not exist or its kind is unknown.
    """
    if is_hub(name):
        return find_table(name, download=download)
    path = Path(name.replace("{split}", split)).expanduser()
    if path.is_dir() and split == "train":
        return Source(folder_files(path))
    if path.is_dir():
        raise DataError(f"data file {str(path)!r}: expected a file, got a folder")
    if not matching(path):
        raise DataError(f"data file {str(path)!r}: does not exist in {path.absolute().parent}; check the path")
    if kind_of(path) is None:
        what = OTHER_KINDS.get(
            path.suffix.lower(), f"a {path.suffix} file" if path.suffix else "a file without an ending"
        )
        kinds = ", ".join(SUFFIXES)
        raise DataError(
            f"data file {str(path)!r}: is {what}, which is not read; save it as one of {kinds} (or with .gz)"
        )
    return Source(path)


def find_source(name: str, language: str, split: str, download: bool = True) -> Source:
    """The file of a set; see `find_file` and `find_named`."""
    return (
        find_file(name, split, download=download)
        if is_path(name)
        else find_named(name, language, split, download=download)
    )


def is_hub(name: str) -> bool:
    """Whether a `data:` entry names a repository on the hub."""
    return name.startswith(HUB_PREFIX)


def hub_name(name: str) -> HubName:
    """`hub:owner/name@commit[:config][:split]` taken apart.

    Raises: DataError for anything else: a branch or tag can move, and with it the data.
    """
    found = _HUB_NAME.fullmatch(name)
    if found is None:
        raise DataError(
            f"{name!r}: expected hub:owner/name@commit (or ...@commit:config:split), the commit as 40 hexadecimal "
            "digits: a branch can move, and with it the data"
        )
    return HubName(found[1], found[2], tuple(part for part in found[3].split(":") if part))


def check_hub_name(name: str, *, whole: bool) -> None:
    """That a name is of a whole repository (a retrieval set), or of a split of a table.

    Raises: DataError as `hub_name`, or if the split is missing.
    """
    if not hub_name(name).parts and not whole:
        raise DataError(f"{name!r}: expected hub:owner/name@commit:split or ...@commit:config:split, got no split")


def snapshot(name: HubName, patterns: Sequence[str], *, download: bool = True) -> Path:
    """The folder of a repository's files that match the patterns: the cache's, else downloaded.

    Args:
        download: False = only query the hub for the repository; the folder is then a name, and not there.
    Raises: DataError in one line if the hub cannot be reached or has no such repository, commit or file.
    """
    try:
        return _download(name, patterns, download)
    except Exception as error:  # hub, HTTP client and operating system errors have no common base class
        raise DataError(
            f"data set {HUB_PREFIX}{name.revision[: len(name.repo) + 13]}: not in the cache, and from the hub: "
            f"{_reason(error)}; check the name and the network"
        ) from error


def _download(name: HubName, patterns: Sequence[str], download: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    where = {"repo_id": name.repo, "repo_type": "dataset", "revision": name.commit}
    try:
        cached = Path(snapshot_download(**where, allow_patterns=list(patterns), local_files_only=True))
        there = [p.relative_to(cached).as_posix() for p in cached.rglob("*")]
        found = [name for name in there if any(fnmatch.fnmatch(name, g) for g in patterns)]
        if found and not _shards_lack(found):
            return cached
    except FileNotFoundError:  # huggingface_hub's "not in the cache" is one
        pass
    # One question with a time limit first: the download functions retry an unreachable hub for half a minute.
    info = HfApi().dataset_info(name.repo, revision=name.commit, timeout=HUB_SECONDS)
    files = [s.rfilename for s in info.siblings or ()]
    if not any(fnmatch.fnmatch(f, g) for f in files for g in patterns):
        raise DataError(f"it has no file {' or '.join(patterns)}")
    if not download:
        return Path(name.revision)
    return Path(snapshot_download(**where, allow_patterns=list(patterns)))


def _reason(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _shards_lack(names: Sequence[str]) -> bool:
    """Whether of a table in `train-00000-of-00003.parquet` and so on some are not among the names: others may have
    fetched one alone."""
    parts = [match for name in names if (match := re.search(r"(.*)-\d+-of-(\d+)(\.\w+)+$", name))]
    counts = Counter((match[1], int(match[2])) for match in parts)
    return any(count < whole for (_, whole), count in counts.items())
