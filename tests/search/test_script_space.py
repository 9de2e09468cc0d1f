"""Spaces whose trials a script trains: what they declare, what is stored, and every mistake in one line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from harness import World
from jsonschema import Draft202012Validator

from search.cli.main import main
from search.remote.jobs import make_bundle
from search.space import Space, check_spaces, load_space, paper_notes, paper_point, smoke, space_from
from search.space.json_schema import json_schema
from search.space.space import changed_file_notes
from search.store.layout import UserError
from search.study.plan import make_trial
from search.study.pruners import warmup_examples
from search.study.related import related_points
from trainables.contract.errors import PluginError
from trainables.contract.registry import read_script, script_function
from trainables.contract.trial import TrialSpec

SCRIPT = "import not_installed_anywhere\n\n\ndef train(config, report):\n    report(1, {'x_dev': config['rate']})\n"
SPACE = """\
method: script
script: train.py
metric: {name: x_dev}
params:
  rate: {float: [0.001, 1.0], log: true}
  layers: {int: [1, 4]}
  loss: {choice: [cosent, angle]}
  frozen: true
  sizes: [64, 32]
search: {trials: 4}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def space_of(folder: Path, *changes: tuple[str, str]) -> Space:
    text = SPACE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "space.yaml").write_text(text)
    return load_space(folder / "space.yaml", find_data=True)


def test_the_space_declares_everything_and_no_script_runs(folder: Path) -> None:
    space = space_of(folder)
    assert list(space.params) == ["rate", "layers", "loss"]
    assert space.values({"rate": 0.5, "layers": 2, "loss": "angle"}) == {
        "rate": 0.5, "layers": 2, "loss": "angle", "frozen": True, "sizes": [64, 32],
    }  # fmt: skip
    assert (space.encoder, space.data.train, space.data.dev, space.search.baseline) == ("", "", (), "none")
    assert space.what == "script train.py"
    (checked,) = check_spaces([folder / "space.yaml"])
    assert checked.lines()[1] == "  script train.py; selects on x_dev; pruner none"


def test_a_resolved_space_does_without_the_file(folder: Path) -> None:
    space = space_of(folder, ("search:", "preset: {rate: 0.1, layers: 2, loss: cosent}\nsearch:"))
    assert [*Draft202012Validator(json_schema()).iter_errors(json.loads(json.dumps(space.resolved())))] == []
    (folder / "train.py").write_text(SCRIPT + "\n# another\n")
    again = space_from(space.resolved())
    assert again.resolved() == space.resolved()
    assert again.script == space.script
    assert again.script is not None
    assert changed_file_notes([again.script])[0].startswith(f"{folder}/train.py has changed since the study began")
    assert smoke(space).search.trials == 4


def test_the_preset_is_the_baseline(folder: Path) -> None:
    space = space_of(folder, ("search:", "preset: {rate: 1.0, layers: 2, loss: angle}\nsearch:"))
    assert space.search.baseline == "paper"
    assert paper_point(space) == {"rate": 1.0, "layers": 2, "loss": "angle"}
    assert paper_notes(space) == {}
    rows = ("params:\n  rate: {float: [0.001, 1.0], log: true}\n  layers: {int: [1, 4]}\n", "params:\n")
    points = (
        "search: {trials: 4}",
        "points: [{rate: 0.1, layers: 1}, {rate: 0.2, layers: 2}]\nsearch: {sampler: grid}",
    )
    listed = space_of(folder, rows, points)
    assert (listed.cardinality(), listed.search.baseline) == (4, "none")
    assert next(iter(listed.points())) == {"rate": 0.1, "layers": 1, "loss": "cosent"}


def test_encoder_and_data_reach_the_script(folder: Path) -> None:
    (folder / "lines.txt").write_text("a\nb\n")
    data = f"data: {{train: {folder}/lines.txt, dev: builtin}}\nencoder: sentence-transformers/all-MiniLM-L6-v2\n"
    space = space_of(folder, ("metric:", data + "metric:"))
    assert space.what == "script train.py on sentence-transformers/all-MiniLM-L6-v2"
    (checked,) = check_spaces([folder / "space.yaml"])
    assert checked.problems == ()
    (folder / "bundle").mkdir()
    make_bundle(folder / "bundle", space)
    shutil.rmtree(folder / "bundle" / "search")
    there = load_space(folder / "bundle" / "space.yaml")
    assert there.script == space.script
    assert (folder / "bundle" / "carried" / "lines.txt").read_text() == "a\nb\n"
    assert there.data.train.endswith("carried/lines.txt")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("script: train.py\n", "", "1: script: missing; expected a Python file beside the space, or module:function"),
        ("train.py", "[a]", "2: script: expected a Python file beside the space, or module:function, got a list"),
        ("train.py", "gone.py", "2: script: {folder}/gone.py: no such file"),
        ("train.py", "no_such_module:train", "2: script: no_such_module:train: no module 'no_such_module' is installed"
         " (a file of yours is named by its path)"),
        ("train.py", "json:train", "2: script: {json}:1: defines no function train(config, report)"),
        ("train.py", "broken.py", "2: script: {folder}/broken.py:2: SyntaxError: invalid syntax"),
        ("train.py", "empty.py", "2: script: {folder}/empty.py:1: defines no function train(config, report)"),
        ("train.py", "one.py", "2: script: {folder}/one.py:3: train: expected a function of (config, report)"),
        ("method: script", "method: simcse", "2: script: method simcse has none; write method: script"),
        ("metric:", "train: {epochs: 2}\nmetric:",
         "3: train: has no effect for a script; what it reads stands under params"),
        ("metric:", "preset: simcse_unsup\nmetric:",
         "3: preset: expected a mapping of hyperparameters, as a script has, got text"),
        ("metric:", "preset: {rate: 0.1, layers: 2, loss: angel}\nmetric:",
         "3: preset.loss: 'angel' is not in the space, whose baseline the preset is"),
        ("metric:", "preset: {rate: 0.1, layers: x, loss: angle}\nmetric:",
         "3: preset.layers: expected a whole number, got 'x'"),
        ("metric:", "preset: {rate: 0.1}\nmetric:",
         "3: preset: expected every searched hyperparameter, layers, loss lack"),
        ("metric:", "preset: {rate: 0.1, layers: 2, loss: angle, frozen: true}\nmetric:",
         "3: preset.frozen: not searched by this space"),
        ("{trials: 4}", "{trials: 4, baseline: paper}",
         "10: search.baseline: a script has no published setting; give one as preset"),
        ("metric:", "resources: {workers: 2}\nmetric:", "3: resources.workers: a script trains in one process, got 2"),
        ("metric:", "encoder: builtin:tiny\nmetric:",
         "3: encoder: method script has no builtin encoder, got 'builtin:tiny'"),
        ("metric:", "encoder: ./gone\nmetric:", "3: encoder: encoder './gone': no such folder; give an existing "
         "folder, a hub id or builtin:tiny"),
        ("metric:", "data: {train: ./gone.txt}\nmetric:", "3: data.train: data file 'gone.txt': does not exist "
         "in {cwd}; check the path"),
        ("metric:", "data: {columns: {a: b}}\nmetric:",
         "3: data.columns: has no effect for a script, which reads its data itself"),
        ("metric:", "data: {evaluations: [a]}\nmetric:",
         "3: data.evaluations: has no effect for a script, which reads its data itself"),
        ("{name: x_dev}", "{name: x}", "3: metric.name: expected names of letters, digits, '_', '-' that end with _dev,"
         " each once, got 'x'"),
        ("{name: x_dev}", "{name: 'mean(x_dev'}", "3: metric.name: expected a name such as stsb_dev or "
         "mean(stsb_dev,atec_dev), got 'mean(x_dev'"),
        ("{name: x_dev}", "{name: x_dev, holdout: 0.2}",
         "3: metric.holdout: has no effect for a script, which measures by itself"),
        ("frozen: true", "seed: 3", "8: params.seed: the trial's own, as the script gets it; choose another name"),
        ("frozen: true", "a-b: 3", "8: params.a-b: expected a name of letters, digits and '_'"),
        ("[cosent, angle]", "[cosent, 3]", "7: params.loss.choice: expected text, got 3"),
        ("{int: [1, 4]}", "{int: [1, 4.5]}", "6: params.layers.int: expected a whole number, got 4.5"),
        ("sizes: [64, 32]", "sizes: [0.5, 32]", "9: params.sizes: a list is no constant; to search it write {{choice: "
         "[0.5, 32]}}"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_with_its_place(folder: Path, old: str, new: str, line: str) -> None:
    (folder / "broken.py").write_text("def train(config, report):\n    return return\n")
    (folder / "empty.py").write_text("def fit(config, report):\n    pass\n")
    (folder / "one.py").write_text("# a comment\n\ndef train(config):\n    pass\n")
    assert old in SPACE
    path = folder / "space.yaml"
    path.write_text(SPACE.replace(old, new, 1))
    found = CliRunner().invoke(main, ["check", str(path)])
    lines = found.stderr.splitlines()
    if old == "method: script":  # and then its hyperparameters are none of the method's
        lines = [line for line in lines if ": script: " in line]
    assert lines == [f"{path}:" + line.format(folder=folder, json=json.__file__, cwd=os.getcwd())]
    assert found.exit_code == 2


def test_a_script_has_no_forecast(folder: Path) -> None:
    found = CliRunner().invoke(main, ["check", "--forecast", str(folder / "space.yaml")])
    assert found.exit_code == 2
    assert "--forecast: script train.py: the length of a script's trial is not known" in found.stderr


def test_a_start_without_every_parameter_is_refused(folder: Path, tmp_path: Path) -> None:
    other = World(
        space_of(folder, ("  loss: {choice: [cosent, angle]}\n", "")), tmp_path, value=lambda *_: 0.5, study="a"
    )
    other.session()
    space = space_of(folder, ("{trials: 4}", "{trials: 4, start: [a]}"))
    with pytest.raises(UserError, match=r"study a has no loss, and the space has no preset of them"):
        related_points(space, str(tmp_path))
    preset = ("search:", "preset: {rate: 0.1, layers: 2, loss: angle}\nsearch:")
    space = space_of(folder, ("{trials: 4}", "{trials: 4, start: [a]}"), preset)
    assert {one.point["loss"] for one in related_points(space, str(tmp_path))} == {"angle"}


def test_points_of_other_scripts_are_other_points(folder: Path) -> None:
    (folder / "other.py").write_text(SCRIPT)
    ids = set()
    for file in ("train.py", "other.py"):
        space = space_of(folder, ("train.py", file))
        point = {"rate": 0.5, "layers": 2, "loss": "angle"}
        ids.add(make_trial(space, point, number=0, repeat=0, seed=0, stage="search", baseline="").point_id)
    assert len(ids) == 2


def test_a_script_is_a_file_or_a_function(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "mine_for_this_test.py").write_text("def fit(config, report, *, twice=False):\n    return 7\n")
    (folder / "train.py").write_text("raise RuntimeError('of its own')\n\ndef train(config, report): ...\n")
    installed = read_script("mine_for_this_test:fit")
    assert script_function(installed)({}, None) == 7
    assert installed.text == ""
    with pytest.raises(PluginError, match=r"train\.py:1: RuntimeError: of its own"):
        script_function(read_script(str(folder / "train.py")))
    spec = TrialSpec(method="script", encoder="", data={}, metric="x_dev", folder="/x", script=installed)
    assert TrialSpec.from_dict(spec.to_dict()) == spec


def test_a_script_s_warmup_parameters_may_have_any_type(folder: Path) -> None:
    space = space_of(folder)
    assert warmup_examples(space.pruner, {"warmup_epochs": 2}, 1000) == 0
    assert warmup_examples(space.pruner, {"warmup_share": "cosine"}, 1000) == 0
    assert warmup_examples(space.pruner, {"warmup_share": 0.1}, 1000) == 100
