"""Random mutants of modules against their ordinary tests: how many small mistakes would nobody notice?

    python -m benchmarks.mutants --count 100 --seed 1

A mutant changes one comparison, arithmetic operator, boolean or number of a module, in a copy of the tree; it is killed
when the module's tests fail or take longer than `--limit`. Every survivor is printed with its line, before and after.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import click

ROOT = Path(__file__).parents[1]
STUDY = ("test_verdicts", "test_study", "test_study_seeds", "test_study_ends", "test_promotion", "test_baseline")
TESTS = {
    "analysis/statistics/selection.py": [
        "tests/analysis/test_selection.py",
    ],
    "analysis/statistics/seed_noise.py": [
        "tests/analysis/test_seed_noise.py",
        "tests/analysis/test_verdict.py",
    ],
    "analysis/statistics/picked.py": [
        "tests/analysis/test_picked.py",
        "tests/analysis/test_verdict.py",
    ],
    "analysis/statistics/verdict.py": [
        "tests/analysis/test_picked.py",
        "tests/analysis/test_verdict.py",
    ],
    "analysis/statistics/empirical_bayes.py": [
        "tests/analysis/test_empirical_bayes.py",
    ],
    "analysis/statistics/pairs.py": [
        "tests/analysis/test_pairs.py",
    ],
    "analysis/statistics/league.py": [
        "tests/analysis/test_league.py",
    ],
    "analysis/statistics/study_verdict.py": [
        "tests/analysis/test_league.py",
        "tests/analysis/test_seed_noise.py",
        "tests/analysis/test_verdict.py",
        "tests/analysis/test_confirm_forecast.py",
    ],
    "analysis/statistics/importance.py": [
        "tests/analysis/test_importance.py",
        "tests/analysis/test_optuna_study.py",
        "tests/analysis/test_plots.py",
    ],
    "search/study/confirm_plan.py": ["tests/search/test_confirm.py"],
    "search/study/search_plan.py": [f"tests/search/{name}.py" for name in STUDY],
    "search/study/seeds.py": ["tests/search/test_study_seeds.py"],
    "search/study/adaptive_confirm.py": ["tests/search/test_adaptive_confirm.py"],
    "search/study/belief.py": ["tests/search/test_adaptive_confirm.py"],
    "search/study/memory.py": ["tests/search/test_related.py"],
    "search/study/shown_points.py": ["tests/search/test_shown_points.py"],
    "search/study/promotion.py": ["tests/search/test_promotion.py"],
    "search/study/pruners.py": ["tests/search/test_pruners.py"],
    "search/study/distributions.py": [
        f"tests/search/test_{name}.py" for name in ("lists_of_numbers", "study_as_seen", "samplers")
    ],
    "search/study/guesses.py": ["tests/search/test_guesses.py"],
    "search/study/study_as_seen.py": [
        f"tests/search/test_{name}.py" for name in ("study_as_seen", "lists_of_numbers", "study")
    ],
    "search/study/samplers.py": [
        "tests/search/test_samplers.py",
        "tests/search/test_study.py",
        "tests/search/test_study_seeds.py",
    ],
    "search/space/params.py": [f"tests/search/test_{name}.py" for name in ("params", "space", "space_bad")],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def places(tree: ast.AST) -> list[ast.AST]:
    """Nodes that can be mutated: no annotations, decorators (frozen or not) and no text."""
    annotations = {id(n) for node in ast.walk(tree) for name in ("annotation", "returns") for n in _within(node, name)}
    annotations |= {
        id(n) for node in ast.walk(tree) for one in getattr(node, "decorator_list", ()) for n in ast.walk(one)
    }
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        operator = getattr(node, "op", None)
        first = node.ops[0] if isinstance(node, ast.Compare) else None
        number = isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float))
        if number or type(operator) in SWAPS or type(first) in SWAPS:
            found.append(node)
    return found


def _within(node: ast.AST, name: str) -> list[ast.AST]:
    child = getattr(node, name, None)
    return list(ast.walk(child)) if isinstance(child, ast.AST) else []


def mutate(node: ast.AST, rng: random.Random) -> None:
    """Change one node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = cast(ast.cmpop, SWAPS[type(node.ops[0])]())
    elif isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            node.value = not value
        elif isinstance(value, int):
            node.value = value + rng.choice((-1, 1))
        elif isinstance(value, float):
            node.value = value * rng.choice((0.5, 2.0)) if value else 1.0
    else:
        node.op = SWAPS[type(node.op)]()  # type: ignore[attr-defined]  # `places` gives only nodes with an operator


def survives(module: str, source: str, limit: float) -> bool:
    """Whether the module's tests pass with this source in place of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("analysis", "search", "trainables", "tests", "benchmarks", "pyproject.toml", "spaces"):
            origin = ROOT / name
            if origin.is_dir():
                shutil.copytree(origin, copy / name, ignore=shutil.ignore_patterns("__pycache__", "goldens"))
            else:
                shutil.copy(origin, copy / name)
        (copy / module).write_text(source)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *TESTS[module],
        ]
        try:
            done = subprocess.run(
                command,
                cwd=copy,
                env=os.environ | {"PYTHONPATH": folder},
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@click.command()
@click.option("--count", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--only", default="", help="part of a module's path")
@click.option("--limit", default=300.0, show_default=True, help="seconds for the tests of a module")
def main(count: int, seed: int, only: str, limit: float) -> None:
    """Make mutants and say which of them live."""
    rng = random.Random(seed)
    modules = [name for name in TESTS if only in name and all((ROOT / test).exists() for test in TESTS[name])]
    lived = 0
    for number in range(1, count + 1):
        module = rng.choice(modules)
        tree = ast.parse((ROOT / module).read_text())
        node = rng.choice(places(tree))
        before = ast.unparse(node)
        line = getattr(node, "lineno", 0)
        mutate(node, rng)
        if survives(module, ast.unparse(tree), limit):
            lived += 1
            click.echo(f"{number}: lives: {module}:{line}: {before}  ->  {ast.unparse(node)}")
        else:
            click.echo(f"{number}: killed: {module}:{line}")
    click.echo(f"{lived} of {count} live")


if __name__ == "__main__":
    main()
