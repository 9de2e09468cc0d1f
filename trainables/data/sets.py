"""Training corpora and scored sentence pairs by name or file, with the revision that was read.

Named sets: stsb, sickr, sts12..sts16 (English pairs); stsb, atec, bq, lcqmc, pawsx (Chinese pairs); wiki, nli
(corpora); edacse-zh (the corpus of EdaCSE); builtin (generated, both languages); and every set whose files lie in
`SEARCH_DATA_DIR`. A pair set is also a corpus: the sentences of its train part. No torch.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError
from trainables.contract.metric_names import DEV_SUFFIX, metric_parts
from trainables.contract.registry import declared, evaluation_named
from trainables.data.catalogue import BUILTIN, EDACSE, EDACSE_PARTS, Source, find_file, find_local, find_named, is_path
from trainables.data.files import header_of, kind_of, read_lines, read_table

log = logging.getLogger(__name__)

Split = Literal["train", "dev", "test"]

BUILTIN_SENTENCES = 6000
BUILTIN_TRIPLETS = 6000
BUILTIN_PAIRS = 500
UNTRANSLATED = "NS"  # placeholder rows of PAWS-X, which its authors ask to leave out

_PAIR, _TRIPLET = ("first", "second"), ("anchor", "positive", "negative")
_COLUMNS: dict[str, tuple[str, ...]] = {  # role -> column names understood without being told
    "sentence": ("sentence", "text"),
    "anchor": ("anchor", "sent0"),
    "positive": ("positive", "sent1"),
    "negative": ("negative", "hard_neg"),
    "first": ("sentence1",),
    "second": ("sentence2",),
    "score": ("score",),
    "subset": ("subset",),
}


@dataclass(frozen=True)
class Corpus:
    """Training texts.

    columns: {"sentence": n texts} or {"anchor", "positive", "negative": n texts each}.
    revision: what was read (hub commit, hash of the local file), for the record.
    """

    name: str
    language: str
    columns: dict[str, list[str]]
    revision: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with a gold score.

    name: short name, the `stsb` of `stsb_dev`. gold: (n,) float64, any scale, higher = more similar.
    subset: name of the part of each pair (STS12-16), or None.
    """

    name: str
    first: list[str]
    second: list[str]
    gold: NDArray[np.float64]
    subset: list[str] | None
    revision: str

    def __len__(self) -> int:
        return len(self.first)


def set_name(name_or_path: str) -> str:
    """The short name of a pair set in metrics: `stsb`; of a file, its stem without `_dev` and the like.

    >>> set_name("data/My pairs_dev.tsv.gz")
    'My_pairs'
    """
    if not is_path(name_or_path):
        return name_or_path
    stem = Path(name_or_path).name.removesuffix(".gz").rsplit(".", 1)[0]
    return re.sub(r"[^\w-]+", "_", re.sub(r"[_-]?(dev|test|\{split\})$", "", stem)).strip("_") or "pairs"


def load_corpus(
    name_or_path: str, language: str, needs: str = "sentences", columns: Mapping[str, str] | None = None
) -> Corpus:
    """A training corpus.

    Args:
        name_or_path: a named set, a file, or several joined by `+`.
        language: "en" or "zh".
        needs: "sentences", or "triplets" (anchor, positive, hard negative).
        columns: role -> column name where a table's header does not use the default names.
    Returns: sentences in file order (of pairs and triplets: without exact duplicates, an empty line as one blank).
    Raises: DataError; see `catalogue.find_named`.
    """
    if needs not in ("sentences", "triplets"):
        raise ValueError(f"needs: expected sentences or triplets, got {needs!r}")
    if "+" in name_or_path and not Path(name_or_path).is_file():
        parts = [load_corpus(part.strip(), language, needs, columns) for part in name_or_path.split("+")]
        texts = {role: [t for part in parts for t in part.columns[role]] for role in parts[0].columns}
        return Corpus(name_or_path, language, texts, "+".join(p.revision for p in parts))
    if name_or_path == BUILTIN:
        return _builtin_corpus(language, needs)
    if name_or_path == EDACSE:
        return _edacse(language, needs)
    source = _find(name_or_path, language, "train")
    return Corpus(name_or_path, language, _corpus_columns(name_or_path, source, needs, columns), source.revision)


def load_pairs(name_or_path: str, split: Split, language: str, columns: Mapping[str, str] | None = None) -> Pairs:
    """A scored pair set.

    Args:
        split: "dev" or "test" (or "train"); in a path, `{split}` stands for it.
        columns: role (first, second, score, subset) -> column name, where the header differs.
    Returns: the pairs with a gold score; PAWS-X without its untranslated rows.
    Raises: DataError, also when fewer than two pairs or only equal scores are left (no correlation is defined).
    """
    if split not in get_args(Split):
        raise ValueError(f"split: expected one of {', '.join(get_args(Split))}, got {split!r}")
    if name_or_path == BUILTIN:
        if split == "train":
            raise DataError(f"data set {BUILTIN!r}: has no scored train pairs; expected dev or test")
        from trainables.data import builtin

        rows = builtin.pairs(language, split, BUILTIN_PAIRS)
        gold = np.array([score for *_, score in rows], dtype=np.float64)
        return Pairs(BUILTIN, [a for a, *_ in rows], [b for _, b, _ in rows], gold, None, BUILTIN)
    source = _find(name_or_path, language, split)
    path = source.path
    if kind_of(path) == ".txt":
        raise DataError(f"{path}: expected a table with sentence1, sentence2 and score, got a text file")
    table = read_table(path, lambda header: _pick(path, header, (*_PAIR, "score"), columns, optional=("subset",)))
    keep = [i for i, score in enumerate(table["score"]) if score.strip().lower() not in ("", "nan")]
    if name_or_path == "pawsx":
        keep = [i for i in keep if UNTRANSLATED not in (table["first"][i], table["second"][i])]
    gold = np.array([_score(path, i, table["score"][i]) for i in keep], dtype=np.float64)
    if len(gold) < 2 or np.ptp(gold) == 0:
        raise DataError(f"{path}: expected at least two pairs with different scores, got {len(gold)} pairs")
    texts = {role: [values[i] for i in keep] for role, values in table.items()}
    name = set_name(name_or_path)
    return Pairs(name, texts["first"], texts["second"], gold, texts.get("subset"), source.revision)


def check_data(spec: Mapping[str, Any]) -> None:
    """Pre-flight: every set of a run is there and has the columns its method needs. Reads headers only, no torch.

    Args:
        spec: "method" and "data" (train, dev, language, columns) as in a trial's specification; "metric" if known.
    Raises: DataError with one line per problem, all of them.
    """
    data = spec["data"]
    language, columns = data.get("language", "en"), data.get("columns")
    needs = declared(spec["method"]).columns
    parts = data["train"].split("+") if not Path(data["train"]).is_file() else [data["train"]]
    checks = [partial(_check_corpus, part.strip(), language, needs, columns) for part in parts]
    checks += [partial(_check_pairs, name, language, columns) for name in data["dev"]]
    wrong = list(dict.fromkeys(filter(None, map(_message, checks))))
    names = [set_name(n) for n in data["dev"]]
    wrong += [f"data.dev: two sets are called {n!r}; rename a file" for n in dict.fromkeys(names) if names.count(n) > 1]
    outside = data.get("evaluations") or {}
    wrong += [
        f"data.evaluations: {name}: no such file or folder: {folder}"
        for name, folder in outside.items()
        if folder is not None and not Path(folder).expanduser().exists()
    ]
    have = [n + DEV_SUFFIX for n in (*names, *(m for name in outside for m in evaluation_named(name).metrics))]
    wrong += [
        f"metric: {part!r} is not measured; dev sets give: {', '.join(have)}"
        for part in metric_parts(spec.get("metric", have[0]))
        if part.endswith(DEV_SUFFIX) and part not in have
    ]
    if wrong:
        raise DataError("\n".join(wrong))


def _message(check: Callable[[], None]) -> str | None:
    try:
        check()
    except DataError as error:
        return str(error)
    return None


def _check_corpus(name: str, language: str, needs: str, columns: Mapping[str, str] | None) -> None:
    if name == BUILTIN:
        return
    if name == EDACSE:
        _edacse_sources(language, needs, download=False)
        return
    source = _find(name, language, "train", download=False)
    if source.path.is_file() and (header := header_of(source.path)) is not None:
        _roles(source.path, header, needs, columns)
    elif source.path.is_file() and needs == "triplets":
        raise DataError(_no_triplets(source.path))


def _check_pairs(name: str, language: str, columns: Mapping[str, str] | None) -> None:
    if name == BUILTIN:
        return
    source = _find(name, language, "dev", download=False)
    if source.path.is_file():
        _pick(source.path, header_of(source.path) or [], (*_PAIR, "score"), columns)


def _find(name: str, language: str, split: str, download: bool = True) -> Source:
    return find_file(name, split) if is_path(name) else find_named(name, language, split, download=download)


def _corpus_columns(
    name: str, source: Source, needs: str, columns: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    path = source.path
    if kind_of(path) == ".txt":
        if needs == "triplets":
            raise DataError(_no_triplets(path))
        texts = {"sentence": [line or " " for line in read_lines(path)]}  # methods 2.1
    else:
        table = read_table(path, lambda header: _roles(path, header, needs, columns))
        if needs == "triplets" or "sentence" in table:
            texts = {role: [t or " " for t in column] for role, column in table.items()}
        else:
            if name == "pawsx":
                table = {r: ["" if t == UNTRANSLATED else t for t in column] for r, column in table.items()}
            texts = {"sentence": _distinct(zip(*table.values(), strict=True))}
    if not next(iter(texts.values())):
        raise DataError(f"{path}: expected training texts, got an empty file")
    return texts


def _roles(path: Path, header: Sequence[str], needs: str, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Which columns of a table are training texts: triplets as needed; sentences from whatever holds them."""
    if needs == "triplets":
        return _pick(path, header, _TRIPLET, columns)
    for roles in (("sentence",), _PAIR, _TRIPLET):
        if all(_column(role, header, columns) is not None for role in roles):
            return _pick(path, header, roles, columns)
    return _pick(path, header, ("sentence",), columns)


def _column(role: str, header: Sequence[str], columns: Mapping[str, str] | None) -> str | None:
    wanted = (columns[role],) if columns and role in columns else _COLUMNS[role]
    return next((c for c in wanted if c in header), None)


def _pick(
    path: Path,
    header: Sequence[str],
    roles: Sequence[str],
    columns: Mapping[str, str] | None,
    optional: Sequence[str] = (),
) -> dict[str, str]:
    if unknown := sorted(set(columns or ()) - set(_COLUMNS)):
        raise DataError(f"data.columns: unknown role {unknown[0]!r}; allowed: {', '.join(_COLUMNS)}")
    found = {role: _column(role, header, columns) for role in (*roles, *optional)}
    for role in roles:
        if found[role] is None:
            wanted = columns[role] if columns and role in columns else " or ".join(_COLUMNS[role])
            raise DataError(
                f"{path}: expected a column {wanted} ({role}), got {', '.join(header) or 'none'}; "
                f"name it in data.columns, such as columns: {{{role}: {header[0] if header else 'name'}}}"
            )
    return {role: column for role, column in found.items() if column is not None}


def _no_triplets(path: Path) -> str:
    return f"{path}: expected a table with anchor, positive and negative, got one sentence a line"


def _distinct(rows: Iterable[Iterable[str]]) -> list[str]:
    """All texts of all rows, exact duplicates and empty texts removed, first occurrences in order."""
    texts = dict.fromkeys(text for row in rows for text in row)
    return [text for text in texts if text.strip()]


def _score(path: Path, row: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{path}: row {row + 2}: expected a number as score, got {text!r}")
    return value


def _edacse_sources(language: str, needs: str, download: bool = True) -> dict[str, Source]:
    """Train files of the five Chinese pair sets: those of the local folder if it has any, else all of the hub."""
    if language != "zh" or needs != "sentences":
        raise DataError(f"data set {EDACSE!r}: holds Chinese sentences, got language {language} and needs {needs}")
    local = {part: source for part in EDACSE_PARTS if (source := find_local(part, language, "train"))}
    return local or {part: find_named(part, language, "train", download=download) for part in EDACSE_PARTS}


def _edacse(language: str, needs: str) -> Corpus:
    """EdaCSE's corpus: both sentences of the train pairs of five sets, mixed, exact duplicates removed (3.2)."""
    sources = _edacse_sources(language, needs)
    missing = [part for part in EDACSE_PARTS if part not in sources]
    if missing:
        log.warning("data set %s: the local folder has no train part of %s", EDACSE, ", ".join(missing))
    texts = _distinct(_corpus_columns(part, source, needs)["sentence"] for part, source in sources.items())
    revision = "+".join(f"{part}:{source.revision}" for part, source in sources.items())
    return Corpus(EDACSE, language, {"sentence": texts}, revision)


def _builtin_corpus(language: str, needs: str) -> Corpus:
    from trainables.data import builtin

    if needs == "sentences":
        texts = {"sentence": builtin.sentences(language, BUILTIN_SENTENCES)}
    else:
        rows = builtin.triplets(language, BUILTIN_TRIPLETS)
        texts = {role: [row[i] for row in rows] for i, role in enumerate(_TRIPLET)}
    return Corpus(BUILTIN, language, texts, BUILTIN)
