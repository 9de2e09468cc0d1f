"""The published setting runs to its end, whatever prunes and however many trials run at once. No Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import EVALUATIONS, World, curve, make_space

from search.space.sections import PRUNERS
from search.store.ledger import Trial

STUDIES, WORKERS = 64, (1, 4, 16, 64)
KINDS = [kind for kind in PRUNERS if kind != "none"]


def poor(trial: Trial, k: int) -> float:
    """Nothing is worse than the baseline, so a pruner that may would stop it."""
    return 0.05 + 0.001 * k if trial.baseline else curve(trial, k)


def completes(kind: str, workers: int, seed: int, root: Path) -> tuple[bool, bool]:
    """Whether the baseline completed all its seeds, and whether the pruner stopped any other point."""
    settings: dict[str, Any] = {"kind": kind} | ({"lower": 0.45} if kind == "threshold" else {})
    repeats = 6 if kind == "wilcoxon" else 2  # it takes four seeds at least to find a difference
    search = {"trials": max(12, workers + 8) if repeats == 2 else workers + 4, "seed": seed, "repeats": repeats}
    space = make_space(search, pruner=settings)
    ledger = World(space, root, value=poor).session(concurrency=workers, seed=seed).ledger
    baseline = [r for r in ledger.trials.values() if r.trial.baseline]
    done = [r.state == "completed" and r.examples == EVALUATIONS * 100 for r in baseline]
    return done == [True] * repeats, any(event["state"] == "pruned" for event in ledger.points.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_completes(kind: str, tmp_path: Path) -> None:
    found = [completes(kind, workers, 0, tmp_path / str(workers)) for workers in (1, 4)]
    assert all(done for done, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_completes_in_64_of_64(kind: str, workers: int, tmp_path: Path) -> None:
    found = [completes(kind, workers, seed, tmp_path / str(seed)) for seed in range(STUDIES)]
    assert sum(done for done, _ in found) == STUDIES
    assert any(pruned for _, pruned in found) or kind == "patient"
