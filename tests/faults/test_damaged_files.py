"""Damaged data files of every format and role: one line or a faithful reading, the same for a check and for a trial."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from test_text_tables import KINDS, TYPED, write

from trainables.contract.errors import DataError
from trainables.data.checks import check_data
from trainables.data.sets import load_corpus, load_pairs

ROLES = {"sentence": ("sentence",), "triplet": ("anchor", "positive", "negative"), "pair": ("sentence1", "sentence2")}
TEXTS = ("caf\u00e9 no. {}", 'he said "go" {}', "one, two; {}", "\u4e00\u4e2a\u4eba {}", "\u2028 odd {}", "plain {}")
OUTCOMES = {"refused", "reported", "faithful"}
SUFFIXES = (*KINDS, ".txt", ".csv.gz", ".jsonl.gz", ".txt.gz")


def rows_of(role: str, rng: Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {name: rng.choice(TEXTS).format(f"{name} {i}") for name in ROLES[role]} for i in range(12)
    ]
    return [row | {"score": i / 4} for i, row in enumerate(found)] if role == "pair" else found


# ------------------------------------------------------------ damage to bytes
def _at(data: bytes, rng: Random, new: bytes, gone: int = 0) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + new + data[place + gone :]


def _coded(data: bytes, code: str) -> bytes:
    return data.decode().encode(code, "replace")


def _line(data: bytes, rng: Random, change: Callable[[bytes], bytes]) -> bytes:
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = change(lines[place])
    return b"\n".join(lines)


DAMAGE: dict[str, Callable[[bytes, Random], bytes]] = {
    "cut off": lambda data, rng: data[: rng.randrange(len(data))],
    "byte 0xff": lambda data, rng: _at(data, rng, b"\xff", 1),
    "NUL": lambda data, rng: _at(data, rng, b"\0"),
    "quotation mark": lambda data, rng: _at(data, rng, b'"'),
    "two quotation marks": lambda data, rng: _at(_at(data, rng, b'"'), rng, b'"'),
    "backslash": lambda data, rng: _at(data, rng, b"\\"),
    "half surrogate": lambda data, rng: data.replace(b'": "', b'": "\\ud83d', rng.randrange(1, 5)),
    "byte gone": lambda data, rng: _at(data, rng, b"", 1),
    "line break": lambda data, rng: _at(data, rng, b"\n"),
    "delimiter": lambda data, rng: _at(data, rng, rng.choice([b",", b"\t"])),
    "blank line": lambda data, rng: _line(data, rng, lambda line: line + b"\n"),
    "line twice": lambda data, rng: _line(data, rng, lambda line: line + b"\n" + line),
    "line gone": lambda data, _: b"\n".join(data.split(b"\n")[1:]),
    "cp1252": lambda data, _: _coded(data, "cp1252"),
    "gb18030": lambda data, _: _coded(data, "gb18030"),
    "UTF-16": lambda data, rng: _coded(data, rng.choice(["utf-16", "utf-16-le", "utf-16-be"])),
    "byte order mark": lambda data, _: _coded(data, "utf-8-sig"),
    "CRLF": lambda data, _: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "CR": lambda data, _: data.replace(b"\r\n", b"\r").replace(b"\n", b"\r"),
    "other delimiter": lambda data, _: data.replace(b"\t", b";").replace(b",", b";"),
    "empty": lambda *_: b"",
}
# ------------------------------------------------------------ damage to values
VALUES: dict[str, Any] = {
    "null": None, "NaN": math.nan, "empty": "", "blank": "  ", "true": True, "number": 12, "decimal": 1.5,
    "list": ["x y"], "empty list": [], "list of lists": [["a"]], "object": {"a": 1}, "long": "word " * 40_000,
    "bytes": b"caf\xc3\xa9", "bad bytes": b"caf\xe9", "controls": "a\0b\x1b[31m", "key gone": KeyError,
}  # fmt: skip


def check_file(path: Path, role: str, literal: Callable[[str], bool], originals: set[str]) -> str:
    """Read as a trial reads it and as `search check` does: "refused", "reported", or "faithful".

    Args: literal: whether the file holds a text as it is.
    """
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    data |= {"dev": [str(path)]} if role == "pair" else {"train": str(path)}
    method = "simcse_sup" if role == "triplet" else "simcse"
    try:
        notes = check_data({"method": method, "data": data}, local_only=True)
    except DataError as error:
        checked = str(error)
        assert "\n" not in checked, checked
        assert str(path) in checked
        checked.encode()
    else:
        checked = ""
    try:
        if role == "pair":
            pairs = load_pairs(str(path), "dev", "en")
            found, note = [*pairs.first, *pairs.second], pairs.note
        else:
            corpus = load_corpus(str(path), "en", "triplets" if role == "triplet" else "sentences")
            found, note = [text for column in corpus.columns.values() for text in column], corpus.note
    except DataError as error:
        return "refused" if str(error) == checked else f"a trial only: {error}"
    assert not checked
    assert not note or note in notes
    for text in found:
        text.encode()
    changed = [text for text in found if not literal(text)]
    lost = [text for text in originals if literal(text) and not any(text in one for one in found)]
    assert note or not (changed or lost), (changed, lost)
    return "reported" if note else "faithful"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("role", ROLES)
def test_damaged_bytes(suffix: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    if suffix.startswith(".txt") and role != "sentence":
        pytest.skip("a text file holds sentences only")
    plain, outcomes = suffix.removesuffix(".gz"), []
    for number, (name, damage) in enumerate(DAMAGE.items()):
        rng = Random(f"{suffix} {role} {name}")
        rows, path = rows_of(role, rng), tmp_path / f"x{number}{suffix}"
        whole = tmp_path / f"whole{plain}"
        if plain == ".txt":
            whole.write_text("".join(f"{row['sentence']}\n" for row in rows))
        else:
            write(whole, rows)
        data = damage(whole.read_bytes(), rng) if plain not in (".parquet", ".arrow") else None
        if data is None and (data := damage(b"x" * whole.stat().st_size, rng)) is not None:
            data = whole.read_bytes()[
                : min(len(data), rng.randrange(whole.stat().st_size))
            ]  # cut off: others are chance
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
        if suffix.endswith(".gz") and name == "cut off":
            path.write_bytes(gzip.compress(whole.read_bytes())[: -rng.randrange(1, 30)])
        text = data.decode("utf-8-sig", "replace")

        def literal(one: str, text: str = text) -> bool:
            forms = (one, one.replace('"', '""'), json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1])
            return any(form in text for form in forms)

        originals = {row[key] for row in rows for key in ROLES[role]} if name not in ("line gone",) else set()
        outcomes.append(check_file(path, role, literal, originals))
    assert "refused" in outcomes
    assert set(outcomes) <= OUTCOMES


@pytest.mark.parametrize("suffix", TYPED)
@pytest.mark.parametrize("role", ROLES)
def test_damaged_values(suffix: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of another type in one row, or in all of them (of a typed column); the rest of the texts is read."""
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    for number, (name, value) in enumerate(VALUES.items()):
        rng = Random(f"{suffix} {role} {name}")
        rows, key, path = rows_of(role, rng), rng.choice(ROLES[role]), tmp_path / f"x{number}{suffix}"
        typed = isinstance(value, (bool, int, float, list, dict, bytes)) and name != "NaN"
        some = rows if typed else [rng.choice(rows)]
        for row in some:
            row[key] = value
            if value is KeyError:
                del row[key]
        if isinstance(value, bytes) and suffix.startswith(".json"):
            continue
        try:
            write(path, rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue  # no such column
        texts = {v for row in rows for k in ROLES[role] if isinstance(v := row.get(k), str)}
        texts |= {"12", "1.5", "x y", "caf\u00e9"}
        outcome = check_file(path, role, texts.__contains__, set())
        assert outcome in OUTCOMES
        if name in ("true", "list of lists", "object", "bad bytes"):
            assert outcome == "refused", name
        if name in ("null", "NaN", "empty", "blank") or (name == "key gone" and suffix.startswith(".json")):
            assert outcome == "reported", name


def test_the_corpus_is_large() -> None:
    assert len(DAMAGE) * (3 * (len(SUFFIXES) - 2) + 2) + len(VALUES) * len(TYPED) * len(ROLES) > 700
