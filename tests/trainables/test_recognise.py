"""What a file of texts is taken for, and the parts that are held out of it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from trainables.contract.errors import DataError
from trainables.data.columns import ALIASES, ROLES
from trainables.data.recognise import normalised, recognise, split
from trainables.data.retrieval import Retrieval, load_retrieval
from trainables.data.sets import load_corpus, load_pairs

TEXTS = ["a dog runs", "the cat sleeps", "one bird sings"]


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "row", "kind", "roles"),
    [
        ("anchor\tpositive", "a dog\tthe dog", "pairs", {"anchor": "anchor", "positive": "positive"}),
        ("query\tpassage", "a dog\tthe dog", "pairs", {"anchor": "query", "positive": "passage"}),
        ("question\tanswer\tid", "a dog\tthe dog\t1", "pairs", {"anchor": "question", "positive": "answer"}),
        ("links\trechts", "ein Hund\tder Hund", "pairs", {"anchor": "links", "positive": "rechts"}),
        ("sent0\tsent1\thard_neg", "a dog\tb dog\tc cat", "triplets",
         {"anchor": "sent0", "positive": "sent1", "negative": "hard_neg"}),
        ("query\tpos\tneg_2\tneg_1", "a dog\tb dog\tc cat\td cat", "triplets",
         {"anchor": "query", "positive": "pos", "negative_1": "neg_1", "negative_2": "neg_2"}),
        ("sentence1\tsentence2\tscore", "a dog\tb dog\t0.5", "scored pairs",
         {"first": "sentence1", "second": "sentence2", "score": "score"}),
        ("sentence1\tsentence2", "a dog\tb dog", "pairs", {"anchor": "sentence1", "positive": "sentence2"}),
        ("question1\tquestion2\tis_duplicate", "a dog\tb dog\t1", "scored pairs",
         {"first": "question1", "second": "question2", "score": "is_duplicate"}),
        ("left\tright\tgrade", "a dog\tb dog\t4", "scored pairs",
         {"first": "left", "second": "right", "score": "grade"}),
        ("text", "a dog", "sentences", {"sentence": "text"}),
        ("Satz", "ein Hund", "sentences", {"sentence": "Satz"}),
    ],
)  # fmt: skip
def test_columns_are_recognised_by_name_or_content(
    header: str, row: str, kind: str, roles: dict[str, str], tmp_path: Path
) -> None:
    found = recognise(table(tmp_path / "mine.tsv", header, row, row, row))
    assert (found.kind, dict(found.roles)) == (kind, roles)
    assert (len(found), found.repeated) == (3, 2)


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ALIASES.items() for name in names])
def test_training_reads_the_names_that_init_recognises(role: str, name: str, tmp_path: Path) -> None:
    usual = {"sentence": ["sentence"], "pairs": ["anchor", "positive", "negative"],
             "scored_pairs": ["first", "second", "score"]}  # fmt: skip
    needs, roles = next((needs, roles) for needs, roles in usual.items() if role in roles)
    names = {"first": "sentence1", "second": "sentence2"} | {role: name}
    rows = ["\t".join(str(i) if r == "score" else f"{r} {i}" for r in roles) for i in range(3)]
    file = table(tmp_path / "mine.tsv", "\t".join(names.get(r, r) for r in roles), *rows)
    found = recognise(file)
    assert found.roles[role] == name
    read = load_corpus(str(file), "en", "sentences" if needs == "sentence" else needs)
    assert {r: list(texts) for r, texts in read.columns.items() if r != "score"} == {
        r: list(texts) for r, texts in found.columns.items() if r != "score"
    }


def test_the_how_to_lists_all_names_of_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "data.md").read_text()
    for role, names in ALIASES.items():
        cells = [", ".join(f"`{name}`" for name in group) for group in (ROLES[role], names)]
        assert f"| `{role}` | {cells[0]} | {cells[1]} |\n" in page


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("a\tb\tc", "1\t1\t1"),
        ("id\tnumber", "1\t1"),
        ("sentence1\tsentence2\tlabel", "a dog\tb dog\tsame"),
        ("premise\thypothesis\tlabel", "a dog\tno dog\t2"),
    ],
)
def test_unclear_columns_are_requested(header: str, row: str, tmp_path: Path) -> None:
    file = table(tmp_path / "mine.tsv", header, *[row] * 3)
    with pytest.raises(DataError, match=r"mine\.tsv: cannot recognise the columns .*--column anchor=NAME"):
        recognise(file)
    column = header.split("\t")[1]
    with pytest.raises(DataError, match=r"expected a column nosuch \(anchor\), got"):
        recognise(file, {"anchor": "nosuch", "positive": column})


def test_a_column_of_ids_is_no_score(tmp_path: Path) -> None:
    rows = [f"{i},a question {i % 4},an answer {i}" for i in range(9)]
    with pytest.raises(DataError, match="cannot recognise the columns id, title, reply; name them with --column"):
        recognise(table(tmp_path / "mine.csv", "id,title,reply", *rows))


def test_labels_beside_pairs_are_no_pairs(tmp_path: Path) -> None:
    file = table(tmp_path / "mine.csv", "query,passage,label", "a dog,the dog,1", "a cat,no dog,0")
    scored = "--column first=query --column second=passage --column score=label"
    with pytest.raises(DataError, match=f"column label beside query and passage: .* give {scored}; else keep only"):
        recognise(file)
    assert recognise(file, {"anchor": "query", "positive": "passage"}).kind == "pairs"
    assert recognise(file, {"first": "query", "second": "passage", "score": "label"}).kind == "scored pairs"
    with pytest.raises(DataError, match=r"--column: expected the roles .* got anchor, positive, score"):
        recognise(file, {"anchor": "query", "positive": "passage", "score": "label"})
    with pytest.raises(DataError, match=r"give data.columns.anchor=query data.columns.positive=passage;"):
        load_corpus(str(file), "en", "pairs")
    named = load_corpus(str(file), "en", "pairs", {"anchor": "query", "positive": "passage"})
    assert len(named.columns["anchor"]) == 2


def test_a_query_beside_a_text_is_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot recognise the columns query, text; name them"):
        recognise(table(tmp_path / "mine.csv", "query,text", "a dog,the dog"))
    found = recognise(table(tmp_path / "other.csv", "text,length", "a dog,2"))
    assert found.lines()[0].endswith("(sentence: text; not used: length)")


def test_blanks_around_column_names_do_not_count(tmp_path: Path) -> None:
    named = table(tmp_path / "named.csv", "id, question, answer", "1,a dog,the dog")
    assert dict(recognise(named).roles) == {"anchor": "question", "positive": "answer"}
    other = table(tmp_path / "other.csv", "nr, left, right", "1,a dog,the dog")
    assert recognise(other, {"anchor": "left", "positive": "right"}).columns["positive"] == ["the dog"]
    unknown = table(tmp_path / "unknown.csv", "left, right", "a dog,the dog")
    assert dict(recognise(unknown).roles) == {"anchor": "left", "positive": "right"}


def test_lists_are_rows_and_rows_without_texts_are_left_out(tmp_path: Path) -> None:
    lines = [{"query": f"q {i}", "pos": [f"p {i}", f"r {i}"], "neg": [f"n {i}", f"m {i}"]} for i in range(3)]
    lines.append({"query": None, "pos": ["p"], "neg": ["n", "m"]})
    (tmp_path / "bge.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = recognise(tmp_path / "bge.jsonl")
    assert (found.kind, len(found), found.left_out) == ("triplets", 6, 1)
    assert list(found.columns) == ["anchor", "positive", "negative_1", "negative_2"]
    assert "  rows left out, without a text or a score: 1" in found.lines()
    scored = table(tmp_path / "s.csv", "sentence1,sentence2,score", "one dog,a cat,1", "a dog,two cats,NA", "a,b,2")
    assert (recognise(scored).kind, len(recognise(scored)), recognise(scored).left_out) == ("scored pairs", 2, 1)


def test_named_columns_count(tmp_path: Path) -> None:
    file = table(tmp_path / "mine.csv", "a,b,c", "one dog,two dogs,three")
    assert recognise(file, {"anchor": "c", "positive": "a"}).columns == {"anchor": ["three"], "positive": ["one dog"]}


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["一只狗在跑", "猫在睡觉"], "zh"),
        (["犬が走っている"], "ja"),
        (["собака бежит"], "ru"),
        (TEXTS, "en"),
        (["Straße"], "en"),
    ],
)
def test_script_decides_the_language(texts: list[str], language: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    found = recognise(tmp_path / "t.txt")
    assert found.language == language
    how = "assumed from the Latin alphabet; change data.language" if language == "en" else "detected by its script)"
    assert found.lines()[1].startswith(f"  language {language} ({how}")


def many(seed: int, count: int = 600) -> list[tuple[str, str, str]]:
    """Rows whose anchors and positives come again, also in another case, and whose negatives are others' positives."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        anchor = f"Question {i if rng.random() > 0.2 else rng.randrange(i + 1)}"
        positive = f"answer {i if rng.random() > 0.2 else rng.randrange(i + 1)}"
        rows.append((anchor.upper() if rng.random() < 0.1 else anchor, positive, f"answer {rng.randrange(count)}"))
    return rows


def relevant(one: Retrieval) -> set[str]:
    texts = dict(zip(one.document_ids, one.documents, strict=True))
    return {texts[name] for grades in one.grades for name in grades}


def test_passages_of_a_large_file_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trainables.data.recognise.MOST_PASSAGES", 100)
    lines = [f"query {i}\tanswer {i}\tquery {i + 1}" for i in range(300)]
    kept = []
    for name in "ab":
        parts = split(recognise(table(tmp_path / f"{name}.tsv", "query\tanswer\tneg", *lines)), str(tmp_path / name))
        assert parts["dev"][1:] == (30, 100, 600)
        kept.append(load_retrieval(str(parts["dev"].path), "dev"))
        lines.reverse()
    assert set(kept[0].documents) == set(kept[1].documents), "whatever the order of the rows"
    assert relevant(kept[0]) < set(kept[0].documents)
    assert not set(kept[0].queries) & set(kept[0].documents), "a query would find itself"


@pytest.mark.parametrize("seed", range(5))
def test_held_out_parts_have_no_query_or_answer_in_common(seed: int, tmp_path: Path) -> None:
    rows = many(seed)
    lines = ["\t".join(row) for row in rows]
    found = recognise(table(tmp_path / "q.tsv", "query\tanswer\tneg", *lines))
    parts = split(found, str(tmp_path / "q"))
    train = [json.loads(line) for line in parts["train"][0].read_text().splitlines()]
    held = [load_retrieval(str(parts[part][0]), part) for part in ("dev", "test")]
    texts = [{normalised(t) for row in train for t in row.values()}]
    texts += [set(map(normalised, [*one.queries, *relevant(one)])) for one in held]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    passages = {text for row in rows for text in row[1:]}
    assert all(set(one.documents) == passages for one in held), "the whole file's"
    assert [parts[part][2:] for part in ("dev", "test")] == [(len(passages), len(passages))] * 2
    pairs = {(row["anchor"], row["positive"]) for row in train}
    for one in held:
        answers = dict(zip(one.document_ids, one.documents, strict=True))
        pairs |= {(q, answers[d]) for q, judged in zip(one.queries, one.grades, strict=True) for d in judged}
        assert 20 <= len(one.queries) <= 60
    assert pairs == {row[:2] for row in rows}, "no row is lost"
    assert parts["train"][1] == len(train)
    assert 0 < sum("negative" in row for row in train) <= len(train)

    random.Random(seed).shuffle(lines)
    again = split(recognise(table(tmp_path / "r.tsv", "query\tanswer\tneg", *lines)), str(tmp_path / "r"))
    for part in ("dev", "test"):
        other = load_retrieval(str(again[part][0]), part)
        assert set(other.queries) == set(held[part == "test"].queries), "whatever the order of the rows"
    with pytest.raises(DataError, match="exists, and nothing is overwritten"):
        split(found, str(tmp_path / "q"))


def test_scored_pairs_are_held_out_as_such(tmp_path: Path) -> None:
    rows = [f"dog {i}\tcat {i % 450}\t{i % 6}" for i in range(500)]
    found = recognise(table(tmp_path / "s.tsv", "sentence1\tsentence2\tscore", *rows))
    parts = split(found, str(tmp_path / "s"))
    kept = [load_pairs(str(parts[part][0]), part, "en") for part in ("train", "dev", "test")]
    assert [len(one) for one in kept] == [parts[part][1] for part in ("train", "dev", "test")] == [400, 50, 50]
    texts = [{*one.first, *one.second} for one in kept]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


@pytest.mark.parametrize(
    ("rows", "why"),
    [([f"q {i}\ta {i}" for i in range(50)], "it has 50 rows"), ([f"q {i}\tspam" for i in range(500)], "share their")],
)
def test_too_little_to_hold_out_is_reported(rows: list[str], why: str, tmp_path: Path) -> None:
    found = recognise(table(tmp_path / "q.tsv", "query\tanswer", *rows))
    with pytest.raises(DataError, match=rf"q\.tsv: cannot hold out a dev and a test set of 20 rows: .*{why}.*--dev"):
        split(found, str(tmp_path / "q"))
    assert [file.name for file in tmp_path.iterdir()] == ["q.tsv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question;answer\nwho sleeps;a cat\n", ":1: expected fields separated by commas, got semicolons"),
        (
            "Shell with C-like syntax,The C shell was first written at UCB\na b,c d e f\n",
            "is the header missing",
        ),
    ],
)
def test_a_first_line_without_column_names_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(text + "a cat,sleeps\n" * 20)
    with pytest.raises(DataError, match=re.escape(message)):
        recognise(tmp_path / "pairs.csv")
