"""The answer of `analysis best`: a block of labelled lines for every state that a study may be in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_tables import judge, table, table_study
from test_verdict import with_held

from analysis.checkpoints.choice import way_to_test
from analysis.tables.metric import parse_metric
from analysis.writing.answer import answer, block, explain_lines
from search import schema

GAINS = {"p0": [0.70], "p1": [0.76], "p2": [0.72]}
FRESH = {"p0": [0.700, 0.702, 0.701, 0.699, 0.700], "p1": [0.752, 0.750, 0.749, 0.751, 0.753]}
EQUAL = {"p0": [0.700, 0.712, 0.695], "p1": [0.705, 0.709, 0.701]}


def answered(values: Any, fresh: Any = None, **options: Any) -> dict[str, str]:
    trials = table(values, fresh).assign(seconds=90.0)
    study = table_study(trials.assign(folder=trials["trial"]), {"metric": "stsb_dev", "study_id": "s-1"})
    return dict(answer(study, judge(trials, **options)))


def test_one_seed() -> None:
    found = answered(GAINS)
    assert list(found) == ["Best", "Dev", "Gain", "Next", "Weights"]
    assert found["Best"] == "t1: no parameters"
    assert found["Dev"].startswith("76.0 (one seed); ")
    assert "corrected for selection, 95 % CI " in found["Dev"]
    assert found["Gain"].endswith(
        "over the paper's setting, estimated from one seed: not tested; "
        "a confirmation takes at most about 30 minutes of training, summed over trials"
    )
    assert found["Next"] == "search confirm s-1"


def test_repeats_of_the_search_are_an_estimate() -> None:
    found = answered({p: [v, v + 0.001, v - 0.001] for p, (v,) in GAINS.items()})
    assert found["Dev"].startswith("76.0 (mean of 3 seeds, sd 0.1)")
    assert "estimated from the search's 3 seeds: not tested" in found["Gain"]


def test_confirmed_gain() -> None:
    found = answered(GAINS, FRESH, analyses=1)
    assert list(found) == ["Best", "Dev", "Gain", "Limits", "Weights"]
    assert found["Dev"].startswith("75.1 (mean of 5 fresh seeds, sd 0.2)")
    assert found["Gain"].startswith("+5.")
    assert found["Gain"].endswith(": significant")
    assert found["Limits"].startswith("gains below ")


def test_runner_up_is_named_unless_it_is_the_baseline() -> None:
    worse, equal = [0.720, 0.722, 0.721, 0.719, 0.720], [0.752, 0.749, 0.750, 0.751, 0.752]
    assert answered(GAINS, FRESH | {"p2": worse}, analyses=1)["Runner-up"] == "t13 (72.0)"
    assert answered(GAINS, FRESH | {"p2": equal}, analyses=1)["Runner-up"] == "t13 (75.1) may be as good"


def test_confirmed_without_a_gain_is_inconclusive() -> None:
    found = answered({"p0": [0.70], "p1": [0.71]}, EQUAL, analyses=1)
    assert found["Gain"].startswith("Inconclusive: +")
    assert ", 95 % CI -" in found["Gain"]
    assert "Runner-up" not in found


def test_nothing_beats_the_baseline() -> None:
    found = answered({"p0": [0.8], "p1": [0.7]})
    assert found["Gain"] == "none: no configuration came out above the paper's setting; not confirmed"
    assert found["Next"] == "search confirm s-1"


@pytest.mark.parametrize(
    ("preset", "moved", "name"),
    [
        (None, "", "the paper's setting"), ("none", "", "the method's defaults"),
        ({"dropout": 0.1}, "", "the space's preset"), ("sentence_transformers", "", "sentence-transformers' recipe"),
        (None, "batch_size,dropout", "the paper's setting (changed by the space: batch_size, dropout)"),
    ],
)  # fmt: skip
def test_baseline_is_named_by_preset_and_changes_of_the_space(preset: object, moved: str, name: str) -> None:
    study = table_study(table(GAINS), {schema.MOVED: moved})
    object.__setattr__(study, "space", {"preset": preset})
    assert study.baseline_name == name


@pytest.mark.parametrize(
    ("before", "note"),
    [(0.60, "60.0 on the same dev set"), (0.75, "75.0 on the same dev set; the best may not be above it"),
     (0.7601, "76.0 on the same dev set; the best is not above it")],
)  # fmt: skip
def test_the_value_before_training_is_beside_the_best(before: float, note: str) -> None:
    trials = table(GAINS).assign(seconds=90.0)
    runs = [SimpleNamespace(run_id=run, metrics={"untrained_stsb_dev": before}) for run in trials["run_id"]]
    study = table_study(trials.assign(folder=trials["trial"]), {"metric": "stsb_dev", "study_id": "s-1"}, runs)
    found = answer(study, judge(trials))
    assert [label for label, _ in found][:3] == ["Best", "Dev", "Untrained"]
    assert dict(found)["Untrained"] == note
    line = next(line for line in explain_lines(study, judge(trials)) if line.startswith("Untrained: "))
    gained = f"improvement from training {76 - 100 * before:+.2f}, corrected "
    assert line.startswith(f"Untrained: {100 * before:.2f} on the same dev set; {gained}")
    assert "Untrained" not in answered(GAINS)


def test_points_without_fresh_seeds_are_not_called_confirmed() -> None:
    """The baseline leads, and is the only point with fresh seeds."""
    trials = table({"p0": [0.80], "p1": [0.79], "p2": [0.78]}, {"p0": [0.80, 0.801]}).assign(seconds=90.0)
    study = table_study(trials.assign(folder=trials["trial"]), {"metric": "stsb_dev"})
    found = judge(trials, analyses=1)
    assert found.confirmed
    assert "Runner-up" not in dict(answer(study, found))
    value, probability = explain_lines(study, found)[:2]
    assert "among 3 completed, of which only the baseline was confirmed, on" in value
    assert " is the best of the 3 completed: " in probability


def test_commands_to_type_name_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "s-1").mkdir(parents=True)
    (tmp_path / "runs" / "s-1").mkdir(parents=True)

    def commands(folder: str, **options: str) -> list[str]:
        study = table_study(table(GAINS), {"study_id": "s-1", "folder": str(tmp_path / folder)})
        object.__setattr__(study, "options", {f"--{name}": value for name, value in options.items()})
        return [study.command("analysis export"), study.command("search confirm")]

    assert commands("runs/s-1") == ["analysis export s-1", "search confirm s-1"]
    assert commands("elsewhere/s-1", storage="my runs") == [
        "analysis export s-1 --storage 'my runs'", "search confirm s-1 --storage 'my runs'",
    ]  # fmt: skip
    by_server = {"tracking-uri": "http://server:5000"}
    assert commands("elsewhere/s-1", **by_server) == [
        "analysis export s-1 --tracking-uri http://server:5000", f"search confirm s-1 --storage {tmp_path}/elsewhere",
    ]  # fmt: skip
    monkeypatch.setenv("SEARCH_STORAGE", str(tmp_path / "elsewhere"))
    assert commands("elsewhere/s-1") == ["analysis export s-1", "search confirm s-1"]


def test_the_test_of_own_data_names_the_set_beside_the_dev_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def command(dev: list[str], language: str = "en", **tags: str) -> str | None:
        study = table_study(table(GAINS), {"study_id": "s-1", **tags})
        object.__setattr__(study, "space", {"data": {"dev": dev, "language": language}})
        return way_to_test(study)

    plain = 'analysis test s-1 --reason "final result"'
    assert command(["stsb"]) == command(["builtin"], "de") == plain
    assert command(["stsb"], "de") == command([str(tmp_path / "mine_dev")]) == f"{plain} --set TEST_SET"
    (tmp_path / "mine_test").mkdir()
    assert command([str(tmp_path / "mine_dev")]) == command(["./mine_dev"]) == f"{plain} --set ./mine_test"
    before = "2026-03-01T12:00:00+00:00: the start of t0000 on stsb: why"
    assert command(["stsb"], **{"test_opening.1": before}) == plain
    assert (
        command(["stsb"], **{"test_opening.1": before, "test_opening.2": before.replace("the start of ", "")}) is None
    )


def test_without_a_baseline_the_gain_is_unknown() -> None:
    trials = table(GAINS).assign(baseline=False, seconds=1.0)
    study = table_study(trials.assign(folder="x"), {"metric": "stsb_dev"})
    assert dict(answer(study, judge(trials)))["Gain"] == "unknown: no trial of the paper's setting was completed"


def test_held_out_pairs() -> None:
    study = with_held({"p0": [0.69, 0.70], "p1": [0.74, 0.75]})
    trials = study.trials.assign(seconds=1.0, folder="x")
    object.__setattr__(study, "trials", trials)
    object.__setattr__(study.stored, "tags", {"metric": "stsb_dev"})
    found = dict(answer(study, judge(trials)))
    assert found["Held out"] == "74.5, not used for selection"
    assert "(held out: +5.0)" in found["Gain"]


def test_other_units_have_three_digits() -> None:
    metric = parse_metric("min(eval_loss)")
    trials = table({"p0": [0.012345], "p1": [0.0098765]}).assign(seconds=1.0, folder="x")
    study = table_study(trials, {"metric": "eval_loss"})
    assert dict(answer(study, judge(trials, metric)))["Dev"].startswith("0.00988 (one seed)")


@pytest.mark.parametrize("width", [None, 40, 100])
def test_the_block_keeps_its_columns(width: int | None) -> None:
    lines = [("Best", "c0015: " + ", ".join(f"parameter_{n} 0.1" for n in range(9))), ("Runner-up", "c0013")]
    text = block(lines, width).splitlines()
    assert text[0].startswith("Best       c0015: parameter_0")
    assert text[-1] == "Runner-up  c0013"
    assert all(line.startswith(" " * 11) for line in text[1:-1])
    assert width is None or max(map(len, text)) <= width


def test_the_explanation_has_every_figure_behind_the_answer() -> None:
    trials = table(GAINS, FRESH)
    found = judge(trials, analyses=2)
    lines = explain_lines(table_study(trials), found)
    assert [line.split(" ")[0].rstrip(":") for line in lines] == [
        "Value", "Probability", "Gain", "Power", "Seed", "Intervals"
    ]  # fmt: skip
    assert " percentage points (" in lines[4]
    assert "interim analysis 2" in lines[2]
