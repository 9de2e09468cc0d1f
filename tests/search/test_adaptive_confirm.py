"""Confirming one seed at a time without Ray: whose turn it is, when it is settled, and what the plan believes."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Death, World, make_space, recorded
from scipy import stats

from search.schema import SEED_SD
from search.space.sections import Metric
from search.store.ledger import Ledger
from search.study.adaptive_confirm import AdaptiveConfirm, gain_settled
from search.study.belief import Belief
from search.study.confirm_plan import confirming_trial

POINTS = [{"learning_rate": rate * 1e-5} for rate in range(1, 7)]


def noisy(sd: float, step: float = 0.01) -> Any:
    """Points `step` apart by number, seeds of this standard deviation."""

    def value(trial: Any, k: int) -> float:
        luck = float(np.random.default_rng([trial.number, trial.seed]).normal(0, sd))
        return 0.5 + step * trial.number + luck + 0.001 * k

    return value


def test_seeds_go_where_they_decide_and_the_baseline_has_as_many_as_any(tmp_path: Path) -> None:
    world = World(make_space({"trials": 8}), tmp_path, value=noisy(0.004))
    world.life()
    ledger = world.life(confirm=20, concurrency=1).ledger
    seeds = {n: len(ledger.by_point.get(("confirm", n), [])) for n in range(8)}
    assert seeds[0] == max(seeds.values()) == seeds[7] >= 3
    assert sum(seeds.values()) <= 20
    assert sum(seeds[n] for n in range(1, 5)) == 0  # 0.03 and more below the best, where a seed moves 0.008
    fresh = [[r.trial.seed for r in ledger.by_point["confirm", n]] for n in (0, 7)]
    assert fresh[0] == fresh[1] == list(range(4, 4 + seeds[0]))


def test_a_plain_gain_ends_it_early_and_an_open_one_takes_the_budget(tmp_path: Path) -> None:
    def spent(step: float, sd: float, name: str) -> int:
        world = World(make_space({"trials": 6}), tmp_path / name, value=noisy(sd, step))
        world.life()
        return sum(map(len, confirmed_adaptively(world, 14, concurrency=1).values()))

    assert spent(0.05, 0.001, "plain") == 6  # three seeds of the best and of the baseline
    assert spent(0.004, 0.02, "open") == 14
    records = World(make_space({"trials": 6}), tmp_path / "open").life().ledger.trials.values()
    first = next(record.trial.number for record in records if record.trial.stage == "confirm")
    searched = {r.trial.number: r.best for r in records if r.trial.stage == "search"}
    assert first == max(searched, key=lambda number: searched[number] or 0.0)  # of the two the leader comes first


def test_a_metric_of_which_nothing_is_known_is_confirmed_alike_at_any_scale(tmp_path: Path) -> None:
    """A loss was held against the noise and the worth of Spearman: every difference seemed real, and was settled."""
    grid = make_space({"trials": 6, "repeats": 2, "sampler": "grid"}, params={}, points=POINTS)
    space = replace(grid, metric=Metric(name="loss_dev"))
    assert not space.known_metric

    def spent(scale: float, name: str) -> tuple[dict[int, int], int]:
        plain = noisy(0.02, 0.004)
        world = World(space, tmp_path / name, value=lambda trial, k: scale * plain(trial, k))
        searched = sum(r.trial.stage == "search" for r in world.life().ledger.trials.values())
        return {n: len(r) for n, r in confirmed_adaptively(world, 14, concurrency=1).items()}, searched

    assert spent(1.0, "unit") == spent(1000.0, "large")
    assert sum(spent(1000.0, "again")[0].values()) == 14  # what is open takes the budget


@pytest.mark.parametrize(("seeds", "rivals"), [(3, 1), (3, 4), (5, 2)])
def test_a_gain_settles_where_its_interval_leaves_nought_or_what_is_worth_a_seed(seeds: int, rivals: int) -> None:
    spread = np.linspace(-0.004, 0.004, seeds)
    df = 3 + seeds - 1  # the prior's and the gaps' own
    error = np.sqrt((3 * 2 * 0.005**2 + np.sum(spread**2)) / df / seeds)
    look = seeds - 2
    lower = error * stats.t.ppf(1 - 0.025 / rivals / (look * (look + 1)), df)
    upper = error * stats.t.ppf(0.975, df)
    for gain, settled in [(1.01 * lower, True), (0.99 * lower, False), (0.0, False)]:
        assert gain_settled([float(g) for g in spread + gain], 0.005, rivals) is settled
    for gain, settled in [(0.0005 - 1.01 * upper, True), (0.0005 - 0.99 * upper, False)]:
        assert gain_settled([float(g) for g in spread + gain], 0.005, rivals) is settled
    assert not gain_settled([0.5, 0.5], 0.005, rivals)  # two seeds settle nothing


def confirmed_adaptively(world: World, trials: int, **life: Any) -> dict[int, list[int]]:
    ledger = world.life(confirm=trials, **life).ledger
    records = [r for r in ledger.trials.values() if r.trial.stage == "confirm"]
    return {
        n: [r.trial.seed for r in records if r.trial.number == n] for n in sorted({r.trial.number for r in records})
    }


def test_an_adaptive_confirmation_is_the_same_after_any_death(tmp_path: Path) -> None:
    def searched(name: str) -> World:
        world = World(make_space({"trials": 6}), tmp_path / name, value=noisy(0.01, 0.002))
        world.life()
        return world

    whole = confirmed_adaptively(searched("whole"), 12, concurrency=1)
    killed = searched("killed")
    rng = random.Random(0)
    for life in range(8):
        with suppress(Death):
            killed.life(confirm=12, concurrency=1, seed=life, die_at=rng.randint(3, 25))
    assert confirmed_adaptively(killed, 12, concurrency=1) == whole
    before = killed.evaluations
    assert confirmed_adaptively(killed, 12, concurrency=1) == whole  # nothing is left to do
    assert killed.evaluations == before
    more = confirmed_adaptively(killed, 16, concurrency=3)
    assert sum(map(len, more.values())) == 16


def test_a_failing_point_leaves_the_race_and_a_study_without_baseline_can_be_confirmed(tmp_path: Path) -> None:
    def fault(trial: Any, k: int) -> str | None:  # noqa: ARG001
        return "nan" if trial.stage == "confirm" and trial.number == 5 else None

    world = World(make_space({"trials": 6, "baseline": "none"}), tmp_path, value=noisy(0.001), fault=fault)
    world.life()
    found = confirmed_adaptively(world, 12, concurrency=1)
    assert len(found[5]) == 1
    assert len(found[4]) == 3
    with pytest.raises(ValueError, match="no point of this study is complete"):
        AdaptiveConfirm(make_space(), Ledger(), trials=1)


def test_belief_shrinks_a_lucky_winner_and_knows_what_a_challenger_promises() -> None:
    rng = np.random.default_rng(0)
    equal = rng.normal(0, 0.01, 40)
    belief = Belief.of(equal, np.full(40, 0.01))
    assert belief.mean.max() < 0.4 * equal.max()  # all are worth the same
    apart = Belief.of(np.array([0.0, 0.3, 0.31]), np.array([0.01, 0.01, 0.01]))
    improvement = apart.improvement(int(apart.mean.argmax()))
    assert improvement[0] == pytest.approx(0, abs=1e-6)
    assert improvement[1] > 1e-4
    assert improvement[2] == 0.0


def test_belief_is_the_textbooks_iteration_written_out() -> None:
    """Laird's EM value by value; what lies ten standard errors below the best counts as lying there."""
    means, sds = [0.70, 0.69, 0.66, 0.10], [0.01, 0.005, 0.01, 0.008]
    low = [max(mean, 0.70 - 10 * 0.01) for mean in means]
    grid = [0.60 + i * (0.72 - 0.60) / 79 for i in range(80)]
    likelihood = [[stats.norm.pdf(mean, value, sd) for value in grid] for mean, sd in zip(low, sds, strict=True)]
    prior = [1 / 80] * 80
    for _ in range(60):
        share = [np.array(row) * prior / np.dot(row, prior) for row in likelihood]
        prior = [float(np.mean([row[i] for row in share])) for i in range(80)]
    posterior = np.array([np.array(row) * prior / np.dot(row, prior) for row in likelihood])
    belief = Belief.of(np.array(means), np.array(sds))
    assert belief.grid == pytest.approx(grid, rel=1e-12)
    assert belief.weights == pytest.approx(posterior, abs=1e-9)
    assert belief.mean == pytest.approx(posterior @ grid, rel=1e-9)
    gains = [sum(posterior[p, i] * posterior[0, j] * (grid[i] - grid[j]) for i in range(80) for j in range(i))
             for p in range(4)]  # fmt: skip
    assert belief.improvement(0) == pytest.approx([0.0, *gains[1:]], abs=1e-12)


def whose_turn(searched: dict[int, list[float]], fresh: dict[int, list[float | None]], **search: Any) -> int | None:
    space = make_space(search)
    plan = AdaptiveConfirm(space, recorded(space, searched, fresh), trials=20)
    trial = plan.next()
    assert plan.exhausted() is (trial is None)
    assert trial is None or trial.seed == 4 + len(fresh.get(trial.number, []))
    return None if trial is None else trial.number


def test_whose_turn_it_is() -> None:
    apart, near = {0: [0.5], 1: [0.3], 2: [0.7]}, {0: [0.5], 1: [0.7], 2: [0.712]}
    assert whose_turn(apart, {}) == 2  # the leader
    assert whose_turn(apart, {2: [0.7]}) == 0  # the baseline has as many
    assert whose_turn(apart, {2: [0.7], 0: [0.5]}) == 2  # nobody challenges the leader, its gain is not known yet
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
def test_a_gain_is_judged_with_the_rivals_that_had_a_fresh_seed(tried: int) -> None:
    """Leader and baseline have three equal seeds: the variance over seeds is the prior's share, 3 of 3 + 2 + 2."""
    sd = SEED_SD * (3 / 7) ** 0.5
    error = (2 * 3 * sd**2 / 5 / 3) ** 0.5
    bounds = [error * stats.t.isf(0.025 / rivals / 2, 5) for rivals in (1, 2)]

    def turn(gain: float) -> int | None:
        fresh: dict[int, list[float | None]] = {1: [0.3] * tried, 2: [0.5 + gain] * 3, 0: [0.5] * 3}
        return whose_turn({0: [0.5], 1: [0.3], 2: [0.5 + gain]}, fresh)

    assert turn(0.99 * bounds[tried]) == 2
    assert turn(1.01 * bounds[tried]) is None


def test_fresh_seeds_end_with_their_number_and_wait_for_what_runs() -> None:
    space = make_space()
    searched: dict[int, list[float]] = {0: [0.5], 1: [0.7]}
    ledger = recorded(space, searched, {1: [0.7], 0: [0.5]})
    assert AdaptiveConfirm(space, ledger, trials=2).next() is None
    assert AdaptiveConfirm(space, ledger, trials=2).exhausted()
    assert AdaptiveConfirm(space, ledger, trials=3).next() is not None
    settled = recorded(space, searched, {1: [0.7] * 3, 0: [0.5] * 3})
    plan = AdaptiveConfirm(space, settled, trials=20)
    assert plan.exhausted()
    running = confirming_trial(space, settled.trials["t0000"].trial, 3)
    settled.apply({"e": "start", "t": 0, **vars(running)})
    assert not plan.exhausted()


def test_the_seed_noise_of_a_confirmation_is_pooled_with_the_published_one() -> None:
    """Squares about the means: 2 of the search's two, 8 of three fresh ones; 1 + 2 degrees of freedom beside 3."""
    space = make_space({"repeats": 2})
    ledger = recorded(space, {0: [0.1, 0.3]}, {0: [0.0, 0.2, 0.4]})
    expected = ((3 * SEED_SD**2 + 0.02 + 0.08) / 6) ** 0.5
    assert AdaptiveConfirm(space, ledger, trials=1)._seed_sd() == pytest.approx(expected, rel=1e-12)
