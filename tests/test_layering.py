"""The rooms stay apart: what may be imported where, tested by importing with the rest forbidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = sorted(
    f"trainables.{p.stem}" for p in (ROOT / "trainables").glob("*.py") if not p.stem.startswith(("ray_", "__init__"))
)


def imports_without(modules: list[str], forbidden: list[str]) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({forbidden!r}))\n"  # None in sys.modules: importing it raises
        f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_core_needs_no_ray_optuna_mlflow():
    done = imports_without(CORE, ["ray", "optuna", "mlflow"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["search.space", "search.cli", "analysis.cli", "trainables.configs", "trainables.data"]
)
def test_light_modules_need_no_torch_either(module):
    done = imports_without([module], ["ray", "optuna", "mlflow", "torch", "transformers"])
    assert done.returncode == 0, done.stderr


def test_analysis_knows_nothing_of_search_but_the_record():
    allowed = {"search.record", "search"}
    for path in (ROOT / "analysis").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("import", "from") and words[1].split(".")[0] == "search":
                assert words[1] in allowed, f"{path}: {line}"
                assert "ray_" not in line


def test_the_core_knows_nothing_of_search():
    for path in (ROOT / "trainables").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "from search" not in text, path
        assert "import search" not in text, path
