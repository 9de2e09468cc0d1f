"""The commands importance, plot, compare, test, report, export: what they print, their exit codes."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from small_store import SmallStore, fill
from trained_trials import trial_folder

from analysis.commands.main import main

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    made = SmallStore(tmp_path_factory.mktemp("store"))
    fill(made)
    trial_folder(made.folder / "small-1" / "trials" / "c0000.1", "edacse", "zh")
    fill(made, "small-2", trials=4, confirm=False, seed=1)
    return made


def call(store: SmallStore | Path, *arguments: str) -> Result:
    folder = store.folder if isinstance(store, SmallStore) else store
    return CliRunner().invoke(main, [*arguments, "--storage", str(folder)], catch_exceptions=False)


def test_importance(store: SmallStore) -> None:
    found = json.loads(call(store, "importance", "small-1", "--draws", "2", "--format", "json").stdout)
    assert found["params"][0]["name"] == "learning_rate"
    table = call(store, "importance", "--study", "small-1", "--draws", "2")
    assert "completed points" in table.stdout
    few = call(store, "importance", "small-2")
    assert few.exit_code == 1
    assert "at least 8 completed points" in few.stderr


def test_plot(store: SmallStore, tmp_path: Path) -> None:
    done = call(store, "plot", "small-1", "--out", str(tmp_path), "--only", "history", "--only", "html")
    assert done.exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["history.png", "history.svg", "interactive.html"]
    wrong = call(store, "plot", "small-1", "--only", "histry")
    assert wrong.exit_code == 2
    assert "did you mean 'history'" in wrong.stderr


def test_without_plotly_the_page_is_left_out_and_said(
    store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "analysis.plots.page", raising=False)
    monkeypatch.setattr("analysis.plots.gallery.gallery", lambda *_: [])
    done = call(store, "plot", "small-2", "--out", str(tmp_path))
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert 'pip install "contrastive-search[interactive]"' in done.stderr
    wanted = call(store, "plot", "small-2", "--out", str(tmp_path), "--only", "html")
    assert wanted.exit_code == 1
    assert "needs plotly" in wanted.stderr


def test_compare(store: SmallStore, tmp_path: Path) -> None:
    listed = call(store, "compare")
    assert "edacse_table15_bert" in listed.stdout
    rows = list(csv.DictReader(io.StringIO(call(store, "compare", "gclsr_table10", "--format", "csv").stdout)))
    assert [r["published"] for r in rows if r["metric"] == "avg_sts12_15_test"] == ["65.91", "66.28", "67.66"]
    beside = call(store, "compare", "edacse_table09_bert", "--study", "small-1", "--plot", str(tmp_path))
    assert "no target" in beside.stdout
    assert "Note D17" in beside.stdout
    assert (tmp_path / "edacse_table09_bert.svg").is_file()
    wrong = call(store, "compare", "edacse_tabel09_bert")
    assert wrong.exit_code == 2
    assert "did you mean 'edacse_table09_bert'" in wrong.stderr


def test_test_says_what_it_did_and_did_before(store: SmallStore) -> None:
    first = call(store, "test", "small-1", "--reason", "for the paper")
    assert first.exit_code == 0
    assert "builtin_test" in first.stdout
    assert "weights were not kept: c0000.0, c0000.2" in first.stdout
    assert "Not the first look" not in first.stderr
    second = call(store, "test", "small-1", "--reason", "again")
    assert "Not the first look" in second.stderr
    assert "for the paper" in second.stderr
    assert call(store, "test", "small-1").exit_code == 2  # no reason
    nothing = call(store, "test", "small-2", "--reason", "why")
    assert nothing.exit_code == 1
    assert "no weights were kept" in nothing.stderr


def test_report(store: SmallStore, tmp_path: Path) -> None:
    done = call(store, "report", "small-2", "--out", str(tmp_path / "deep" / "page.html"))
    assert done.stdout.strip() == str(tmp_path / "deep" / "page.html")
    assert "<h2>Verdict</h2>" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")


def test_export(store: SmallStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert call(store, "export", "small-1", "--out", str(folder)).stdout.strip() == str(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlanguage: zh\n")
    assert "trial c0000.1" in card
    assert "3 seeds (100, 101, 102)" in card
    assert "| lambda | 0.6 |" in card
    assert "| builtin | builtin |" in card
    assert "of this checkpoint: " in card
    assert "This trial: " in card
    again = call(store, "export", "small-1", "--out", str(folder))
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_an_encoder_that_is_gone_is_one_line(store: SmallStore, tmp_path: Path) -> None:
    record = store.folder / "small-1" / "trials" / "c0000.1" / "best" / "trial.json"
    before = record.read_text(encoding="utf-8")
    record.write_text(before.replace('"builtin:tiny"', '"/gone/encoder"'), encoding="utf-8")
    try:
        done = call(store, "export", "small-1", "--out", str(tmp_path / "model"))
    finally:
        record.write_text(before, encoding="utf-8")
    assert done.exit_code == 1
    assert done.stderr.startswith("analysis: encoder '/gone/encoder': no such folder")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["plot", "report", "export"])
def test_a_place_that_cannot_be_written_is_one_line(store: SmallStore, tmp_path: Path, command: str) -> None:
    """A file stands where a folder would have to be made: nobody may write there, not even root."""
    (tmp_path / "file").write_text("")
    done = call(store, command, "small-1", "--out", str(tmp_path / "file" / "deep" / "page.html"))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"analysis: {tmp_path / 'file'}")
    assert done.stderr.endswith("Not a directory\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["importance", "plot", "report", "export"])
def test_unknown_studies_and_missing_stores_are_exit_code_2(store: SmallStore, tmp_path: Path, command: str) -> None:
    unknown = call(store, command, "smal-1")
    assert unknown.exit_code == 2
    assert "did you mean 'small-1'" in unknown.stderr
    assert call(tmp_path, command).exit_code == 2
    both = call(store, command, "small-1", "--study", "small-2")
    assert both.exit_code == 2
    assert "two studies" in both.stderr
