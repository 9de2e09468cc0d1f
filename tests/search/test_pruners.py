"""Pruning saves examples, finds the best, TPE is not misled. Learning curves of real trials, studies without Ray."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import harness
import optuna
import pytest
from harness import World, curve, make_space

from search.space import Pruner
from search.space.sections import PRUNERS
from search.store.ledger import Ledger, Trial
from search.study.pruners import earliest, first_rung, make_pruner, non_negative, warmup_examples

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]
RECORDED = json.loads(gzip.decompress((ROOT / "benchmarks" / "curves" / "builtin.json.gz").read_bytes()))["trials"]
CURVES: dict[tuple[Any, ...], list[float]] = {
    tuple(trial["point"].values()): [value for _, value, *_ in trial["curve"]] for trial in RECORDED
}
CHOICES = {name: list(dict.fromkeys(trial["point"][name] for trial in RECORDED)) for name in RECORDED[0]["point"]}
RECORDED_EVALUATIONS = 27
SEEDS = 20


def searches(sampler: str, pruner: str, stride: int, tmp_path: Path, **search: Any) -> list[tuple[World, Ledger]]:
    """Searches over the recorded grid, one per seed, two trials at a time. Every point that a sampler can propose was
    trained to its end (benchmarks/curves/record.py), so that a search replays it; `stride` evaluations of
    the recording are one here.
    """
    found = []
    for seed in range(SEEDS):
        space = make_space(
            {"sampler": sampler, "seed": seed, "baseline": "none", **search},
            params={name: {"choice": values} for name, values in CHOICES.items()},
            pruner={"kind": pruner},
        )
        world = World(space, tmp_path / f"{pruner}{seed}", value=lambda trial, k: recorded(trial)[k * stride - 1])
        found.append((world, world.session(seed=seed).ledger))
    return found


def recorded(trial: Trial) -> list[float]:
    return CURVES[tuple(trial.params[name] for name in CHOICES)]


def best_of(ledger: Ledger) -> float:
    assert ledger.best is not None
    assert ledger.best.best is not None
    return ledger.best.best


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_hyperband_spends_at_most_45_percent_and_keeps_the_best(
    stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same points trained in full: median over the seeds, and in most single searches too; with 27
    evaluations a trial and with 13."""
    evaluations = RECORDED_EVALUATIONS // stride
    monkeypatch.setattr(harness, "EVALUATIONS", evaluations)
    shares, losses = [], []
    for world, ledger in searches("random", "hyperband", stride, tmp_path, trials=40):
        full = max(max(recorded(s.trial)[stride - 1 :: stride]) for s in ledger.trials.values())
        shares.append(world.evaluations / (40 * evaluations))
        losses.append(full - best_of(ledger))
    assert statistics.median(shares) <= 0.45
    assert statistics.median(losses) <= 0.005
    assert sum(loss <= 0.005 for loss in losses) >= 0.7 * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["hyperband", "median"])
def test_tpe_with_pruning_is_no_worse_on_the_same_budget(
    pruner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training for twelve full-length trials (device hours), a ninth of the grid, with and without pruning; TPE takes
    each of the four hyperparameters as categories, the recorded values. Medians over the seeds."""
    monkeypatch.setattr(harness, "EVALUATIONS", RECORDED_EVALUATIONS)
    budget = 12 * RECORDED_EVALUATIONS * 0.1 / 3600  # an evaluation takes 0.1 s in the harness

    def median_best(kind: str) -> float:
        found = searches("tpe", kind, 1, tmp_path, trials=len(CURVES), device_hours=budget)
        return statistics.median(best_of(ledger) for _, ledger in found)

    assert median_best(pruner) >= median_best("none")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4, 16, 64])
@pytest.mark.parametrize("kind", PRUNERS)
def test_the_baseline_is_never_stopped(kind: str, workers: int, tmp_path: Path) -> None:
    """64 studies of each pruner and non_negative of workers, the published setting the worst of all points."""
    assert all(baseline_seeds(kind, workers, seed, tmp_path / str(seed)) == 2 for seed in range(64))


@pytest.mark.parametrize("kind", PRUNERS)
def test_the_baseline_runs_all_its_seeds(kind: str, tmp_path: Path) -> None:
    assert baseline_seeds(kind, 4, 0, tmp_path) == 2


def baseline_seeds(kind: str, workers: int, seed: int, folder: Path) -> int:
    """Completed trials of the published setting in a study of two seeds a point where it is dominated."""
    space = make_space(
        {"trials": max(10, workers), "repeats": 2, "seed": seed}, pruner={"kind": kind, "lower": 0.5, "reduction": 2}
    )

    def value(trial: Trial, k: int) -> float:
        return 0.1 - k / 1000 if trial.baseline else curve(trial, k)

    ledger = World(space, folder, value=value).session(concurrency=workers, seed=seed).ledger
    return sum(s.state == "completed" for s in ledger.trials.values() if s.trial.baseline)


@pytest.mark.parametrize(
    ("settings", "params", "planned", "expected"),
    [
        ({}, {"warmup_share": 0.1}, 1000, 100),
        ({}, {"warmup_share": 0.0}, 1000, 0),
        ({}, {"warmup_epochs": 5, "epochs": 20}, 1000, 250),
        ({}, {"warmup_epochs": 5, "epochs": 2}, 1000, 1000),
        ({"warmup": 300}, {"warmup_share": 0.1}, 1000, 300),
        ({}, {"warmup_share": 0.1}, 0, 0),  # length unknown: the first rung decides
        ({}, {"warmup_share": "0.1", "warmup_epochs": True, "epochs": 20}, 1000, 0),  # a script's own words
        ({}, {"warmup_share": None, "warmup_epochs": -1, "epochs": 20}, 1000, 0),
    ],
)
def test_warmup(settings: dict[str, Any], params: dict[str, Any], planned: int, expected: int) -> None:
    assert warmup_examples(Pruner(kind="median", **settings), params, planned) == expected


@pytest.mark.parametrize(
    ("settings", "warmup", "expected"),
    [
        ({}, 0, 200),  # a fifteenth of the trial is 134
        ({}, 200, 200),
        ({}, 201, 300),
        ({"min_rung": 350}, 0, 400),
        ({"min_rung": 1}, 0, 100),
    ],
)
def test_first_rung_is_the_first_evaluation_after_warm_up(settings: dict[str, Any], warmup: int, expected: int) -> None:
    pruner = Pruner(kind="hyperband", **settings)
    assert first_rung(pruner, warmup, 2000, 100) == expected
    assert expected - 100 < earliest(pruner, warmup, 2000) <= expected


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
        if kind in ("median", "percentile"):
            assert made._n_startup_trials == 5  # as in docs/reference: Optuna's own default
    asked = Pruner(kind="hyperband", reduction=4)
    band: Any = make_pruner(asked, maximise=True, first=100, longest=1200)
    assert (band._min_resource, band._max_resource, band._reduction_factor) == (100, 1200, 4)
    short: Any = make_pruner(asked, maximise=True, first=100, longest=0)  # a length that is not known
    assert short._max_resource == 100


def test_a_threshold_bounds_what_is_bad(tmp_path: Path) -> None:
    """Below `lower` when greater is better, above it when smaller is."""
    for mode in ("max", "min"):
        space = make_space(
            {"trials": 8}, metric={"name": "stsb_dev", "mode": mode}, pruner={"kind": "threshold", "lower": 0.5}
        )

        def value(trial: Trial, k: int) -> float:  # noqa: ARG001
            return 0.4 if trial.number % 2 else 0.6

        ledger = World(space, tmp_path / mode, value=value).session().ledger
        pruned = {s.trial.number % 2 for s in ledger.trials.values() if s.state == "pruned"}
        assert pruned == {1 if mode == "max" else 0}


def test_a_patient_pruner_ends_what_gets_worse(tmp_path: Path) -> None:
    space = make_space({"trials": 2}, pruner={"kind": "patient", "patience": 2})

    def value(trial: Trial, k: int) -> float:
        return 0.5 + k / 100 if trial.number == 0 else 0.5 - k / 100

    ledger = World(space, tmp_path, value=value).session().ledger
    assert ledger.trials["t0000"].state == "completed"
    assert ledger.trials["t0001"].state == "pruned"
    assert ledger.trials["t0001"].examples < 600


def test_nothing_is_judged_in_the_first_fifteenth() -> None:
    settings = make_space({}, pruner={"kind": "median"}).pruner
    assert [earliest(settings, 0, planned) for planned in (1500, 1501)] == [100, 101]
    assert earliest(settings, 0, 0) == 1  # nothing is known yet


def test_a_hyperparameter_that_is_no_number_counts_as_none() -> None:
    values = {"a": 0.5, "b": 3, "c": -0.5, "d": True, "e": "0.5", "f": None, "g": float("nan"), "h": float("inf")}
    assert [non_negative(values, name) for name in "abcdefghi"] == [0.5, 3.0, 0, 0, 0, 0, 0, 0, 0]
