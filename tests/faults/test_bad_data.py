"""Data that would fail trials, or be read otherwise than meant, is found before the first one: one line each."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from search.cli.main import main
from trainables.data.catalogue import set_name
from trainables.data.sets import load_corpus
from trainables.data.tables import read_table

HEADER = "sentence1\tsentence2\tscore"
GOOD = f"{HEADER}\na\tb\t1\nc\td\t2\ne\tf\t3\n"


def space(root: Path, **changes: object) -> Path:
    """A space on my_dev.tsv and train.txt of its folder."""
    data = {"train": str(root / "train.txt"), "dev": [str(root / "my_dev.tsv")], "language": "en"}
    plain = {"name": "x", "method": "simcse", "encoder": "builtin:tiny", "data": data, "preset": "none",
             "metric": {"name": "my_dev"}, "params": {"learning_rate": {"float": [1e-6, 1e-3]}},
             "search": {"sampler": "random", "trials": 2, "baseline": "none"}}  # fmt: skip
    (root / "space.yaml").write_text(yaml.safe_dump(plain | changes))
    return root / "space.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("One.\nTwo.\n")
    (tmp_path / "my_dev.tsv").write_text(GOOD)
    return tmp_path


def call(*words: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(main, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output.splitlines()


def refused(root: Path, name: str) -> str:
    """The one line with which `check` and `run` refuse the space; nothing is left behind."""
    file = space(root)
    code, lines = call("check", str(file))
    assert (code, len(lines)) == (2, 1), lines
    code, said = call("run", str(file), "--storage", str(root / "runs"))
    assert (code, said[-1]) == (2, lines[0])
    assert not (root / "runs").exists()
    assert lines[0].startswith(f"{root / name}:"), lines
    return lines[0].removeprefix(f"{root / name}")


def checked(root: Path, name: str) -> tuple[int, list[str]]:
    """`search check` of a space with the file in the place of its training data or its dev set."""
    data = {"train": str(root / "train.txt"), "dev": [str(root / "my_dev.tsv")], "language": "en"}
    data |= {"dev": [str(root / name)]} if name.startswith("my_dev") else {"train": str(root / name)}
    return call("check", str(space(root, data=data)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{HEADER}\na\tb\t1\nc\td\tyes\n", ":3: expected a number as score, got 'yes'"),
        (f"{HEADER}\na\tb\t1\nc\td\t4,5\n", ":3: expected a number as score, got '4,5'; numbers are written"),
        (f"{HEADER}\na\tb\tinf\nc\td\t1\n", ":2: expected a number as score, got 'inf'"),
        (f"{HEADER}\na\tb\t1\n", ": expected at least two pairs with different scores, got 1 pair"),
        (f"{HEADER}\na\tb\t1\nc\td\t1\n", ": expected at least two pairs with different scores, got 2 pairs, all"),
        (f"{HEADER}\tscore\na\tb\t1\t1\n", ":1: column score is there 2 times"),
        (f"{HEADER}\na\tb\t1\nc\td\n", ":3: expected 3 fields, got 2"),
        (GOOD.replace("\n", "\r"), ":1: its lines end in CR alone"),
        (GOOD.replace("sentence1", "one"), ": expected a column sentence1 (first), got one, sentence2, score"),
        ("", ": expected a column sentence1 (first), got none"),
    ],
)  # fmt: skip
def test_dev_sets(content: str, said: str, root: Path) -> None:
    (root / "my_dev.tsv").write_bytes(content.encode())
    assert refused(root, "my_dev.tsv").startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"One.\rTwo.\rThree.\r", ":1: its lines end in CR alone"),
        (b"One.\n", ": expected training texts, at least two to tell apart, got one"),
        (b"", ": expected training texts, at least two to tell apart, got none"),
        (b"One.\n\xff\xfe\n", ": cannot be read as UTF-8 text"),
    ],
)
def test_training_data(content: bytes, said: str, root: Path) -> None:
    (root / "train.txt").write_bytes(content)
    assert refused(root, "train.txt").startswith(said)


@pytest.mark.parametrize("name", ["my_dev.csv", "train.csv"])
def test_a_quotation_mark_that_is_not_closed(name: str, root: Path) -> None:
    rows = "".join(f"a {n},b,{n}\r\n" for n in range(9_000))
    (root / name).write_bytes(f'sentence1,sentence2,score\r\n"left open,b,1\r\n{rows}'.encode())
    code, lines = checked(root, name)
    assert (code, len(lines)) == (2, 1), lines
    assert lines[0] == f"{root / name}:2: unexpected end of data; is a quotation mark missing?"


@pytest.mark.parametrize(
    ("name", "header", "open_row", "closing_row", "said"),
    [
        ("my_dev.csv", "sentence1,sentence2,score", '"left open,b,3', 'x "y" z,b,4', """',' expected after '"'"""),
        ("train.csv", "sentence", '"Left open.', "Never closed.", "unexpected end of data"),
    ],
)
def test_a_quotation_mark_that_takes_in_other_rows(
    name: str, header: str, open_row: str, closing_row: str, said: str, root: Path
) -> None:
    """The rows between it and the next one became one, with as many fields as every other."""
    rows = [f"a {n},b,{n}" if name == "my_dev.csv" else f"Sentence {n}." for n in range(60)]
    rows[1], rows[48] = open_row, closing_row
    (root / name).write_text("\n".join([header, *rows]) + "\n")
    code, lines = checked(root, name)
    assert (code, lines) == (2, [f"{root / name}:3: {said}; is a quotation mark missing?"])


def test_rows_of_several_lines_are_legal(root: Path) -> None:
    """Whole or in a head that ends in one; quotation marks inside a line take in nothing and stay as they are."""
    content = 'sentence\n"one ""quoted""\nword"\nthe "second" row\n"third" row\n"of\n\nthree lines"\n'
    (root / "train.csv").write_text(content)
    whole = ['one "quoted"\nword', 'the "second" row', "third row", "of\n\nthree lines"]
    assert load_corpus(str(root / "train.csv"), "en").columns["sentence"] == whole
    for head in range(len("sentence\n") + 1, len(content) + 1):
        found = read_table(root / "train.csv", lambda header: {"sentence": header[0]}, head).columns["sentence"]
        assert found == whole[: len(found)]
    assert len(found) == len(whole) - 1  # a head as long as the file does not know that it is all


def test_a_text_of_any_length_is_legal_in_a_table(root: Path) -> None:
    book = "a word\n" * 20_000
    with (root / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["sentence"], ["short"], [book], ["last"]])
    code, lines = checked(root, "train.csv")
    assert code == 0, lines
    assert load_corpus(str(root / "train.csv"), "en").columns["sentence"] == ["short", book, "last"]


def test_check_of_several_spaces_names_the_bad_one(root: Path) -> None:
    (root / "my_dev.tsv").write_text(f"{HEADER}\na\tb\t1\n")
    file = space(root)
    code, lines = call("check", "quickstart", str(file))
    assert code == 2
    assert lines[-1].startswith(f"{file}: {root / 'my_dev.tsv'}: expected at least two pairs")


def test_a_set_with_too_few_pairs_to_hold_any_out(root: Path) -> None:
    file = space(root, metric={"name": "my_dev", "holdout": 0.001})
    line = "metric.holdout: my has too few pairs (3) for two parts"
    for command in (["check"], ["run", "--storage", str(root / "runs")]):
        code, said = call(*command, str(file))
        assert (code, said[-1]) == (2, line)
    rows = [f"a {n}\tb\t{n == 2:d}" for n in range(8)]  # the one with another score is held out
    (root / "my_dev.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    said = call("check", str(file), "--set", "metric.holdout=0.5")[1][-1]
    assert said == "metric.holdout: the 2 pairs of my left to select have all one score"
    assert call("check", "quickstart", "--set", "metric.holdout=0.9999")[0] == 2  # which has the builtin sets


def test_rows_without_a_score_are_left_out_with_a_note(root: Path) -> None:
    rows = [f"a {n}\tb\t{'NaN' if n % 3 == 2 else n}" for n in range(200)]
    (root / "my_dev.tsv").write_text("\n".join([HEADER, *rows]) + "\n\n\n")  # blank lines at the end are no rows
    code, lines = call("check", str(space(root)))
    assert code == 0, lines
    assert lines[-1] == f"  note: data: {root / 'my_dev.tsv'}:4: no score; 66 of 200 pairs are left out for that"


def test_missing_files_are_reported_at_their_line(root: Path) -> None:
    data = {"train": str(root / "no.txt"), "dev": [str(root / "my_dev.tsv")], "language": "en"}
    file = space(root, data=data, encoder=str(root / "encoder"))
    code, lines = call("check", str(file))
    text = file.read_text().splitlines()
    assert code == 2
    assert len(lines) == 2
    for key, said in (("data.train", "does not exist"), ("encoder", "no such folder")):
        number = next(i for i, line in enumerate(text, 1) if line.strip().startswith(f"{key.split('.')[-1]}:"))
        assert any(line.startswith(f"{file}:{number}: {key}: ") and said in line for line in lines), lines


def sampled(root: Path, values: object, **more: object) -> tuple[int, str]:
    """Messages about a space on 5 sentences that searches (or sets) `sample_size`."""
    (root / "train.txt").write_text("One.\nTwo.\nThree.\nFour.\nFive.\n")
    params = {"learning_rate": {"float": [1e-6, 1e-3]}} | ({} if values is None else {"sample_size": values})
    code, lines = call("check", str(space(root, params=params, **more)))
    return code, lines[0] if code else lines[-1]


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"choice": [3, 5, 8, 10]}, "5, 8, 10"),
        ({"choice": [None, 6]}, "null, 6"),
        ({"int": [2, 9]}, "5 to 9"),
        ({"int": [2, 10], "step": 4}, "6 to 10"),
        ({"int": [7, 9], "log": True}, "7 to 9"),
        ({"int": [2, 10**9]}, "5 to 1000000000"),  # too many to check one by one
    ],
)
def test_samples_that_are_all_of_the_corpus_are_one_point(values: object, same: str, root: Path) -> None:
    code, line = sampled(root, values)
    said = f"params.sample_size: expected at most 5, the corpus has 5 examples: {same} are the same run"
    assert (code, line.partition(": ")[2]) == (2, said)


@pytest.mark.parametrize(
    ("method", "params", "refused"),
    [
        ("simcse", {"batch_size": {"choice": [4, 5, 64, 128]}}, "batch_size: expected at most 5, .* 5, 64, 128 are"),
        ("simcse", {"batch_size": {"choice": [4, 64]}}, ""),
        ("simcse", {"batch_size": {"int": [2, 64], "step": 2}}, "batch_size: .* 6 to 64 are"),
        ("simcse", {"batch_size": {"choice": [3, 4]}, "sample_size": 3}, "batch_size: expected at most 3, .* 3, 4 are"),
        ("simcse", {"batch_size": {"choice": [3, 4]}, "sample_size": {"choice": [3, 5]}}, ""),
        (
            "simcse",
            {"batch_size": {"choice": [4, 64]}, "sample_size": {"choice": [3, 5, 6]}},
            "sample_size: .* 5, 6 are",
        ),
        (
            "simcse",
            {"max_examples": {"choice": [8, 10, 20]}, "epochs": 2},
            "max_examples: expected at most 10, .* 10, 20",
        ),
        ("simcse", {"max_examples": {"choice": [4, 6, None]}}, "max_examples: expected at most 5, .* 6, null are"),
        ("simcse", {"max_examples": {"choice": [4, 6]}, "epochs": {"choice": [1, 2]}}, ""),
        ("simcse", {"eval_examples": {"choice": [2, 5, 8]}, "max_examples": None}, "eval_examples: .* 5, 8 are"),
        ("simcse", {"eval_examples": {"choice": [2, 3, 4]}, "max_examples": 3}, "eval_examples: expected at most 3, "),
        ("gclsr", {"batch_size": {"choice": [8, 16]}}, ""),  # of which the learning rate depends
        ("esimcse", {"batch_size": {"choice": [8, 16]}}, ""),  # and the queue
        (
            "esimcse",
            {"batch_size": {"choice": [8, 16]}, "queue_batches": 0},
            "batch_size: expected at most 5, .* 8, 16",
        ),
        (
            "esimcse",
            {"queue_batches": {"choice": [1, 2.5, 3]}, "batch_size": 2},
            "queue_batches: .* most 2.5, .* 2.5, 3",
        ),
        (
            "esimcse",
            {"queue_batches": {"float": [0.5, 8.0]}, "batch_size": 2},
            "queue_batches: .* most 2.5, .* 2.5 to 8",
        ),
    ],
)  # fmt: skip
def test_values_that_the_data_clip_alike_are_one_point(
    method: str, params: dict[str, object], refused: str, root: Path
) -> None:
    (root / "train.txt").write_text("One.\nTwo.\nThree.\nFour.\nFive.\n")
    more = {"encoder": "builtin:vectors"} if method == "gclsr" else {}
    code, lines = call("check", str(space(root, method=method, params=params, train={}, **more)))
    assert (code, bool(re.search(f"params.{refused}", lines[0]))) == ((2, True) if refused else (0, False)), lines


def test_one_sample_may_be_more_than_the_corpus(root: Path) -> None:
    """A default such as EdaCSE's 10,000 is as many as there are, with a warning; so may be the last of a grid."""
    assert sampled(root, {"choice": [2, 3, 10]})[0] == 0
    noted = "  note: sample_size: 10000 of 5 examples that the corpus has: all of them are trained on"
    assert sampled(root, None, method="edacse") == (0, noted)
    assert sampled(root, 10_000) == (0, noted)


def test_listed_points_differ_in_more_than_their_samples(root: Path) -> None:
    rows = [{"sample_size": 6, "dropout": 0.1}, {"sample_size": 9, "dropout": 0.2}]
    more = {"search": {"sampler": "grid"}, "points": rows}
    (root / "train.txt").write_text("One.\nTwo.\nThree.\n")
    assert call("check", str(space(root, params={}, **more)))[0] == 0
    code, lines = call(
        "check", str(space(root, params={}, **more | {"points": [*rows, {**rows[0], "sample_size": 7}]}))
    )
    assert (code, "points.sample_size: expected at most 3, " in lines[0]) == (2, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pairs_test.tsv", "test"), ("test.tsv", "test"), ("Pairs-TEST.tsv", "TEST"), ("test2016.tsv", "test"),
        ("pairs.test.tsv", "test"), ("my testset.tsv", "test"), ("pairs_train.tsv", "train"), ("train.tsv", "train"),
        ("latest.tsv", ""), ("contest_dev.tsv", ""), ("pairs_dev.tsv", ""), ("constrained.tsv", ""),
    ],
)  # fmt: skip
def test_a_dev_file_named_after_another_split_is_noted(name: str, said: str, root: Path) -> None:
    (root / name).write_text(GOOD)
    data = {"train": str(root / "train.txt"), "dev": [str(root / name)], "language": "en"}
    code, lines = call("check", str(space(root, data=data, metric={"name": f"{set_name(str(root / name))}_dev"})))
    noted = [line for line in lines if "its name contains" in line]
    assert (code, len(noted)) == (0, bool(said)), lines
    assert all(f"its name contains {said}: what selects " in line for line in noted)


def test_a_sealed_test_set_does_not_select(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_DATA_DIR", str(root / "sets"))
    (root / "sets").mkdir()
    (root / "sets" / "en_sts12_test.tsv").write_text(GOOD.replace("a\t", "x\t"))
    (root / "copy.tsv").write_text(GOOD.replace("a\t", "x\t"))
    (root / "link.tsv").symlink_to(root / "sets" / "en_sts12_test.tsv")
    hub = "hub:mteb/sts12-sts@a0d554a64d88156834ff5ae9920b964011b16384:test"
    for name in (str(root / "copy.tsv"), str(root / "link.tsv"), str(root / "sets" / "en_sts12_test.tsv"), hub):
        data = {"train": str(root / "train.txt"), "dev": [name], "language": "en"}
        code, lines = call("check", str(space(root, data=data, metric={"name": f"{set_name(name)}_dev"})))
        assert (code, len(lines)) == (2, 1), lines
        assert lines[0].startswith(f"data.dev {name}: it is the sealed test set sts12 (en); select on another set")
