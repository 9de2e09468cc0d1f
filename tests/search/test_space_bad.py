"""Bad space files in, exact messages out. `bad_spaces/expected.txt` was written and every line was checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import search
from search.space import SpaceError, check_spaces, load_space

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


def test_every_bad_file_has_expected_lines() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == EXPECTED.keys()
    assert len(EXPECTED) >= 60
    assert all(EXPECTED.values())


def test_a_stored_study_is_read_without_drawing_points() -> None:
    """So that one that an earlier version began can be read and resumed."""
    assert load_space(FOLDER / "range_that_does_not_divide.yaml").params.keys() == {"num_groups", "group_size"}


def test_the_python_function_checks_as_search_run_does(tmp_path: Path) -> None:
    """`search.run` takes its space as it is."""
    given = {
        "method": "simcse", "encoder": "builtin:tiny", "data": {"train": "builtin", "dev": ["builtin"]},
        "params": {"pooling": "avg", "head": {"choice": ["linear_tanh", "none"]}}, "search": {"trials": 2},
    }  # fmt: skip
    path = tmp_path / "given.yaml"
    path.write_text(yaml.safe_dump(given))
    for space in (given, path):
        with pytest.raises(SpaceError, match=r"params\.head: has no effect with pooling avg$"):
            search.load_space(space)
        assert search.load_space(space, find_data=False).params.keys() == {"head"}
    with pytest.raises(SpaceError, match="unknown data set 'missing'"):
        search.load_space(given, ["data.dev=[builtin, missing]", "metric.name=builtin_dev", "params={}"])
    drawn = FOLDER / "range_that_does_not_divide.yaml"
    with pytest.raises(SpaceError):
        search.load_space(drawn)
    assert search.load_space(drawn, run_code=False).params.keys() == {"num_groups", "group_size"}


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    missing, folder = tmp_path / "none.yaml", tmp_path
    lines = [line for checked in check_spaces([missing, folder, "nul\0.yaml"]) for line in checked.lines()]
    assert lines[:2] == [f"{missing}: no such file", f"{folder}: cannot be read: Is a directory"]
    assert len(lines) == 3
    assert lines[2].isprintable()


def test_data_sets_of_the_local_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `search check` needs them: a space can be read on a machine without its data."""
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("wiki", "mine").replace("[stsb]", "[stsb, mine]"))
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    assert [line.split(";")[0] for line in check_spaces([path])[0].problems] == [
        f"{path}:3: data.dev: unknown data set 'mine'",
        f"{path}:3: data.train: unknown data set 'mine'",
    ]
    assert load_space(path).data.dev == ("stsb", "mine")
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    (tmp_path / "en_mine_train.txt").write_text("a\nb\n" * 50)
    (tmp_path / "en_mine_dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    assert check_spaces([path])[0].problems == ()
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path / "none"))
    assert check_spaces([path])[0].problems[0].startswith(f"{path}:3: data: SEARCH_DATA_DIR: expected a folder, got ")


def test_extending_in_a_circle_is_reported(tmp_path: Path) -> None:
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
    ("override", "line"),
    [
        ("params.learning_rate", "params.learning_rate: expected key.path=value, got 'params.learning_rate'"),
        ("=5", ": expected key.path=value, got '=5'"),
        ("params..x=5", "params..x: expected key.path=value, got 'params..x=5'"),
        ("search.trails=5", "search.trails: unknown; did you mean 'trials'?"),
        ("params.dropout={float: [0.1", "params.dropout: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("data.dev.2=atec", "data.dev.2: expected a number from 0 to 0 for a list, got '2'"),
        ("metric.name=atec_dev",
         "metric.name: 'atec_dev' is of no set in data.dev; allowed: stsb_dev and mean(...) of them"),
        ("metric.holdout=1", "metric.holdout: expected a number >= 0 and < 1, got 1"),
        ("extends=quickstart.yaml", "extends: belongs in a file"),
        ("smoke.search.trials=0", "smoke.search.trials: expected a whole number >= 1 or null, got 0"),
        ("params.batch_size.when.bidirectional=foo",
         "params.batch_size.when.bidirectional: expected true or false, got 'foo'"),
        ("pruner.kind=wilcoxon", "pruner.kind: wilcoxon compares repeats: search.repeats must be at least 2, got 1"),
    ],
)  # fmt: skip
def test_a_mistaken_override_is_reported_at_its_key(override: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    assert check_spaces([path], [override])[0].problems == (f"--set {line}",)


GRID = ["search.sampler=grid", "params.learning_rate=1e-5"]


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["metric.holdout=0.5", "data.dev=[stsb, stsb_held]"], [
            "data.dev: unknown data set 'stsb_held'; did you mean 'stsb'?",
            "metric.holdout: the held-out part of stsb would be called as another set is",
        ]),
        (["search.repeats=0", "pruner.kind=fast"], [
            "pruner.kind: expected one of none, median, percentile, successive_halving, asha, hyperband, patient, "
            "threshold, wilcoxon, got 'fast'",
            "search.repeats: expected a whole number >= 1 and <= 1000, got 0",
        ]),
        ([*GRID, "search.trials=1"], ["search.trials: a grid runs its exact product of 2 points, got 1"]),
        ([*GRID, "search.start=[a]"], ["search.start: a grid runs its own points only"]),
    ],
)  # fmt: skip
def test_overrides_are_checked_together(overrides: list[str], lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    assert check_spaces([path], overrides)[0].problems == tuple(f"--set {line}" for line in lines)


def test_a_condition_broken_by_an_override_is_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD.replace("choice: [32, 64]", "choice: [32, 64], when: {pooling: cls}"))
    assert check_spaces([path])[0].problems == ()
    assert check_spaces([path], ["params.pooling=avg"])[0].problems == (
        f"{path}:7: params.batch_size.when.pooling: never true: its value is fixed at 'avg'",
    )


# ------------------------------------------------------------ what no point reads
METHOD_SPACE = """
name: wrong
method: {method}
encoder: {encoder}
data: {{train: builtin, dev: [builtin]}}
metric: {{name: builtin_dev}}
params: {{batch_size: {{grid: [8, 16]}}, {param}}}
search: {{sampler: grid}}
"""


UNUSED = [
    ("simcse_sup", "loss_form: both_rows", "hard_negative_weight", "{choice: [0.0, 0.7]}"),
    ("sda", "negation_negative: false", "delta", "{choice: [0.1, 0.9]}"),
    ("sda", "negation_negative: {choice: [true, false]}", "delta", "{choice: [0.1, 0.9]}"),
    ("selfccl", "pacing: false", "pacing_exponent", "2.0"),
    ("gclsr", "augmentation: full", "pwva_p", "{choice: [0.3, 0.5]}"),
    ("gclsr", "num_groups: 256", "group_size", "{choice: [16, 32]}"),
    ("simcse", "pooling: avg", "head", "{choice: [linear_tanh, none]}"),
    ("simcse", "pooling: {choice: [cls, avg]}", "head", "{choice: [linear_tanh, mlp_bn]}"),
    ("edacse", "lambda: {choice: [0.0, 0.3]}", "max_marks", "{int: [1, 7]}"),
    ("edacse", "max_marks: 0", "lambda", "0.1"),
    ("simcse", "mlm_weight: 0.0", "mlm_probability", "0.3"),
    ("simcse", "lora.rank: 0", "lora.alpha", "{choice: [8, 16]}"),
    ("arccse", "triplet_weight: 0", "masked", "{choice: [0.1, 0.2]}"),
    ("diffcse", "difference_weight: 0", "mask_share", "0.2"),
]


@pytest.mark.parametrize(("method", "other", "name", "value"), UNUSED)
def test_what_nothing_reads_is_not_searched(tmp_path, method, other, name, value):
    path = tmp_path / "unused.yaml"
    encoder = "builtin:vectors" if method == "gclsr" else "builtin:tiny"
    path.write_text(METHOD_SPACE.format(method=method, encoder=encoder, param=f"{other}, {name}: {value}"))
    with pytest.raises(SpaceError, match=rf"^\S+:7: params.{name}: has no effect with [^\n]*$") as caught:
        load_space(path, find_data=True)
    assert ("give it `when: {" in str(caught.value)) is ("choice" in other)
    deciding = other.partition(":")[0]
    fine = {"negation_negative": "[true]", "pooling": "[cls]", "lambda": "[0.3]"}
    if "choice" in other:
        path.write_text(path.read_text().replace(value, f"{value[:-1]}, when: {{{deciding}: {fine[deciding]}}}}}"))
        load_space(path, find_data=True)


@pytest.mark.parametrize(
    ("method", "param"),
    [
        ("simcse", "pooling: avg, head: none"),  # what there is
        ("simcse", "pooling: {choice: [cls, avg]}, head: mlp_bn"),  # a constant that one of the points reads
        ("sda", "negation_negative: false, delta: 0.5"),  # its default
        ("edacse", "max_marks: {int: [0, 7]}"),
        ("simcse_random", "mlm_weight: {float: [0.0, 1.0]}, mlm_probability: {float: [0.1, 0.3]}"),  # 0 is never drawn
    ],
)
def test_constants_may_be_without_meaning_in_some_points(tmp_path, method, param):
    path = tmp_path / "fine.yaml"
    text = METHOD_SPACE.format(method=method.partition("_")[0], encoder="builtin:tiny", param=param)
    path.write_text(text.replace("sampler: grid", "trials: 2") if "random" in method else text)
    space = load_space(path, find_data=True)
    given = yaml.safe_load(f"{{{param}}}")
    assert {name: value for name, value in given.items() if name not in space.params} == {
        name: value for name, value in space.constants.items() if name in given
    }
