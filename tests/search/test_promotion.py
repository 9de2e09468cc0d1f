"""Pruner asha: trials pause at rungs and are promoted; nothing of that is lost or changed by deaths. No Ray."""

from __future__ import annotations

import random
from collections import Counter
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import EVALUATIONS, RUNG, Death, World, asha_space, curve, make_space, steps

from analysis.tables.trials import _row
from search.store.journal import read
from search.store.ledger import Ledger, Trial
from search.store.retention import CheckpointRetention
from search.study.driver import Driver, Fault
from search.study.rungs import Promotion, rungs
from search.tracking.runs import TrialBatch


def promotions(world: World) -> Counter[str]:
    """How often each trial was taken up from its rung."""
    waits, found = set(), Counter[str]()
    for event in read(world.folder.journal):
        if event["e"] == "rung" and not event["go"]:
            waits.add(event["id"])
        elif event["e"] == "again" and event["id"] in waits:
            waits.remove(event["id"])
            found[event["id"]] += 1
    return found


def test_best_trials_go_on_and_the_rest_are_pruned(tmp_path: Path) -> None:
    world = World(asha_space(), tmp_path)
    driver = world.session(concurrency=1)
    ledger = driver.ledger
    assert driver.status == "finished"
    assert not ledger.open_trials
    assert ledger.stops["completed"] + ledger.stops["pruned"] == 27
    assert promotions(world)  # some went on later than they paused
    judged = Counter((e["id"], e["level"]) for e in read(world.folder.journal) if e["e"] == "rung")
    assert max(judged.values()) == 1 < EVALUATIONS  # between rungs no trial is judged
    assert world.evaluations < 0.5 * 27 * EVALUATIONS
    full = max(max(curve(r.trial, k) for k in range(1, EVALUATIONS + 1)) for r in ledger.trials.values())
    assert ledger.best is not None
    assert ledger.best.best == pytest.approx(full, abs=0.02)


def test_who_goes_on_is_the_rule_of_the_paper() -> None:
    """Against the definition, on rungs filled at random: the top third of a rung, itself counted."""
    rng = random.Random(0)
    ledger = Ledger()
    promotion = Promotion(ledger, 3, 100, 2700)
    assert [promotion.level(e) for e in (99, 100, 299, 300, 899, 900)] == [-1, 0, 0, 1, 1, 2]
    ledger.apply({"e": "session", "t": 0})
    values: list[float] = []
    for number in range(30):
        trial = {"id": f"t{number:04d}", "number": number, "repeat": 0, "seed": 0, "stage": "search", "point": {},
                 "params": {}, "point_id": "", "baseline": ""}  # fmt: skip
        ledger.apply({"e": "start", "t": 0, **trial})
        value = rng.random()
        values.append(value)
        go = promotion.goes_on(ledger.trials[trial["id"]], 0, value)  # type: ignore[index]
        assert go == (value in sorted(values, reverse=True)[: len(values) // 3])
        ledger.apply({"e": "rung", "t": 0, "id": trial["id"], "level": 0, "value": value, "go": go})
        if not go:
            ledger.apply({"e": "pause", "t": 0, "id": trial["id"]})
        best = set(sorted(values, reverse=True)[: len(values) // 3])
        left = [r for r in ledger.waiting() if r.rungs[0] in best]
        promoted = promotion.next()
        assert promoted is (max(left, key=lambda r: r.rungs[0]) if left else None)
        if promoted:
            ledger.apply({"e": "again", "t": 0, "id": promoted.trial.id})


@pytest.mark.parametrize(
    ("first", "whole", "reduction", "expected"),
    [
        (100, 2700, 3, [100, 300, 900, 2700, 8100]),  # as in the paper, which ends at a full-length trial
        (100, 1200, 3, [100, 300, 600, 1200, 3600]),  # its last rung would be at 900 of 1200
        (100, 1200, 2, [100, 200, 400, 600, 1200, 2400, 4800, 9600]),
        (100, 950, 3, [100, 300, 400, 950, 2850, 8550]),  # where trials are evaluated
        (100, 210, 2, [100, 210, 420, 840, 1680, 3360, 6720]),  # its second would be at 200 of 210
        (100, 300, 3, [100, 300, 900, 2700, 8100]),
        (100, 150, 3, [100, 150, 450, 1350, 4050]),  # a first one past the half stays
        (100, 100, 3, [100, 300, 900, 2700, 8100]),  # the length of a trial is not known
        (700, 10000, 4, [700, 2800]),
    ],
)
def test_no_rung_lies_past_half_of_a_full_length_trial(
    first: int, whole: int, reduction: int, expected: list[int]
) -> None:
    assert list(takewhile(lambda rung: rung < 10_000, rungs(first, whole, reduction))) == expected


def test_trials_of_unknown_length_have_more_than_one_rung(tmp_path: Path) -> None:
    """A script may not; with the first rung alone one in three would be trained to its end."""
    world = World(asha_space(), tmp_path, planned=0)
    world.session(concurrency=1)
    levels = Counter(e["level"] for e in read(world.folder.journal) if e["e"] == "rung")
    assert levels[0] == 27
    assert 0 < levels[1] <= 9 + 3


def test_a_rung_holds_what_a_trial_shows_there(tmp_path: Path) -> None:
    """Not its best so far: an evaluation high by chance carried it over the next one."""

    def value(trial: Trial, k: int) -> float:
        return curve(trial, k) + (0.3 if k == 1 else 0.0)

    world = World(asha_space(), tmp_path, value=value)
    world.session(concurrency=1)
    shown: dict[str, float] = {}
    judged = 0
    for event in read(world.folder.journal):
        if event["e"] == "eval":
            shown[event["id"]] = event["value"]
            lucky = event["best"] > event["value"]
        elif event["e"] == "rung":
            assert event["value"] == shown[event["id"]]
            judged += lucky
    assert judged  # rungs after the evaluation that was high by chance


@pytest.mark.parametrize("trials", [1, 2, 4])
def test_a_few_points_are_enough_to_complete_one(trials: int, tmp_path: Path) -> None:
    """Fewer than `reduction` points promote none: the leader goes to its end."""
    ledger = World(asha_space(trials=trials), tmp_path).session().ledger
    assert ledger.stops["completed"] >= 1
    assert ledger.ended() == trials


def test_the_baseline_never_pauses(tmp_path: Path) -> None:
    space = make_space({"trials": 12, "repeats": 2}, pruner={"kind": "asha"})

    def value(trial: Trial, k: int) -> float:
        return 0.1 if trial.baseline else curve(trial, k)

    world = World(space, tmp_path, value=value)
    ledger = world.session(concurrency=4).ledger
    baseline = [r for r in ledger.trials.values() if r.trial.baseline]
    assert [r.state for r in baseline] == ["completed", "completed"]
    assert not promotions(world)["t0000"]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_deaths_change_nothing(sampler: str, workers: int, tmp_path: Path) -> None:
    """Kill after kill at random writes: the same points and seeds; with one trial at a time the same promotions too."""
    plain = World(asha_space(sampler=sampler, trials=14), tmp_path / "plain")
    expected = plain.session(concurrency=workers).ledger
    world = World(asha_space(sampler=sampler, trials=14), tmp_path / "killed")
    rng, deaths = random.Random(workers), 0
    for session in range(10):
        try:
            world.session(concurrency=workers, seed=session, die_at=rng.randint(5, 40))
        except Death:
            deaths += 1
    assert deaths > 2
    ledger = world.session(concurrency=workers).ledger
    assert not ledger.open_trials
    assert ledger.ended() == 14
    if sampler == "random":
        assert {(r.trial.number, r.trial.seed, str(r.trial.point)) for r in ledger.trials.values()} == {
            (r.trial.number, r.trial.seed, str(r.trial.point)) for r in expected.trials.values()
        }
    if workers == 1:
        assert promotions(world) == promotions(plain)
        assert steps(ledger) == steps(expected)


@pytest.mark.costly
def test_trial_stays_paused_if_its_process_crashes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged at its rung and killed before it ended: promotions match an undisturbed study, no trial restarts."""
    plain = World(asha_space(trials=14), tmp_path / "plain")
    expected = plain.session(concurrency=1).ledger
    on_trial_stop = Driver.on_trial_stop

    def dies(driver: Driver, trial_id: str) -> None:
        if driver.ledger.trials[trial_id].waiting is not None:
            driver.on_failure(trial_id, Fault("process", "killed"))
        else:
            on_trial_stop(driver, trial_id)

    monkeypatch.setattr(Driver, "on_trial_stop", dies)
    world = World(asha_space(trials=14), tmp_path / "killed")
    ledger = world.session(concurrency=1).ledger
    assert not ledger.open_trials
    assert steps(ledger) == steps(expected)
    assert promotions(world) == promotions(plain)


def test_a_lost_state_is_trained_again_to_the_same_value(tmp_path: Path) -> None:
    plain = World(asha_space(), tmp_path / "plain")
    expected = plain.session(concurrency=1).ledger
    world = World(asha_space(), tmp_path / "lost")
    with pytest.raises(Death):
        world.session(concurrency=1, die_at=70)
    world.last.clear()  # as if no state had fitted on the disk
    assert steps(world.session(concurrency=1).ledger) == steps(expected)
    assert world.evaluations > plain.evaluations


def test_interrupted_and_resumed_it_waits_on(tmp_path: Path) -> None:
    world = World(asha_space(), tmp_path)
    first = world.session(concurrency=2, interrupt_at=20)
    waiting = {r.trial.id for r in first.ledger.waiting()}
    assert first.status == "interrupted"
    assert waiting
    assert not first.ledger.stops["pruned"]
    before = len(list(read(world.folder.journal)))
    ledger = world.session(concurrency=2).ledger
    again = [e for e in list(read(world.folder.journal))[before:] if e["e"] == "again" and e["id"] in waiting]
    assert {e["id"] for e in again} < waiting  # taken up by promotion only, not because the study went on
    assert not ledger.open_trials


def test_a_larger_budget_resumes_trials_paused_at_the_first_one(tmp_path: Path) -> None:
    world = World(asha_space(trials=None, budget=4), tmp_path)
    driver = world.session(concurrency=1)
    assert driver.status == "out_of_budget"
    assert driver.ledger.waiting()
    world.space = asha_space(trials=None, budget=8)
    assert world.session(concurrency=1).ledger.examples == 8 * EVALUATIONS * RUNG


def test_states_on_disk_are_bounded_and_the_most_promising_stay(tmp_path: Path) -> None:
    world = World(asha_space(), tmp_path)
    ledger = world.session(concurrency=2, interrupt_at=25).ledger
    waiting = sorted(ledger.waiting(), key=lambda r: (-(r.waiting or 0), -r.rungs[r.waiting or 0]))
    for record in waiting:
        state = Path(world.folder.trial(record.trial.id)) / "last" / "state.pt"
        state.parent.mkdir(parents=True)
        state.write_bytes(bytes(1000))
    size = world.folder.size(world.folder.trial(waiting[0].trial.id) + "/last")
    CheckpointRetention(world.folder, ledger, 3, states_gb=3.5 * size / 1e9).apply()
    left = [r for r in waiting if (Path(world.folder.trial(r.trial.id)) / "last").exists()]
    assert len(waiting) > 3
    assert left == waiting[:3]


def test_the_tracker_logs_that_a_trial_paused_and_went_on() -> None:
    batch = TrialBatch()
    so_far = {"best": 0.5, "best_at": 100, "examples": 100, "seconds": 2.0}
    batch.add({"e": "pause", "t": 1, "id": "t0", "rung": 0, **so_far}, "stsb_dev", {})
    assert {m.key: m.value for m in batch.metrics}["best_stsb_dev"] == 0.5
    assert (batch.status, batch.tags) == ("KILLED", {"stop": "paused"})
    batch.add({"e": "again", "t": 2, "id": "t0"}, "stsb_dev", {})
    assert (batch.status, batch.tags) == ("RUNNING", {"stop": ""})  # one tag of a name in a call


def test_a_waiting_trial_counts_as_pruned_where_results_are_read() -> None:
    tags = {"role": "trial", "trial_id": "t0", "stop": "paused", "optuna_number": "0", "seed": "0"}
    run = SimpleNamespace(
        run_id="r", name="t0", tags=tags, metrics={}, status="KILLED", start=0, end=1, params={}, experiment="e"
    )
    assert "pruned" in _row(run)  # type: ignore[arg-type]
    assert "paused" not in _row(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(("completed", "leads"), [(None, True), (0.5, True), (0.6, False), (0.7, False)])
def test_leader_goes_on_unless_a_completed_trial_is_as_good(completed: float | None, leads: bool) -> None:
    paused: Any = SimpleNamespace(waits=True, waiting=0, rungs={0: 0.6}, trial=SimpleNamespace(number=1))
    best = None if completed is None else SimpleNamespace(best=completed)
    ledger: Any = SimpleNamespace(sign=1.0, waiting=lambda: [paused], best=best)
    assert Promotion(ledger, 3, 100, 600).leader() is (paused if leads else None)


def on_rungs(*rungs: dict[int, float], maximise: bool = True, states: str = "") -> tuple[Promotion, list[Any]]:
    """Trials that have reached these rungs, each waiting at its highest but for those with an "r" in `states`, which
    run, and a "b", the baseline, which does, too ("B": which waits)."""
    records: list[Any] = [
        SimpleNamespace(
            rungs=mine,
            failed=False,
            waits=state not in "rb",
            waiting=None if state in "rb" else max(mine),
            trial=SimpleNamespace(number=number, baseline="paper" if state in "bB" else ""),
        )
        for number, (mine, state) in enumerate(zip(rungs, states.ljust(len(rungs), "w"), strict=True))
    ]
    ledger: Any = Ledger(maximise=maximise)
    ledger.on_rungs = {str(number): record for number, record in enumerate(records)}
    ledger.waiting = lambda: [record for record in records if record.waits]
    return Promotion(ledger, 2, 100, 400), records


def test_half_of_a_rung_goes_on_and_ties_wait() -> None:
    rungs, _ = on_rungs({0: 0.4}, {0: 0.6}, {0: 0.8})
    new: Any = SimpleNamespace(rungs={})
    assert [rungs.goes_on(new, 0, value) for value in (0.59, 0.61, 0.81)] == [False, True, True]  # two of four
    assert not rungs.goes_on(new, 0, 0.6)  # two are as good
    low, _ = on_rungs({0: 0.4}, {0: 0.6}, {0: 0.8}, maximise=False)
    assert [low.goes_on(new, 0, value) for value in (0.61, 0.59)] == [False, True]
    assert not Promotion(Ledger(), 2, 100, 400).goes_on(new, 0, 0.9)  # the first of a rung of halves


def test_the_highest_rung_with_a_promotion_comes_first() -> None:
    """Rung 1 holds two, of which 0.5 may leave it; rung 0 holds five, of which 0.9 and 0.8 may."""
    both = ({0: 0.7, 1: 0.5}, {0: 0.6, 1: 0.4})
    rungs, records = on_rungs(*both, {0: 0.9}, {0: 0.8}, {0: 0.1})
    assert rungs.next() is records[0]
    rungs, records = on_rungs(*both[:1], {0: 0.8}, {0: 0.9}, {0: 0.1})  # one alone on rung 1 stays there
    assert rungs.next() is records[2]
    rungs, records = on_rungs({0: 0.9}, {0: 0.8}, {0: 0.8}, {0: 0.1}, states="r")  # of equals the earlier
    assert rungs.next() is records[1]
    rungs, records = on_rungs({0: 0.9}, {0: 0.8}, {0: 0.1}, states="r")
    assert rungs.next() is None  # one of three, and that one runs
    rungs, records = on_rungs({0: 0.1}, {0: 0.9}, maximise=False)
    assert rungs.next() is records[0]


def test_the_baseline_holds_no_place_on_a_rung() -> None:
    """It is not there by what it showed: a poor one lets no trial go on, a good one stops none."""
    rungs, _ = on_rungs({0: 0.1}, {0: 0.9}, states="b")
    assert rungs.next() is None
    rungs, records = on_rungs({0: 0.9}, {0: 0.7}, {0: 0.5}, states="b")
    assert rungs.next() is records[1]
    new: Any = SimpleNamespace(rungs={})
    assert rungs.goes_on(new, 0, 0.8)
    rungs, _ = on_rungs({0: 0.1}, states="b")
    assert not rungs.goes_on(new, 0, 0.8)
    rungs, records = on_rungs({-1: 0.4}, states="B")  # a further seed that made way at a budget's end goes on
    assert rungs.next() is records[0]


def test_the_leader_is_the_best_of_the_highest_rung() -> None:
    rungs, records = on_rungs({0: 0.9}, {0: 0.7, 1: 0.5}, {0: 0.6, 1: 0.55}, {0: 0.6, 1: 0.55})
    assert rungs.leader() is records[2]  # of equals the earlier
    low, records = on_rungs({0: 0.9}, {0: 0.8}, maximise=False)
    assert low.leader() is records[1]
    assert Promotion(Ledger(), 2, 100, 400).leader() is None
