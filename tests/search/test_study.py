"""The study without Ray: points, pruning, repeats, death at any write, what the sampler learns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from harness import EVALUATIONS, RUNG, Death, World, curve, make_space
from optuna.trial import TrialState

from search.journal import Run, read
from search.optuna_log import open_storage
from search.samplers import key

GRID = {
    "learning_rate": {"grid": [1e-5, 3e-5, 1e-4]},
    "batch_size": {"choice": [16, 32]},
}


def points_and_seeds(world: World) -> list[tuple[str, int]]:
    driver = world.live()
    return sorted((key(s.run.point), s.run.seed) for s in driver.ledger.runs.values())


def optuna_study(world: World) -> optuna.Study:
    return optuna.load_study(study_name=world.study, storage=open_storage(world.folder))


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cmaes", "nsga2", "qmc"])
def test_every_sampler_runs_its_trials_without_repeating_a_point(sampler: str, tmp_path: Path) -> None:
    world = World(make_space({"sampler": sampler, "trials": 14}, pruner={"kind": "median"}), tmp_path)
    driver = world.live()
    points = [key(s.run.point) for s in driver.ledger.runs.values()]
    assert len(points) == len(set(points)) == 14
    assert driver.status == "finished"
    assert driver.ledger.runs["t0000"].run.baseline == "paper"
    assert driver.ledger.runs["t0000"].run.point == {"learning_rate": 3e-5, "batch_size": 64}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random", "qmc", "cmaes"])
def test_a_finite_space_ends_the_study_when_every_point_has_run(sampler: str, tmp_path: Path) -> None:
    space = make_space({"sampler": sampler, "trials": 50}, params=GRID)
    driver = World(space, tmp_path).live()
    assert len(driver.ledger.runs) == 6
    assert {key(s.run.point) for s in driver.ledger.runs.values()} == {key(p) for p in space.points()}


def test_a_grid_runs_its_rows_in_order(tmp_path: Path) -> None:
    space = make_space({"sampler": "grid", "trials": None}, params=GRID)
    driver = World(space, tmp_path).live()
    assert [driver.ledger.runs[f"t{n:04d}"].run.point for n in range(6)] == list(space.points())
    assert [t.params for t in optuna_study(World(space, tmp_path)).trials] == list(space.points())


def test_under_a_pruner_a_grid_runs_in_an_order_drawn_from_the_seed(tmp_path: Path) -> None:
    """Written ascending, each trial could be the best so far, and nothing would ever be pruned."""

    def order(seed: int, name: str) -> list[float]:
        params = {"learning_rate": {"grid": [1e-6 * n for n in range(1, 9)]}}
        search = {"sampler": "grid", "trials": None, "seed": seed}
        space = make_space(search, params=params, pruner={"kind": "median"})
        driver = World(space, tmp_path / name).live()
        return [driver.ledger.runs[f"t{n:04d}"].run.point["learning_rate"] for n in range(8)]

    orders = [order(0, "a"), order(0, "again"), order(1, "b")]
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(sorted(o)) for o in orders}) == 1
    assert orders[0] != sorted(orders[0])


def test_conditional_and_list_parameters_reach_optuna_and_come_back(tmp_path: Path) -> None:
    space = make_space(
        {"sampler": "tpe", "trials": 20, "baseline": "none"},
        method="sda",
        params={
            "negation_negative": {"choice": [True, False]},
            "delta": {"float": [0.1, 0.9], "step": 0.1, "when": {"negation_negative": True}},
        },
    )
    driver = World(space, tmp_path, value=lambda run, k: 0.1 * k + run.params["delta"] / 100).live()
    for state in driver.ledger.runs.values():
        assert ("delta" in state.run.point) == state.run.point["negation_negative"]
    deltas = {s.run.point["delta"] for s in driver.ledger.runs.values() if "delta" in s.run.point}
    assert deltas <= {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}  # exact: steps do not gather rounding errors


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_death_at_any_write_loses_and_doubles_nothing(sampler: str, repeats: int, tmp_path: Path) -> None:
    """The driver dies again and again at a random write; each next life goes on. With the same evaluations for the
    same run, random and grid studies end with the very runs of an undisturbed one."""
    changes: dict[str, Any] = {"params": GRID} if sampler == "grid" else {}
    search = {"sampler": sampler, "trials": None if sampler == "grid" else 8, "repeats": repeats}

    def flat(run: Run, k: int) -> float:
        return curve(run, k) if repeats == 1 else 0.1 * k  # repeats of equal points: none is hopeless

    def world(name: str) -> World:
        kind = "median" if repeats == 1 else "none"
        return World(make_space(search, pruner={"kind": kind}, **changes), tmp_path / name, value=flat)

    undisturbed = points_and_seeds(world("whole"))
    assert len(undisturbed) == (6 if sampler == "grid" else 8) * repeats
    rng = random.Random(f"{sampler}{repeats}")
    for round_ in range(6):
        killed = world(str(round_))
        deaths = 0
        while True:
            try:
                driver = killed.live(2 * repeats, seed=rng.randrange(1000), die_at=rng.randrange(2, 60))
                break
            except Death:
                deaths += 1
        assert deaths > 1
        runs = driver.ledger.runs.values()
        assert len({(key(s.run.point), s.run.seed) for s in runs}) == len(undisturbed)
        if sampler != "tpe":
            assert sorted((key(s.run.point), s.run.seed) for s in runs) == undisturbed
        assert not any(s.open for s in runs)
        agree(killed)


def agree(world: World) -> None:
    """Optuna and the journal say the same of every point."""
    ledger = world.live().ledger  # a life with nothing to do
    trials = optuna_study(world).trials
    assert sorted(t.number for t in trials) == sorted(ledger.points)
    for trial in trials:
        runs = ledger.by_point[("search", trial.number)]
        point = ledger.points[trial.number]
        expected = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        assert trial.state == expected[point["state"]]
        assert trial.user_attrs["seeds"] == len(runs) == point["seeds"]
        if trial.state == TrialState.COMPLETE:
            assert trial.value == pytest.approx(sum(s.best or 0 for s in runs) / len(runs))
        for step, value in trial.intermediate_values.items():
            assert value == pytest.approx(world.value(runs[0].run, step // RUNG))


def test_a_resumed_model_based_study_goes_on_as_the_undisturbed_one(tmp_path: Path) -> None:
    """One trial at a time, so that timing plays no part: TPE proposes the same points after a death between trials."""
    space = make_space({"sampler": "tpe", "trials": 16})
    whole = World(space, tmp_path / "a").live(concurrency=1).ledger
    world = World(space, tmp_path / "b")
    with pytest.raises(Death):
        world.live(concurrency=1, die_at=200)
    again = world.live(concurrency=1).ledger
    assert {i: s.run.point for i, s in whole.runs.items()} == {i: s.run.point for i, s in again.runs.items()}


def test_an_interrupted_study_pauses_and_goes_on(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    driver = world.live(interrupt_at=9)
    assert driver.status == "interrupted"
    paused = [s for s in driver.ledger.runs.values() if s.state == "paused"]
    assert paused
    assert len(driver.ledger.runs) < 6
    before = world.evaluations
    driver = world.live()
    assert driver.status == "finished"
    assert driver.ledger.ended() == 6
    assert world.evaluations - before == 6 * EVALUATIONS - before  # no evaluation was run twice


def test_pruned_trials_are_told_pruned_and_never_before_warmup(tmp_path: Path) -> None:
    space = make_space({"trials": 20}, pruner={"kind": "median", "warmup": 3 * RUNG})
    world = World(space, tmp_path)
    ledger = world.live().ledger
    pruned = [s for s in ledger.runs.values() if s.state == "pruned"]
    assert pruned
    assert min(s.examples for s in pruned) >= 3 * RUNG
    states = {t.number: t.state for t in optuna_study(world).trials}
    assert all(states[s.run.number] == TrialState.PRUNED for s in pruned)


def test_warmup_auto_follows_the_schedule(tmp_path: Path) -> None:
    space = make_space(
        {"trials": 20}, pruner={"kind": "median"}, train={"eval_examples": RUNG}, params={
            "learning_rate": {"float": [1e-6, 1e-3], "log": True}, "warmup_share": 0.5,
        },
    )  # fmt: skip
    pruned = [s for s in World(space, tmp_path).live().ledger.runs.values() if s.state == "pruned"]
    assert pruned
    assert min(s.examples for s in pruned) >= 0.5 * EVALUATIONS * RUNG


def test_the_study_sees_the_mean_of_the_repeats(tmp_path: Path) -> None:
    world = World(make_space({"trials": 3, "repeats": 3}), tmp_path, value=lambda run, k: 0.1 * k + 0.001 * run.seed)
    ledger = world.live().ledger
    assert len(ledger.runs) == 9
    assert sorted(s.run.id for s in ledger.runs.values() if s.run.number == 1) == ["t0001", "t0001.1", "t0001.2"]
    assert [t.value for t in optuna_study(world).trials] == [pytest.approx(0.6 + 0.001 * (3 + 4 + 5) / 3)] * 3


def test_repeats_of_a_hopeless_point_are_not_started(tmp_path: Path) -> None:
    """A point 0.2 below the best (the seeds' standard deviation is about 0.003) gets one seed, a close one all."""
    ledger = World(make_space({"trials": 10, "repeats": 3}), tmp_path).live(concurrency=1).ledger
    best = max(p["value"] for p in ledger.points.values())
    for number, point in ledger.points.items():
        runs = ledger.by_point[("search", number)]
        if number > 0 and runs[0].best is not None and runs[0].best < best - 0.2:
            assert point["seeds"] == 1
    assert max(p["seeds"] for p in ledger.points.values()) == 3


@pytest.mark.parametrize("kind", ["none", "successive_halving"])
def test_in_a_grid_further_seeds_go_to_the_best_of_all_points(kind: str, tmp_path: Path) -> None:
    """Every point has its first seed before any has a second; then the best point is first, and what is hopeless
    beside it (0.02 below, where a seed moves 0.005) gets no second one."""
    rates = [1e-5, 2e-5, 3e-5, 4e-5]
    space = make_space(
        {"sampler": "grid", "trials": None, "repeats": 3},
        params={"learning_rate": {"grid": rates}, "batch_size": 32},
        pruner={"kind": kind},
    )
    world = World(space, tmp_path, value=lambda run, _: 0.5 + 0.02 * rates.index(run.params["learning_rate"]))
    ledger = world.live(concurrency=1).ledger
    started = [state.run for state in ledger.runs.values()]
    assert [run.repeat for run in started] == [0, 0, 0, 0, 1, 2]
    assert {run.params["learning_rate"] for run in started[4:]} == {4e-5}
    assert sorted(point["seeds"] for point in ledger.points.values()) == [1, 1, 1, 3]
    agree(world)


@pytest.mark.parametrize("failing", [None, 1])
def test_seeds_of_the_last_points_fill_idle_places(failing: int | None, tmp_path: Path) -> None:
    """A single setting with five seeds on four places: the papers' rows. A failed seed ends its point, once."""
    space = make_space(
        {"sampler": "grid", "trials": None, "repeats": 5},
        params={"learning_rate": {"grid": [3e-5]}, "batch_size": 32},
        pruner={"kind": "none"},
    )
    world = World(space, tmp_path, fault=lambda run, k: "nan" if run.repeat == failing and k == 1 else None)
    ledger = world.live(concurrency=4).ledger
    kinds = [event["e"] for event in read(world.folder.journal)]
    assert kinds[1:5] == ["start"] * 4  # after the life's own line
    assert kinds.count("point") == 1
    point = ledger.points[0]
    assert not ledger.live
    assert len(ledger.runs) == point["seeds"]
    if failing is None:
        assert (point["state"], point["seeds"]) == ("complete", 5)
    else:
        assert (point["state"], optuna_study(world).trials[0].user_attrs["stop"]) == ("fail", "failed:nan")
        assert ledger.stops["failed:nan"] == 1
    agree(world)


def test_a_pruned_first_seed_has_no_second_one(tmp_path: Path) -> None:
    space = make_space({"trials": 30, "repeats": 3}, pruner={"kind": "median"})
    ledger = World(space, tmp_path).live(concurrency=6).ledger
    pruned = [number for number, point in ledger.points.items() if point["state"] == "pruned"]
    assert pruned
    assert all(ledger.points[number]["seeds"] == 1 for number in pruned)


def test_wilcoxon_prunes_over_repeats(tmp_path: Path) -> None:
    space = make_space({"trials": 12, "repeats": 8}, pruner={"kind": "wilcoxon"})
    world = World(space, tmp_path, value=lambda run, k: curve(run, k) / 20 + 0.5)  # close: seeds alone do not tell
    ledger = world.live(concurrency=1).ledger
    pruned = [n for n, p in ledger.points.items() if p["state"] == "pruned"]
    trials = optuna_study(world).trials
    assert pruned
    assert all(trials[n].state == TrialState.PRUNED for n in pruned)
    assert all(2 <= ledger.points[n]["seeds"] < 8 for n in pruned)


def test_failures_are_fail_in_the_study_with_their_kind(tmp_path: Path) -> None:
    def fault(run: Run, k: int) -> str | None:
        return "nan" if run.params["batch_size"] == 16 and k == 2 else None

    world = World(make_space({"trials": 12, "max_failed_share": 1.0}), tmp_path, fault=fault)
    ledger = world.live().ledger
    trials = optuna_study(world).trials
    for state in ledger.runs.values():
        failed = state.run.params["batch_size"] == 16
        assert (trials[state.run.number].state == TrialState.FAIL) == failed
        assert state.state == ("failed:nan" if failed else "completed")
        assert state.reason == ("nan happened" if failed else "")
        if failed:
            assert trials[state.run.number].user_attrs["stop"] == "failed:nan"


def test_tpe_learns_to_avoid_what_runs_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of five batch sizes fail (chance: 0.6). Optuna forgets failed trials and proposes such sizes ever again
    (0.79 of the later points over 6 seeds, sd 0.09); taught, it does so less and less (0.42, sd 0.06)."""

    def fault(run: Run, k: int) -> str | None:  # noqa: ARG001
        return "oom" if run.params["batch_size"] > 64 else None

    params = {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"choice": [32, 64, 128, 256, 512]}}

    def share(name: str) -> float:
        shares = []
        for seed in range(3):
            space = make_space({"sampler": "tpe", "trials": 40, "max_failed_share": 1.0, "seed": seed}, params=params)
            ledger = World(space, tmp_path / f"{name}{seed}", fault=fault).live().ledger
            shares.append(sum(s.failed for s in ledger.runs.values() if s.run.number >= 15) / 25)
        return sum(shares) / len(shares)

    taught = share("taught")
    monkeypatch.setattr("search.study.LESSONS", ())
    assert taught < 0.55 < share("untaught")


def test_too_many_failures_end_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 30, "max_failed_share": 0.5}), tmp_path, fault=lambda run, k: "data")  # noqa: ARG005
    driver = world.live(concurrency=1)
    assert driver.status == "failed"
    assert driver.ledger.ended() == 5
    assert driver.frequent_reasons() == [("data: data happened", 5)]
    assert driver.reason == "5 of 5 trials failed"


def test_patience_ends_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 50, "patience": 5}), tmp_path, value=lambda run, k: k / 10 - run.number / 1000)
    driver = world.live(concurrency=1)
    assert len(driver.ledger.points) == 6  # the first is the best, five do not improve on it
    assert (driver.status, driver.reason) == ("finished", "no improvement over 5 points")


def test_downtime_does_not_count_against_the_time_budget(tmp_path: Path) -> None:
    world = World(make_space({"trials": 500, "time": 4}), tmp_path)
    with pytest.raises(Death):
        world.live(die_at=60)
    world.now += 3600  # an hour between the lives
    driver = world.live()
    assert driver.status == "out_of_budget"
    assert driver.ledger.elapsed() == pytest.approx(4, abs=0.2)
    assert driver.ledger.ended() > 5


def test_device_hours_end_the_study(tmp_path: Path) -> None:
    driver = World(make_space({"trials": 500, "device_hours": 5 / 3600}), tmp_path).live()
    assert driver.status == "out_of_budget"
    assert 5 <= driver.ledger.trial_seconds() < 6


def test_minimising_keeps_the_smallest(tmp_path: Path) -> None:
    world = World(make_space({"trials": 8}, metric={"name": "stsb_dev", "mode": "min"}), tmp_path)
    ledger = world.live().ledger
    values = [s.best for s in ledger.runs.values() if s.best is not None]
    assert ledger.best is not None
    assert ledger.best.best == min(values)
