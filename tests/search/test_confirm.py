"""Confirming without Ray: which points, which seeds, and the race."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import EVALUATIONS, World, curve, make_space, recorded
from scipy import stats

from search.running import runner
from search.store.ledger import Ledger
from search.store.retention import CheckpointRetention
from search.study.confirm_plan import ConfirmPlan, confirming_trial, confirming_values, worse


def confirmed(world: World, top: int, seeds: int, concurrency: int = 1) -> dict[int, list[int]]:
    """number -> seeds of the confirming runs."""
    ledger = world.life(confirm=(top, seeds), concurrency=concurrency).ledger
    found: dict[int, list[int]] = {}
    for record in ledger.trials.values():
        if record.trial.stage == "confirm":
            found.setdefault(record.trial.number, []).append(record.trial.seed)
    return found


def test_the_best_points_and_the_baseline_get_fresh_common_seeds(tmp_path: Path) -> None:
    world = World(
        make_space({"trials": 10, "repeats": 2}), tmp_path, value=lambda trial, k: 0.5 + curve(trial, k) / 100
    )
    ledger = world.life().ledger
    found = confirmed(world, top=2, seeds=2)
    ranked = sorted(ledger.points, key=lambda n: -ledger.points[n]["value"])
    assert found.keys() == {*ranked[:2], 0}
    assert all(seeds == [5, 6] for seeds in found.values())  # the search had seeds 3 and 4


@pytest.mark.parametrize("number", [{"trials": np.int64(7)}, {"top": np.int32(2), "seeds": np.uint8(3)}])
def test_a_number_of_numpy_is_a_number(number: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into the journal, which is JSON."""
    World(make_space({"trials": 1}), tmp_path).life()
    begun: list[Any] = []
    monkeypatch.setattr(runner, "Life", lambda *given: begun.extend(given[-1]) or SimpleNamespace(run=bool))
    runner.confirm_study(str(tmp_path), **number)
    assert json.loads(json.dumps(begun)) == [{"stage": "confirm", **{name: int(n) for name, n in number.items()}}]


def test_hopeless_points_stop_early_and_the_baseline_never(tmp_path: Path) -> None:
    """Points 0.01 apart with seeds of sd 0.001: three seeds show it. The baseline, the worst, gets all eight."""

    def value(trial: object, k: int) -> float:
        number, seed = trial.number, trial.seed  # type: ignore[attr-defined]
        return 0.5 + 0.01 * number + float(np.random.default_rng([number, seed]).normal(0, 0.001)) + 0.001 * k

    world = World(make_space({"trials": 5}), tmp_path, value=value)
    world.life()
    found = confirmed(world, top=3, seeds=8)
    assert found.keys() == {0, 2, 3, 4}
    assert len(found[4]) == len(found[0]) == 8
    assert len(found[3]) < 8
    assert len(found[2]) < 8


def test_a_resumed_confirmation_starts_only_what_is_missing(tmp_path: Path) -> None:
    world = World(make_space({"trials": 4}), tmp_path)
    world.life()
    world.life(confirm=(2, 3), interrupt_at=world.evaluations + 9)
    found = confirmed(world, top=2, seeds=3, concurrency=2)
    assert all(len(seeds) == len(set(seeds)) for seeds in found.values())
    before = world.evaluations
    assert confirmed(world, top=2, seeds=3) == found
    assert world.evaluations == before


def test_points_of_an_interrupted_search_can_be_confirmed(tmp_path: Path) -> None:
    """Every point has had its first seed and none is settled: that is how a search with repeats runs out of time."""
    world = World(
        make_space({"trials": 6, "repeats": 3}), tmp_path, value=lambda trial, k: 0.001 * trial.number + 0.1 * k
    )
    ledger = world.life(interrupt_at=6 * (EVALUATIONS + 1) + 3).ledger
    assert not ledger.points
    assert confirmed(world, top=2, seeds=2).keys() == {0, 4, 5}  # the baseline and the two best


def test_nothing_to_confirm_is_said() -> None:
    with pytest.raises(ValueError, match="no point of this study is complete"):
        ConfirmPlan(make_space(), Ledger(), top=1, seeds=1)


def test_worse_is_a_paired_test() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(0, 0.02, 8)  # what a seed does to every point alike
    leader = {i: 0.70 + c for i, c in enumerate(common)}
    close = {i: 0.69 + c + float(rng.normal(0, 0.002)) for i, c in enumerate(common)}
    assert worse(close, leader, 1.0, 0.05)
    assert not worse(leader, close, 1.0, 0.05)
    assert worse(leader, close, -1.0, 0.05)
    gaps = [leader[i] - close[i] for i in leader]
    assert not worse(close, leader, 1.0, stats.ttest_1samp(gaps, 0.0, alternative="greater").pvalue)  # below its level
    assert not worse({0: 0.1, 1: 0.1}, leader, 1.0, 0.05)  # two common seeds are too few
    assert worse(dict.fromkeys(range(3), 0.6), dict.fromkeys(range(3), 0.7), 1.0, 0.05)  # no spread at all
    assert not worse(dict.fromkeys(range(3), 0.7), dict.fromkeys(range(3), 0.7), 1.0, 0.05)


@pytest.mark.parametrize(("points", "given_up"), [(2, True), (3, False)])
def test_the_level_is_shared_out_over_the_rivals(points: int, given_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps of 1, 2, 3: t = 2 / (1 / sqrt 3) = 3.46 with two degrees of freedom, p = 0.037; 0.05 is shared out."""
    leader = {0: 0.7, 1: 0.7, 2: 0.7}
    behind = {0: 0.69, 1: 0.68, 2: 0.67}
    values = [leader, behind, dict.fromkeys(range(3), 0.695)][:points]
    plan = object.__new__(ConfirmPlan)
    plan._sign, plan._baseline, plan._points = 1.0, None, dict.fromkeys(range(points))  # type: ignore[arg-type]
    monkeypatch.setattr(plan, "_values", lambda number: values[number])
    assert worse(behind, leader, 1.0, 0.038)
    assert not worse(behind, leader, 1.0, 0.037)
    assert plan.given_up(1) is given_up
    assert not plan.given_up(0)


@pytest.mark.costly
def test_the_race_rarely_gives_up_an_equal_of_a_fixed_leader() -> None:
    """Four equal points, eight seeds, 200 races: the level of 5 % is over all rivals and one look; looking again after
    every seed raises it, and so does that the leader is the luckiest, which is left out here. Binomial(600, p): at
    p = 0.10 the chance of more than 90 is below 1e-4."""
    rng = np.random.default_rng(1)
    given_up = 0
    for _ in range(200):
        values = rng.normal(0, 1, (4, 8))
        for rival in range(1, 4):
            given_up += any(
                worse(dict(enumerate(values[rival, :n])), dict(enumerate(values[0, :n])), 1.0, 0.05 / 3)
                for n in range(3, 9)
            )
    assert given_up <= 90


def test_weights_stay_of_the_point_that_the_analysis_names_not_of_one_lucky_seed(tmp_path: Path) -> None:
    def value(trial: Any, k: int) -> float:
        lucky = trial.stage == "confirm" and trial.number == 4
        return 0.5 + 0.01 * trial.number + 0.1 * lucky + 0.001 * k

    world = World(make_space({"trials": 6, "keep_best": 0}), tmp_path, value=value)
    world.life()
    ledger = world.life(confirm=(1, 3)).ledger  # point 5 and the baseline
    lucky = confirming_trial(world.space, ledger.trials["t0004"].trial, 0)
    ledger.apply({"e": "start", "t": 0, **vars(lucky)})
    ledger.apply({"e": "end", "t": 0, "id": lucky.id, "stop": "completed", "best": 0.9, "best_at": 1, "examples": 1,
                  "seconds": 1.0, "reason": ""})  # fmt: skip
    kept = CheckpointRetention(world.folder, ledger, 0).kept()
    assert {name[:5] for name in kept} == {"c0005", "c0000"}


def test_the_leader_of_a_race_has_the_best_mean_however_many_seeds_the_others_had() -> None:
    space = make_space({"baseline": "none"})
    fresh: dict[int, list[float | None]] = {1: [0.70, 0.71, 0.72], 2: [0.60, 0.61, 0.62, 0.63]}
    plan = ConfirmPlan(space, recorded(space, {1: [0.7], 2: [0.6]}, fresh), top=2, seeds=4)
    assert (plan.given_up(1), plan.given_up(2)) == (False, True)
    assert (trial := plan.next()) is not None
    assert (trial.number, trial.seed) == (1, 7)
    assert plan.exhausted()


def test_what_a_failed_seed_had_reached_is_no_value() -> None:
    space = make_space()
    ledger = recorded(space, {0: [0.5]}, {0: [0.6]})
    failed = confirming_trial(space, ledger.trials["t0000"].trial, 1)
    ledger.apply({"e": "start", "t": 0, **vars(failed)})
    ledger.apply({"e": "end", "t": 0, "id": failed.id, "stop": "failed:nan", "best": 0.9, "best_at": 1, "examples": 1,
                  "seconds": 1.0, "reason": ""})  # fmt: skip
    assert confirming_values(ledger, 0) == {4: 0.6}
