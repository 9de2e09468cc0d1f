"""The commands on a real store: what is printed, in which format, and what a mistake costs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlflow.entities import Param
from small_store import SPACE, SmallStore, fill
from trained_trials import trial_folder

from analysis.commands.main import COMMANDS, main
from analysis.writing.output import paragraphs, text_table

pytestmark = pytest.mark.costly

POINT = {"learning_rate": 3e-5, "batch_size": 8, "max_marks": 0, "alphabet": None}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    """small-1, confirmed, with weights of c0000.1; the newer small-2 of four trials, without a folder."""
    made = SmallStore(tmp_path_factory.mktemp("store"))
    fill(made, "small-1", trials=14)
    trial_folder(made.folder / "small-1" / "trials" / "c0000.1", "edacse", "zh")
    fill(made, "small-2", trials=4, confirm=False, seed=1)
    return made


def call(store: SmallStore | Path, *arguments: str) -> Result:
    folder = store.folder if isinstance(store, SmallStore) else store
    runner = CliRunner(env={"MLFLOW_TRACKING_URI": ""})
    return runner.invoke(main, [*arguments, "--storage", str(folder)], catch_exceptions=False)


def content(store: SmallStore, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(store, *arguments, "--format", "json").stdout)
    return found


def methods(store: SmallStore, **trials: int) -> None:
    """A study a method, whose trials get better by 0.001 each."""
    for level, (method, count) in enumerate(trials.items()):
        run = store.study(method, {**SPACE, "name": method, "method": method})
        for i in range(count):
            point = {**POINT, "learning_rate": 1e-5 * (i + 1)}
            store.trial(run, method, f"t{i:04}", point, [0.5 + 0.1 * level + 0.001 * i] * 4)


def test_best_prints_ranking_and_verdict(store: SmallStore) -> None:
    found = call(store, "best", "--study", "small-1", "--metric", "builtin_dev", "--top", "4")
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0] == "Study small-1 (edacse): 20 trials: 17 completed, 2 pruned, 1 failed."
    assert lines[1] == "Failures by kind: 1 nan."
    header = next(i for i, line in enumerate(lines) if line.startswith("stage"))
    assert lines[header].split()[:5] == ["stage", "rank", "trial", "builtin_dev", "sd"]
    assert "learning_rate" in lines[header]
    assert [line.split()[:2] for line in lines[header + 1 : header + 5 : 2]] == [["confirmed", "1"], ["search", "3"]]
    assert [line.split()[0] for line in lines[header + 2 : header + 5 : 2]] == ["2", "4"]
    assert lines[header + 2].endswith("baseline")
    assert lines[header + 5 : header + 7] == ["(10 more rows: --top 14)", ""]
    labels = [line.split("  ")[0] for line in lines[header + 7 :]]
    assert labels == ["Best", "Dev", "Gain", "Limits", "Next"]
    where = f"small-1 --storage {store.folder}"
    assert lines[-1] == f'Next    analysis test {where} --reason "final result" && analysis export {where}'
    explained = call(store, "best", "--study", "small-1", "--explain").output.splitlines()
    for word in ("Value: ", "Probability that ", "Gain: ", "Power: ", "Seed noise: ", "Intervals: "):
        assert sum(line.startswith(word) for line in explained) == 1
    newest = call(store, "best").output
    assert "Study small-2" in newest
    assert "\nrank  trial" in newest
    assert "none: no configuration came out above the method's defaults" in newest
    everything = content(store, "best", "small-1", "--top", "30")
    assert everything["untrained"] == {"value": None, "gain": None}
    assert "more row" not in call(store, "best", "small-1", "--top", "14").output
    rows = everything["rows"]
    completed = sum(row["stop"] == "completed" for row in rows)
    assert [row["rank"] for row in rows if row["rank"]] == list(range(1, completed + 1))
    for confirmed in (True, False):
        ranked = [row for row in rows if row["confirmed"] is confirmed and row["rank"]]
        assert [row["value"] for row in ranked] == sorted((row["value"] for row in ranked), reverse=True)
    assert newest.endswith(f"the study's folder is not there: {store.folder / 'small-2'}\n")


def test_export_is_offered_only_of_present_weights(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    fill(store, "small-1", trials=12, confirm=False, seed=2)
    rows = content(store, "best")["rows"]
    best, second = [store.folder / "small-1" / "trials" / row["trial"] / "best" for row in rows[:2]]
    for folder in (best, second):
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(b"")
    where = f"small-1 --storage {store.folder}"
    export = f"analysis export {where}"
    assert call(store, "best").output.endswith(f"Next  search confirm {where}\n")
    assert content(store, "best")["export"] == export
    assert ": not tested; a confirmation takes at most about " in call(store, "best").output
    (best / "weights.safetensors").unlink()
    other = rows[1]["trial"]
    assert call(store, "best").output.endswith(f"those of {other} are: {export} --trial {other}\n")
    assert content(store, "best")["export"] is None


def test_formats_agree(store: SmallStore) -> None:
    args = ("best", "--study", "small-1", "--top", "3")
    found = content(store, *args)
    assert yaml.safe_load(call(store, *args, "--format", "yaml").output) == found
    rows = list(csv.DictReader(io.StringIO(call(store, *args, "--format", "csv").output)))
    assert [float(row["value"]) for row in rows] == [row["value"] for row in found["rows"]]
    best = found["rows"][0]
    assert rows[0]["params.batch_size"] == str(best["params"]["batch_size"])
    assert -1 <= best["value"] <= 1
    assert (best["n"], best["trial"]) == (3, found["verdict"]["trial"])
    assert found["rows"][2]["sd"] is None


def test_single_trials_rank_by_their_own_value(store: SmallStore) -> None:
    rows = content(store, "best", "small-1", "--trials", "--top", "50")["rows"]
    done = [row["value"] for row in rows if row["stop"] == "completed"]
    assert done == sorted(done, reverse=True)
    assert [row["stop"] for row in rows] == ["completed"] * 17 + ["pruned"] * 2 + ["failed:nan"]
    assert rows[-1]["reason"] == "the loss is nan after 500 training examples"


def test_table_of_all_studies(store: SmallStore) -> None:
    rows = content(store, "table", "--all")["rows"]
    assert ({row["study"] for row in rows}, len(rows)) == ({"small-1", "small-2"}, 24)
    assert len(content(store, "table", "--points", "--study", "small-1")["rows"]) == 14
    assert "Study small-2" in call(store, "table").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("best", "--study", "smal-1"), "unknown study 'smal-1'; did you mean 'small-1'?"),
        (("importance", "smal-1"), "did you mean 'small-1'?"),
        (("report", "small-1", "--study", "small-2"), "two studies named"),
        (("best", "--metric", "bultin_dev"), "unknown metric 'bultin_dev'; did you mean 'builtin_dev'?"),
        (("best", "--metric", "mean(builtin_dev,atec_dev)"), "unknown metric 'atec_dev'"),
        (("league", "--metric", "bultin_dev"), "unknown metric 'bultin_dev'; did you mean 'builtin_dev'?"),
        (("league", "small-1", "smal-2"), "unknown study"),
        (("best", "--metric", "stsb_test"), "'stsb_test' is a test metric"),
        (("plot", "small-1", "--only", "histry"), "did you mean 'history'"),
        (("compare", "edacse_tabel09_bert"), "did you mean 'edacse_table09_bert'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(store: SmallStore, arguments: tuple[str, ...], message: str) -> None:
    found = call(store, *arguments)
    assert (found.exit_code, found.output.count("\n")) == (2, 1), found.output
    assert message in found.output


@pytest.mark.parametrize("command", ["best", "importance", "plot", "report", "export"])
def test_missing_store_is_exit_code_2(tmp_path: Path, command: str) -> None:
    nowhere = call(tmp_path / "none", command)
    assert (nowhere.exit_code, nowhere.output.count("\n")) == (2, 1)
    assert "no tracking store at" in nowhere.output


@pytest.mark.parametrize("command", ["plot", "report", "export"])
def test_unwritable_place_is_one_line(store: SmallStore, tmp_path: Path, command: str) -> None:
    """A file stands where a folder would have to be made: no user may write there, not even root."""
    (tmp_path / "file").write_text("")
    done = call(store, command, "small-1", "--out", str(tmp_path / "file" / "deep" / "page.html"))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"analysis: {tmp_path / 'file'}")
    assert done.stderr.endswith("Not a directory\n")


def test_unfinished_studies_are_reported(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    run = store.study("going-1", status=None)
    nothing = call(store, "best")
    assert (nothing.exit_code, nothing.output) == (1, "analysis: study going-1 has no trials yet (running)\n")
    store.trial(run, "going-1", "t0000", POINT, [0.3, 0.4], "pruned")
    early = call(store, "best")
    assert early.exit_code == 1
    assert "Not finished: 1 of 24 trials have ended" in early.output
    assert "No trial has been completed" in early.output
    store.trial(run, "going-1", "t0001", {**POINT, "batch_size": 16}, [0.3, 0.4, 0.45, 0.5], baseline=True)
    half = call(store, "best")
    assert half.exit_code == 0
    assert "Not finished: 2 of 24 trials have ended" in half.output
    assert "no configuration came out above the method's defaults" in half.output


def test_league_at_equal_budget(store: SmallStore, tmp_path: Path) -> None:
    alone = call(store, "league")
    assert alone.exit_code == 1
    assert "two methods at least" in alone.output
    made = SmallStore(tmp_path)
    methods(made, simcse=6, edacse=9)
    made.trial(made.study("early", {**SPACE, "name": "early"}), "early", "t0000", POINT, [0.4], "pruned")
    found = content(made, "league")
    assert found["left_out"] == ["early: no trial has been completed"]
    assert found["budget"] == 6
    assert [(e["label"], e["trials"]) for e in found["entries"]] == [("edacse", 9), ("simcse", 6)]
    assert [e["verdict"]["value"] for e in found["entries"]] == pytest.approx([0.605, 0.505])  # of the first six
    duel = found["duels"][0]
    assert (duel["of"], duel["p_value"], duel["significant"]) == ("bests of the search", None, False)
    assert duel["low"] < 0.10 < duel["high"]
    text = call(made, "league").output
    assert "not tested" in text
    assert text.endswith("for that.\nLeft out: early: no trial has been completed\n")


def test_study_without_trials_is_left_out(tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    methods(store, simcse=3, edacse=3)
    begun = store.study("begun-1", {**SPACE, "name": "edacse_table09_bert"}, status=None)
    store.client.log_batch(begun, params=[Param("data.language", "en")])
    reason = "study begun-1 has no trials yet (running)"
    for command in (("table", "--all"), ("league",), ("compare", "edacse_table09_bert")):
        found = call(store, *command)
        assert (found.exit_code, found.output.count(f"Left out: {reason}\n")) == (0, 1), found.output
        assert content(store, *command)["left_out"] == [reason]
    for named in (("table", "simcse", "begun-1"), ("league", "begun-1", "simcse"), ("compare", "gclsr_table10")):
        found = call(store, *named, *(("--study", "begun-1") if named[0] == "compare" else ()))
        assert (found.exit_code, found.output) == (1, f"analysis: {reason}\n")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from analysis.commands.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'mlflow', 'torch', 'ray', 'scipy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "best" in found.stdout


def test_study_is_named_by_position_or_option(store: SmallStore) -> None:
    for command in (("best",), ("table", "--points")):
        assert call(store, *command, "small-1").output == call(store, *command, "--study", "small-1").output
    rows = content(store, "table", "small-1", "small-2", "--study", "small-1")["rows"]
    assert [study for study, _ in itertools.groupby(r["study"] for r in rows)] == ["small-1", "small-2"]


def test_storage_is_that_of_the_search(store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SEARCH_STORAGE", str(store.folder))
    assert "Study small-2" in CliRunner().invoke(main, ["best"]).output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_defaults(command: str) -> None:
    assert "..." not in CliRunner().invoke(main, ["--help"]).output.replace("[ARGS]...", "")
    text = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "[env var: SEARCH_STORAGE; default: runs]" in text
    assert "[MLFLOW_TRACKING_URI, else mlflow.db in the storage]" in text
    defaults = {"table": "[newest study]", "compare": "[every study of the table]"}
    assert defaults.get(command, "newest") in text


def test_narrow_terminal_splits_no_number() -> None:
    rows = [{"rank": "1", "trial": "t0000", "x_dev": "71.23", "seed": "0", "learning_rate": "1.23e-05", "note": "best"}]
    wide = text_table(rows, None, ("seed", "learning_rate"))
    assert text_table(rows, len(wide.splitlines()[0]), ("seed", "learning_rate")) == wide
    narrow = text_table(rows, 30, ("seed", "learning_rate"))
    assert narrow.splitlines()[0].split() == ["rank", "trial", "x_dev", "note"]
    assert narrow.splitlines()[-2:] == ["(not shown at 30 columns:", "seed, learning_rate)"]
    text = "Expected value: 55.32, 0.20 below the measured."
    wrapped = paragraphs([text, "", "Next."], 20)
    assert all(len(line) <= 20 for line in wrapped.splitlines())
    assert wrapped.split() == f"{text} Next.".split()
    assert paragraphs(["as it is " * 20], None) == "as it is " * 20


@pytest.mark.usefixtures("few_shuffles")
@pytest.mark.parametrize("width", [60, 120])
def test_importance_fits_a_terminal(store: SmallStore, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.writing.output.terminal_width", lambda: width)
    shown = call(store, "importance", "--study", "small-1", "--draws", "2").output.splitlines()
    assert max(map(len, shown)) <= width
    assert "variance (fANOVA)" in shown[0]
    assert ("among the best (PED-ANOVA)" in shown[0]) == (width >= 100)
    assert content(store, "importance", "small-1", "--draws", "2")["params"][0]["name"] == "learning_rate"
    few = call(store, "importance", "small-2")
    assert (few.exit_code, "at least 8 completed points" in few.stderr) == (1, True)


def test_plot_and_report_write_to_the_given_place(store: SmallStore, tmp_path: Path) -> None:
    done = call(store, "plot", "small-1", "--out", str(tmp_path), "--only", "history", "--only", "html")
    assert done.exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["history.png", "history.svg", "interactive.html"]
    made = call(store, "report", "small-2", "--out", str(tmp_path / "deep" / "page.html")).stdout.strip()
    assert "<h2>Answer</h2>" in Path(made).read_text(encoding="utf-8")


def test_plot_without_plotly_leaves_the_page_out(
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


def test_compare(store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "edacse_table15_bert" in call(store, "compare").stdout
    rows = list(csv.DictReader(io.StringIO(call(store, "compare", "gclsr_table10", "--format", "csv").stdout)))
    printed = [r["published"] for r in rows if r["metric"] == "avg_sts12_15_test"]
    assert printed == ["65.91", "66.28", "67.66"]
    beside = call(store, "compare", "edacse_table09_bert", "--study", "small-1", "--plot", str(tmp_path))
    assert "Note D17" in beside.stdout
    assert "avg_without_stsb" in beside.stdout
    assert (tmp_path / "edacse_table09_bert.svg").is_file()
    none = call(store, "compare", "edacse_table15_bert", "--study", "small-1", "--plot", str(tmp_path))
    assert "Not drawn: no printed column is a target." in none.stdout
    assert not (tmp_path / "edacse_table15_bert.svg").exists()
    for name in ("MLFLOW_TRACKING_URI", "SEARCH_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # nothing was run here yet
    alone = CliRunner().invoke(main, ["compare", "gclsr_table10"], catch_exceptions=False)
    assert alone.exit_code == 0
    assert "Ours: none yet" in alone.stdout


def test_test_warns_of_earlier_openings(store: SmallStore) -> None:
    first = call(store, "test", "small-1", "--reason", "for the paper")
    assert first.exit_code == 0
    assert "builtin_test" in first.stdout
    assert call(store, "best", "small-1").output.endswith(f"Next    analysis export small-1 --storage {store.folder}\n")
    assert "weights are not stored: c0000.0, c0000.2" in first.stdout
    assert "Not the first opening" not in first.stderr
    second = call(store, "test", "small-1", "--reason", "again")
    assert "Not the first opening" in second.stderr
    assert "for the paper" in second.stderr
    assert call(store, "test", "small-1").exit_code == 2  # no reason
    third = call(store, "test", "small-1", "--reason", "smaller", "--precision", "binary, int8")
    assert re.findall(r"builtin_\w+", third.stdout) == ["builtin_test", "builtin_binary_test", "builtin_int8_test"]
    wrong = call(store, "test", "small-1", "--reason", "why", "--precision", "int8,int4")
    assert (wrong.exit_code, wrong.stderr.splitlines()[-1]) == (
        2, "analysis: --precision: expected int8, binary or both, got 'int4'"
    )  # fmt: skip
    nothing = call(store, "test", "small-2", "--reason", "why")
    assert nothing.exit_code == 1
    assert "no weights stored of" in nothing.stderr


def test_missing_encoder_is_one_line(store: SmallStore, tmp_path: Path) -> None:
    record = store.folder / "small-1" / "trials" / "c0000.1" / "best" / "trial.json"
    before = record.read_text(encoding="utf-8")
    record.write_text(before.replace('"builtin:tiny"', '"/gone/encoder"'), encoding="utf-8")
    try:
        done = call(store, "export", "small-1", "--out", str(tmp_path / "model"))
    finally:
        record.write_text(before, encoding="utf-8")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("analysis: encoder '/gone/encoder': no such folder")
