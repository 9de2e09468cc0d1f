"""The study without Ray: points, pruning, repeats, death at any write, what the sampler learns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from harness import EVALUATIONS, RUNG, Death, World, curve, make_space
from optuna.trial import TrialState

from search.store.journal import read
from search.store.ledger import Trial
from search.study.optuna_storage import open_storage
from search.study.samplers import key

GRID = {
    "learning_rate": {"grid": [1e-5, 3e-5, 1e-4]},
    "batch_size": {"choice": [16, 32]},
}


def points_and_seeds(world: World) -> list[tuple[str, int]]:
    driver = world.life()
    return sorted((key(s.trial.point), s.trial.seed) for s in driver.ledger.trials.values())


def optuna_study(world: World) -> optuna.Study:
    return optuna.load_study(study_name=world.study, storage=open_storage(world.folder))


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cmaes", "nsga2", "qmc"])
def test_every_sampler_runs_its_trials_without_repeating_a_point(sampler: str, tmp_path: Path) -> None:
    world = World(make_space({"sampler": sampler, "trials": 14}, pruner={"kind": "median"}), tmp_path)
    driver = world.life()
    points = [key(s.trial.point) for s in driver.ledger.trials.values()]
    assert len(points) == len(set(points)) == 14
    assert driver.status == "finished"
    assert driver.ledger.trials["t0000"].trial.baseline == "paper"
    assert driver.ledger.trials["t0000"].trial.point == {"learning_rate": 3e-5, "batch_size": 64}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random", "qmc", "cmaes"])
def test_a_finite_space_ends_the_study_when_every_point_has_run(sampler: str, tmp_path: Path) -> None:
    space = make_space({"sampler": sampler, "trials": 50}, params=GRID)
    driver = World(space, tmp_path).life()
    assert len(driver.ledger.trials) == 6
    assert {key(s.trial.point) for s in driver.ledger.trials.values()} == {key(p) for p in space.points()}


def test_a_grid_runs_its_rows_in_order(tmp_path: Path) -> None:
    space = make_space({"sampler": "grid", "trials": None}, params=GRID)
    driver = World(space, tmp_path).life()
    assert [driver.ledger.trials[f"t{n:04d}"].trial.point for n in range(6)] == list(space.points())
    assert [t.params for t in optuna_study(World(space, tmp_path)).trials] == list(space.points())


def test_under_a_pruner_a_grid_runs_in_an_order_drawn_from_the_seed(tmp_path: Path) -> None:
    """Written ascending, each trial could be the best so far, and nothing would ever be pruned."""

    def order(seed: int, name: str) -> list[float]:
        params = {"learning_rate": {"grid": [1e-6 * n for n in range(1, 9)]}}
        search = {"sampler": "grid", "trials": None, "seed": seed}
        space = make_space(search, params=params, pruner={"kind": "median"})
        driver = World(space, tmp_path / name).life()
        return [driver.ledger.trials[f"t{n:04d}"].trial.point["learning_rate"] for n in range(8)]

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
    driver = World(space, tmp_path, value=lambda trial, k: 0.1 * k + trial.params["delta"] / 100).life()
    for record in driver.ledger.trials.values():
        assert ("delta" in record.trial.point) == record.trial.point["negation_negative"]
    deltas = {s.trial.point["delta"] for s in driver.ledger.trials.values() if "delta" in s.trial.point}
    assert deltas <= {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}  # exact: steps do not gather rounding errors


@pytest.mark.costly
@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_death_at_any_write_loses_and_doubles_nothing(sampler: str, repeats: int, tmp_path: Path) -> None:
    """The driver dies again and again at a random write; each next life goes on. With the same evaluations for the
    same trial, random and grid studies end with the very trials of an undisturbed one."""
    changes: dict[str, Any] = {"params": GRID} if sampler == "grid" else {}
    search = {"sampler": sampler, "trials": None if sampler == "grid" else 8, "repeats": repeats}

    def flat(trial: Trial, k: int) -> float:
        return curve(trial, k) if repeats == 1 else 0.1 * k  # repeats of equal points: none is hopeless

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
                driver = killed.life(2 * repeats, seed=rng.randrange(1000), die_at=rng.randrange(2, 60))
                break
            except Death:
                deaths += 1
        assert deaths > 1
        records = driver.ledger.trials.values()
        assert len({(key(s.trial.point), s.trial.seed) for s in records}) == len(undisturbed)
        if sampler != "tpe":
            assert sorted((key(s.trial.point), s.trial.seed) for s in records) == undisturbed
        assert not any(s.open for s in records)
        agree(killed)


def agree(world: World) -> None:
    """Optuna and the journal say the same of every point."""
    ledger = world.life().ledger  # a life with nothing to do
    trials = optuna_study(world).trials
    assert sorted(t.number for t in trials) == sorted(ledger.points)
    for trial in trials:
        records = ledger.by_point[("search", trial.number)]
        point = ledger.points[trial.number]
        expected = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        assert trial.state == expected[point["state"]]
        assert trial.user_attrs["seeds"] == len(records) == point["seeds"]
        if trial.state == TrialState.COMPLETE:
            assert trial.value == pytest.approx(sum(s.best or 0 for s in records) / len(records))
        for step, value in trial.intermediate_values.items():
            assert value == pytest.approx(world.value(records[0].trial, step // RUNG))


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_resumed_model_based_study_goes_on_as_the_undisturbed_one(repeats: int, tmp_path: Path) -> None:
    """One trial at a time, so that timing plays no part: TPE proposes the same points after a death between trials, and
    the same points get further seeds."""
    space = make_space({"sampler": "tpe", "trials": 16, "repeats": repeats})
    whole = World(space, tmp_path / "a").life(concurrency=1).ledger
    world = World(space, tmp_path / "b")
    with pytest.raises(Death):
        world.life(concurrency=1, die_at=200)
    again = world.life(concurrency=1).ledger
    assert {i: s.trial.point for i, s in whole.trials.items()} == {i: s.trial.point for i, s in again.trials.items()}


def test_an_interrupted_study_pauses_and_goes_on(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    driver = world.life(interrupt_at=9)
    assert driver.status == "interrupted"
    paused = [s for s in driver.ledger.trials.values() if s.state == "paused"]
    assert paused
    assert len(driver.ledger.trials) < 6
    before = world.evaluations
    driver = world.life()
    assert driver.status == "finished"
    assert driver.ledger.ended() == 6
    assert world.evaluations - before == 6 * EVALUATIONS - before  # no evaluation was run twice


def test_pruned_trials_are_told_pruned_and_never_before_warmup(tmp_path: Path) -> None:
    space = make_space({"trials": 20}, pruner={"kind": "median", "warmup": 3 * RUNG})
    world = World(space, tmp_path)
    ledger = world.life().ledger
    pruned = [s for s in ledger.trials.values() if s.state == "pruned"]
    assert pruned
    assert min(s.examples for s in pruned) >= 3 * RUNG
    states = {t.number: t.state for t in optuna_study(world).trials}
    assert all(states[s.trial.number] == TrialState.PRUNED for s in pruned)


def test_warmup_auto_follows_the_schedule(tmp_path: Path) -> None:
    space = make_space(
        {"trials": 20}, pruner={"kind": "median"}, train={"eval_examples": RUNG}, params={
            "learning_rate": {"float": [1e-6, 1e-3], "log": True}, "warmup_share": 0.5,
        },
    )  # fmt: skip
    pruned = [s for s in World(space, tmp_path).life().ledger.trials.values() if s.state == "pruned"]
    assert pruned
    assert min(s.examples for s in pruned) >= 0.5 * EVALUATIONS * RUNG


def test_the_study_sees_the_mean_of_the_repeats(tmp_path: Path) -> None:
    world = World(make_space({"trials": 3, "repeats": 3}), tmp_path, value=lambda t, k: 0.1 * k + 0.001 * t.seed)
    ledger = world.life().ledger
    assert len(ledger.trials) == 9
    assert sorted(s.trial.id for s in ledger.trials.values() if s.trial.number == 1) == ["t0001", "t0001.1", "t0001.2"]
    assert [t.value for t in optuna_study(world).trials] == [pytest.approx(0.6 + 0.001 * (3 + 4 + 5) / 3)] * 3


def test_repeats_of_a_hopeless_point_are_not_started(tmp_path: Path) -> None:
    """A point 0.2 below the best (the seeds' standard deviation is about 0.003) gets one seed, a close one all."""
    ledger = World(make_space({"trials": 10, "repeats": 3}), tmp_path).life(concurrency=1).ledger
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
        {"sampler": "grid", "trials": None, "repeats": 3, "baseline": "none"},
        params={"learning_rate": {"grid": rates}, "batch_size": 32},
        pruner={"kind": kind},
    )
    world = World(space, tmp_path, value=lambda trial, _: 0.5 + 0.02 * rates.index(trial.params["learning_rate"]))
    ledger = world.life(concurrency=1).ledger
    started = [record.trial for record in ledger.trials.values()]
    assert [trial.repeat for trial in started] == [0, 0, 0, 0, 1, 2]
    assert {trial.params["learning_rate"] for trial in started[4:]} == {4e-5}
    assert sorted(point["seeds"] for point in ledger.points.values()) == [1, 1, 1, 3]
    agree(world)


@pytest.mark.parametrize(("sampler", "search"), [("tpe", {}), ("random", {"trials": None, "budget": 20})])
def test_further_seeds_go_to_the_best_third_while_points_come(
    sampler: str, search: dict[str, Any], tmp_path: Path
) -> None:
    """Under a sampler that learns, and where points never end: a second seed for 1 in 3, a third for 1 in 9, and the
    baseline's when another point has all of its own."""
    space = make_space({"sampler": sampler, "trials": 18, "repeats": 3} | search)
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) - 0.5 * bool(trial.baseline))
    ledger = world.life(concurrency=1).ledger
    ended: dict[int, list[float]] = {}
    for record in ledger.trials.values():  # in the order of their start
        number, repeat = record.trial.number, record.trial.repeat
        new_points = any(r.trial.number > max(ended, default=-1) for r in list(ledger.trials.values())[len(ended) :])
        if repeat and new_points and number and record.state == "completed":
            rivals = [sum(v) / len(v) for v in ended.values() if len(v) >= repeat]
            assert sum(mean >= sum(ended[number]) / repeat for mean in rivals) <= len(rivals) // 3
        if repeat and not number:
            assert max(map(len, ended.values())) == 3
        if record.best is not None:
            ended.setdefault(number, []).append(record.best)
        if max(ended, default=0) < 2:
            assert not repeat
    assert max(map(len, ended.values())) == len(ended[0]) == 3


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_is_shown_points_at_the_mean_of_the_seeds_they_have(sampler: str, tmp_path: Path) -> None:
    space = make_space({"sampler": sampler, "trials": None, "budget": 9, "repeats": 3})
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) + 0.01 * trial.seed)
    driver = world.life(concurrency=1)
    plan: Any = driver.plan
    view = plan.study.sampler._learnt_from
    shown = {trial.number: trial for trial in view.get_trials()}
    means = {
        number: [r.best for r in records if r.state == "completed"]
        for (_, number), records in driver.ledger.by_point.items()
    }
    assert any(len(values) == 2 for values in means.values())
    assert not driver.ledger.points  # none is settled
    for number, values in means.items():
        if values:
            assert shown[number].state == TrialState.COMPLETE
            assert shown[number].value == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("failing", [None, 1])
def test_seeds_of_the_last_points_fill_idle_places(failing: int | None, tmp_path: Path) -> None:
    """A single setting with five seeds on four places: the papers' rows. A failed seed ends its point, once."""
    space = make_space(
        {"sampler": "grid", "trials": None, "repeats": 5},
        params={"learning_rate": {"grid": [3e-5]}, "batch_size": 32},
        pruner={"kind": "none"},
    )
    world = World(space, tmp_path, fault=lambda trial, k: "nan" if trial.repeat == failing and k == 1 else None)
    ledger = world.life(concurrency=4).ledger
    kinds = [event["e"] for event in read(world.folder.journal)]
    assert kinds[1:5] == ["start"] * 4  # after the life's own line
    assert kinds.count("point") == 1
    point = ledger.points[0]
    assert not ledger.open_trials
    assert len(ledger.trials) == point["seeds"]
    if failing is None:
        assert (point["state"], point["seeds"]) == ("complete", 5)
    else:
        assert (point["state"], optuna_study(world).trials[0].user_attrs["stop"]) == ("fail", "failed:nan")
        assert ledger.stops["failed:nan"] == 1
    agree(world)


def test_a_pruned_first_seed_has_no_second_one(tmp_path: Path) -> None:
    space = make_space({"trials": 30, "repeats": 3}, pruner={"kind": "median"})
    ledger = World(space, tmp_path).life(concurrency=6).ledger
    pruned = [number for number, point in ledger.points.items() if point["state"] == "pruned"]
    assert pruned
    assert all(ledger.points[number]["seeds"] == 1 for number in pruned)


def test_wilcoxon_prunes_over_repeats(tmp_path: Path) -> None:
    space = make_space({"trials": 12, "repeats": 8}, pruner={"kind": "wilcoxon"})
    world = World(space, tmp_path, value=lambda trial, k: curve(trial, k) / 20 + 0.5)  # close: seeds alone do not tell
    ledger = world.life(concurrency=1).ledger
    pruned = [n for n, p in ledger.points.items() if p["state"] == "pruned"]
    trials = optuna_study(world).trials
    assert pruned
    assert all(trials[n].state == TrialState.PRUNED for n in pruned)
    assert all(2 <= ledger.points[n]["seeds"] < 8 for n in pruned)


def test_failures_are_fail_in_the_study_with_their_kind(tmp_path: Path) -> None:
    def fault(trial: Trial, k: int) -> str | None:
        return "nan" if trial.params["batch_size"] == 16 and k == 2 else None

    world = World(make_space({"trials": 12, "max_failed_share": 1.0}), tmp_path, fault=fault)
    ledger = world.life().ledger
    trials = optuna_study(world).trials
    for record in ledger.trials.values():
        failed = record.trial.params["batch_size"] == 16
        assert (trials[record.trial.number].state == TrialState.FAIL) == failed
        assert record.state == ("failed:nan" if failed else "completed")
        assert record.reason == ("nan happened" if failed else "")
        if failed:
            assert trials[record.trial.number].user_attrs["stop"] == "failed:nan"


@pytest.mark.costly
def test_tpe_learns_to_avoid_what_runs_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of five batch sizes fail (chance: 0.6). Optuna forgets failed trials and proposes such sizes ever again
    (0.79 of the later points over 6 seeds, sd 0.09); taught, it does so less and less (0.42, sd 0.06)."""

    def fault(trial: Trial, k: int) -> str | None:  # noqa: ARG001
        return "oom" if trial.params["batch_size"] > 64 else None

    params = {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"choice": [32, 64, 128, 256, 512]}}

    def share(name: str) -> float:
        shares = []
        for seed in range(3):
            space = make_space({"sampler": "tpe", "trials": 40, "max_failed_share": 1.0, "seed": seed}, params=params)
            ledger = World(space, tmp_path / f"{name}{seed}", fault=fault).life().ledger
            shares.append(sum(s.failed for s in ledger.trials.values() if s.trial.number >= 15) / 25)
        return sum(shares) / len(shares)

    taught = share("taught")
    monkeypatch.setattr("search.study.search_plan.OWN_FAULTS", ())
    assert taught < 0.55 < share("untaught")


def test_too_many_failures_end_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 30, "max_failed_share": 0.5}), tmp_path, fault=lambda trial, k: "data")  # noqa: ARG005
    driver = world.life(concurrency=1)
    assert driver.status == "failed"
    assert driver.ledger.ended() == 5
    assert driver.frequent_reasons() == [("data: data happened", 5)]
    assert driver.reason == "5 of 5 trials failed"


def test_patience_ends_the_study(tmp_path: Path) -> None:
    world = World(make_space({"trials": 50, "patience": 5}), tmp_path, value=lambda t, k: k / 10 - t.number / 1000)
    driver = world.life(concurrency=1)
    assert len(driver.ledger.points) == 6  # the first is the best, five do not improve on it
    assert (driver.status, driver.reason) == ("finished", "no improvement over the training of 5 whole trials")


def test_patience_counts_training_not_points(tmp_path: Path) -> None:
    """Points that are stopped at their first rung cost little patience."""
    space = make_space({"trials": 50, "patience": 5, "baseline": "none"}, pruner={"kind": "threshold", "lower": 0.5})

    def value(trial: Trial, k: int) -> float:
        return 0.4 if trial.number else 0.6 + k / 100

    driver = World(space, tmp_path, value=value).life(concurrency=1)
    assert driver.ledger.stops["completed"] == 1
    assert driver.ledger.stops["pruned"] == 5 * EVALUATIONS  # each stopped at the first of its six evaluations


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("search", [{"budget": 7.5}, {"examples": int(7.5 * EVALUATIONS * RUNG)}])
def test_a_budget_of_training_ends_the_study_and_can_be_raised(
    search: dict[str, Any], workers: int, tmp_path: Path
) -> None:
    world = World(make_space(search | {"trials": None}, pruner={"kind": "successive_halving"}), tmp_path)
    driver = world.life(concurrency=workers)
    assert driver.status == "out_of_budget"
    over = (workers - 1) * RUNG  # what runs beside it stops at its next evaluation
    assert 7.5 * EVALUATIONS * RUNG <= driver.ledger.examples <= 7.5 * EVALUATIONS * RUNG + over
    assert len(driver.ledger.points) > 8  # what pruning saves buys further points
    world.space = make_space({"budget": 9, "trials": None}, pruner={"kind": "successive_halving"})
    more = int(world.life(concurrency=workers).ledger.examples)
    assert 9 * EVALUATIONS * RUNG <= more <= 9 * EVALUATIONS * RUNG + over


def test_a_budget_is_the_same_after_any_death(tmp_path: Path) -> None:
    """What a trial repeats after a death is counted once."""
    world = World(make_space({"budget": 5, "trials": None}), tmp_path)
    for die_at in (20, 40, 7):
        with pytest.raises(Death):
            world.life(concurrency=1, die_at=die_at)
    assert world.life(concurrency=1).ledger.examples == 5 * EVALUATIONS * RUNG


def test_downtime_does_not_count_against_the_time_budget(tmp_path: Path) -> None:
    world = World(make_space({"trials": 500, "time": 4}), tmp_path)
    with pytest.raises(Death):
        world.life(die_at=60)
    world.now += 3600  # an hour between the lives
    driver = world.life()
    assert driver.status == "out_of_budget"
    assert driver.ledger.elapsed() == pytest.approx(4, abs=0.2)
    assert driver.ledger.ended() > 5


def test_device_hours_end_the_study(tmp_path: Path) -> None:
    driver = World(make_space({"trials": 500, "device_hours": 5 / 3600}), tmp_path).life()
    assert driver.status == "out_of_budget"
    assert 5 <= driver.ledger.trial_seconds() < 6


def test_minimising_keeps_the_smallest(tmp_path: Path) -> None:
    world = World(make_space({"trials": 8}, metric={"name": "stsb_dev", "mode": "min"}), tmp_path)
    ledger = world.life().ledger
    values = [s.best for s in ledger.trials.values() if s.best is not None]
    assert ledger.best is not None
    assert ledger.best.best == min(values)
