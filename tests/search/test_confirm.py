"""Confirming without Ray: which point gets the next fresh seed, when all is decided, and the fixed plan."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import EVALUATIONS, Death, World, curve, make_space, recorded
from scipy import stats

from analysis.statistics.empirical_bayes import about_means, moderate
from analysis.statistics.selection import EstimateError, spent
from search.running import runner
from search.schema import SEED_SD
from search.space.sections import Metric
from search.store.ledger import Ledger
from search.store.retention import CheckpointRetention
from search.study.confirm_plan import ConfirmPlan, confirming_trial, confirming_values, gain_settled

POINTS = [{"learning_rate": rate * 1e-5} for rate in range(1, 7)]


def noisy(sd: float, step: float = 0.01) -> Any:
    """Points `step` apart by number, seeds of this standard deviation."""

    def value(trial: Any, k: int) -> float:
        noise = float(np.random.default_rng([trial.number, trial.seed]).normal(0, sd))
        return 0.5 + step * trial.number + noise + 0.001 * k

    return value


def test_seeds_go_where_they_decide_most(tmp_path: Path) -> None:
    world = World(make_space({"trials": 8}), tmp_path, value=noisy(0.004))
    world.session()
    ledger = world.session(confirm=20, concurrency=1).ledger
    seeds = {n: len(ledger.by_point.get(("confirm", n), [])) for n in range(8)}
    assert seeds[0] == max(seeds.values()) == seeds[7] >= 3
    assert sum(seeds.values()) <= 20
    assert sum(seeds[n] for n in range(1, 5)) == 0  # 0.03 and more below the best, where a seed moves 0.008
    fresh = [[r.trial.seed for r in ledger.by_point["confirm", n]] for n in (0, 7)]
    assert fresh[0] == fresh[1] == list(range(4, 4 + seeds[0]))


def test_clear_gain_ends_early_open_one_takes_the_budget(tmp_path: Path) -> None:
    def spent(step: float, sd: float, name: str) -> int:
        world = World(make_space({"trials": 6}), tmp_path / name, value=noisy(sd, step))
        world.session()
        return sum(map(len, confirmed_adaptively(world, 14, concurrency=1).values()))

    assert spent(0.05, 0.001, "plain") == 6  # three seeds of the best and of the baseline
    assert spent(0.004, 0.02, "open") == 14
    records = World(make_space({"trials": 6}), tmp_path / "open").session().ledger.trials.values()
    first = next(record.trial.number for record in records if record.trial.stage == "confirm")
    searched = {r.trial.number: r.best for r in records if r.trial.stage == "search"}
    assert first == max(searched, key=lambda number: searched[number] or 0.0)  # of the two the leader comes first


@pytest.mark.parametrize("metric", ["loss_dev", "nfcorpus_ndcg10_dev", "mean(stsb_dev,nfcorpus_ndcg10_dev)"])
def test_unknown_metric_is_confirmed_alike_at_any_scale(metric: str, tmp_path: Path) -> None:
    """A loss and nDCG were held against the noise of Spearman: every difference seemed real, and was decided."""
    data = {"train": "builtin", "dev": ["stsb", "my/nfcorpus"], "language": "en"}
    grid = make_space({"trials": 6, "repeats": 2, "sampler": "grid"}, params={}, points=POINTS, data=data)
    space = replace(grid, metric=Metric(name=metric))
    assert grid.known_metric
    assert not space.known_metric

    def spent(scale: float, name: str) -> tuple[dict[int, int], int]:
        plain = noisy(0.02, 0.004)
        world = World(space, tmp_path / name, value=lambda trial, k: scale * plain(trial, k))
        searched = sum(r.trial.stage == "search" for r in world.session().ledger.trials.values())
        return {n: len(r) for n, r in confirmed_adaptively(world, 14, concurrency=1).items()}, searched

    assert spent(1.0, "unit") == spent(1000.0, "large")
    assert sum(spent(1000.0, "again")[0].values()) == 14  # what is open takes the budget


@pytest.mark.parametrize(("seeds", "rivals"), [(3, 1), (3, 4), (5, 2)])
def test_a_gain_is_decided_by_its_interval(seeds: int, rivals: int) -> None:
    spread = np.linspace(-0.004, 0.004, seeds)
    df = 3 + seeds - 1  # the prior's and the gaps' own
    error = np.sqrt((3 * 2 * 0.005**2 + np.sum(spread**2)) / df / seeds)
    look = seeds - 2
    lower = error * stats.t.ppf(1 - 0.005 / rivals / (look * (look + 1)), df)  # the claim at the end has 0.02
    upper = error * stats.t.ppf(0.975, df)
    for gain, settled in [(1.01 * lower, True), (0.99 * lower, False), (0.0, False)]:
        assert gain_settled([float(g) for g in spread + gain], 0.005, rivals) is settled
    for gain, settled in [(0.0005 - 1.01 * upper, True), (0.0005 - 0.99 * upper, False)]:
        assert gain_settled([float(g) for g in spread + gain], 0.005, rivals) is settled
    assert not gain_settled([0.5, 0.5], 0.005, rivals)  # two seeds decide nothing


def test_ending_with_a_lead_makes_no_false_claims() -> None:
    """Two equal points with a seed sd of 0.015, up to ten seeds: of 5,000 confirmations that end when the gain has
    decided at most 2.5 % may claim one, at a level of 0.02. Ends at a level of 0.025 in all led to 3.9 %."""
    rng, claims = np.random.default_rng(0), 0
    for values in rng.normal(0, 0.015, (5000, 2, 10)):
        for n in range(3, 11):
            squares, freedom = about_means(values[:, :n])
            sd = np.sqrt((3 * SEED_SD**2 + squares) / (3 + freedom))
            gaps = values[0, :n] - values[1, :n]
            if n == 10 or gain_settled(gaps, sd, 1):
                variance, df = moderate(gaps, 2 * sd**2)
                claims += gaps.mean() > EstimateError(variance / n, df).bound(spent(1))
                break
    assert claims / 5000 <= 0.025


def confirmed_adaptively(world: World, trials: int, **session: Any) -> dict[int, list[int]]:
    ledger = world.session(confirm=trials, **session).ledger
    records = [r for r in ledger.trials.values() if r.trial.stage == "confirm"]
    return {
        n: [r.trial.seed for r in records if r.trial.number == n] for n in sorted({r.trial.number for r in records})
    }


def test_adaptive_confirmation_is_the_same_after_any_crash(tmp_path: Path) -> None:
    def searched(name: str) -> World:
        world = World(make_space({"trials": 6}), tmp_path / name, value=noisy(0.01, 0.002))
        world.session()
        return world

    whole = confirmed_adaptively(searched("whole"), 12, concurrency=1)
    killed = searched("killed")
    rng = random.Random(0)
    for seed in range(5):
        with pytest.raises(Death):
            killed.session(confirm=12, concurrency=1, seed=seed, die_at=rng.randint(3, 25))
    assert confirmed_adaptively(killed, 12, concurrency=1) == whole
    before = killed.evaluations
    assert confirmed_adaptively(killed, 12, concurrency=1) == whole  # nothing is left to do
    assert killed.evaluations == before
    more = confirmed_adaptively(killed, 16, concurrency=3)
    assert sum(map(len, more.values())) == 16


def test_a_failing_point_gets_no_more_fresh_seeds(tmp_path: Path) -> None:
    def fault(trial: Any, k: int) -> str | None:  # noqa: ARG001
        return "nan" if trial.stage == "confirm" and trial.number == 5 else None

    world = World(make_space({"trials": 6, "baseline": "none"}), tmp_path, value=noisy(0.001), fault=fault)
    world.session()
    found = confirmed_adaptively(world, 12, concurrency=1)
    assert len(found[5]) == 1
    assert len(found[4]) == 3
    with pytest.raises(ValueError, match="no point of this study is complete"):
        ConfirmPlan(make_space(), Ledger(), trials=1)


def whose_turn(searched: dict[int, list[float]], fresh: dict[int, list[float | None]], **search: Any) -> int | None:
    space = make_space(search)
    plan = ConfirmPlan(space, recorded(space, searched, fresh), trials=20)
    trial = plan.next()
    assert plan.exhausted() is (trial is None)
    assert trial is None or trial.seed == 4 + len(fresh.get(trial.number, []))
    return None if trial is None else trial.number


def test_which_point_gets_the_next_seed() -> None:
    apart, near = {0: [0.5], 1: [0.3], 2: [0.7]}, {0: [0.5], 1: [0.7], 2: [0.712]}
    assert whose_turn(apart, {}) == 2  # the leader
    assert whose_turn(apart, {2: [0.7]}) == 0  # the baseline has as many
    assert whose_turn(apart, {2: [0.7], 0: [0.5]}) == 2  # no point challenges the leader, its gain is not known yet
    assert whose_turn(apart, {2: [0.7, 0.7], 0: [0.5, 0.5]}) == 2
    assert whose_turn(apart, {2: [0.7] * 3, 0: [0.5] * 3}) is None
    assert whose_turn(near, {}) == 2  # leader and challenger have as many
    assert whose_turn(near, {2: [0.712], 0: [0.5]}) == 1
    assert whose_turn(near, {2: [0.712], 1: [0.7], 0: [0.5]}) == 2
    # a failed baseline gets no more, and the leader's value is known after three seeds; a failed leader is none
    assert whose_turn(apart, {2: [0.7, 0.7], 0: [None]}) == 2
    assert whose_turn(apart, {2: [0.7] * 3, 0: [None]}) is None
    assert whose_turn(apart, {2: [None], 0: [0.5]}) == 1
    assert whose_turn({0: [0.5], 1: [0.7]}, {1: [None]}) is None
    alone = {1: [0.3], 2: [0.7]}
    assert whose_turn(alone, {2: [0.7] * 2}, baseline="none") == 2
    assert whose_turn(alone, {2: [0.7] * 3}, baseline="none") is None


@pytest.mark.parametrize("tried", [0, 1])
def test_rivals_with_a_fresh_seed_share_the_level(tried: int) -> None:
    """Leader and baseline have three equal seeds: the variance over seeds is the prior's share, 3 of 3 + 2 + 2."""
    sd = SEED_SD * (3 / 7) ** 0.5
    error = (2 * 3 * sd**2 / 5 / 3) ** 0.5
    bounds = [error * stats.t.isf(0.005 / rivals / 2, 5) for rivals in (1, 2)]

    def turn(gain: float) -> int | None:
        fresh: dict[int, list[float | None]] = {1: [0.3] * tried, 2: [0.5 + gain] * 3, 0: [0.5] * 3}
        return whose_turn({0: [0.5], 1: [0.3], 2: [0.5 + gain]}, fresh)

    assert turn(0.99 * bounds[tried]) == 2
    assert turn(1.01 * bounds[tried]) is None


def test_fresh_seeds_end_with_their_number() -> None:
    space = make_space()
    searched: dict[int, list[float]] = {0: [0.5], 1: [0.7]}
    ledger = recorded(space, searched, {1: [0.7], 0: [0.5]})
    assert ConfirmPlan(space, ledger, trials=2).next() is None
    assert ConfirmPlan(space, ledger, trials=2).exhausted()
    assert ConfirmPlan(space, ledger, trials=3).next() is not None
    settled = recorded(space, searched, {1: [0.7] * 3, 0: [0.5] * 3})
    plan = ConfirmPlan(space, settled, trials=20)
    assert plan.exhausted()
    running = confirming_trial(space, settled.trials["t0000"].trial, 3)
    settled.apply({"e": "start", "t": 0, **vars(running)})
    assert not plan.exhausted()


def test_seed_noise_is_pooled_with_the_published_one() -> None:
    """Squares about the means: 2 of the search's two, 8 of three fresh ones; 1 + 2 degrees of freedom beside 3."""
    space = make_space({"repeats": 2})
    ledger = recorded(space, {0: [0.1, 0.3]}, {0: [0.0, 0.2, 0.4]})
    expected = ((3 * SEED_SD**2 + 0.02 + 0.08) / 6) ** 0.5
    assert ConfirmPlan(space, ledger, trials=1)._seed_sd() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("slots", [1, 4, 20])
def test_many_slots_confirm_as_adaptively_as_one(slots: int, tmp_path: Path) -> None:
    """Three points 0.05 apart with seeds of sd 0.001: three seeds of the best and of the baseline decide it."""
    world = World(make_space({"trials": 3}), tmp_path, value=noisy(0.001, 0.05))
    world.session()
    assert {n: len(s) for n, s in confirmed_adaptively(world, 20, concurrency=slots).items()} == {0: 3, 2: 3}


def test_a_fixed_plan_runs_every_seed_of_every_point(tmp_path: Path) -> None:
    world = World(make_space({"trials": 5}), tmp_path, value=noisy(0.001))
    world.session()
    found = confirmed(world, top=3, seeds=8, concurrency=4)
    assert {number: sorted(seeds) for number, seeds in found.items()} == {n: list(range(4, 12)) for n in (0, 2, 3, 4)}


def confirmed(world: World, top: int, seeds: int, concurrency: int = 1) -> dict[int, list[int]]:
    """number -> seeds of the confirming runs."""
    ledger = world.session(confirm=(top, seeds), concurrency=concurrency).ledger
    found: dict[int, list[int]] = {}
    for record in ledger.trials.values():
        if record.trial.stage == "confirm":
            found.setdefault(record.trial.number, []).append(record.trial.seed)
    return found


def test_the_best_points_and_the_baseline_get_fresh_common_seeds(tmp_path: Path) -> None:
    world = World(
        make_space({"trials": 10, "repeats": 2}), tmp_path, value=lambda trial, k: 0.5 + curve(trial, k) / 100
    )
    ledger = world.session().ledger
    found = confirmed(world, top=2, seeds=2)
    ranked = sorted(ledger.points.keys() - {0}, key=lambda n: -ledger.points[n]["value"])
    assert found.keys() == {*ranked[:2], 0}
    assert all(seeds == [5, 6] for seeds in found.values())  # the search had seeds 3 and 4


def test_a_leading_baseline_is_compared_with_the_best_other_points(tmp_path: Path) -> None:
    """Point 0, the baseline, leads: the two best other points run beside it, not one of them less."""
    world = World(make_space({"trials": 5}), tmp_path, value=noisy(0.001, -0.01))
    world.session()
    assert confirmed(world, top=2, seeds=2).keys() == {0, 1, 2}
    adaptive = World(make_space({"trials": 5}), tmp_path / "adaptive", value=noisy(0.001, -0.01))
    adaptive.session()
    assert confirmed_adaptively(adaptive, 20, concurrency=1).keys() == {0, 1}


@pytest.mark.parametrize("number", [{"trials": np.int64(7)}, {"top": np.int32(2), "seeds": np.uint8(3)}])
def test_numpy_numbers_are_accepted(number: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into the journal, which is JSON."""
    World(make_space({"trials": 1}), tmp_path).session()
    begun: list[Any] = []
    monkeypatch.setattr(runner, "Session", lambda *given: begun.extend(given[-1]) or SimpleNamespace(run=bool))
    runner.confirm_study(str(tmp_path), **number)
    assert json.loads(json.dumps(begun)) == [{"stage": "confirm", **{name: int(n) for name, n in number.items()}}]


def test_a_resumed_confirmation_starts_only_what_is_missing(tmp_path: Path) -> None:
    world = World(make_space({"trials": 4}), tmp_path)
    world.session()
    world.session(confirm=(2, 3), interrupt_at=world.evaluations + 9)
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
    ledger = world.session(interrupt_at=6 * (EVALUATIONS + 1) + 3).ledger
    assert not ledger.points
    assert confirmed(world, top=2, seeds=2).keys() == {0, 4, 5}  # the baseline and the two best


def test_a_study_without_completed_points_cannot_be_confirmed() -> None:
    with pytest.raises(ValueError, match="no point of this study is complete"):
        ConfirmPlan(make_space(), Ledger(), top=1, seeds=1)


def test_weights_of_the_point_that_the_analysis_names_stay(tmp_path: Path) -> None:
    def value(trial: Any, k: int) -> float:
        lucky = trial.stage == "confirm" and trial.number == 4
        return 0.5 + 0.01 * trial.number + 0.1 * lucky + 0.001 * k

    world = World(make_space({"trials": 6, "keep_best": 0}), tmp_path, value=value)
    world.session()
    ledger = world.session(confirm=(1, 3)).ledger  # point 5 and the baseline
    lucky = confirming_trial(world.space, ledger.trials["t0004"].trial, 0)
    ledger.apply({"e": "start", "t": 0, **vars(lucky)})
    ledger.apply({"e": "end", "t": 0, "id": lucky.id, "stop": "completed", "best": 0.9, "best_at": 1, "examples": 1,
                  "seconds": 1.0, "reason": ""})  # fmt: skip
    kept = CheckpointRetention(world.folder, ledger, 0).kept()
    assert {name[:5] for name in kept} == {"c0005", "c0000"}


def test_a_failed_seed_has_no_value() -> None:
    space = make_space()
    ledger = recorded(space, {0: [0.5]}, {0: [0.6]})
    failed = confirming_trial(space, ledger.trials["t0000"].trial, 1)
    ledger.apply({"e": "start", "t": 0, **vars(failed)})
    ledger.apply({"e": "end", "t": 0, "id": failed.id, "stop": "failed:nan", "best": 0.9, "best_at": 1, "examples": 1,
                  "seconds": 1.0, "reason": ""})  # fmt: skip
    assert confirming_values(ledger, 0) == {4: 0.6}
