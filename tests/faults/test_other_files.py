"""Files of kinds that are not read, and columns of one file alone: `search check` and a study agree on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_bad_data import call, space
from test_text_tables import scored, write

from search.space.load import load_space


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("slash", [True, False])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pairs.xlsx", "is a spreadsheet, which is not read; save it as one of .tsv, .csv"),
        ("pairs.feather", "is a .feather file, which is not read"),
        ("pairs.tsv.zip", "is an archive or compressed otherwise, which"),
        ("pairs", "is a file without an ending"),
    ],
)
def test_file_of_another_kind_is_named_by_its_kind(
    name: str, what: str, slash: bool, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"x")
    given = f"./{name}" if slash else name
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"} | {split: given if split == "train" else [given]}
    metric = {"name": "builtin_dev" if split == "train" else f"{name.partition('.')[0]}_dev"}
    code, lines = call("check", str(space(tmp_path, data=data, metric=metric)))
    assert (code, sum(what in line and f"data.{split}" in line for line in lines)) == (2, 1), lines
    assert not any("does not exist" in line or "retrieval" in line for line in lines)


@pytest.mark.parametrize("slash", [True, False])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_json_array_is_a_data_set(slash: bool, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.json", scored())
    given = "./pairs.json" if slash else "pairs.json"
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"} | {split: given if split == "train" else [given]}
    metric = {"name": "builtin_dev" if split == "train" else "pairs_dev"}
    code, lines = call("check", str(space(tmp_path, data=data, metric=metric)))
    assert code == 0, lines


# ------------------------------------------------------------ columns of one file
OTHER = {"first": "text_a", "second": "text_b", "score": "label"}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one.csv", scored())
    for name, more in (("two.jsonl", ""), ("three.csv", " more"), ("four.csv", " of four")):
        rows = [
            dict(zip(OTHER.values(), (a + more, b + more, s), strict=True)) for a, b, s in map(dict.values, scored())
        ]
        write(tmp_path / name, rows)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"dev": ["one.csv", {"file": "two.jsonl", "columns": OTHER}]}, ["two.jsonl"]),
        ({"columns": OTHER, "dev": ["two.jsonl", {"file": "one.csv", "columns": {}}]}, ["one.csv"]),
        ({"dev": {"file": "two.jsonl", "columns": OTHER}}, ["two.jsonl"]),
        ({"dev": ["one.csv"], "train": {"file": "three.csv", "columns": {"sentence": "text_b"}}}, ["three.csv"]),
        ({"dev": ["one.csv"], "train": [{"file": "three.csv", "columns": {"sentence": "text_b"}},
                                        {"file": "four.csv", "columns": {"sentence": "text_a"}}, "builtin"]},
         ["three.csv", "four.csv"]),
    ],
)  # fmt: skip
def test_columns_of_one_file(data: dict[str, Any], named: list[str], two: Path) -> None:
    """Checked and stored; the stored space means the same."""
    whole = {"train": "builtin", "language": "en"} | data
    dev = whole["dev"] if isinstance(whole["dev"], list) else [whole["dev"]]
    names = [(d["file"] if isinstance(d, dict) else d).partition(".")[0] + "_dev" for d in dev]
    file = space(two, data=whole, metric={"name": f"mean({','.join(names)})" if len(names) > 1 else names[0]})
    code, lines = call("check", str(file))
    assert code == 0, lines
    loaded = load_space(str(file))
    assert [name for name, own in (loaded.data.columns or {}).items() if isinstance(own, dict)] == named
    (two / "stored.yaml").write_text(loaded.to_yaml())
    assert load_space(str(two / "stored.yaml")).data == loaded.data


@pytest.mark.parametrize(
    ("dev", "said"),
    [
        ([{"file": "two.jsonl", "colums": OTHER}], "data.dev[0].colums: unknown; did you mean 'columns'?"),
        ([{"file": "two.jsonl"}], "data.dev[0]: expected a name, or a mapping with file and columns"),
        ([{"file": "two.jsonl", "columns": {"frist": "a"}}], "frist: unknown role; did you mean 'first'?"),
        ([{"file": "two.jsonl", "columns": {"first": 1}}], "first: expected the name of a column"),
        ([{"file": "two.jsonl", "columns": ["a"]}], "expected a mapping of our column name to the file's"),
        ([{"file": ["two.jsonl"], "columns": OTHER}], "data.dev[0].file: expected text, got a list"),
    ],
)  # fmt: skip
def test_wrong_columns_of_one_file_are_refused_at_their_line(dev: list[Any], said: str, two: Path) -> None:
    code, lines = call("check", str(space(two, data={"train": "builtin", "dev": dev, "language": "en"})))
    assert (code, any(said in line for line in lines)) == (2, True), lines


def test_the_advice_on_two_headers_can_be_followed(two: Path) -> None:
    data: dict[str, Any] = {"train": "builtin", "dev": ["one.csv", "two.jsonl"], "language": "en", "columns": OTHER}
    metric = {"name": "mean(one_dev,two_dev)"}
    code, lines = call("check", str(space(two, data=data, metric=metric)))
    advice = lines[-1].partition("list it with columns of its own: ")[2]
    assert (code, advice.startswith("{file: one.csv, columns: {first: ")) == (2, True), lines
    data["dev"] = [yaml.safe_load(advice), "two.jsonl"]
    code, lines = call("check", str(space(two, data=data, metric=metric)))
    assert code == 0, lines
