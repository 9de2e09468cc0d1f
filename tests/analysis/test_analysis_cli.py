"""The commands on a real store: what is printed, in which format, and what a mistake costs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlflow.entities import Param
from small_store import SPACE, SmallStore, fill

from analysis.commands.main import COMMANDS, main
from analysis.writing.output import paragraphs, text_table

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    store = SmallStore(tmp_path_factory.mktemp("cli"))
    fill(store, "small-1", trials=14)
    fill(store, "small-2", trials=12, confirm=False, seed=2)
    return store


def call(store: SmallStore | Path, *args: str) -> Result:
    folder = store.folder if isinstance(store, SmallStore) else store
    return CliRunner(env={"MLFLOW_TRACKING_URI": ""}).invoke(main, [*args, "--storage", str(folder)])


def test_best_prints_ranking_verdict_and_the_way_to_the_checkpoint(small: SmallStore) -> None:
    found = call(small, "best", "--study", "small-1", "--metric", "builtin_dev", "--top", "4")
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0] == "Study small-1 (edacse): 20 trials: 17 completed, 2 pruned, 1 failed."
    assert lines[1] == "Failures by kind: 1 nan."
    assert (
        "The column gain is the difference to the method's defaults as measured; the verdict's is corrected." in lines
    )
    header = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert lines[header].split()[:4] == ["rank", "trial", "builtin_dev", "sd"]
    assert "learning_rate" in lines[header]
    assert lines[header + 1].endswith("confirmed")
    assert lines[header + 2].endswith("confirmed, baseline")
    assert lines[header + 5] == ""  # four rows
    assert any(line.startswith(("Significant gain: +", "No significant gain: ")) for line in lines)
    assert any(line.startswith("Expected value: ") and "corrected for the choice among" in line for line in lines)
    gone = f"not at hand; the study's folder is not there: {small.folder / 'small-1'}"
    assert lines[-1] == f"Checkpoint of the best: {gone}"


def test_export_is_offered_only_of_weights_that_are_there(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    fill(store, "small-1", trials=12, confirm=False, seed=2)
    rows = json.loads(call(store, "best", "--format", "json").output)["rows"]
    best, second = [store.folder / "small-1" / "trials" / row["trial"] / "best" for row in rows[:2]]
    for folder in (best, second):
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(b"")
    assert call(store, "best").output.endswith("Checkpoint of the best: analysis export small-1\n")
    assert json.loads(call(store, "best", "--format", "json").output)["export"] == "analysis export small-1"
    (best / "weights.safetensors").unlink()
    other = rows[1]["trial"]
    assert call(store, "best").output.endswith(
        "Checkpoint of the best: its weights are not on disk any more; "
        f"those of {other} are: analysis export small-1 --trial {other}\n"
    )
    assert json.loads(call(store, "best", "--format", "json").output)["export"] is None


def test_best_takes_the_newest_study_and_says_what_is_not_confirmed(small: SmallStore) -> None:
    found = call(small, "best")
    assert "Study small-2" in found.output
    assert "an estimate, corrected for picking the best of" in found.output
    assert "Not confirmed on fresh seeds; `search confirm small-2` does that." in found.output


def test_formats_say_the_same(small: SmallStore) -> None:
    args = ("best", "--study", "small-1", "--top", "3", "--format")
    content: dict[str, Any] = json.loads(call(small, *args, "json").output)
    assert yaml.safe_load(call(small, *args, "yaml").output) == content
    rows = list(csv.DictReader(io.StringIO(call(small, *args, "csv").output)))
    assert [float(row["value"]) for row in rows] == [row["value"] for row in content["rows"]]
    assert rows[0]["params.batch_size"] == str(content["rows"][0]["params"]["batch_size"])
    best = content["rows"][0]
    assert -1 <= best["value"] <= 1
    assert best["n"] == 3
    assert best["trial"] == content["verdict"]["trial"]
    assert content["export"] is None
    assert content["rows"][2]["sd"] is None


def test_single_trials_rank_by_their_own_value(small: SmallStore) -> None:
    content = json.loads(
        call(small, "best", "--study", "small-1", "--trials", "--top", "50", "--format", "json").output
    )
    done = [row["value"] for row in content["rows"] if row["stop"] == "completed"]
    assert done == sorted(done, reverse=True)
    assert [row["stop"] for row in content["rows"]] == ["completed"] * 17 + ["pruned"] * 2 + ["failed:nan"]
    assert content["rows"][-1]["reason"] == "the loss is nan after 500 training examples"


def test_table_of_all_studies(small: SmallStore) -> None:
    rows = json.loads(call(small, "table", "--all", "--format", "json").output)["rows"]
    assert {row["study"] for row in rows} == {"small-1", "small-2"}
    assert len(rows) == 32
    points = json.loads(call(small, "table", "--points", "--study", "small-1", "--format", "json").output)["rows"]
    assert len(points) == 14
    assert "Study small-2" in call(small, "table").output


def test_mistakes_are_one_line_and_exit_code_2(small: SmallStore, tmp_path: Path) -> None:
    for args, said in (
        (("best", "--study", "smal-1"), "unknown study 'smal-1'; did you mean 'small-1'?"),
        (("best", "--metric", "bultin_dev"), "unknown metric 'bultin_dev'; did you mean 'builtin_dev'?"),
        (("best", "--metric", "mean(builtin_dev,atec_dev)"), "unknown metric 'atec_dev'"),
        (("league", "--metric", "bultin_dev"), "unknown metric 'bultin_dev'; did you mean 'builtin_dev'?"),
        (("best", "--metric", "stsb_test"), "'stsb_test' is a test metric"),
    ):
        found = call(small, *args)
        assert (found.exit_code, found.output.count("\n")) == (2, 1), found.output
        assert said in found.output
    nowhere = call(tmp_path / "none", "best")
    assert (nowhere.exit_code, nowhere.output.count("\n")) == (2, 1)
    assert "no tracking store at" in nowhere.output


def test_unfinished_studies_say_so(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    run = store.study("going-1", status=None)
    nothing = call(store, "best")
    assert (nothing.exit_code, nothing.output) == (1, "analysis: study going-1 has no trials yet (running)\n")
    point = {"learning_rate": 3e-5, "batch_size": 8, "max_marks": 0, "alphabet": None}
    store.trial(run, "going-1", "t0000", point, [0.3, 0.4], "pruned")
    early = call(store, "best")
    assert early.exit_code == 1
    assert "Not finished: 1 of 24 trials have ended" in early.output
    assert "No trial has been completed" in early.output
    store.trial(run, "going-1", "t0001", {**point, "batch_size": 16}, [0.3, 0.4, 0.45, 0.5], baseline=True)
    half = call(store, "best")
    assert half.exit_code == 0
    assert "Not finished: 2 of 24 trials have ended; the figures are of those." in half.output
    assert "nothing came out above the method's defaults" in half.output


def test_league_at_equal_budget(small: SmallStore, tmp_path: Path) -> None:
    alone = call(small, "league")
    assert alone.exit_code == 1
    assert "two methods at least" in alone.output
    store = SmallStore(tmp_path)
    for method, trials, level in (("simcse", 6, 0.50), ("edacse", 9, 0.60)):
        run = store.study(method, {**SPACE, "name": method, "method": method})
        for i in range(trials):
            point = {"learning_rate": 1e-5 * (i + 1), "batch_size": 8, "max_marks": 0, "alphabet": None}
            store.trial(run, method, f"t{i:04}", point, [level + 0.001 * i] * 4)
    store.trial(store.study("early", {**SPACE, "name": "early"}), "early", "t0000", point, [0.4], "pruned")
    content = json.loads(call(store, "league", "--format", "json").output)
    assert content["left_out"] == ["early: no trial has been completed"]
    assert content["budget"] == 6
    assert [(e["label"], e["trials"]) for e in content["entries"]] == [("edacse", 9), ("simcse", 6)]
    assert [e["verdict"]["value"] for e in content["entries"]] == pytest.approx([0.605, 0.505])  # of the first six
    duel = content["duels"][0]
    assert (duel["of"], duel["p_value"], duel["significant"]) == ("bests of the search", None, False)
    assert duel["low"] < 0.10 < duel["high"]
    assert "not tested" in call(store, "league").output


def test_a_study_that_has_just_begun_is_left_out_and_said(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    for method in ("simcse", "edacse"):
        run = store.study(method, {**SPACE, "name": method, "method": method})
        for i in range(3):
            point = {"learning_rate": 1e-5 * (i + 1), "batch_size": 8, "max_marks": 0, "alphabet": None}
            store.trial(run, method, f"t{i:04}", point, [0.5 + 0.01 * i] * 4)
    begun = store.study("begun-1", {**SPACE, "name": "edacse_table09_bert"}, status=None)
    store.client.log_batch(begun, params=[Param("data.language", "en")])
    reason = "study begun-1 has no trials yet (running)"
    for command in (("table", "--all"), ("league",), ("compare", "edacse_table09_bert")):
        found = call(store, *command)
        assert (found.exit_code, found.output.count(f"Left out: {reason}\n")) == (0, 1), found.output
        assert json.loads(call(store, *command, "--format", "json").output)["left_out"] == [reason]
    for named in (("table", "simcse", "begun-1"), ("league", "begun-1", "simcse"), ("compare", "gclsr_table10")):
        found = call(store, *named, *(("--study", "begun-1") if named[0] == "compare" else ()))
        assert (found.exit_code, found.output) == (1, f"analysis: {reason}\n")


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from analysis.commands.main import COMMANDS, main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'mlflow', 'torch', 'ray', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    started = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "best" in found.stdout
    assert time.perf_counter() - started < 5  # 0.1 s on an idle core; the bound only catches a heavy import


def test_a_study_is_named_by_position_or_option(small: SmallStore) -> None:
    for command in (("best",), ("table", "--points")):
        assert call(small, *command, "small-1").output == call(small, *command, "--study", "small-1").output
    both = call(small, "table", "small-1", "small-2", "--study", "small-1", "--format", "json")
    assert [study for study, _ in itertools.groupby(r["study"] for r in json.loads(both.output)["rows"])] == [
        "small-1",
        "small-2",
    ]
    assert call(small, "league", "small-1", "smal-2").exit_code == 2


def test_the_storage_is_that_of_the_search(small: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SEARCH_STORAGE", str(small.folder))
    assert "Study small-2" in CliRunner().invoke(main, ["best"]).output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_not_cut_and_defaults_are_said(command: str) -> None:
    overview = CliRunner().invoke(main, ["--help"]).output.replace("[ARGS]...", "")
    assert "..." not in overview
    assert "changes nothing" not in overview
    text = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "[env var: SEARCH_STORAGE; default: runs]" in text
    assert "[MLFLOW_TRACKING_URI, else mlflow.db in the storage]" in text
    defaults = {"table": "[newest study]", "compare": "[every study of the table]"}
    assert defaults.get(command, "newest") in text


def test_a_narrow_terminal_takes_no_number_apart() -> None:
    rows = [{"rank": "1", "trial": "t0000", "x_dev": "71.23", "seed": "0", "learning_rate": "1.23e-05", "note": "best"}]
    wide = text_table(rows, None, ("seed", "learning_rate"))
    assert text_table(rows, len(wide.splitlines()[0]), ("seed", "learning_rate")) == wide
    narrow = text_table(rows, 30, ("seed", "learning_rate"))
    assert narrow.splitlines()[0].split() == ["rank", "trial", "x_dev", "note"]
    assert narrow.splitlines()[-2:] == ["(not shown at 30 columns:", "seed, learning_rate)"]
    said = paragraphs(["Expected value: 55.32, 0.20 below the measured.", "", "Next."], 20)
    assert all(len(line) <= 20 for line in said.splitlines())
    assert said.split() == ["Expected", "value:", "55.32,", "0.20", "below", "the", "measured.", "Next."]
    assert paragraphs(["as it is " * 20], None) == "as it is " * 20


@pytest.mark.parametrize("width", [60, 120])
def test_importance_fits_a_terminal(small: SmallStore, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.writing.output.terminal_width", lambda: width)
    shown = call(small, "importance", "--study", "small-1", "--draws", "2").output.splitlines()
    assert max(map(len, shown)) <= width
    assert "variance (fANOVA)" in shown[0]
