"""Every benchmark can be imported and answers `--help`; `card` needs nothing but torch and its models."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from benchmarks import calibration, plots
from benchmarks.__main__ import NAMES, main
from benchmarks.curves import record


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_imports_and_answers_help(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", [calibration.main, record.main], ids=["calibration", "curves.record"])
def test_a_benchmark_with_a_command_line_answers_help(command: Command) -> None:
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


def test_the_page_shows_plots_of_the_committed_results() -> None:
    page = (plots.ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"!\[(.+)\]\(pictures/performance/(\w+)\.svg\)", page))
    assert set(shown.values()) == set(plots.data()) == {path.stem for path in plots.PICTURES.iterdir()}
    for name, measured in plots.data().items():
        svg = (plots.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
        assert plots.fingerprint(measured) in svg, f"{name} is stale: python -m benchmarks.plots"
        assert {"machine", "rows"} <= set(measured)


def test_plots_are_drawn_with_those_of_outside_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(plots.RESULTS / "performance.json", tmp_path)
    rows = [
        {"tasks": family, "workers": workers, "trials": trials, "search": search, "regret": regret, "se": 0.02}
        for family, workers, trials in itertools.product(("lcbench", "simple"), (1, 4), (10, 20))
        for search, regret in (("ours", 0.2), ("optuna: tpe", 0.4), ("random", 0.9))
    ]
    (tmp_path / "outside.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.setattr(plots, "RESULTS", tmp_path)
    drawn = {path.stem: path.read_text(encoding="utf-8") for path in plots.draw(tmp_path / "drawn")}
    assert set(drawn) == {*plots.DRAWN, "outside"}
    assert "the regret is 0.50 to 0.50 times that of the best peer that learns</dc:title>" in drawn["outside"]


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
