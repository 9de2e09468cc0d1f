"""Bad space files in, exact messages out. `bad_spaces/expected.txt` was written by hand-checking every line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search.space import check_spaces, load_space

FOLDER = Path(__file__).parent / "bad_spaces"


def expectations() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FOLDER / "expected.txt").read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[(\S+\.yaml)\]", line):
            lines = found.setdefault(header[1], [])
        elif line:
            lines.append(line)
    return found


EXPECTED = expectations()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_mistake_is_reported_with_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    (checked,) = check_spaces([name])
    assert list(checked.problems) == EXPECTED[name]


def test_the_corpus_is_complete() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == EXPECTED.keys()
    assert len(EXPECTED) >= 60
    assert all(EXPECTED.values())


def test_a_stored_study_is_read_without_drawing_points_of_it() -> None:
    """What an earlier version began can be looked at and gone on with."""
    assert load_space(FOLDER / "range_that_does_not_divide.yaml").params.keys() == {"num_groups", "group_size"}


def test_missing_file_and_folder(tmp_path: Path) -> None:
    missing, folder = tmp_path / "none.yaml", tmp_path
    lines = [line for checked in check_spaces([missing, folder, "nul\0.yaml"]) for line in checked.lines()]
    assert lines[:2] == [f"{missing}: no such file", f"{folder}: cannot be read: Is a directory"]
    assert len(lines) == 3
    assert lines[2].isprintable()


def test_data_sets_in_the_local_folder_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only `search check` looks: a space may be read where its data are not."""
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("wiki", "mine").replace("[stsb]", "[stsb, mine]"))
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    assert [line.split(";")[0] for line in check_spaces([path])[0].problems] == [
        f"{path}:3: data.dev: unknown data set 'mine'",
        f"{path}:3: data.train: unknown data set 'mine'",
    ]
    assert load_space(path).data.dev == ("stsb", "mine")
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    (tmp_path / "en_mine_train.txt").write_text("a\nb\n")
    (tmp_path / "en_mine_dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    assert check_spaces([path])[0].problems == ()
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path / "none"))
    assert check_spaces([path])[0].problems[0].startswith(f"{path}:3: data: SEARCH_DATA_DIR: expected a folder, got ")


def test_extends_in_a_circle_of_two(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("# b\nextends: a.yaml\n")
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert check_spaces([a])[0].problems == (f"{b}:2: extends: in a circle: {a} -> {b} -> {a}",)


GOOD = """\
method: simcse
encoder: bert-base-uncased
data: {train: wiki, dev: [stsb]}
metric: {name: stsb_dev}
params:
  learning_rate: {float: [1e-5, 1e-4], log: true}
  batch_size: {choice: [32, 64]}
search: {trials: 8}
pruner: {reduction: 2}
resources: {cpus: 2}
"""


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["params.learning_rate"], ["--set params.learning_rate: expected key.path=value, got 'params.learning_rate'"]),
        (["=5"], ["--set : expected key.path=value, got '=5'"]),
        (["params..x=5"], ["--set params..x: expected key.path=value, got 'params..x=5'"]),
        (["search.trails=5"], ["--set search.trails: unknown; did you mean 'trials'?"]),
        (["params.dropout=1.5"], ["--set params.dropout: expected a number >= 0 and < 1, got 1.5"]),
        (
            ["params.learning_rate.float=[1e-4, 1e-5]"],
            ["--set params.learning_rate.float: low must be below high, got 0.0001 and 1e-05"],
        ),
        (["params.dropout={float: [0.1"], None),
        (["data.dev.2=atec"], ["--set data.dev.2: expected a number from 0 to 0 for a list, got '2'"]),
        (["metric.name=atec_dev"], None),
        (
            ["metric.holdout=1"],
            ["--set metric.holdout: expected a number >= 0 and < 1, got 1"],
        ),
        (
            ["metric.holdout=0.5", "data.dev=[stsb, stsb_held]"],
            [
                "--set data.dev: unknown data set 'stsb_held'; did you mean 'stsb'?",
                "--set metric.holdout: the held-out part of stsb would be called as another set is",
            ],
        ),
        (["extends=quickstart.yaml"], ["--set extends: belongs in a file"]),
        (
            ["search.repeats=0", "pruner.kind=fast"],
            [
                "--set pruner.kind: expected one of none, median, percentile, successive_halving, asha, hyperband, "
                "patient, threshold, wilcoxon, got 'fast'",
                "--set search.repeats: expected a whole number >= 1 and <= 1000, got 0",
            ],
        ),
        (
            ["smoke.search.trials=0"],
            ["--set smoke.search.trials: expected a whole number >= 1 or null, got 0"],
        ),
        (
            ["params.batch_size.when.bidirectional=foo"],
            ["--set params.batch_size.when.bidirectional: expected true or false, got 'foo'"],
        ),
        (
            ["search.sampler=grid", "params.learning_rate=1e-5", "search.trials=1"],
            ["--set search.trials: a grid runs its exact product of 2 points, got 1"],
        ),
        (
            ["search.sampler=grid", "params.learning_rate=1e-5", "search.start=[a]"],
            ["--set search.start: a grid runs its own points only"],
        ),
        (["search.trials=null"], ["--set search: no end: give trials, time, device_hours, budget or examples"]),
        (
            ["pruner.kind=wilcoxon"],
            ["--set pruner.kind: wilcoxon compares repeats: search.repeats must be at least 2, got 1"],
        ),
        (
            ["resources.gpus=2"],
            ["--set resources.gpus: a worker trains on one GPU, got 2; write gpus: 1, workers: 2"],
        ),
    ],
)
def test_overrides_are_checked_alike(overrides: list[str], lines: list[str] | None, tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    found = check_spaces([path], overrides)[0].problems
    if lines is None:
        assert len(found) == 1
        assert found[0].startswith(f"--set {overrides[0].partition('=')[0]}: ")
    else:
        assert list(found) == lines


def test_a_mistake_of_the_file_made_by_an_override_is_at_the_file(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD.replace("choice: [32, 64]", "choice: [32, 64], when: {pooling: cls}"))
    assert check_spaces([path])[0].problems == ()
    assert check_spaces([path], ["params.pooling=avg"])[0].problems == (
        f"{path}:7: params.batch_size.when.pooling: never true: its value is fixed at 'avg'",
    )
