"""The rules between packages ([tool.importlinter] in pyproject.toml) hold, and each of them notices a violation."""

from __future__ import annotations

import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("search", "trainables", "analysis")
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}
# One violation per contract: the module it is planted in, the statement, and what the report must name.
PLANTS = {
    "trainables-layers": ("trainables.contract", "import trainables.training.loop", "trainables.training.loop"),
    "search-layers": ("search.space", "import search.tracking.tracker", "search.tracking.tracker"),
    "analysis-layers": ("analysis.tables", "import analysis.plots.gallery", "analysis.plots.gallery"),
    "no-cycles": ("trainables.data.files", "import trainables.data.sets", ".files -> .sets"),
    "trainables-alone": ("trainables.data", "from search import schema", "search.schema"),
    "search-not-analysis": ("search.console", "from analysis import errors", "analysis.errors"),
    "analysis-reads-the-schema": ("analysis.writing", "from search.running import runner", "search.running.runner"),
    "methods-by-registry": ("search.space", "from trainables.methods.sda import config", "methods.sda.config"),
    "methods-apart": ("trainables.methods.edacse.method", "from trainables.methods.sda import method", "sda.method"),
    "ray": ("trainables.data.builtin", "import ray", "trainables.data.builtin -> ray"),
    "optuna": ("search.running", "import optuna", "search.running"),
    "mlflow": ("search.running", "from mlflow import MlflowClient", "search.running"),
    "torch": ("search.space", "import torch", "search.space -> torch"),
}
LAYERED = [name for name, contract in CONTRACTS.items() if contract["type"] == "layers"]


def lint(root: Path, contract: str = "") -> subprocess.CompletedProcess[str]:
    """`lint-imports` on the tree at `root`."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    limit = ["--contract", contract] if contract else []
    return subprocess.run(
        [sys.executable, "-c", code, "--no-logo", *limit],
        cwd=root,
        env={"PATH": "", "PYTHONPATH": str(root), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and their rules, for planting violations."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def planted(root: Path, *plants: tuple[str, str]) -> Iterator[None]:
    """Each statement at the end of its module, inside a function: late imports count as well."""
    texts: dict[Path, str] = {}
    for module, statement in plants:
        path = root / (module.replace(".", "/") + ".py")
        if not path.exists():
            path = root / module.replace(".", "/") / "__init__.py"
        texts.setdefault(path, path.read_text(encoding="utf-8"))
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n\ndef planted() -> None:\n    {statement}\n")
    yield
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def test_the_rules_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_contract_has_a_planted_violation():
    assert PLANTS.keys() == CONTRACTS.keys()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_planted_violation_is_noticed(contract, copy):
    module, statement, named = PLANTS[contract]
    with planted(copy, (module, statement)):
        done = lint(copy, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert named in done.stdout


@pytest.mark.parametrize("contract", LAYERED)
def test_no_layer_may_import_any_layer_above_it(contract, copy):
    """Every package imports every package above it, and its siblings in the same layer: each pair must be reported."""
    package = CONTRACTS[contract]["containers"][0]
    layers = [[package.strip("() ") for package in layer.split("|")] for layer in CONTRACTS[contract]["layers"]]
    folder = ROOT / package
    layers = [[r for r in layer if (folder / r).exists() or (folder / f"{r}.py").exists()] for layer in layers]
    upward = [(low, high) for above, below in combinations(layers, 2) for high in above for low in below]
    upward += [pair for layer in layers for pair in combinations(layer, 2)]
    with planted(copy, *((f"{package}.{low}", f"import {package}.{high}") for low, high in upward)):
        report = lint(copy, contract).stdout
    reported = set(re.findall(r"^([\w.]+) is not allowed to import ([\w.]+):$", report, re.M))
    assert {(f"{package}.{low}", f"{package}.{high}") for low, high in upward} <= reported


def test_documented_layers_match_the_import_contracts():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text[text.index("## Layers") : text.index("## Where")].splitlines()]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in rows if len(row) == 3]
    drawn = {
        column[0][0]: [packages for packages in column[1:] if packages]
        for column in zip(*rows, strict=True)
        if column[0]
    }
    for contract in LAYERED:
        layers = [[package.strip("() ") for package in layer.split("|")] for layer in CONTRACTS[contract]["layers"]]
        assert drawn[CONTRACTS[contract]["containers"][0]] == layers


def test_no_module_imports_itself_through_others():
    """The contract on cycles covers siblings; this also covers a package and its own modules."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    order = graphlib.TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules})
    assert list(order.static_order())  # raises CycleError, which names the cycle


def loads_without(modules: list[str], forbidden: list[str]) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({forbidden!r}))\n"  # None in sys.modules: importing it raises
        f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.costly
def test_what_a_trial_does_loads_without_ray_optuna_mlflow():
    """What the contracts cannot see: other people's libraries that import these when they are installed."""
    files = (path.relative_to(ROOT) for path in (ROOT / "trainables").rglob("*.py") if "on_ray" not in path.parts)
    modules = sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files)
    done = loads_without(modules, ["ray", "optuna", "mlflow"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        *PACKAGES,
        "search.space",
        "search.cli.main",
        "analysis.commands.main",
        "trainables.contract.registry",
        "trainables.data.sets",
        *(
            f"trainables.methods.{path.parent.name}.config"
            for path in (ROOT / "trainables/methods").glob("*/config.py")
        ),
    ],
)
def test_what_checks_and_prints_loads_without_torch_either(module):
    done = loads_without([module], ["ray", "optuna", "mlflow", "torch", "transformers"])
    assert done.returncode == 0, done.stderr
