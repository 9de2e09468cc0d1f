"""The verdict on simulated studies with known truth (see `simulate`): false claims, power, bias, coverage.

The slow variant runs 1,000 studies against the bounds themselves; the quick one runs 60 and allows three of its own
standard errors, with a fixed seed. The whole grid is `python -m benchmarks.calibration`.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulate import Outcome, World, simulate

pytestmark = pytest.mark.costly
STUDIES = pytest.mark.parametrize(
    "studies", [60, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)


def run(world: World, studies: int) -> list[Outcome]:
    rng = np.random.default_rng(20_260)
    return [simulate(world, rng) for _ in range(studies)]


def share(found: list[Outcome], what: str) -> float:
    return float(np.nanmean([getattr(outcome, what) for outcome in found]))


def slack(found: list[Outcome], spread: float) -> float:
    """Three standard errors in the quick variant, else 0."""
    return 0.0 if len(found) >= 1000 else 3 * spread / len(found) ** 0.5


@STUDIES
@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(points=100, sd=1.5),
        World(points=10, noise="unequal"),
        World(analyses=6),
        World(confirm="adaptive"),
        World(confirm="no", points=10, sd=1.5),
        World(confirm="no", prune=0.5),
        World(confirm="no", repeats=3),
    ],
)
def test_equal_configurations(world: World, studies: int) -> None:
    found = run(world, studies)
    assert share(found, "claimed") <= 0.025 + slack(found, 0.16)
    assert share(found, "covers") >= 0.93 - slack(found, 0.2)
    assert share(found, "covers_gain") >= 0.93 - slack(found, 0.2)
    assert share(found, "error") <= 0.15 + slack(found, float(np.std([o.error for o in found])))
    gains = [outcome.verdict.gain for outcome in found]
    assert all(gain is None or gain.low <= gain.value + 1e-9 for gain in gains)
    assert share(found, "naive") > 0.6  # what reporting the best trial would have claimed


@STUDIES
def test_a_gain_of_two_points_is_found(studies: int) -> None:
    found = run(World(best=2.0), studies)
    assert share(found, "right") >= 0.5
    assert share(found, "false") <= 0.025
    assert share(found, "named_best") >= 0.9
    assert abs(share(found, "error")) <= 0.2
    assert share(found, "covers_gain") >= 0.93 - slack(found, 0.2)
