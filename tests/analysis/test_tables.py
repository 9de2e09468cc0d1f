"""Stored runs to tables, points from trials, ranking, metrics."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from memory_study import MemoryStore, memory_study
from memory_study import run as stored_run

from analysis.errors import InputError
from analysis.reading.store import StoredRun
from analysis.tables.metric import Metric, parse_metric
from analysis.tables.record import commands, cost
from analysis.tables.trials import (
    add_values,
    parameter,
    points_table,
    rank_points,
    rank_trials,
    trials_table,
)
from search import schema


def run(trial: str, value: float | None = None, **extra: Any) -> StoredRun:
    tags = {
        schema.TRIAL_ID: trial, schema.POINT_ID: extra.get("point", trial), schema.SEED: str(extra.get("seed", 0)),
        schema.STAGE: extra.get("stage", "search"), schema.OPTUNA_NUMBER: "3",
    }  # fmt: skip
    if "stop" not in extra or extra["stop"]:
        tags[schema.STOP] = extra.get("stop", "completed")
    if extra.get("baseline"):
        tags[schema.BASELINE] = "paper"
    metrics = {"best_a_dev": value, schema.BEST_AT_EXAMPLES: 200.0} if value is not None else {}
    return StoredRun(
        run_id=f"r-{trial}", experiment_id="1", experiment="e", name=trial, status=extra.get("status", "FINISHED"),
        start=1_760_000_000_000, end=None, artifact_uri="", tags=tags, params=extra.get("params", {}), metrics=metrics,
    )  # fmt: skip


RUNS = [
    run("t0", 0.60, point="p0", baseline=True),
    run("t1", 0.70, point="p1"),
    run("t2", 0.72, point="p2"),
    run("t2.1", 0.68, point="p2", seed=1),
    run("t3", 0.90, point="p3", stop="pruned"),
    run("t4", None, point="p4", stop="failed:nan", status="FAILED"),
    run("t5", None, point="p5", stop="", status="RUNNING"),
    run("t6", None, point="p6", stop="", status="KILLED"),
    run("c0", 0.61, point="p1", seed=10, stage="confirm"),
    run("c1", 0.65, point="p1", seed=11, stage="confirm"),
]
A = Metric("a_dev", ("a_dev",))


@pytest.fixture
def trials() -> pd.DataFrame:
    values = {r.run_id: r.metrics["best_a_dev"] for r in RUNS if r.metrics}
    return add_values(trials_table(RUNS), values)


def test_trials_table(trials: pd.DataFrame) -> None:
    assert list(trials["stop"][5:8]) == ["failed:nan", "running", "killed"]
    assert trials["baseline"].sum() == 1
    assert trials["examples"][0] == 200
    assert trials["seed"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 10, 11]
    assert trials["started"][0].isoformat() == "2025-10-09T08:53:20+00:00"


def test_points_use_fresh_seeds_where_there_are_any(trials: pd.DataFrame) -> None:
    points = points_table(trials).set_index("point")
    confirmed = points.loc["p1"]
    assert (confirmed["value"], confirmed["n"], confirmed["confirmed"]) == (pytest.approx(0.63), 2, True)
    assert (confirmed["search_value"], confirmed["all_n"]) == (0.70, 3)
    assert confirmed["sd"] == pytest.approx(np.std([0.61, 0.65], ddof=1))
    assert confirmed["seeds"] == [10, 11]
    assert confirmed["run_ids"] == ["r-c0", "r-c1"]
    repeated = points.loc["p2"]
    assert (repeated["value"], repeated["n"], repeated["trial"]) == (pytest.approx(0.70), 2, "t2")
    assert math.isnan(points.loc["p0", "sd"])
    assert points.loc["p3", "stop"] == "pruned"
    assert math.isnan(points.loc["p4", "value"])
    assert points.loc["p4", "n"] == 0
    assert list(points.index) == [f"p{i}" for i in range(7)]


def test_ranking_confirmed_then_completed_then_pruned(trials: pd.DataFrame) -> None:
    ranked = rank_points(points_table(trials), A)
    assert list(ranked["point"]) == ["p1", "p2", "p0", "p3", "p4", "p5", "p6"]
    assert ranked["rank"].tolist()[:3] == [1, 2, 3]  # the order of the table: confirmed ones first
    assert ranked["rank"].isna().sum() == 4  # pruned, and without a value
    assert ranked["gain"].tolist()[:3] == pytest.approx([0.03, 0.10, 0.0])
    assert list(rank_trials(trials, A)["trial"][:4]) == ["t2", "t1", "t2.1", "c1"]
    assert rank_trials(trials, A)["rank"].tolist()[:4] == [1, 2, 3, 4]
    smaller = rank_points(points_table(trials), Metric("a_dev", ("a_dev",), "min"))
    assert list(smaller["point"][:3]) == ["p1", "p0", "p2"]
    assert smaller["gain"].tolist()[2] == pytest.approx(-0.10)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e-05", 5e-05), ("8", 8), ("True", True), ("None", None), ("cls", "cls"), ("[1, 2]", [1, 2]), ("[x", "[x")],
)
def test_parameter(text: str, value: object) -> None:
    assert parameter(text) == value
    assert type(parameter(text)) is type(value)


def test_parse_metric() -> None:
    assert parse_metric("mean(a_dev, b_dev)") == Metric("mean(a_dev,b_dev)", ("a_dev", "b_dev"))
    assert parse_metric("a_dev").scale == 100
    assert parse_metric("loss", "min").scale == 1
    with pytest.raises(InputError, match="'a_test' is a test metric"):
        parse_metric("mean(a_dev,a_test)")
    for bad in ("a_dev,b_dev", "mean(", "mean()", "", "-x"):
        with pytest.raises(InputError, match=r"expected a metric such as|mean\("):
            parse_metric(bad)


def test_a_pruned_point_has_no_gain_over_a_whole_baseline() -> None:
    study = memory_study(
        [{"a": v} for v in (0.1, 0.2, 0.3)], [0.4, 0.5, 0.45], {"a": {"float": [0, 1]}},
        stops=["completed", "completed", "pruned"],
    )  # fmt: skip
    ranked = rank_points(study.points, study.metric)
    assert ranked["trial"].tolist() == ["t0001", "t0000", "t0002"]
    assert ranked["gain"].tolist()[:2] == pytest.approx([0.1, 0.0])
    assert pd.isna(ranked["gain"].iloc[2])


def test_only_a_failed_trial_has_a_reason() -> None:
    """In older stores a trial that was run again keeps that of its first try."""
    tried = [
        replace(one, tags={**one.tags, schema.REASON: "no disk"})
        for one in (run("t0", 0.6), run("t1", stop="failed:disk"), run("t2", stop="", status="RUNNING"))
    ]
    assert trials_table(tried)["reason"].tolist() == ["", "no disk", ""]


H100, CPU = "node7, NVIDIA H100 80GB HBM3, driver 550.54.15", "laptop, CPU AMD EPYC 9R14"


@pytest.mark.parametrize(
    ("resources", "places", "said"),
    [
        ({"gpus": None}, [H100, H100], ", 2.00 GPU-hours (NVIDIA H100 80GB HBM3)"),
        ({"gpus": None, "workers": 2}, [H100, f"{H100}, 2 workers"], ", 4.00 GPU-hours (NVIDIA H100 80GB HBM3)"),
        ({"gpus": None}, [H100, "n, NVIDIA A10G"], ", 2.00 GPU-hours (NVIDIA H100 80GB HBM3, NVIDIA A10G)"),
        ({"gpus": None}, [H100, ""], ", 2.00 GPU-hours (NVIDIA H100 80GB HBM3)"),  # it failed before it could say
        ({"gpus": None}, [H100, CPU], ", 1.00 GPU-hours (NVIDIA H100 80GB HBM3)"),  # resumed elsewhere
        ({"gpus": None}, [CPU, CPU], ", no GPU"),
        ({"gpus": None}, ["", ""], ""),
        ({"gpus": 0.5}, [H100, H100], ", 1.00 GPU-hours (NVIDIA H100 80GB HBM3)"),
        ({"gpus": 0.5}, ["", ""], ", 1.00 GPU-hours"),
        ({"gpus": 0}, ["", ""], ", no GPU"),
        (None, [CPU, CPU], ", no GPU"),
    ],
)
def test_whether_a_study_had_gpus(resources: dict[str, Any] | None, places: list[str], said: str) -> None:
    study = memory_study([{"a": 1}, {"a": 2}], [0.5, 0.6], {}, space={"resources": resources})
    runs = [stored_run(f"r{i}", **({schema.PLACE: place} if place else {})) for i, place in enumerate(places)]
    found = cost(replace(study, stored_trials=runs, trials=study.trials.assign(seconds=3600.0)))
    assert found.lines()[0] == f"2 trials, 2 h 00 min of training and evaluation{said}"


@pytest.mark.parametrize(
    ("commit", "first"),
    [
        ("abc123", "git checkout abc123 && pip install ."),
        ("abc123+changes", "git checkout abc123 && pip install .  # and the changes that were not committed then"),
        (None, "search run memory.yaml --name memory-1"),
    ],
)
def test_run_it_again_names_uncommitted_changes(commit: str | None, first: str) -> None:
    class WithEnvironment(MemoryStore):
        def artifact(self, run: StoredRun, path: str) -> bytes | None:
            content = json.dumps({"commit": commit}).encode()
            return content if path == schema.ENVIRONMENT_FILE else super().artifact(run, path)

    study = memory_study([{"a": 1}], [0.5], {})
    assert commands(replace(study, store=WithEnvironment({})))[0] == first


@pytest.mark.parametrize(
    ("plans", "confirmed"),
    [
        ({9: "trials 20"}, ["--trials 20"]),
        ({10: "trials 20", 9: "top 3, seeds 5"}, ["--top 3 --seeds 5", "--trials 20"]),
        ({1: "trials 20", 2: "trials 20", 3: "trials 30"}, ["--trials 20", "--trials 30"]),  # the second resumed it
        ({}, []),
    ],
)
def test_a_confirmation_is_run_again_as_it_was(plans: dict[int, str], confirmed: list[str]) -> None:
    study = memory_study([{"a": a} for a in (1, 2, 2, 2)], [0.5, 0.6, 0.6, 0.6], {}, seeds=[0, 0, 1, 2])
    tags = {f"{schema.CONFIRMATION}{time}": plan for time, plan in plans.items()}
    trials = study.trials.assign(stage=["search", "search", "confirm", "confirm"], baseline=[True, *[False] * 3])
    found = commands(replace(study, trials=trials, stored=stored_run(study_id="memory-1", **tags)))
    assert found[1:-1] == [f"search confirm memory-1 {options}" for options in confirmed]
