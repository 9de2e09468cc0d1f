"""The pre-flight check of a run's data (of training data above 200 MB: the beginning), and what its files hold.

No torch, no download.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainables.contract.errors import DataError
from trainables.contract.registry import declared, evaluation_named
from trainables.contract.trial import DEV_SUFFIX, at_width, metric_parts
from trainables.data.catalogue import (
    BUILTIN,
    EDACSE,
    EDACSE_PARTS,
    SUITES,
    Source,
    check_split,
    find_local,
    find_source,
    is_hub,
    is_path,
    set_name,
    train_parts,
)
from trainables.data.columns import Columns
from trainables.data.files import check_text, kind_of, matching, text_size
from trainables.data.retrieval import check_retrieval, dev_metrics, is_retrieval, retrieval_files
from trainables.data.sets import (
    BUILTIN_EXAMPLES,
    BUILTIN_SCORED,
    IN_MEMORY,
    TRIPLET,
    Split,
    corpus_columns,
    edacse_note,
    edacse_sources,
    held_out,
    load_corpus,
    load_pairs,
    other_columns,
)

SHARED = 0.01  # of a set's sentences in the training data, from which on a note reports it
OVERLAP_BYTES = 1 << 25  # up to which a training file is searched whole for sentences of dev and test sets
WHOLE = 200 << 20  # bytes of text up to which training data are checked to their end
HEAD = 1 << 20  # characters (of Parquet files: rows) that are checked of larger ones
_seen: dict[tuple[object, ...], Any] = {}
T = TypeVar("T")


def check_data(spec: Mapping[str, Any], *, local_only: bool = False) -> list[str]:
    """Every set of a run is there, has the columns its method needs and can be read to its end (training data above
    200 MB: its beginning), by the functions that a trial reads it with.

    Args:
        spec: "method" and "data" (train, dev, language, columns) as in a trial's specification; "metric" and "holdout"
            if known.
        local_only: skip sets that are not on this machine; else query the hub for them.
    Returns: what will be left out of them, a line each.
    Raises: DataError with one line per problem, all of them.
    """
    data = spec["data"]
    language, columns = data.get("language", "en"), data.get("columns")
    train = data["train"]
    method = declared(spec["method"])
    if method.scripted:  # what is in them is the script's to read
        named = [("train", train)] * bool(train) + [("dev", name) for name in data["dev"]]
        checks = [partial(_check_there, name, language, split, local_only) for split, name in named]
    else:
        checks = [
            partial(_check_corpus, part, language, method.rows(data), columns, local_only)
            for part in train_parts(train)
        ]
        checks += [
            partial(_check_retrieval, name, local_only)
            if is_retrieval(name)
            else partial(_check_pairs, name, language, columns, spec.get("holdout", 0.0), local_only)
            for name in data["dev"]
        ]
    checks += [partial(check_split, name) for name in data["dev"]]
    wrong, notes = list[str](), list[str]()
    for check in checks:
        try:
            notes += filter(None, [check()])
        except DataError as error:
            wrong.append(str(error))
    if not method.scripted:
        wrong += _wrong_names(spec, data)
    if not (wrong or method.scripted):
        wrong += _differ(train_parts(train), language, method.rows(data), columns)
        shared, same = overlaps(data, method.rows(data))
        notes += shared
        wrong += same
    if wrong:
        raise DataError("\n".join(dict.fromkeys(wrong)))
    return notes


def overlaps(data: Mapping[str, Any], needs: str) -> tuple[list[str], list[str]]:
    """Training data that dev sets or the sealed test sets share, as far as both are on this machine.

    Returns: a line for each part of the training data with sentences of such sets, or the content of one; a line for
        each file that is both.
    """
    language, columns = data.get("language", "en"), data.get("columns")
    dev = [
        _here("data.dev", name, language, "dev") for name in data["dev"] if name != BUILTIN and not is_retrieval(name)
    ]
    sealed = SUITES.get(language, ()) if BUILTIN not in data["dev"] else ()
    held = [one for one in (*dev, *(_here("the sealed test set", name, language, "test") for name in sealed)) if one]
    shared, same = list[str](), list[str]()
    for part in train_parts(data["train"]):
        for name, source in _sources(part, language, needs, local_only=True).items():
            apart = list[_Held]()
            for one in held:
                if any(a.samefile(b) for a in matching(source.path) for b in matching(one.source.path)):
                    same.append(f"data.train {name}: {source.path} is {one.what} {one.name}; train on another file")
                elif _size(source) == _size(one.source) and source.digest == one.source.digest:
                    shared.append(f"data.train {name}: {source.path} has the content of {one.what} {one.name}")
                else:
                    apart.append(one)
            if _size(source) > OVERLAP_BYTES:
                continue
            count = partial(_shares, name, source, needs, columns, language, apart)
            shares = _once([source, *(one.source for one in apart)], count, "shares", needs, columns)
            seen = [
                f"{share:.0%} of {set_name(one.name)} ({one.split})"
                for one, share in zip(apart, shares, strict=True)
                if share >= SHARED
            ]
            if seen:
                shared.append(f"data.train {name}: holds {', '.join(seen)}, by equal sentences")
    return shared, same


@dataclass(frozen=True)
class _Held:
    """A set that is scored: what it is to the run, its name, its part, its files."""

    what: str
    name: str
    split: Split
    source: Source


def _size(source: Source) -> int:
    return sum(path.stat().st_size for path in matching(source.path))


def _here(what: str, name: str, language: str, split: Split) -> _Held | None:
    try:
        source = _source(name, language, split, local_only=True)
    except DataError:
        return None
    return _Held(what, name, split, source) if source is not None and matching(source.path) else None


def _shares(
    name: str,
    source: Source,
    needs: str,
    columns: Columns | None,
    language: str,
    held: Sequence[_Held],
) -> list[float]:
    """The share of each set's sentences that a training file holds."""
    texts = {text for column in corpus_columns(name, source, needs, columns)[0].values() for text in column}
    wanted = [
        _once([one.source], partial(_sentences, one, language, columns), "of a set", one.split, columns) for one in held
    ]
    return [len(sentences & texts) / max(1, len(sentences)) for sentences in wanted]


def _sentences(one: _Held, language: str, columns: Columns | None) -> frozenset[str]:
    """The sentences of a set; none of one that cannot be read, which who scores it reports."""
    try:
        pairs = load_pairs(one.name, one.split, language, columns if one.split == "dev" else None)
    except DataError:
        return frozenset()
    return frozenset((*pairs.first, *pairs.second))


def _wrong_names(spec: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """Sets of one name, evaluations without their folder, metrics that no set gives: a line each."""
    names = [set_name(n) for n in data["dev"]]
    wrong = [f"data.dev: two sets are called {n!r}; rename a file" for n in dict.fromkeys(names) if names.count(n) > 1]
    outside = data.get("evaluations") or {}
    wrong += [
        f"data.evaluations: {name}: no such file or folder: {folder}"
        for name, folder in outside.items()
        if folder is not None and not Path(folder).expanduser().exists()
    ]
    have = [metric for name in data["dev"] for metric in dev_metrics(name)]
    have += [m + DEV_SUFFIX for name in outside for m in evaluation_named(name).metrics]
    wrong += [
        f"metric: {part!r} is not measured; dev sets give: {', '.join(have)}"
        for part in metric_parts(spec.get("metric", have[0]))
        if at_width(part)[0].endswith(DEV_SUFFIX) and at_width(part)[0] not in have
    ]
    return wrong


def corpus_size(spec: Mapping[str, Any], most: int) -> int | None:
    """Training examples of a run whose data are on this machine; None where they are not, or cannot be read.

    Args:
        spec: as `check_data` takes it.
        most: bytes of text up to which a corpus is counted; a larger one gives None.
    """
    data, needs = spec["data"], declared(spec["method"]).rows(spec["data"])
    train, language, columns = data["train"], data.get("language", "en"), data.get("columns")
    if train == BUILTIN:
        return BUILTIN_SCORED if needs == "scored_pairs" else BUILTIN_EXAMPLES
    try:
        sources = [s for p in train_parts(train) for s in _sources(p, language, needs, local_only=True).values()]
        if not sources or not all(matching(source.path) for source in sources):
            return None
        if sum(text_size(source.path) for source in sources) > most:
            return None
        how = (train, language, needs, columns)
        return _once(sources, lambda: len(load_corpus(*how)), *how)
    except DataError:
        return None  # `check_data` reports it


def _check_there(name: str, language: str, split: str, local_only: bool) -> str:
    if name != BUILTIN and not is_retrieval(name) and not Path(name).expanduser().exists():
        _source(name, language, split, local_only)
    return ""


def _check_corpus(name: str, language: str, needs: str, columns: Columns | None, local_only: bool) -> str:
    sources = _sources(name, language, needs, local_only)
    notes = [edacse_note(sources)] if name == EDACSE else []
    for part, source in sources.items():
        if matching(source.path):
            notes.append(_checked_corpus(part, source, needs, columns)[0])
    return "; ".join(filter(None, notes))


def _sources(name: str, language: str, needs: str, local_only: bool) -> dict[str, Source]:
    """The files of a corpus by the names of its parts."""
    if name == EDACSE and not local_only:
        return edacse_sources(language, needs, download=False)
    parts = EDACSE_PARTS if name == EDACSE else () if name == BUILTIN else (name,)
    return {part: found for part in parts if (found := _source(part, language, "train", local_only))}


def _checked_corpus(name: str, source: Source, needs: str, columns: Columns | None) -> tuple[str, tuple[str, ...]]:
    """The note on a corpus and the names of its columns."""
    return _once([source], partial(_check_corpus_files, name, source, needs, columns), needs, columns)


def _check_corpus_files(name: str, source: Source, needs: str, columns: Columns | None) -> tuple[str, tuple[str, ...]]:
    size, path = text_size(source.path), source.path
    stored = kind_of(path) == ".txt" and size > IN_MEMORY  # a trial reads it from the disk
    if stored and size <= WHOLE:
        check_text(path)
    texts, note, _ = corpus_columns(name, source, needs, columns, HEAD if stored or size > WHOLE else None)
    beginning = f"{path}: has more than {WHOLE >> 20} MB; its beginning is checked" if size > WHOLE else ""
    return "; ".join(filter(None, (note, beginning))), tuple(texts)


def _differ(parts: Sequence[str], language: str, needs: str, columns: Columns | None) -> list[str]:
    """Parts of the training data that cannot be joined, since their columns differ: a line each."""
    found: dict[str, tuple[str, ...]] = {}
    if BUILTIN in parts:
        of_needs = {"triplets": TRIPLET, "pairs": TRIPLET, "scored_pairs": ("first", "second", "score")}
        found[BUILTIN] = of_needs.get(needs, ("sentence",))
    for part in parts if len(parts) > 1 else ():
        for name, source in _sources(part, language, needs, local_only=True).items():
            if matching(source.path):
                found[name] = _checked_corpus(name, source, needs, columns)[1]
    first = next(iter(found.items()), None)
    return [other_columns(name, roles, *first) for name, roles in found.items() if first and roles != first[1]]


def _check_pairs(name: str, language: str, columns: Columns | None, holdout: float, local_only: bool) -> str:
    look = partial(_look_at_pairs, name, language, columns, holdout)
    if name == BUILTIN:
        return look()
    source = _source(name, language, "dev", local_only)
    return _once([source], look, "dev", columns, holdout) if source is not None and matching(source.path) else ""


def _check_retrieval(name: str, local_only: bool) -> str:
    return _once([Source(path) for path in retrieval_files(name)], partial(check_retrieval, name, local_only), name)


def _look_at_pairs(name: str, language: str, columns: Columns | None, holdout: float) -> str:
    pairs = load_pairs(name, "dev", language, columns)
    try:
        selecting, *_ = held_out([pairs], holdout)
    except ValueError as error:
        raise DataError(str(error)) from None
    if selecting.gold.min() == selecting.gold.max():  # no correlation is defined
        raise DataError(f"metric.holdout: the {len(selecting)} pairs of {pairs.name} left to select have all one score")
    return pairs.note


def _once(sources: Sequence[Source], read: Callable[[], T], *how: object) -> T:
    """What `read` returns for files, called once however many spaces name them."""
    stats = [(path, path.stat()) for source in sources for path in matching(source.path)]
    key = (*((str(path), s.st_mtime_ns, s.st_size) for path, s in stats), repr(how))
    if key not in _seen:
        _seen[key] = read()
    found: T = _seen[key]
    return found


def _source(name: str, language: str, split: str, local_only: bool) -> Source | None:
    if local_only and is_hub(name):
        return None
    if local_only and not is_path(name):
        return find_local(name, language, split)
    return find_source(name, language, split, download=False)


def data_revisions(data: Mapping[str, Any]) -> dict[str, str]:
    """`data.dev pairs.tsv` -> `sha256:<12 digits>`, of every file or folder of a run that is on this machine.

    Without what cannot change (builtin sets, a commit of the hub) and without missing files, which readers report.

    Args: data: as in a trial's specification.
    """
    parts = train_parts(data.get("train") or "")
    named = [("train", name) for part in parts for name in (EDACSE_PARTS if part == EDACSE else (part,))]
    named += [("dev", name) for name in data.get("dev") or ()]
    language = str(data.get("language", "en"))
    found = {f"data.{split} {name}": _revision(name, language, split) for split, name in named if name}
    return {name: revision for name, revision in found.items() if revision is not None}


def _revision(name: str, language: str, split: str) -> str | None:
    if name == BUILTIN or is_hub(name):
        return None
    if split == "dev" and is_retrieval(name):
        return _of_folder(Path(name).expanduser()) if is_path(name) else None
    try:
        find = partial(find_source, download=False) if is_path(name) else find_local
        source = find(name, language, split)
    except DataError:
        return None
    return source.revision if source is not None and matching(source.path) else None


def _of_folder(folder: Path) -> str | None:
    digest, files = hashlib.sha256(), retrieval_files(str(folder))
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()[:12]}" if files else None
