"""Training corpora and scored sentence pairs by name or file, with the revision that was read.

Named sets: stsb, sickr, sts12..sts16 (English pairs); stsb, atec, bq, lcqmc, pawsx (Chinese pairs); wiki, nli
(corpora); edacse-zh (the corpus of EdaCSE); builtin (generated, both languages); and every set whose files lie in
`SEARCH_DATA_DIR`. A pair set is also a corpus: the sentences of its train part. No torch.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError
from trainables.contract.trial import HELD
from trainables.data.catalogue import (
    BUILTIN,
    EDACSE,
    EDACSE_PARTS,
    Source,
    find_local,
    find_named,
    find_source,
    set_name,
    train_parts,
)
from trainables.data.cells import has_score, score_of
from trainables.data.columns import (
    NUMBERED,
    NUMBERED_NAME,
    Columns,
    column_of,
    label_beside_pairs,
    of_file,
    pick,
)
from trainables.data.files import LineTexts, kind_of, matching, read_lines, text_size, unpacked
from trainables.data.scores import check_same_scale, scale_note
from trainables.data.tables import Table, read_table

log = logging.getLogger(__name__)

Split = Literal["train", "dev", "test"]

IN_MEMORY = 1 << 26  # bytes of a text corpus; a larger one stays on the disk
BUILTIN_EXAMPLES = 6000  # sentences, and triplets
BUILTIN_SCORED = 3000  # scored pairs
UNTRANSLATED = "NS"  # placeholder rows of PAWS-X, which its authors ask to leave out

_PAIR = ("first", "second")
TRIPLET = ("anchor", "positive", "negative")
_GROUPS = (_PAIR, TRIPLET, TRIPLET[:2])
DRAW = 2**32  # of the numbers that held-out pairs are drawn by


@dataclass(frozen=True)
class Corpus:
    """Training texts.

    columns: {"sentence": n texts} or {"anchor", "positive", "negative": n texts each}, with several hard negatives also
        "negative_2" and so on, of pairs perhaps none; large text files are read from the disk when they are used.
        Or {"first", "second": n texts each, "score": n numbers as texts}.
    revision: what was read (hub commit, hash of the local file), for the record.
    note: what was left out and why, "" if nothing; left_out: how many rows.
    sizes: texts of each set, where several are joined.
    """

    name: str
    language: str
    columns: Mapping[str, Sequence[str]]
    revision: str
    note: str = ""
    left_out: int = 0
    sizes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with a gold score.

    name: short name, the `stsb` of `stsb_dev`. gold: (n,) float64, any scale, higher = more similar.
    subset: name of the part of each pair (STS12-16), or None. note: which rows were left out and why, "" if none.
    """

    name: str
    first: list[str]
    second: list[str]
    gold: NDArray[np.float64]
    subset: list[str] | None
    revision: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.first)


def load_corpus(name_or_path: str, language: str, needs: str = "sentences", columns: Columns | None = None) -> Corpus:
    """A training corpus.

    Args:
        name_or_path: a named set, a file, or several joined by `+`.
        language: "en" or "zh".
        needs: "sentences", "triplets" (anchor, positive, hard negative), "pairs" (hard negatives if there are) or
            "scored_pairs".
        columns: role -> column name where a table's header does not use the default names; or entry -> such a mapping.
    Returns: sentences in file order (of a text file, an empty line as one blank; of a table, without rows that lack
        one; of pairs and triplets, without exact duplicates); triplets without those that lack a text, and without hard
        negatives that most of them lack.
    Raises: DataError, also when more than half of the triplets lack a text; see `catalogue.find_named`.
    """
    if len(names := train_parts(name_or_path)) > 1:
        parts = [load_corpus(name, language, needs, columns) for name in names]
        for part in parts:
            if part.columns.keys() != parts[0].columns.keys():
                raise DataError(other_columns(part.name, part.columns, parts[0].name, parts[0].columns))
            if needs == "scored_pairs":
                check_same_scale(parts[0].name, part.name, [one.columns["score"] for one in (parts[0], part)])
        texts = {role: [t for part in parts for t in part.columns[role]] for role in parts[0].columns}
        note = "; ".join(part.note for part in parts if part.note)
        lost = sum(part.left_out for part in parts)
        revisions, sizes = "+".join(p.revision for p in parts), tuple(map(len, parts))
        return Corpus(name_or_path, language, texts, revisions, note, lost, sizes)
    if name_or_path == EDACSE:
        return _edacse(language, needs)
    builtin = {"pairs": "triplets", "scored_pairs": "train"}.get(needs, needs)
    source = find_source(name_or_path, language, builtin if name_or_path == BUILTIN else "train")
    found, note, lost = corpus_columns(name_or_path, source, needs, columns)
    if note:
        log.warning(note)
    return Corpus(name_or_path, language, found, source.revision, note, lost)


def load_pairs(name_or_path: str, split: Split, language: str, columns: Columns | None = None) -> Pairs:
    """A scored pair set.

    Args:
        split: "dev" or "test" (or "train"); in a path, `{split}` stands for it.
        columns: role (first, second, score, subset) -> column name, where the header differs; or as of a corpus.
    Returns: the pairs with a gold score and two sentences; PAWS-X without its untranslated rows.
    Raises: DataError, also when fewer than two pairs or only equal scores are left (no correlation is defined).
    """
    source = find_source(name_or_path, language, split)
    texts, gold, note, _ = scored_pairs(name_or_path, source.path, columns)
    name = set_name(name_or_path)
    return Pairs(name, texts["first"], texts["second"], gold, texts.get("subset"), source.revision, note)


def scored_pairs(
    name: str, path: Path, columns: Columns | None, head: int | None = None
) -> tuple[dict[str, list[str]], NDArray[np.float64], str, int]:
    """The texts of a file's scored pairs, their scores, which rows were left out ("" if none), and how many.

    Args: name: of the set; head: as `tables.read_table` takes it. Raises: DataError as `load_pairs`.
    """
    if kind_of(path) == ".txt":
        raise DataError(f"{path}: expected a table with sentence1, sentence2 and score, got a text file")
    own = of_file(columns, name)
    read = read_table(path, lambda header: pick(path, header, (*_PAIR, "score"), own, optional=("subset",)), head)
    table, lines = read.columns, read.lines
    unscored = [i for i, score in enumerate(table["score"]) if not has_score(score)]
    half = without_text([table[role] for role in _PAIR])
    whys = ((unscored, "no score"), (half, "an empty sentence"))
    note = "; ".join(filter(None, (*read.notes, *(left_out(path, lines, rows, why, "pairs") for rows, why in whys))))
    lost = {*unscored, *half}
    if name == "pawsx":
        lost.update(i for role in _PAIR for i, text in enumerate(table[role]) if text == UNTRANSLATED)
    keep = [i for i in range(len(lines)) if i not in lost]
    gold = np.array([_score(path, lines[i], table["score"][i]) for i in keep], dtype=np.float64)
    if head is None and (len(gold) < 2 or np.ptp(gold) == 0):
        got = f"{len(gold)} pair{'s' * (len(gold) != 1)}" + (f", all scored {gold[0]:g}" if len(gold) > 1 else "")
        raise DataError(f"{path}: expected at least two pairs with different scores, got {got}")
    texts = {role: [values[i] for i in keep] for role, values in table.items()}
    return texts, gold, note, len({*unscored, *half})


def corpus_columns(
    name: str, source: Source, needs: str, columns: Columns | None = None, head: int | None = None
) -> tuple[dict[str, Sequence[str]], str, int]:
    """The texts of a corpus, what was left out of it and why ("" if nothing), and how many rows.

    Args: head: as `tables.read_table` takes it, to read only its beginning.
    """
    path, note, lost, own = source.path, "", 0, of_file(columns, name)
    if needs == "scored_pairs":
        found, gold, note, lost = scored_pairs(name, path, columns, head)
        whole = {"first": found["first"], "second": found["second"], "score": list(map(repr, gold.tolist()))}
        return dict(whole), "; ".join(filter(None, (note, scale_note(path, gold.tolist())))), lost
    if kind_of(path) == ".txt":
        if needs != "sentences":
            roles = "anchor, positive and negative" if needs == "triplets" else "anchor and positive"
            raise DataError(f"{path}: expected a table with {roles}, got one sentence a line")
        if head is None and text_size(path) > IN_MEMORY:
            files = matching(path)  # left on the disk; what is gzipped is unpacked into the cache
            plain = [unpacked(f, f"{source.digest[:32]}-{i}") if f.suffix == ".gz" else f for i, f in enumerate(files)]
            texts: dict[str, Sequence[str]] = {"sentence": LineTexts(plain, source.digest, files)}
        else:
            texts = {"sentence": [line or " " for line in read_lines(path, head)]}  # methods 2.1
    else:
        read = read_table(path, lambda header: _roles(path, header, needs, own), head)
        table = read.columns
        if needs != "sentences":
            texts, note, lost = whole_triplets(path, read, needs, whole_file=head is None)
        elif "sentence" in table:
            rows = without_text([table["sentence"]])
            note, lost, gone = left_out(path, read.lines, rows, "no text", "rows"), len(rows), set(rows)
            texts = {"sentence": [text for i, text in enumerate(table["sentence"]) if i not in gone]}
        else:
            if name == "pawsx":
                table = {r: ["" if t == UNTRANSLATED else t for t in column] for r, column in table.items()}
            texts = {"sentence": _distinct(zip(*table.values(), strict=True))}
        note = "; ".join(filter(None, (*read.notes, note)))
    if head is None and len(next(iter(texts.values()))) < 2:
        got = "one" if next(iter(texts.values())) else "none" if note else "none: the file is empty"
        message = f"{path}: expected training texts, at least two to tell apart, got {got}"
        raise DataError(f"{message} ({note})" if note else message)
    return texts, note, lost


def _roles(path: Path, header: Sequence[str], needs: str, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Which columns of a table are training texts: triplets and pairs as needed; sentences from whatever holds them.

    Two sentences without a score are a pair.
    """
    if needs != "sentences":
        columns = dict(columns or {})
        there = {role: column_of(role, header, columns) for role in (*TRIPLET[:2], *_PAIR, "score")}
        plain = there["first"] and there["second"] and not there["score"]
        if plain and not columns and not (there["anchor"] and there["positive"]):
            columns = {"anchor": str(there["first"]), "positive": str(there["second"])}
        pair = {role: str(there[role]) for role in TRIPLET[:2] if there[role]}
        if needs == "pairs" and there["score"] and len(pair) == 2 and not pair.keys() <= columns.keys():
            give = "data.columns.{}={}".format
            raise DataError(label_beside_pairs(path, pair, str(there["score"]), give))
        negatives = _negatives(path, header, columns)
        if needs == "pairs" and "negative" not in columns and column_of("negative", header, columns) is None:
            negatives = [role for role in negatives if role != "negative"]
        return pick(path, header, (*TRIPLET[:2], *negatives), columns)
    for aliases, groups in ((False, (("sentence",), *_GROUPS)), (True, _GROUPS)):  # names of ROLES win
        for roles in groups:
            if all(column_of(role, header, columns, aliases) is not None for role in roles):
                return pick(path, header, roles, columns)
    return pick(path, header, ("sentence",), columns)


def _negatives(path: Path, header: Sequence[str], columns: Mapping[str, str] | None) -> list[str]:
    """The roles of a table's hard negatives: `negative`, or `negative_1` to `negative_n`.

    Raises: DataError where one of them is missing, or both ways of naming are used.
    """
    given = columns or {}
    numbers = {int(m[1]) for name in {*header} - {*given.values()} if (m := NUMBERED_NAME.fullmatch(name))}
    numbers |= {int(m[1]) for role in given if (m := NUMBERED.fullmatch(role))}
    if not numbers:
        return ["negative"]
    if column_of("negative", header, columns) is not None:
        raise DataError(f"{path}: expected negative or negative_1 to negative_{max(numbers)}, got both; rename one")
    return [f"negative_{k}" for k in range(1, max(numbers) + 1)]


def _distinct(rows: Iterable[Iterable[str]]) -> list[str]:
    """All texts of all rows, exact duplicates and empty texts removed, first occurrences in order."""
    texts = dict.fromkeys(text for row in rows for text in row)
    return [text for text in texts if text.strip()]


def _score(path: Path, line: int, text: str) -> float:
    try:
        return score_of(text)
    except ValueError as error:
        raise DataError(f"{path}:{line}: {error}") from None


def edacse_sources(language: str, needs: str, download: bool = True) -> dict[str, Source]:
    """Train files of the five Chinese pair sets: those of the local folder if it has any, else all of the hub."""
    if language != "zh" or needs != "sentences":
        raise DataError(f"data set {EDACSE!r}: holds Chinese sentences, got language {language} and needs {needs}")
    local = {part: source for part in EDACSE_PARTS if (source := find_local(part, language, "train"))}
    return local or {part: find_named(part, language, "train", download=download) for part in EDACSE_PARTS}


def edacse_note(sources: Collection[str]) -> str:
    """Which parts the local folder lacks, "" if none or all of them: then they are the hub's."""
    missing = ", ".join(part for part in EDACSE_PARTS if part not in sources)
    return f"data set {EDACSE}: the local folder has no train part of {missing}" if missing and sources else ""


def _edacse(language: str, needs: str) -> Corpus:
    """EdaCSE's corpus: both sentences of the train pairs of five sets, mixed, exact duplicates removed (3.2)."""
    sources = edacse_sources(language, needs)
    if note := edacse_note(sources):
        log.warning(note)
    texts = _distinct(corpus_columns(part, source, needs)[0]["sentence"] for part, source in sources.items())
    revision = "+".join(f"{part}:{source.revision}" for part, source in sources.items())
    return Corpus(EDACSE, language, {"sentence": texts}, revision)


def other_columns(name: str, columns: Iterable[str], first: str, expected: Iterable[str]) -> str:
    """The message on a corpus whose columns are not those of the one that it is joined to."""
    return f"{name}: expected the columns of {first} ({', '.join(expected)}), got {', '.join(columns)}"


def without_text(columns: Sequence[Sequence[str]]) -> list[int]:
    """Rows in which one of the columns has no text."""
    return sorted({i for column in columns for i, text in enumerate(column) if not text or text.isspace()})


def left_out(path: Path, lines: Sequence[int], rows: Sequence[int], why: str, what: str) -> str:
    """The note on rows that are left out, "" if there are none."""
    if not rows:
        return ""
    return f"{path}:{lines[rows[0]]}: {why}; {len(rows)} of {len(lines)} {what} are left out for that"


def whole_triplets(path: Path, read: Table, needs: str, whole_file: bool) -> tuple[dict[str, Sequence[str]], str, int]:
    """The triplets or pairs that have all their texts, and of several hard negatives (of pairs: of all) those that at
    least half of all rows have.

    Args:
        read: anchor, positive and negatives, in that order.
        whole_file: False = its beginning, of which more than half may be left out.
    Returns: the columns by the names that methods know, what was left out and why ("" if nothing), how many rows.
    Raises: DataError where more than half of the rows lack a text.
    """
    rows, lost, notes = len(read.lines), set[int](), list[str]()
    what, required = ("pair", TRIPLET[:2]) if needs == "pairs" else ("triplet", TRIPLET)
    texts: dict[str, Sequence[str]] = {}
    for role, column in read.columns.items():
        short, name = lost.union(without_text([column])), "negative" if role == "negative_1" else role
        if name not in required and 2 * len(short) > rows:
            last = list(read.columns)[-1]
            which = f"{role} is" if role == last else f"{role} to {last} are"
            notes.append(f"{path}: {which} left out: {rows - len(short)} of {rows} rows have all texts up to {role}")
            break
        texts[name], lost = column, short
    if lost:
        if whole_file and 2 * len(lost) > rows:
            raise DataError(
                f"{path}:{read.lines[min(lost)]}: a text of the {what} is missing in {len(lost)} of {rows} rows, more "
                f"than half; expected {', '.join(texts)} in most; if those are not to be trained on, take them out"
            )
        notes.insert(0, left_out(path, read.lines, sorted(lost), f"a text of the {what} is missing", "rows"))
        texts = {role: [text for i, text in enumerate(column) if i not in lost] for role, column in texts.items()}
    return texts, "; ".join(notes), len(lost)


def held_out(sets: Iterable[Pairs], share: float) -> tuple[Pairs, ...]:
    """Every set as its selecting part, under its own name, and its held-out part, `<name>_held`; as they are for 0.

    Pairs are drawn by a hash of their sentences: the same ones whatever their order, for every trial and study, and a
    pair that stands twice is on one side.

    Args: share: of the pairs that are held out, in [0, 1).
    Raises: ValueError if a part has fewer than two pairs.
    """
    sets = tuple(sets)
    return tuple(part for pairs in sets for part in _parts(pairs, share)) if share else sets


def _parts(pairs: Pairs, share: float) -> tuple[Pairs, Pairs]:
    held = np.array([_number(a, b) < share * DRAW for a, b in zip(pairs.first, pairs.second, strict=True)])
    if min(held.sum(), (~held).sum()) < 2:
        raise ValueError(f"metric.holdout: {pairs.name} has too few pairs ({len(pairs)}) for two parts")
    return _taken(pairs, ~held, pairs.name), _taken(pairs, held, pairs.name + HELD)


def _number(first: str, second: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{first}\t{second}".encode()).digest()[:4], "big")


def _taken(pairs: Pairs, rows: NDArray[np.bool_], name: str) -> Pairs:
    at = np.flatnonzero(rows).tolist()
    return replace(
        pairs,
        name=name,
        first=[pairs.first[i] for i in at],
        second=[pairs.second[i] for i in at],
        gold=pairs.gold[rows],
        subset=None if pairs.subset is None else [pairs.subset[i] for i in at],
        revision=f"{pairs.revision}, {len(at)} of {len(pairs)} pairs",
    )
