"""What a file of texts is good for (pairs, triplets, scored pairs, sentences), and parts of it held out. No torch."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainables.contract.errors import DataError
from trainables.contract.trial import whole_file
from trainables.data.cells import has_score, score_of
from trainables.data.columns import ALIASES, ROLES, header_fault, is_role, label_beside_pairs, labelled
from trainables.data.files import kind_of, read_lines
from trainables.data.sets import without_text
from trainables.data.tables import read_table

PAIRS, TRIPLETS, SCORED, SENTENCES = "pairs", "triplets", "scored pairs", "sentences"
KNOWN = {role: (*names, *ALIASES.get(role, ())) for role, names in ROLES.items() if role != "subset"}
NUMBERED = re.compile(r"neg(?:ative)?_?(\d+)")
SCRIPTS = {"CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CYRILLIC": "ru", "ARABIC": "ar",
           "DEVANAGARI": "hi", "GREEK": "el", "HEBREW": "he", "THAI": "th"}  # fmt: skip
WANTED = ({"sentence"}, {"anchor", "positive"}, {"first", "second", "score"})  # the roles of a file
LOOK = 1000  # texts that tell the language and what a column holds
SHARE, MOST_ROWS, MOST_QUERIES = 0.1, 5000, 1000  # of each held-out part
MOST_PASSAGES = 10_000  # that a held-out query is searched among: every evaluation of a trial encodes them
FEWEST = 20  # queries or pairs of a held-out part: with fewer nothing could be told apart


@dataclass(frozen=True)
class Recognised:
    """A file of texts.

    kind: pairs, triplets, scored pairs or sentences. roles: role -> its column in the file ("sentence" of a text file).
    columns: role -> n texts. repeated: rows that stand there before. left_out: rows without a text or a score.
    unused: the file's other columns.
    language: its code, detected by the script; Latin = "en", an assumption.
    """

    path: Path
    kind: str
    roles: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    repeated: int
    left_out: int
    unused: tuple[str, ...]
    language: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def texts(self) -> list[str]:
        """The roles that hold texts."""
        return [role for role in self.columns if role != "score"]

    def lines(self) -> list[str]:
        """What it is, for people."""
        of = ", ".join(f"{role}: {column}" for role, column in self.roles.items() if role != column)
        of += f"{'; ' * bool(of)}not used: {', '.join(self.unused)}" if self.unused else ""
        latin = "assumed from the Latin alphabet; change data.language if it is another"
        how = latin if self.language == "en" else "detected by its script"
        words = ", ".join(f"{role} {_length(self.columns[role][:LOOK])}" for role in self.texts)
        lines = [
            f"{self.path}: {len(self):,} {self.kind}" + (f" ({of})" if of else ""),
            f"  language {self.language} ({how}); median lengths: {words}",
        ]
        if self.repeated:
            lines.append(f"  repeated rows: {self.repeated:,}")
        if self.left_out:
            lines.append(f"  rows left out, without a text or a score: {self.left_out:,}")
        return lines


class Part(NamedTuple):
    """A part that `split` wrote.

    size: in rows, or in queries. passages: that the queries are searched among (0 = none); of: those of the file.
    """

    path: Path
    size: int
    passages: int = 0
    of: int = 0


def recognise(path: Path, columns: Mapping[str, str] | None = None) -> Recognised:
    """What a file holds, by the names of its columns, else by what is in them.

    Args: columns: role -> column, where the names do not tell.
    Returns: the rows that have their texts and scores.
    Raises: DataError if it cannot be read, or what it holds cannot be recognised; the message requests the columns.
    """
    unused: tuple[str, ...] = ()
    if kind_of(path) == ".txt":
        texts: dict[str, list[str]] = {"sentence": read_lines(path)}
        roles = {"sentence": "sentence"}
    else:
        roles, texts, unused = _read(path, columns or {})
    needed = [column for role, column in texts.items() if not role.startswith("negative")]
    lost = set(without_text(needed))
    if "score" in texts:
        lost.update(i for i, score in enumerate(texts["score"]) if not has_score(score))
    if lost:
        texts = {role: [text for i, text in enumerate(column) if i not in lost] for role, column in texts.items()}
    if not next(iter(texts.values())):
        raise DataError(f"{path}: expected rows with texts, got none")
    if "score" in texts:
        kind = SCORED
    elif "anchor" in texts:
        kind = PAIRS if len(texts) == 2 else TRIPLETS
    else:
        kind = SENTENCES
    repeated = sum(n - 1 for n in Counter(zip(*texts.values(), strict=True)).values())
    return Recognised(path, kind, roles, texts, repeated, len(lost), unused, _language(texts))


def _read(path: Path, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]], tuple[str, ...]]:
    """Role -> column of a table, role -> texts, and the columns that are not used."""
    roles: dict[str, str] = {}
    all_names: list[str] = []
    if given and not any(_fit(given, needed) for needed in WANTED):
        expected = "sentence; anchor and positive, with negatives or not; or first, second and score"
        raise DataError(f"--column: expected the roles {expected}; got {', '.join(given)}")

    def chosen(header: Sequence[str]) -> Mapping[str, str]:
        names = {name.strip(): name for name in header}  # as trials read them
        for role, column in given.items():
            if column.strip() not in names:
                raise DataError(f"{path}: expected a column {column} ({role}), got {', '.join(names)}")
        if not given and {"premise", "hypothesis"} <= names.keys():  # NLI: which rows are positive, labels decide
            raise _unclear(path, [*names])
        all_names.extend(names)
        roles.update(given or _by_names([*names]))
        if not given and "anchor" in roles and (label := labelled([*names])):
            raise DataError(label_beside_pairs(path, roles, label, "--column {}={}".format))
        if "sentence" in roles and not given and {"anchor", "positive"} & _named([*names]).keys():
            raise _unclear(path, [*names])
        wanted = ("sentence",) if len(header) == 1 else ("anchor", "positive")
        if not roles and (fault := header_fault(path, header, wanted)):
            raise DataError(fault)
        return {role: names[column.strip()] for role, column in roles.items()} or {name: name for name in header}

    table = read_table(path, chosen).columns
    if "score" in roles and not _numeric(table["score"]):  # words: which of them mean similar is not known
        raise _unclear(path, list(roles.values()))
    if not roles:
        found = _by_content(path, table)
        table = {role: table[column] for role, column in found.items()}
        roles = {role: column.strip() for role, column in found.items()}
    if not any(needed <= roles.keys() for needed in WANTED):
        raise _unclear(path, list(roles.values()))
    return roles, table, tuple(name for name in all_names if name and name not in roles.values())


def _fit(given: Collection[str], needed: Set[str]) -> bool:
    """Whether the given roles are these; beside an anchor there may be negatives."""
    others = {role for role in given if role not in needed}
    negatives = all(role.startswith("negative") and is_role(role) for role in others)
    return needed <= set(given) and (not others or ("anchor" in needed and negatives))


def _named(header: Sequence[str]) -> dict[str, str]:
    """Role -> column of every role that has one by a known name."""
    return {role: name for role, names in KNOWN.items() if (name := next((n for n in names if n in header), None))}


def _by_names(header: Sequence[str]) -> dict[str, str]:
    """Role -> column by known names; {} if there are none."""
    named = _named(header)
    if {"first", "second", "score"} <= named.keys():
        return {role: named[role] for role in ("first", "second", "score")}
    if {"first", "second"} <= named.keys() and not {"anchor", "positive"} <= named.keys():
        named |= {"anchor": named["first"], "positive": named["second"]}
    if {"anchor", "positive"} <= named.keys():
        found = {role: named[role] for role in ("anchor", "positive")}
        numbers = {int(m[1]): name for name in header if (m := NUMBERED.fullmatch(name))}
        if numbers:
            return found | {f"negative_{k}": name for k, (_, name) in enumerate(sorted(numbers.items()), start=1)}
        return found | ({"negative": named["negative"]} if "negative" in named else {})
    return {"sentence": named["sentence"]} if "sentence" in named else {}


def _by_content(path: Path, table: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Roles of unknown columns: one or two columns of texts, with a column of scores beside two or not."""
    texts = [name for name, values in table.items() if _prose(values)]
    numbers = [name for name, values in table.items() if name not in texts and _numeric(values) and not _ids(values)]
    if len(texts) == 1 and len(table) == 1:
        return {"sentence": texts[0]}
    if len(texts) == 2 and len(numbers) == 1 and len(table) == 3:
        return {"first": texts[0], "second": texts[1], "score": numbers[0]}
    if len(texts) == 2 and len(table) == 2:
        return {"anchor": texts[0], "positive": texts[1]}
    raise _unclear(path, list(table))


def _unclear(path: Path, names: Sequence[str]) -> DataError:
    ways = "--column anchor=NAME --column positive=NAME; other roles: negative, first, second, score, sentence"
    return DataError(f"{path}: cannot recognise the columns {', '.join(names)}; name them with {ways}")


def _numeric(values: Sequence[str]) -> bool:
    try:
        return bool([score_of(value) for value in values[:LOOK] if has_score(value)])
    except ValueError:
        return False


def _ids(values: Sequence[str]) -> bool:
    """Whether the numbers may count rows rather than score them: whole ones, each there once."""
    return all(value.strip().isdecimal() for value in values) and len(set(values)) == len(values)


def _prose(values: Sequence[str]) -> bool:
    """Whether most values have several words, or several letters of a script without blanks."""
    some = [value for value in values[:LOOK] if value.strip()]
    wordy = sum(" " in value.strip() or _script(value[:1]) in ("zh", "ja", "th") for value in some)
    return not _numeric(values) and wordy * 2 > len(some)


def _script(letter: str) -> str | None:
    return SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0]) if letter.isalpha() else None


def _language(texts: Mapping[str, Sequence[str]]) -> str:
    """The code of the script that a fifth of the letters are in; kana mean Japanese, whatever stands beside them."""
    some = "".join(value for role, values in texts.items() if role != "score" for value in values[:LOOK])[: 1 << 16]
    counted = Counter(_script(letter) or "en" for letter in some if letter.isalpha())
    if counted["ja"] * 20 > counted.total():
        return "ja"
    most = max((code for code in counted if code != "en"), key=lambda code: counted[code], default="en")
    return most if counted[most] * 5 > counted.total() else "en"


def _length(values: Sequence[str]) -> str:
    words = statistics.median(len(value.split()) for value in values)
    if words > 2:
        return f"{words:.0f} words"
    return f"{statistics.median(map(len, values)):.0f} characters"


def split(found: Recognised, start: str) -> dict[str, Part]:
    """Write a file's rows as three parts without a common row: train, dev and test.

    Rows that share a text (of an anchor or positive; of a sentence of a scored pair) stay together, so nothing is
    trained on a held-out query or on a passage that answers one: such passages are also left out of the hard negatives
    of training rows. Held-out queries are searched among the passages of the whole file, since a search in use is one
    among all passages, and among a tenth of them it would be much easier. Which rows and passages are drawn depends on
    the hash of their texts only: not on the order of the rows.

    Args: start: of the paths: `START_train.jsonl`, and of pairs and triplets the folders `START_dev` and `START_test`
        (BEIR's layout: the held-out anchors are queries, the file's positives and negatives the documents), of scored
        pairs `START_dev.jsonl` and `START_test.jsonl`.
    Raises: DataError if too few rows can be held out, or one of the paths exists.
    """
    files = found.kind == SCORED
    paths = {p: Path(f"{start}_{p}" + (".jsonl" if files or p == "train" else "")) for p in ("train", "dev", "test")}
    if there := next((path for path in paths.values() if path.exists()), None):
        raise DataError(f"{there}: exists, and nothing is overwritten; remove it, or choose another --out")
    roles = found.texts[:2]
    parts = _drawn(_groups([found.columns[role] for role in roles]), len(found), found.path, found.columns[roles[0]])
    out = set[str]() if files else _held(found, [*parts["dev"], *parts["test"]])
    passages = [] if files else _passages(found)
    written = {}
    for part, path in paths.items():
        if files or part == "train":
            written[part] = Part(path, _write_rows(path, found, parts[part], out))
        else:
            written[part] = _write_retrieval(path, part, found, parts[part], passages)
    return written


def _passages(found: Recognised) -> list[str]:
    """The distinct positives and hard negatives of a file, in its order."""
    roles = [role for role in found.texts if role != "anchor"]
    rows = zip(*(found.columns[role] for role in roles), strict=True)
    return list(dict.fromkeys(text for row in rows for text in row if text.strip()))


def _groups(columns: Sequence[Sequence[str]]) -> list[list[int]]:
    """Rows that are connected by common texts, whatever their case and white space."""
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    first: dict[str, int] = {}
    for column in columns:
        for row, text in enumerate(column):
            other = first.setdefault(normalised(text), row)
            parent[root(row)] = root(other)
    groups: dict[int, list[int]] = {}
    for row in range(len(parent)):
        groups.setdefault(root(row), []).append(row)
    return list(groups.values())


def normalised(text: str) -> str:
    """Without what does not tell two texts apart: case and white space."""
    return " ".join(text.casefold().split())


def _drawn(groups: Sequence[Sequence[int]], rows: int, path: Path, key: Sequence[str]) -> dict[str, list[int]]:
    """Rows of each part, in the order of the file; a held-out part has a tenth of them, or `MOST_ROWS`.

    Args: key: (rows,) texts whose hashes draw.
    """
    most = min(int(rows * SHARE), MOST_ROWS)
    drawn = sorted((min(hashlib.sha256(normalised(key[row]).encode()).digest() for row in g), g) for g in groups)
    parts: dict[str, list[int]] = {"dev": [], "test": [], "train": []}
    for _, group in drawn:
        part = next((p for p in ("dev", "test") if len(parts[p]) + len(group) <= most), "train")
        parts[part].extend(group)
    fewest = min(len(parts["dev"]), len(parts["test"]))
    if fewest < FEWEST:
        why = "its rows share their texts" if most >= FEWEST else f"it has {rows:,} rows"
        raise DataError(
            f"{path}: cannot hold out a dev and a test set of {FEWEST} rows: {why}; name a dev set with --dev"
        )
    return {part: sorted(parts[part]) for part in ("train", "dev", "test")}


def _held(found: Recognised, rows: Sequence[int]) -> set[str]:
    return {normalised(found.columns[role][row]) for role in found.texts[:2] for row in rows}


def _write_rows(file: Path, found: Recognised, rows: Sequence[int], out: set[str]) -> int:
    """Rows by the product's own names of roles; hard negatives among `out` are left out.

    Returns: rows.
    """
    names = {"first": "sentence1", "second": "sentence2"}
    plain = [role for role in found.columns if not role.startswith("negative")]
    negatives = [role for role in found.columns if role.startswith("negative")]
    with whole_file(file) as target:
        for row in rows:
            written = {names.get(role, role): found.columns[role][row] for role in plain}
            kept = [text for role in negatives if normalised(text := found.columns[role][row]) not in out and text]
            written |= dict(zip(negatives, kept, strict=False))
            target.write(_line(written))
    return len(rows)


def _write_retrieval(folder: Path, part: str, found: Recognised, rows: Sequence[int], passages: Sequence[str]) -> Part:
    """A retrieval set in BEIR's layout: the anchors of the rows as queries, among the passages of the file."""
    anchors, positives = (found.columns[role] for role in found.texts[:2])
    answers: dict[str, dict[str, None]] = {}
    for row in rows:
        answers.setdefault(anchors[row], {})[positives[row]] = None
    answers = dict(list(answers.items())[:MOST_QUERIES])
    among = _among(passages, {positives[row] for row in rows}, answers)
    documents = {text: f"d{i}" for i, text in enumerate(among)}
    (folder / "qrels").mkdir(parents=True)
    with whole_file(folder / "corpus.jsonl") as target:
        target.writelines(_line({"_id": name, "title": "", "text": text}) for text, name in documents.items())
    with whole_file(folder / "queries.jsonl") as target:
        target.writelines(_line({"_id": f"q{i}", "text": text}) for i, text in enumerate(answers))
    with whole_file(folder / "qrels" / f"{part}.tsv") as target:
        target.write(b"query-id\tcorpus-id\tscore\n")
        for i, texts in enumerate(answers.values()):
            target.writelines(f"q{i}\t{documents[text]}\t1\n".encode() for text in texts)
    return Part(folder, len(answers), len(documents), len(passages))


def _among(passages: Sequence[str], held: Collection[str], queries: Iterable[str]) -> list[str]:
    """The held-out passages and others, `MOST_PASSAGES` in all; none whose text is a query: it would come first."""
    taken = set(map(normalised, queries))
    others = [text for text in passages if text not in held and normalised(text) not in taken]
    if len(others) > (most := max(0, MOST_PASSAGES - len(held))):
        others = sorted(others, key=lambda text: hashlib.sha256(text.encode()).digest())[:most]
    chosen = {*held, *others}
    return [text for text in passages if text in chosen]


def _line(row: Mapping[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
