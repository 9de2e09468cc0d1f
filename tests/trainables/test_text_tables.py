"""One reader for every table of texts: the same rules in every format and role, each change of a text reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from trainables.contract.errors import DataError
from trainables.data.checks import check_data
from trainables.data.sets import load_corpus, load_pairs

KINDS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow")
TYPED = (".jsonl", ".json", ".parquet", ".arrow")
TRIPLET = ("anchor", "positive", "negative")
PAIR = ("sentence1", "sentence2", "score")
Rows = Sequence[dict[str, Any]]


def write(path: Path, rows: Rows, **how: Any) -> Path:
    """A file as people's programs write it; how: of the CSV writer."""
    if path.suffix == ".gz":
        plain = write(path.with_suffix(""), rows, **how)
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif path.suffix in (".csv", ".tsv"):
        out = io.StringIO(newline="")
        delimiter = "\t" if path.suffix == ".tsv" else ","
        writer = csv.DictWriter(out, list(dict.fromkeys(k for row in rows for k in row)), delimiter=delimiter, **how)
        writer.writeheader()
        writer.writerows(rows)
        path.write_bytes(out.getvalue().encode())
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        table = pa.Table.from_pylist(list(rows))
        if path.suffix == ".parquet":
            parquet.write_table(table, path)
        else:
            with (ipc.new_file if path.name.startswith("file") else ipc.new_stream)(str(path), table.schema) as stream:
                stream.write_table(table)
    return path


def triplets(count: int = 6) -> list[dict[str, Any]]:
    return [{"anchor": f"a {i}", "positive": f"p {i}", "negative": f"n {i}"} for i in range(count)]


def scored(count: int = 6) -> list[dict[str, Any]]:
    return [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": i / 2} for i in range(count)]


@pytest.mark.parametrize("kind", [*KINDS, ".csv.gz", ".json.gz"])
def test_every_format_gives_the_same_texts(kind: str, tmp_path: Path) -> None:
    texts = ['say "so"', "a, b", "\u2028 \u0085 x", " blank ", "nan", "None", "\U0001f600", "1.50"]
    rows = [{"anchor": t, "positive": f"p {t}", "negative": f"n {i}"} for i, t in enumerate(texts)]
    corpus = load_corpus(str(write(tmp_path / f"x{kind}", rows)), "en", "triplets")
    assert corpus.columns == {role: [row[role] for row in rows] for role in TRIPLET}
    assert corpus.note == "" or kind == ".tsv"
    pairs = load_pairs(str(write(tmp_path / f"y{kind}", scored())), "dev", "en")
    assert (pairs.first, pairs.gold.tolist(), pairs.note) == (
        [f"a {i}" for i in range(6)],
        [0, 0.5, 1, 1.5, 2, 2.5],
        "",
    )


def test_an_arrow_file_is_read_as_a_stream_is(tmp_path: Path) -> None:
    file = write(tmp_path / "file.arrow", triplets())
    assert load_corpus(str(file), "en", "triplets").columns["anchor"] == [f"a {i}" for i in range(6)]


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.parametrize("role", [*TRIPLET, *PAIR])
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("missing", [None, math.nan])
def test_null_and_nan_are_missing(kind: str, role: str, at: int, missing: object, tmp_path: Path) -> None:
    rows = triplets() if role in TRIPLET else scored()
    if kind in (".parquet", ".arrow") and missing is not None and role != "score":
        rows = [{name: i if name == role else v for name, v in row.items()} for i, row in enumerate(rows)]
    rows[at][role] = missing
    path = str(write(tmp_path / f"x{kind}", rows))
    if role in TRIPLET:
        corpus = load_corpus(path, "en", "triplets")
        assert (len(corpus), corpus.left_out) == (5, 1)
        assert "1 of 6 rows are left out" in corpus.note
    else:
        pairs = load_pairs(path, "dev", "en")
        assert (len(pairs), "1 of 6 pairs are left out" in pairs.note) == (5, True)
    if role == "score":
        data = {"train": "builtin", "dev": [path], "language": "en"}
        assert any("no score; 1 of 6" in note for note in check_data({"method": "simcse", "data": data}))


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".jsonl.gz"])
@pytest.mark.parametrize("role", ["text", *TRIPLET, *PAIR[:2]])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_half_surrogates_are_replaced_and_counted(kind: str, role: str, at: int, tmp_path: Path) -> None:
    rows = {"text": [{"text": f"t {i}"} for i in range(6)], "s": scored()}.get(role[: 4 if role == "text" else 1])
    rows = rows or triplets()
    rows[at][role], rows[5 - at // 2][role] = "cut \ud83d", "\ude00 and \ud83d\ude00"
    path = write(tmp_path / f"x{kind}", rows)
    found = load_pairs(str(path), "dev", "en") if role in PAIR else load_corpus(str(path), "en", _needs(role))
    texts = found.columns.values() if hasattr(found, "columns") else (found.first, found.second)
    flat = [text for column in texts for text in column]
    changed = {at, 5 - at // 2}
    assert sum("\ufffd" in text for text in flat) == len(changed)
    "".join(flat).encode()
    line = min(changed) + 1 if "jsonl" in kind else 2 + min(changed) * (len(rows[0]) + 2)
    assert found.note.startswith(f"{path}:{line}: half of a surrogate pair")
    assert f"{len(changed)} text{'s have' if len(changed) > 1 else ' has'} U+FFFD" in found.note


def _needs(role: str) -> str:
    return "triplets" if role in TRIPLET else "sentences"


# ------------------------------------------------------------ quoted TSV
QUOTED = [
    {"sentence1": 'He said "go".', "sentence2": '"Stop!"', "score": 1},
    {"sentence1": "c", "sentence2": "d", "score": 2},
]


@pytest.mark.parametrize(
    ("rows", "how"),
    [
        (QUOTED, {}),
        (QUOTED, {"quoting": csv.QUOTE_ALL}),
        (QUOTED, {"quoting": csv.QUOTE_NONNUMERIC}),
        ([{**QUOTED[1], "sentence1": "of\ntwo lines"}, QUOTED[0]], {}),
        ([{**QUOTED[1], "sentence2": "with\ta tab"}, {"sentence1": "e", "sentence2": "f", "score": 3}], {}),
        (scored(), {"quoting": csv.QUOTE_ALL}),
    ],
)  # fmt: skip
def test_a_consistently_quoted_tsv_is_read_as_quoted(rows: Rows, how: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", rows, **how)
    pairs = load_pairs(str(path), "dev", "en")
    assert (pairs.first, pairs.second) == ([row["sentence1"] for row in rows], [row["sentence2"] for row in rows])
    assert pairs.note.startswith(f"{path}: read as a quoted table")
    assert load_corpus(str(path), "en").columns["sentence"] == [t for row in rows for t in list(row.values())[:2]]


def test_excel_quotes_what_has_a_comma(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('sentence1\tsentence2\tscore\n"One, two."\tb\t1\n"Say ""so""."\td\t2\n')
    assert load_pairs(str(tmp_path / "x.tsv"), "dev", "en").first == ["One, two.", 'Say "so".']


@pytest.mark.parametrize(
    ("first", "note"),
    [
        (['"Stop!"', "x"], False),  # a text in quotation marks: who quotes fields would double them
        (['"Go," he said', 'a "b" c'], False),
        (['""', '"x'], False),
        (["it's", '5"'], False),
        (['"a"b"', '"c"'], False),
        (['"say ""so"""', 'a "b" c'], True),  # only one of the two is quoted
        (['"say ""so"""', '"c"'], True),
    ],
)
def test_other_quotation_marks_of_a_tsv_are_text(first: list[str], note: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{t}\tb\t{i}\n" for i, t in enumerate(first)))
    pairs = load_pairs(str(path), "dev", "en")
    assert pairs.first == first
    assert pairs.note.startswith(f"{path}: read as a plain table") == note


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
def test_text_behind_a_closing_quotation_mark_is_reported(kind: str, tmp_path: Path) -> None:
    mark = "\t" if kind == ".tsv" else ","
    path = tmp_path / f"x{kind}"
    path.write_text('sentence1,sentence2,score\na,b,1\n"Stop" he said,d,2\n'.replace(",", mark))
    pairs = load_pairs(str(path), "dev", "en")
    assert pairs.first[1] == ("Stop he said" if kind == ".csv" else '"Stop" he said')
    assert pairs.note == (
        f"{path}:3: text behind a closing quotation mark: read without the marks" if kind == ".csv" else ""
    )


# ------------------------------------------------------------ headers, delimiters, blank lines
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "The neighbour sells the clock.\nA cook.\n", ":1: expected the names of the columns, got "
         "'The neighbour sells the clock.'; is the header missing? put a first line 'sentence' above it, or "),
        ("x.csv", "Is it so,Yes it is,4.5\n", ":1: expected the names of the columns, got '4.5'; is the header"),
        ("x.tsv", "一个男人弹吉他。\t一个人。\t4.5\n", ":1: expected the names of the columns, got '一个男人弹"),
        ("x.csv", "sentence1;sentence2;score\na;b;1,5\n", ":1: expected fields separated by commas, got semicolons: "
         "'sentence1;sentence2;score'; save it with commas"),
        ("x.csv", "sentence1\tsentence2\tscore\na\tb\t1\n", ":1: expected fields separated by commas, got tabs: "),
        ("x.tsv", "sentence1,sentence2,score\na,b,1\n", ":1: expected fields separated by tabs, got commas: "
         "'sentence1,sentence2,score'; rename it to .csv"),
        ("x.csv", "s1;s2;label\na;b;1\n", ":1: expected fields separated by commas, got semicolons"),
        ("x.csv", "text_A,text_B,label\na,b,1\n", ": expected a column sentence1 (first), got text_A, text_B, label; "
         "name it in data.columns, such as columns: {first: text_A, second: text_B}"),
        ("x.csv", "premise,hypothesis,label\na,b,1\n", "got premise, hypothesis, label; name it in data.columns"),
        ("x.csv", "q,r,s\na,b,1\n", ": expected a column sentence1 (first), got q, r, s; name it in data.columns"),
        ("x.csv", "SENTENCE1,sentence2,score\na,b,1\n", "such as columns: {first: SENTENCE1}"),
        ("x.csv", "sentence1,sentence2\na,b\n", ": expected a column score (score), got sentence1, sentence2; add it"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "label\\ud800\\n": 1}\n', r"score: 'label\ud800\n'}"),
    ],
)  # fmt: skip
def test_advice_is_right_or_missing(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        (load_corpus if content.startswith("The") else lambda path, _: load_pairs(path, "dev", "en"))(
            str(tmp_path / name), "en"
        )
    message = str(error.value)
    assert said in message
    assert "\n" not in message
    message.encode()
    if said.endswith("data.columns"):
        assert message.endswith(said)


def test_blanks_around_names_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("sentence1 , sentence2,\tscore\na,b,1\nc,d,2\n")
    assert load_pairs(str(tmp_path / "x.csv"), "dev", "en").second == ["b", "d"]


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_lines_are_no_rows(kind: str, end: str, blank: str, tmp_path: Path) -> None:
    lines = ["", "sentence1,sentence2,score", "a,b,1", blank, "c,d,2", blank, blank, "e,f,3", blank, ""]
    path = tmp_path / f"x{kind}"
    path.write_bytes(end.join(lines).replace(",", "\t" if kind == ".tsv" else ",").encode())
    pairs = load_pairs(str(path), "dev", "en")
    assert (pairs.first, pairs.gold.tolist()) == (["a", "c", "e"], [1, 2, 3])
    assert pairs.note.startswith(f"{path}:4: a blank line; ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scores", "gold"),
    [
        ([True, False, True], [1, 0, 1]), (["true", "FALSE", "True"], [1, 0, 1]), (["1.5", "NA", "2"], [1.5, 2]),
        (["None", "1", "2"], [1, 2]), (["1", "2", "N/A"], [1, 2]), (["1", "<NA>", " 2 "], [1, 2]),
    ],
)  # fmt: skip
def test_scores(kind: str, scores: list[Any], gold: list[float], tmp_path: Path) -> None:
    rows = [{**row, "score": score} for row, score in zip(scored(3), scores, strict=True)]
    pairs = load_pairs(str(write(tmp_path / f"x{kind}", rows)), "dev", "en")
    assert pairs.gold.tolist() == gold
    assert ("no score; 1 of 3 pairs" in pairs.note) == (len(gold) == 2)


# ------------------------------------------------------------ lists
@pytest.mark.parametrize("kind", TYPED)
def test_lists_of_positives_and_negatives(kind: str, tmp_path: Path) -> None:
    """One row for each positive; of the negatives as many as most rows have, a shorter list repeated."""
    rows = [
        {"query": "q0", "pos": ["p0"], "neg": ["n0"]},
        {"query": "q1", "pos": ["p1", "r1"], "neg": ["n1", "m1", "l1"]},
        {"query": "q2", "pos": ["p2"], "neg": ["n2", "m2"]},
        {"query": "q3", "pos": ["p3"], "neg": []},
    ]
    corpus = load_corpus(str(write(tmp_path / f"x{kind}", rows)), "en", "triplets")
    assert corpus.columns == {
        "anchor": ["q0", "q1", "q1", "q2"], "positive": ["p0", "p1", "r1", "p2"],
        "negative": ["n0", "n1", "n1", "n2"], "negative_2": ["n0", "m1", "m1", "m2"],
    }  # fmt: skip
    assert (corpus.left_out, "lists of positive and negative: 4 rows give 5" in corpus.note) == (1, True)
    assert load_corpus(str(tmp_path / f"x{kind}"), "en").columns["sentence"][:4] == ["q0", "p0", "n0", "q1"]
    with pytest.raises(DataError, match=r":[12]: query: expected a text or a number, got \['q0'\]"):
        load_corpus(str(write(tmp_path / f"y{kind}", [{**row, "query": [row["query"]]} for row in rows])), "en")


@pytest.mark.parametrize("kind", TYPED)
def test_a_set_of_sentences_in_a_column(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"x{kind}", [{"set": ["a", "b"]}, {"set": ["c"]}, {"set": ["d", "e"]}])
    corpus = load_corpus(str(path), "en", columns={"sentence": "set"})
    assert (corpus.columns["sentence"], corpus.note) == (
        list("abcde"),
        f"{path}: lists of sentence: 3 rows give 5 with sentence",
    )


def test_files_of_a_set_may_have_lists_of_different_length(tmp_path: Path) -> None:
    for part, count in enumerate((1, 2, 2)):
        write(
            tmp_path / f"{part}.parquet", [{"query": f"q{part}", "pos": ["p"], "neg": [f"n{k}" for k in range(count)]}]
        )
    corpus = load_corpus(str(tmp_path), "en", "triplets")
    assert (corpus.columns["negative_2"], corpus.columns["anchor"]) == (["n0", "n1", "n1"], ["q0", "q1", "q2"])


# ------------------------------------------------------------ what is no table
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "sentence1;sentence2;score\nCaf\xe9;b;1,5\n".encode("cp1252"), "it seems to be cp1252, its fields "
         "separated by semicolons; save it as UTF-8 with commas; in Excel, \"CSV UTF-8\""),
        ("x.csv", "sentence1,sentence2,score\nb \u201cc\u201d,d,1\n".encode("cp1252"), "it seems to be cp1252; save"),
        ("x.tsv", "sentence1\tsentence2\tscore\n一个男人\t人\t1\n".encode("gb18030"), "it seems to be gb18030"),
        ("x.csv", "sentence1,sentence2,score\n".encode("utf-16"), "it is UTF-16"),
        ("x.csv", "sentence1,sentence2,score\n".encode("utf-16-le"), "it is UTF-16"),
        ("x.csv", "sentence1,sentence2,score\n".encode("utf-16-be"), "it is UTF-16"),
        ("x.csv", b"a sentence\n" + bytes(4000), "it has many zero bytes: is it damaged?"),
        ("x.csv", gzip.compress(b"sentence1,sentence2,score\n", mtime=0), "it is gzip: add .gz to its name"),
        ("x.csv", b"PK\x03\x04\x80\x80\x80", "it is a ZIP archive or an Excel workbook"),
        ("x.tsv", "sentence1\tsentence2\tscore\nб".encode()[:-1], "is it cut off?"),
        ("x.json", b'[{"sentence1": "a"}, {"sentence1"', ":1: not JSON: Expecting ':' delimiter"),
        ("x.json", b'[{"sentence1": "a"},\n{"sentence1": "b"}', ":2: not JSON: the array is not closed"),
        ("x.json", b'[{"sentence1": "a"}] x', ":1: not JSON: text behind the end of the array"),
        ("x.json", b"[1, 2]", ":1: expected an object, got '1'"),
        ("x.json", b"[]", ": expected a column sentence1 (first), got none"),
        ("x.json", b'{\n "data": []\n}', ":1: not JSON: "),
        ("x.jsonl", b'{"sentence1": "a", "sentence1": "b"}\n', ":1: not JSON: key 'sentence1' is there twice"),
        ("x.jsonl", b"[" * 100_000, ":1: not JSON: "),
        ("x.jsonl", b'{"sentence1": true, "sentence2": "b", "score": 1}\n', ":1: sentence1: expected a text"),
        ("x.parquet", b"PAR1", ": cannot be read as Parquet: "),
        ("x.arrow", b"", ": cannot be read as Arrow: "),
    ],
    ids=lambda value: repr(value)[:40],  # one of them is long
)  # fmt: skip
def test_what_a_file_is_instead_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load_pairs(str(tmp_path / name), "dev", "en")
    message = str(error.value)
    assert message.startswith(str(tmp_path / name))
    assert said in message
    assert "\n" not in message
