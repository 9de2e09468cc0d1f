"""Every benchmark can be imported and answers `--help`; `card` needs nothing but torch and its models."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from benchmarks import calibration
from benchmarks.__main__ import NAMES, main
from benchmarks.curves import record


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_imports_and_answers_help(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", [calibration.main, record.main], ids=["calibration", "curves.record"])
def test_a_benchmark_with_a_command_line_answers_help(command: Command) -> None:
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


ON_A_BARE_MACHINE = """
import sys
from benchmarks import card

card.SHAPES["cpu"], card.SENTENCES["cpu"] = ("tiny",), 128
with card.scratch_folder() as folder:
    one = card.Card(folder, 1)
    for part in (one.checks, one.training, one.evaluation, one.graph):
        part()
print(sorted({"ray", "mlflow", "optuna", "platformdirs"} & set(sys.modules)))
"""


@pytest.mark.costly
def test_card_needs_neither_ray_nor_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_DATA_DIR", raising=False)
    root = Path(__file__).parents[1]
    ended = subprocess.run([sys.executable, "-c", ON_A_BARE_MACHINE], cwd=root, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    rows = [line.split("s  ", 1)[1] for line in ended.stdout.splitlines() if " s  " in line]
    assert sum(row.startswith("checks: ") and row.endswith(": passed") for row in rows) == 9
    assert any(row.startswith("training: batch 16, peer / ours: ") for row in rows)
    assert not any("failed" in row for row in rows)
    assert ended.stdout.splitlines()[-1] == "[]", "imported"
