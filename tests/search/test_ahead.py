"""Points proposed ahead for many slots. No Ray."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from harness import World, make_space

from search.store.journal import Journal
from search.store.ledger import Ledger
from search.study.samplers import PointSampler
from search.study.search_plan import AHEAD_FROM, SearchPlan


def proposers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "proposals"]


@pytest.mark.parametrize(("slots", "ahead"), [(AHEAD_FROM, True), (AHEAD_FROM - 1, False)])
def test_many_slots_get_each_point_once(
    slots: int, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[str] = []
    plain = PointSampler._propose

    def propose(*given: object) -> object:
        inside.append(threading.current_thread().name)
        return plain(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(PointSampler, "_propose", propose)
    world = World(make_space({"sampler": "tpe", "trials": 60}), tmp_path)
    world.session(concurrency=slots, interrupt_at=150)
    driver = world.session(concurrency=slots)
    assert (driver.status, driver.ledger.stops) == ("finished", {"completed": 60})
    assert sorted(driver.ledger.points) == list(range(60))
    assert len({str(record.trial.point) for record in driver.ledger.trials.values()}) == 60
    assert ("proposals" in inside) == ahead
    until = time.monotonic() + 10
    while proposers():
        assert time.monotonic() < until, "a thread outlives its session"
        time.sleep(0.05)


def test_no_decision_waits_for_a_slow_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, plain = threading.Event(), PointSampler._propose

    def propose(sampler: PointSampler, study: object, trial: object) -> object:
        go.wait(60) if trial.number else None  # type: ignore[attr-defined]
        return plain(sampler, study, trial)  # type: ignore[arg-type]

    monkeypatch.setattr(PointSampler, "_propose", propose)
    journal = Journal(tmp_path / "tracking.jsonl", Ledger())
    made = SearchPlan(make_space({"sampler": "gp", "trials": 60}), "mine", journal.ledger, [], journal.append)
    first = made.next(AHEAD_FROM)
    assert first is not None, "with nothing running there is nothing to hold up"
    assert made.next(AHEAD_FROM) is None
    go.set()
    until = time.monotonic() + 30
    while (second := made.next(AHEAD_FROM)) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (first.number, second.number) == (0, 1)
    made.close()
