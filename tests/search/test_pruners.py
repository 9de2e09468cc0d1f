"""Pruning pays: examples saved, the best kept, TPE not misled. Learning curves by formula, studies without Ray."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import harness
import numpy as np
import optuna
import pytest
from harness import World, make_space

from search.journal import Run
from search.pruners import first_rung, make_pruner, warmup_examples
from search.space import Pruner

LONG = 12  # evaluations of a trial here


@pytest.fixture
def long_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "EVALUATIONS", LONG)


def curve(run: Run, k: int) -> float:
    """Rises to a level that depends on the learning rate, with noise of half a point (0.005) per evaluation."""
    rate = run.params["learning_rate"]
    quality = 1 / (1 + (math.log(rate / 3e-5) / 2) ** 2)
    noise = np.random.default_rng([run.seed, int(rate * 1e9), run.params["batch_size"], k]).normal(0, 0.005)
    return float(0.3 + 0.5 * quality * (1 - math.exp(-3 * k / LONG)) + noise)


@pytest.mark.usefixtures("long_trials")
def test_hyperband_spends_at_most_45_percent_and_keeps_the_best(tmp_path: Path) -> None:
    """Median over 20 seeds, against the same points trained in full."""
    shares, losses = [], []
    for seed in range(20):
        space = make_space({"trials": 40, "seed": seed, "baseline": "none"}, pruner={"kind": "hyperband"})
        world = World(space, tmp_path / str(seed), value=curve)
        ledger = world.live(seed=seed).ledger
        assert ledger.best is not None
        assert ledger.best.best is not None
        full = max(curve(s.run, k) for s in ledger.runs.values() for k in range(1, LONG + 1))
        shares.append(world.evaluations / (40 * LONG))
        losses.append(full - ledger.best.best)
    assert statistics.median(shares) <= 0.45
    assert statistics.median(losses) <= 0.005


@pytest.mark.usefixtures("long_trials")
def test_tpe_with_pruned_trials_is_not_worse_on_the_same_budget(tmp_path: Path) -> None:
    """The same seconds of training (device hours), with and without pruning; median best over 8 seeds. The margin is
    half the noise of one evaluation."""

    def median_best(pruner: str) -> float:
        found = []
        for seed in range(8):
            budget = 15 * LONG * 0.1 / 3600  # fifteen whole trials
            search = {"sampler": "tpe", "trials": 300, "seed": seed, "device_hours": budget, "baseline": "none"}
            world = World(make_space(search, pruner={"kind": pruner}), tmp_path / f"{pruner}{seed}", value=curve)
            best = world.live(seed=seed).ledger.best
            assert best is not None
            assert best.best is not None
            found.append(best.best)
        return statistics.median(found)

    assert median_best("median") >= median_best("none") - 0.0025


@pytest.mark.parametrize(
    ("settings", "params", "planned", "expected"),
    [
        ({}, {"warmup_share": 0.1}, 1000, 100),
        ({}, {"warmup_share": 0.0}, 1000, 0),
        ({}, {"warmup_epochs": 5, "epochs": 20}, 1000, 250),
        ({}, {"warmup_epochs": 5, "epochs": 2}, 1000, 1000),
        ({"warmup": 300}, {"warmup_share": 0.1}, 1000, 300),
        ({}, {"warmup_share": 0.1}, 0, 0),  # length unknown: the first rung decides
    ],
)
def test_warmup(settings: dict[str, Any], params: dict[str, Any], planned: int, expected: int) -> None:
    assert warmup_examples(Pruner(kind="median", **settings), params, planned) == expected


@pytest.mark.parametrize(
    ("settings", "warmup", "expected"), [({}, 0, 100), ({}, 100, 100), ({}, 101, 200), ({"min_rung": 350}, 0, 400)]
)
def test_the_first_rung_is_the_first_evaluation_after_warmup(
    settings: dict[str, Any], warmup: int, expected: int
) -> None:
    assert first_rung(Pruner(kind="hyperband", **settings), warmup, 100) == expected


def test_every_kind_is_optunas() -> None:
    kinds = {
        "none": optuna.pruners.NopPruner,
        "median": optuna.pruners.MedianPruner,
        "percentile": optuna.pruners.PercentilePruner,
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
        "patient": optuna.pruners.PatientPruner,
        "threshold": optuna.pruners.ThresholdPruner,
        "wilcoxon": optuna.pruners.WilcoxonPruner,
    }
    for kind, expected in kinds.items():
        made = make_pruner(Pruner(kind=kind, lower=0.1), maximise=True, first=100, longest=1200)
        assert type(made) is expected


def test_a_threshold_bounds_what_is_bad(tmp_path: Path) -> None:
    """Below `lower` when greater is better, above it when smaller is."""
    for mode in ("max", "min"):
        space = make_space(
            {"trials": 8}, metric={"name": "stsb_dev", "mode": mode}, pruner={"kind": "threshold", "lower": 0.5}
        )

        def value(run: Run, k: int) -> float:  # noqa: ARG001
            return 0.4 if run.number % 2 else 0.6

        ledger = World(space, tmp_path / mode, value=value).live().ledger
        pruned = {s.run.number % 2 for s in ledger.runs.values() if s.state == "pruned"}
        assert pruned == {1 if mode == "max" else 0}


def test_a_patient_pruner_ends_what_gets_worse(tmp_path: Path) -> None:
    space = make_space({"trials": 2}, pruner={"kind": "patient", "patience": 2})

    def value(run: Run, k: int) -> float:
        return 0.5 + k / 100 if run.number == 0 else 0.5 - k / 100

    ledger = World(space, tmp_path, value=value).live().ledger
    assert ledger.runs["t0000"].state == "completed"
    assert ledger.runs["t0001"].state == "pruned"
    assert ledger.runs["t0001"].examples < 600
