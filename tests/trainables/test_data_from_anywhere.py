"""Training data from folders of Parquet, Arrow, CSV and JSON-lines files, and from a hub at a pinned commit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_hub import dataset_hub, run_with_hub
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet
from test_methods import spec_of

from trainables.contract.errors import DataError
from trainables.contract.trial import Evaluation
from trainables.data import checks
from trainables.data.checks import check_data
from trainables.data.sets import load_corpus, load_pairs
from trainables.training.trial import run_trial

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"q": f"question {i}", "a": f"answer {i}", "n": f"other {i}"} for i in range(6)]
COLUMNS = {"anchor": "q", "positive": "a", "negative": "n"}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".csv":
        arrow_csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)


@pytest.fixture(params=[".parquet", ".arrow", ".csv", ".jsonl"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    for part in (0, 1):
        write(tmp_path / "set" / f"train-{part}{request.param}", ROWS[3 * part : 3 * part + 3])
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    return tmp_path / "set"


def test_a_folder_is_one_corpus(folder: Path) -> None:
    corpus = load_corpus(str(folder), "en", "triplets", COLUMNS)
    assert corpus.columns == {role: [row[name] for row in ROWS] for role, name in COLUMNS.items()}
    data = {"train": str(folder), "dev": ["builtin"], "language": "en", "columns": COLUMNS}
    assert check_data({"method": "simcse_sup", "data": data}) == []
    starred = load_corpus(f"{folder}/train-*{next(folder.glob('train*')).suffix}", "en", "triplets", COLUMNS)
    assert (starred.columns, starred.revision) == (corpus.columns, corpus.revision)
    next(folder.glob("train-1*")).unlink()
    assert load_corpus(str(folder), "en", "triplets", COLUMNS).revision != corpus.revision
    with pytest.raises(DataError, match=r"train-0.*expected a column anchor or sent0"):
        load_corpus(str(folder), "en", "triplets")


def test_rows_without_a_text_are_left_out_and_counted(tmp_path: Path) -> None:
    """Of triplets and dev pairs; a null, a missing key and a blank are no text. A key of later rows counts as well."""
    triplets = [
        {"anchor": "a", "positive": "p", "negative_1": "n", "other": 1},
        {"anchor": "b", "positive": "q", "negative_1": "o", "negative_2": "m"},
        {"anchor": "c", "positive": None, "negative_1": "o", "negative_2": "m"},
        {"anchor": "d", "positive": "r", "negative_1": " ", "negative_2": "m"},
        {"anchor": "e", "positive": "s", "negative_1": "l", "negative_2": "k"},
        {"anchor": "f", "positive": "t", "negative_1": "j", "negative_2": "i"},
    ]
    pairs = [("a", "b", 1), ("", "b", 2), ("c", None, 3), ("e", "f", None), ("g", "h", 4)]
    write(tmp_path / "x.jsonl", triplets)
    write(tmp_path / "y.jsonl", [dict(zip(("sentence1", "sentence2", "score"), row, strict=True)) for row in pairs])
    assert load_corpus(str(tmp_path / "x.jsonl"), "en", "triplets").columns == {
        "anchor": ["b", "e", "f"], "positive": ["q", "s", "t"],
        "negative": ["o", "l", "j"], "negative_2": ["m", "k", "i"],
    }  # fmt: skip
    assert load_pairs(str(tmp_path / "y.jsonl"), "dev", "en").first == ["a", "g"]
    data = {"train": str(tmp_path / "x.jsonl"), "dev": [str(tmp_path / "y.jsonl")], "language": "en"}
    assert check_data({"method": "simcse_sup", "data": data}) == [
        f"{tmp_path / 'x.jsonl'}:1: a text of the triplet is missing; 3 of 6 rows are left out for that",
        f"{tmp_path / 'y.jsonl'}:4: no score; 1 of 5 pairs are left out for that; "
        f"{tmp_path / 'y.jsonl'}:2: an empty sentence; 2 of 5 pairs are left out for that",
        f"data.train {tmp_path / 'x.jsonl'}: holds 25% of y (dev), by equal sentences",
    ]
    write(tmp_path / "x.jsonl", triplets[1:3])
    with pytest.raises(DataError, match=r"at least two to tell apart, got one .*1 of 2 rows are left out"):
        load_corpus(str(tmp_path / "x.jsonl"), "en", "triplets")


def with_negatives(counts: list[int], start: int = 0) -> list[dict[str, Any]]:
    """Triplets of which each has so many hard negatives."""
    return [
        {"anchor": f"a{i}", "positive": f"p{i}"} | {f"negative_{k + 1}": f"n{k}{i}" for k in range(count)}
        for i, count in enumerate(counts, start)
    ]


@pytest.mark.parametrize("kind", [".jsonl", ".parquet", ".arrow", ".csv"])
def test_hard_negatives_that_most_rows_lack_are_left_out(kind: str, tmp_path: Path) -> None:
    """The highest number in any row would be required of all."""
    file = tmp_path / f"x{kind}"
    write(file, with_negatives([4, 1, 2, 3, 2, 1, 2, 3, 2, 1]))
    corpus = load_corpus(str(file), "en", "triplets")
    assert list(corpus.columns) == ["anchor", "positive", "negative", "negative_2"]
    assert corpus.columns["negative_2"] == [f"n1{i}" for i in (0, 2, 3, 4, 6, 7, 8)]
    line = {".jsonl": 2, ".csv": 3}.get(kind, 2)
    assert (corpus.left_out, corpus.note) == (
        3,
        f"{file}:{line}: a text of the triplet is missing; 3 of 10 rows are left out for that; "
        f"{file}: negative_3 to negative_4 are left out: 3 of 10 rows have all texts up to negative_3",
    )
    write(file, with_negatives([2, 1, 1, 1]))
    corpus = load_corpus(str(file), "en", "triplets")
    assert (len(corpus), list(corpus.columns)) == (4, ["anchor", "positive", "negative"])
    assert corpus.note == f"{file}: negative_2 is left out: 1 of 4 rows have all texts up to negative_2"
    assert corpus.left_out == 0


def test_files_of_one_set_may_differ_in_hard_negatives(tmp_path: Path) -> None:
    for part, counts in enumerate(([1, 2], [1, 3], [2, 2])):
        write(tmp_path / f"train-{part}.jsonl", with_negatives(counts, 2 * part))
    columns = load_corpus(str(tmp_path), "en", "triplets").columns
    assert (list(columns), columns["anchor"]) == (
        ["anchor", "positive", "negative", "negative_2"],
        ["a1", "a3", "a4", "a5"],
    )


def test_a_corpus_that_lacks_most_texts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with counts; but its beginning may."""
    file = tmp_path / "x.jsonl"
    write(file, with_negatives([1, 0, 2, 0, 0]) + with_negatives([1] * 5))
    data = {"train": str(file), "dev": ["builtin"], "language": "en"}
    (note,) = check_data({"method": "simcse_sup", "data": data})
    assert "3 of 10 rows are left out" in note
    write(file, with_negatives([1, 0, 2, 0, 0]))
    message = (
        f"{file}:2: a text of the triplet is missing in 3 of 5 rows, more than half; expected anchor, positive, "
        "negative in most; if those are not to be trained on, take them out"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        check_data({"method": "simcse_sup", "data": data})
    for beginning, first in (([1, 0, 2, 0, 0], 2), ([0, 0, 0, 0, 1], 1)):
        write(file, with_negatives(beginning) + with_negatives([1] * 50))
        monkeypatch.setattr(checks, "WHOLE", 1)
        monkeypatch.setattr(checks, "HEAD", len("".join(file.read_text().splitlines(keepends=True)[:5])) + 1)
        (note,) = check_data({"method": "simcse_sup", "data": data})
        lost = beginning.count(0)
        assert note.startswith(f"{file}:{first}: a text of the triplet is missing; {lost} of 5 rows are left out for")
        assert note.endswith(f"{file}: has more than 0 MB; its beginning is checked")


def test_several_hard_negatives_and_their_roles(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write(file, [{"anchor": f"a{i}", "positive": f"p{i}"} | {f"negative_{k}": f"n{k}{i}" for k in "123"} for i in "01"])
    columns = load_corpus(str(file), "en", "triplets").columns
    assert list(columns) == ["anchor", "positive", "negative", "negative_2", "negative_3"]
    assert (columns["negative"], columns["negative_3"]) == (["n10", "n11"], ["n30", "n31"])
    named = load_corpus(
        str(file), "en", "triplets", {"negative_1": "negative_3", "negative_3": "positive", "positive": "negative_1"}
    ).columns
    assert (named["positive"], named["negative"]) == (["n10", "n11"], ["n30", "n31"])
    with pytest.raises(DataError, match="unknown role 'negativ_1'"):
        load_corpus(str(file), "en", "triplets", {"negativ_1": "x"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("negative_1", "negative_3"), r"expected a column negative_2 \(negative_2\), got sent0, sent1, neg"),
        (("hard_neg", "negative_1"), "expected negative or negative_1 to negative_1, got both"),
    ],
)
def test_hard_negatives_with_a_gap_are_refused(names: tuple[str, str], message: str, tmp_path: Path) -> None:
    write(tmp_path / "y.csv", [{"sent0": "a", "sent1": "b"} | dict.fromkeys(names, "c")])
    with pytest.raises(DataError, match=rf"y\.csv: {message}"):
        load_corpus(str(tmp_path / "y.csv"), "en", "triplets")


@pytest.mark.costly
@pytest.mark.parametrize(("method", "params"), [
    ("simcse_sup", {"hard_negative_weight": 0.5}), ("simcse_sup", {"loss_form": "both_rows"}), ("selfccl", {}),
    ("simcse_sup", {"loss_form": "in_batch"}),
])  # fmt: skip
def test_a_trial_on_several_hard_negatives(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    triplets = list(zip(*load_corpus("builtin", "en", "triplets").columns.values(), strict=True))[:96]
    outcomes = []
    for count in (1, 2):
        names = ["negative"] if count == 1 else ["negative_1", "negative_2"]
        rows = [
            {"anchor": a, "positive": p} | {name: triplets[(i + k) % 96][2] for k, name in enumerate(names)}
            for i, (a, p, _) in enumerate(triplets)
        ]
        rows += [{"anchor": "no", "positive": "negative"}] * (count - 1)
        write(tmp_path / f"{count}.jsonl", rows)
        shape = {"max_examples": 64, "eval_examples": 32, "batch_size": 16, "epochs": 1}
        spec = spec_of(method, tmp_path / f"trial{count}", **params, **shape)
        spec = replace(spec, data={**spec.data, "train": str(tmp_path / f"{count}.jsonl")})
        found = list[Evaluation]()
        outcome = run_trial(spec, lambda evaluation, found=found: found.append(evaluation) or "go")
        assert outcome.stop == "completed", outcome.traceback
        assert [one.metrics.get("rows_left_out") for one in found] == [1.0 if count == 2 else None, None]
        outcomes.append(found[0].metrics["loss"])
    alike = params.get("loss_form") == "in_batch"  # which has none
    assert (outcomes[0] == pytest.approx(outcomes[1], abs=1e-6)) == alike
    assert alike or method == "selfccl" or outcomes[1] > outcomes[0]  # more candidates; SelfCCL orders them anew


def test_a_folder_of_several_kinds_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files of one kind of .*, got none"):
        load_corpus(str(tmp_path), "en")
    write(tmp_path / "a.csv", ROWS)
    write(tmp_path / "b.jsonl", ROWS)
    with pytest.raises(DataError, match=r"got \.csv and \.jsonl"):
        load_corpus(str(tmp_path), "en")
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.arrow").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"b\.arrow: cannot be read as Arrow"):
        load_corpus(str(tmp_path / "b.arrow"), "en")


FILE = "triplet/train-00000-of-00001.parquet"
PAIRS = "data/validation-00000-of-00001.parquet"


@pytest.mark.costly
def test_hub_table_is_pinned_then_read_from_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", ROWS)
    write(tmp_path / "pairs.parquet", [{"a": f"one {i}", "b": f"two {i}", "s": i / 4} for i in range(5)])
    files = {FILE: (tmp_path / "x.parquet").read_bytes(), PAIRS: (tmp_path / "pairs.parquet").read_bytes()}
    (tmp_path / "triplet").mkdir()  # a file of the current folder has a name that the hub's may have
    (tmp_path / "triplet" / "train.csv").write_text("of something else\n")
    name, dev = f"hub:org/set@{COMMIT}:triplet:train", f"hub:org/set@{COMMIT}:validation"
    roles = COLUMNS | {"first": "a", "second": "b", "score": "s"}
    script = (
        "from trainables.data.sets import load_corpus, load_pairs\n"
        "from trainables.data.checks import check_data\n"
        "from trainables.contract.errors import DataError\n"
        f"data = {{'train': {name!r}, 'dev': [{dev!r}], 'language': 'en', 'columns': {roles!r}}}\n"
        "try:\n  check_data({'method': 'simcse_sup', 'data': data, 'metric': 'set_dev'})\n"
        f"  c = load_corpus({name!r}, 'en', 'triplets', {roles!r})\n"
        f"  p = load_pairs({dev!r}, 'dev', 'en', {roles!r})\n"
        "  print(len(c), c.columns['anchor'][5], c.revision, p.name, p.first[4], p.gold.tolist()[-1])\n"
        "except DataError as e: print(e)"
    )

    def loaded(cache: str) -> str:
        found = run_with_hub(hub, script, tmp_path / cache, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()

    wanted = f"6 question 5 org/set@{COMMIT} set one 4 1.0"
    with dataset_hub("org/set", COMMIT, files) as hub:
        assert loaded("first") == wanted
        assert any(path.endswith(FILE) for path in hub.requests)
    assert loaded("first") == wanted  # from the cache: the hub is gone
    # a table of two files of which somebody fetched one alone is not in the cache
    for there, content in ((FILE.replace("00000-of-00001", "00000-of-00002"), FILE), (PAIRS, PAIRS)):
        part = tmp_path / "second/hub/datasets--org--set/snapshots" / COMMIT / there
        part.parent.mkdir(parents=True)
        part.write_bytes(files[content])
    message = loaded("second")
    assert message.startswith("data set hub:org/set@0123456789ab: not in the cache, and from the hub: ")
    assert "\n" not in message


def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    one = [{"anchor": f"a {i}", "positive": "b", "negative": f"c {i}"} for i in range(3)]
    two = [{"anchor": f"a {i}", "positive": "b", "negative_1": f"c {i}", "negative_2": "d"} for i in range(3)]
    (tmp_path / "set").mkdir()
    for name, rows in (("x", two), ("y", one)):
        write(tmp_path / f"{name}.csv", rows)
        write(tmp_path / "set" / f"{name}.csv", rows)
    for which in (tmp_path / "set", f"{tmp_path}/x.csv+{tmp_path}/y.csv", f"{tmp_path}/y.csv+{tmp_path}/x.csv"):
        with pytest.raises(DataError, match=r"expected the columns of \S+ \(anchor, .*\), got anchor"):
            load_corpus(str(which), "en", "triplets")
        data = {"train": str(which), "dev": ["builtin"], "language": "en"}
        with pytest.raises(DataError, match=r"expected the columns of \S+ \(anchor, .*\), got anchor"):
            check_data({"method": "simcse_sup", "data": data})


def test_a_fault_behind_the_beginning_is_found_before_a_trial(tmp_path: Path) -> None:
    rows = [f'{{"text": "{i} {"long " * 400}"}}' for i in range(1000)]  # 2 MB
    (tmp_path / "x.jsonl").write_text("\n".join([*rows, '{"text": ["cut']))
    (tmp_path / "x.txt").write_bytes(b"A sentence.\n" * 6_000_000 + b"caf\xe9\n")  # more than a trial keeps in memory
    for name, said in (("x.jsonl", ":1001: not JSON"), ("x.txt", ": cannot be read as UTF-8 text: ")):
        data = {"train": str(tmp_path / name), "dev": ["builtin"], "language": "en"}
        with pytest.raises(DataError, match=rf"{name}{said}"):
            check_data({"method": "simcse", "data": data})
