"""A method from outside: found, checked, sent along, trained, and reported in one line when broken."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from from_outside import EVALUATION, METHOD, changed_space, errors, trained

from search.cli.main import main
from search.remote.jobs import make_bundle
from search.space import load_space, smoke, space_from
from search.space.space import changed_file_notes
from trainables.contract.registry import declared
from trainables.contract.trial import TrialSpec
from trainables.methods.method import load_method

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]
SHORT = ("--set", "search.trials=2", "--set", "smoke.train={max_examples: 400, eval_examples: 200}")


def test_the_example_is_the_paper_s_formula(outside):
    load_space(outside / "dcl.yaml")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 7))
    rows = np.concatenate([a, b]) / np.linalg.norm(np.concatenate([a, b]), axis=1, keepdims=True)
    for decoupled in (True, False):
        config = declared("dcl").config(temperature=0.3, decoupled=decoupled)
        total = 0.0
        for i in range(10):
            partner = (i + 5) % 10
            others = [j for j in range(10) if j != i and not (decoupled and j == partner)]
            total -= rows[i] @ rows[partner] / 0.3
            total += np.log(sum(np.exp(rows[i] @ rows[j] / 0.3) for j in others))
        ours = load_method("dcl").loss({"anchor": torch.tensor(a), "positive": torch.tensor(b)}, config)
        assert float(ours) == pytest.approx(total / 10, abs=1e-6)


def test_its_own_hyperparameters_are_checked_like_ours(outside):
    path = outside / "dcl.yaml"
    path.write_text(path.read_text().replace("decoupled: {choice: [true, false]}", "decuopled: true"))
    assert errors(path) == [f"{path}:11: params.decuopled: unknown for 'dcl'; did you mean 'decoupled'?"]


OWN_NETWORK = """def network(config, source, seed):
    return Method.network(config, source, seed)


METHOD = Method(
    network=network,"""


@pytest.mark.parametrize("own", ["", "network", "unused"])
def test_unused_hyperparameters_of_own_networks_are_not_inferred(own, outside):
    """`unused` of the class that every configuration extends is about what our network reads."""
    text = METHOD
    if own:
        text = text.replace("METHOD = Method(", OWN_NETWORK)
    if own == "unused":
        text = text.replace("    decoupled:", "    unused = EncoderConfig.unused\n    decoupled:")
    (outside / "dcl.py").write_text(text)
    path = outside / "dcl.yaml"
    more = "  pooling: avg\n  head: {choice: [mlp_bn, none]}\n  decoupled:"
    path.write_text(path.read_text().replace("  decoupled:", more))
    if own == "network":
        assert load_space(path, find_data=True).params.keys() >= {"head", "decoupled"}
    else:
        assert errors(path, find_data=True) == [f"{path}:12: params.head: has no effect with pooling avg"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ('{"temperature": None}', ":10: params.temperature: has no effect in method dcl"),
        ('{"temperature": ("decoupled", v["decoupled"])}', ":10: params.temperature: has no effect with decoupled "
         "true; give it `when: {decoupled: [...]}`"),
        ('{"temperature": ("loss", "triplet")}', ":4: method: DclConfig.unused: temperature: expected (another "
         "hyperparameter, its value) or None, got ('loss', 'triplet')"),
        ('{"temprature": None}', ":4: method: DclConfig.unused: 'temprature' is no hyperparameter of the method"),
        ('["temperature"]', ":4: method: DclConfig.unused: expected a mapping, got ['temperature']"),
        ('v["margin"]', ":4: method: DclConfig.unused: KeyError: 'margin'"),
    ],
)  # fmt: skip
def test_an_own_method_names_what_has_no_effect(found, said, outside):
    own = f"    @staticmethod\n    def unused(v):\n        return {found}\n\n    decoupled:"
    (outside / "dcl.py").write_text(METHOD.replace("    decoupled:", own))
    path = outside / "dcl.yaml"
    assert errors(path, find_data=True) == [f"{path}{said}"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ('[("temperature", "needs more")]', ":10: params.temperature: needs more"),
        ('v["margin"]', ":4: method: DclConfig.conflicts: expected [(hyperparameter, message), ...], got KeyError: "
         "'margin'"),
        ('["temperature"]', ":4: method: DclConfig.conflicts: expected [(hyperparameter, message), ...], got ValueError"
         ": too many values to unpack"),
    ],
)  # fmt: skip
def test_an_own_method_names_values_that_cannot_be_combined(found, said, outside):
    own = f"    @staticmethod\n    def conflicts(v):\n        return {found}\n\n    decoupled:"
    (outside / "dcl.py").write_text(METHOD.replace("    decoupled:", own))
    path = outside / "dcl.yaml"
    assert f"{path}{said}" in errors(path)[0]


def test_a_resolved_space_does_without_the_file(outside):
    space = load_space(outside / "dcl.yaml")
    stored = outside / "elsewhere" / "space.yaml"
    stored.parent.mkdir()
    stored.write_text(space.to_yaml())
    assert "    def loss(z, config):" in stored.read_text()  # as a person writes it
    (outside / "dcl.py").unlink()
    again = load_space(stored)
    assert again.resolved() == space.resolved()
    assert space_from(space.resolved()).plugins == space.plugins
    assert smoke(space).method == "dcl"
    assert changed_file_notes(again.plugins) == []  # gone is not changed
    (outside / "dcl.py").write_text(METHOD + "\n# another\n")
    assert changed_file_notes(again.plugins) == [
        f"{outside}/dcl.py has changed since the study began, which goes on with its own copy"
    ]
    assert load_space(outside / "dcl.yaml").resolved() != space.resolved()


def test_a_base_file_names_plugins_beside_itself(outside):
    (outside / "deeper").mkdir()
    (outside / "deeper" / "mine.yaml").write_text("extends: ../dcl.yaml\nsearch: {trials: 2}\n")
    assert load_space(outside / "deeper" / "mine.yaml").method == "dcl"


def test_a_cluster_job_carries_the_plugin(outside, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "number.txt").write_text("0.25")
    space = load_space(changed_space(outside), [f"data.evaluations={{lengths: {folder}}}"])
    (tmp_path / "bundle").mkdir()
    make_bundle(tmp_path / "bundle", space)
    for name in ("dcl.py", "lengths.py", "data/number.txt"):
        (outside / name).unlink()
    there = load_space(tmp_path / "bundle" / "space.yaml")
    assert there.plugins == space.plugins
    assert there.data.evaluations == {"lengths": "carried/data"}
    assert (tmp_path / "bundle" / "carried" / "data" / "number.txt").read_text() == "0.25"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "{plugin}: no such file"),
        ("import torch\n\ndef loss(:\n", "{plugin}:3: SyntaxError: invalid syntax"),
        ("import torch\nimport no_such_module_anywhere\n", "{plugin}:2: ModuleNotFoundError: No module named 'no"),
        ("def f():\n    return 1 / 0\n\nX = f()\n", "{plugin}:2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "{plugin}:1: SystemExit: 3"),
        ("X = 1\n", "{plugin}:1: defines neither METHOD nor EVALUATION"),
        ("X = 1\nMETHOD = X\n", "{plugin}:2: METHOD: expected a trainables.methods.method.Method, got int"),
        (METHOD.replace('name="dcl"', 'name="simcse"'), "a method 'simcse' is shipped here already; choose another"),
        (METHOD.replace('name="dcl"', 'name="d c l"'), "METHOD: name: expected letters, digits and '_', got 'd c l'"),
        (METHOD.replace("@dataclass(frozen=True, kw_only=True)\n", ""), "config: DclConfig lacks @dataclass(frozen"),
        (re.sub(r"hyperparameter\(True, .*\)", "True", METHOD),
         "config: DclConfig.decoupled: expected hyperparameter(default, doc, ...)"),
        ("EVALUATION = len\n", "{plugin}:1: EVALUATION: expected a DevEvaluation, got builtin_function_or_method"),
        (EVALUATION.replace('("spread", "given")', '"spread"'), "EVALUATION: metrics: expected names of letters"),
        (EVALUATION.replace('"lengths"', "None"), "EVALUATION: name: expected a word, got None"),
        (EVALUATION.replace("evaluate=evaluate", "evaluate=None"),
         "EVALUATION: evaluate: expected a function of (embed, folder), got NoneType"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_one_line_with_its_place(outside, text, message):
    plugin = outside / "dcl.py"
    plugin.unlink()
    if text is not None:
        plugin.write_text(text)
    result = CliRunner().invoke(main, ["check", str(outside / "dcl.yaml")])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith(f"{outside}/dcl.yaml:3: plugins: {plugin}")
    assert message.format(plugin=plugin) in line


def test_two_plugins_of_one_name_are_refused(outside):
    (outside / "other.py").write_text(METHOD + "\n")
    path = outside / "dcl.yaml"
    path.write_text(path.read_text().replace("[dcl.py]", "[dcl.py, other.py]"))
    (line,) = errors(path)
    at = METHOD[: METHOD.index("METHOD =")].count("\n") + 1
    assert f"{outside}/other.py:{at}: method 'dcl' is also defined by {outside}/dcl.py:{at}; rename one" in line


def test_an_edited_file_is_read_anew(outside):
    assert load_space(outside / "dcl.yaml").base["decoupled"] is True
    (outside / "dcl.py").write_text(METHOD.replace("hyperparameter(True", "hyperparameter(False"))
    assert load_space(outside / "dcl.yaml").base["decoupled"] is False


def test_a_trial_carries_its_method(outside):
    space = load_space(outside / "dcl.yaml")
    (outside / "dcl.py").unlink()
    outcome, seen = trained(space, outside / "trial")
    assert outcome.stop == "completed", outcome.traceback
    assert [e.examples for e in seen] == [32, 64]


def test_a_specification_without_plugins_loads():
    old = {"method": "simcse", "encoder": "builtin:tiny", "data": {}, "metric": "builtin_dev", "folder": "x"}
    assert TrialSpec.from_dict(old).plugins == ()


def distribution(folder: Path, name: str = "dcl") -> Path:
    """The example as an installed distribution with an entry point, in a folder for PYTHONPATH."""
    source, site = folder / "source", folder / "site"
    source.mkdir(parents=True)
    (source / "dcl_method.py").write_text(METHOD)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "dcl-method"\nversion = "1.0"\n'
        f'[project.entry-points."contrastive_search.methods"]\n{name} = "dcl_method:METHOD"\n'
        '[tool.setuptools]\npy-modules = ["dcl_method"]\n'
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", str(site), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def command(folder: Path, *words: str, path: tuple[Path, ...] = (), code: int = 0) -> str:
    """A command line in a folder of its own, in a fresh process; what it printed."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
        "SEARCH_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_an_installed_method_needs_no_plugins(outside, tmp_path):
    site = distribution(tmp_path / "dist")
    path = outside / "dcl.yaml"
    path.write_text(path.read_text().replace("plugins: [dcl.py]\n", ""))
    (outside / "dcl.py").unlink()
    assert "unknown 'dcl'" in command(outside, "search", "check", "dcl.yaml", code=2)
    assert "dcl on builtin:tiny" in command(outside, "search", "check", "dcl.yaml", path=(site,))


def test_an_installed_method_of_a_taken_name_is_refused(outside, tmp_path):
    site = distribution(tmp_path / "dist", name="simcse")
    (outside / "plain.yaml").write_text((ROOT / "spaces" / "quickstart.yaml").read_text())
    (line,) = command(outside, "search", "check", "plain.yaml", path=(site,), code=2).splitlines()
    assert "distribution dcl-method, entry point simcse = dcl_method:METHOD: a method 'simcse' is shipped here" in line


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("installed", [False, True])
def test_the_whole_way(outside, tmp_path, installed):
    """Check, smoke run, confirm, resume, best, report, export, SentenceTransformer; the package untouched."""
    site: tuple[Path, ...] = ()
    if installed:
        site = (distribution(tmp_path / "dist"),)
        (outside / "dcl.yaml").write_text((outside / "dcl.yaml").read_text().replace("plugins: [dcl.py]\n", ""))
        (outside / "dcl.py").unlink()
    command(outside, "search", "check", "dcl.yaml", path=site)
    command(outside, "search", "run", "dcl.yaml", "--smoke", "--name", "first", *SHORT, path=site)
    if not installed:
        (outside / "dcl.py").write_text(METHOD.replace("def loss", "def lost"))  # the study has its own copy
    printed = command(outside, "search", "confirm", "first", "--top", "1", "--seeds", "2", path=site)
    assert installed or "has changed since the study began" in printed
    command(outside, "search", "resume", "first", path=site)
    assert "learning_rate" in command(outside, "analysis", "best", "--study", "first", path=site)
    command(outside, "analysis", "report", "--study", "first", path=site)
    command(outside, "analysis", "export", "--study", "first", "--out", "model", path=site)
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(outside / "model")).encode(["a sentence"]).shape[0] == 1


def test_the_guide_is_what_runs_here(outside):
    """The how-to's lines of YAML, TOML and Python, and its commands."""
    text = (ROOT / "docs" / "howto" / "method.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.+?)^```", text, flags=re.MULTILINE | re.DOTALL)
    of = {kind: [block for found, block in blocks if found == kind] for kind, _ in blocks}
    written = yaml.safe_load((outside / "dcl.yaml").read_text())
    assert yaml.safe_load(of["yaml"][0]).items() <= written.items()
    for line in of["bash"][0].strip().splitlines():
        words = shlex.split(line)
        assert words[0] == "search"  # test_the_whole_way runs them
        main.commands[words[1]].make_context(words[1], words[2:], resilient_parsing=True)
    points = tomllib.loads(of["toml"][0])["project"]["entry-points"]
    assert points["contrastive_search.methods"] == {"dcl": "dcl_method:METHOD"}
    names: dict[str, Any] = {}
    exec(next(block for block in of["python"] if "EVALUATION" in block), names)
    assert names["EVALUATION"].name == "topics"
