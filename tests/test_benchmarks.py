"""Every benchmark can be imported and answers `--help`; `card` needs nothing but torch and its models."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Command, UsageError
from click.testing import CliRunner

from benchmarks import calibration, plots, study
from benchmarks.__main__ import NAMES, main
from benchmarks.curves import record


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_imports_and_answers_help(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "command", [calibration.main, record.main, study.main], ids=["calibration", "curves.record", "study"]
)
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


def row_of(way: str) -> dict[str, Any]:
    """A made-up row of `benchmarks.study`: product 0.6, others 0.5, on four queries."""
    trials = [{"minute": minute, "value": 0.4 + minute / 10} for minute in (0.5, 1)] if way != "untouched" else []
    score = 0.6 if way == "product" else 0.5
    return {"trials": trials, "dev": score, "test": [score - 0.1, score + 0.1] * 2, "machine": {"cores": 2}}


def test_study_is_continued_where_it_stopped(tmp_path: Path) -> None:
    out, settings, measured = tmp_path / "study.json", {"minutes": 2, "pairs": 8, "encoder": "ab"}, []
    interrupted: list[str] = []

    def measure(way: str, seed: int) -> dict[str, Any]:
        if len(measured) == 3 and not interrupted:
            interrupted.append(way)
            raise SystemExit(143)
        measured.append((way, seed))
        return row_of(way)

    for runs, rows in ((1, 3), (1, 5), (1, 5), (2, 9)):
        before = out.read_text(encoding="utf-8") if out.exists() else ""
        with contextlib.suppress(SystemExit):
            study.complete(study.stored(out, settings), runs, measure, out)
        record = study.stored(out, settings)
        assert [(row["way"], row["seed"]) for row in record["rows"]] == measured == [*study.turns(2)][:rows]
        assert out.read_text(encoding="utf-8").startswith(before.removesuffix("]}\n"))
        study.draw(record, tmp_path / f"{rows}.svg")
        assert plots.fingerprint(record) in (tmp_path / f"{rows}.svg").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"study.json: minutes: expected 2, got 3\nhint: name another file with --out"):
        study.stored(out, settings | {"minutes": 3})
    head, _, *lines = study.table(record).splitlines()
    assert head == "| way | runs | evaluations a run | best dev | test | this product minus it |"
    assert lines[0] == "| this product | 2 | 2 | 60.00 | 60.00 ± 11.32 | - |"
    assert lines[-1] == "| untouched encoder | 1 | 0 | 50.00 | 50.00 ± 11.32 | +10.00 ± 0.00 |"
    assert len(lines) == 5


def test_study_page_shows_the_committed_results() -> None:
    page = plots.ROOT / "docs" / "study.md"
    assert [study.OUT.exists(), study.PICTURE.exists()] == [page.exists()] * 2
    if page.exists():
        record = json.loads(study.OUT.read_text(encoding="utf-8"))
        assert study.table(record) in page.read_text(encoding="utf-8")
        assert plots.fingerprint(record) in study.PICTURE.read_text(encoding="utf-8")
