"""The Python API: spaces from files, names and plain data; light imports; the example of docs/api.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import search
from search.cli.main import main
from search.space.load import ready_folder, ready_spaces

ROOT = Path(__file__).parents[2]


def test_everything_public_is_there() -> None:
    assert sorted(search.__all__) == dir(search)
    assert all(getattr(search, name) is not None for name in search.__all__)
    with pytest.raises(AttributeError, match="'search' has no attribute 'serach'"):
        search.serach  # noqa: B018


def test_importing_the_face_imports_nothing_heavy() -> None:
    """Neither does loading a space load what only running one needs."""
    code = (
        "import sys, search, analysis\n"
        "light = set(sys.modules)\n"
        "search.load_space('quickstart')\n"
        "heavy = {'ray', 'torch', 'optuna', 'mlflow', 'pandas', 'numpy', 'transformers', 'matplotlib'}\n"
        "print(sorted(heavy & light), sorted((heavy - {'numpy'}) & set(sys.modules)), 'yaml' in light)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] [] False"


def test_space_from_plain_data_equals_its_file_s() -> None:
    path = ROOT / "spaces" / "quickstart.yaml"
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert search.load_space(plain).resolved() == search.load_space(path).resolved()
    assert search.load_space(plain, ["search.trials=3"]).search.trials == 3
    with pytest.raises(search.SpaceError, match=r"params.dropuot: unknown for 'simcse'; did you mean"):
        search.load_space({**plain, "params": {"dropuot": 0.1}})


def test_ready_spaces_are_found_by_name_from_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"quickstart", "edacse", "papers/edacse_table05_bert"} <= set(ready_spaces())
    assert len(ready_spaces()) == len(list((ROOT / "spaces").rglob("*.yaml")))
    for name in ("edacse", "edacse.yaml", "papers/edacse_table05_bert"):
        file = str(ready_folder() / name.removesuffix(".yaml")) + ".yaml"
        assert search.load_space(name, find_data=False).source == file
    (tmp_path / "sda").mkdir()  # a folder is no space
    assert search.load_space("sda").method == "sda"
    own = yaml.safe_load((ROOT / "spaces" / "quickstart.yaml").read_text(encoding="utf-8"))
    (tmp_path / "edacse").write_text(yaml.safe_dump({**own, "name": "mine"}))
    assert search.load_space("edacse").name == "mine"  # a file of that name wins
    for wrong in ("edacs", "spaces/edacs.yaml"):
        with pytest.raises(search.SpaceError, match=f"{wrong}: no such file; did you mean 'edacse'?"):
            search.load_space(wrong)


@pytest.mark.parametrize("number", [{"trials": 0}, {"top": 0}, {"seeds": -1}, {"trials": 2.5}, {"seeds": True}])
def test_nothing_is_confirmed_on_fewer_than_one(tmp_path: Path, number: dict[str, Any]) -> None:
    (name, value), *_ = number.items()
    with pytest.raises(
        search.UserError, match=f"^confirm: {name}: expected a whole number of at least 1, got {value}$"
    ):
        search.confirm("any", tmp_path, quiet=True, **number)


@pytest.mark.parametrize("plan", ["top", "seeds"])
def test_a_confirmation_has_one_plan(plan: str, tmp_path: Path) -> None:
    """The number of trials was passed over beside a fixed one."""
    said = "confirm: trials: a fixed plan (top, seeds) has its own number of trials; give one of the two"
    with pytest.raises(search.UserError) as refused:
        search.confirm("any", tmp_path, quiet=True, trials=5, **{plan: 2})
    assert str(refused.value) == said
    for more in ([], ["--forecast"]):
        words = ["confirm", "any", "--storage", str(tmp_path), "--trials", "5", f"--{plan}", "2", *more]
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.stderr) == (2, said + "\n")


@pytest.mark.costly
def test_the_wheel_has_no_top_level_spaces(tmp_path: Path) -> None:
    """PyPI's `spaces` (Hugging Face) installs a package of that name: two distributions would overwrite each other."""
    source = tmp_path / "source"
    without = shutil.ignore_patterns("__pycache__")
    for name in ("search", "trainables", "analysis", "spaces"):
        shutil.copytree(ROOT / name, source / name, ignore=without)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {"search", "trainables", "analysis"}
    installed = {name.removeprefix("search/ready_spaces/").removesuffix(".yaml") for name in files if "ready" in name}
    assert installed == set(ready_spaces())
    assert {f"{package}/py.typed" for package in ("search", "trainables", "analysis")} <= set(files)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.DOTALL)
    unwanted = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")
    environment = {k: v for k, v in os.environ.items() if k not in unwanted} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, _, *table = done.stdout.splitlines()
    assert first.startswith("finished {'learning_rate':")
    assert len(table) == 3, done.stdout
