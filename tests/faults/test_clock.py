"""A machine whose clock is set, while a study runs or between two of its sessions."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from driver_sessions import HERE, ROOT, SEARCH, Study, ended
from harness import Death, World, make_space

from search.store.journal import Journal
from search.store.ledger import Ledger
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker


def test_a_journals_time_goes_on_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true, off = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: true() + off)
    journal = Journal(tmp_path / "journal", Ledger())
    journal.append("session", journal.now(), stage="search")
    for off in (3600.0, -3600.0):  # noqa: B007  # read by the clock
        journal.append("close", journal.now(), status="finished", reason="")
    journal.close()
    assert journal.ledger.elapsed() < 30
    later = Journal(tmp_path / "journal", Ledger())
    assert later.now() >= journal.ledger.last
    later.close()


@pytest.mark.costly
def test_runs_that_a_dead_driver_left_end_after_they_began(tmp_path: Path) -> None:
    """The driver's clock was two hours ahead of the one that `status` goes by."""
    world = World(make_space({"trials": 4}), tmp_path, now=time.time() + 7200)
    with pytest.raises(Death):
        world.session(die_at=25)
    assert replay(Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}", world.folder, world.space)) == ""
    assert durations(tmp_path)
    assert min(durations(tmp_path)) >= 0


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_clock_change_spends_no_budget_and_reorders_nothing(tmp_path: Path) -> None:
    search = {"sampler": "random", "trials": 6, "seed": 3, "baseline": "none", "time": "10m"}
    study, shift = Study(tmp_path, sleep=0.1, search=search), tmp_path / "shift"
    clock = f"{HERE / 'shifted_clock'}:{SEARCH}:{ROOT}"
    study.environment = {"PYTHONPATH": clock, "CLOCK_SHIFT": str(shift)}
    process = study.run()
    for count, seconds in ((1, "3600"), (3, "-3600")):
        study.wait_until(ended(count), process)
        shift.write_text(seconds)
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0, text
    assert "finished" in text
    shift.write_text("-7200")
    code, text = study.command("resume", study.name, "--set", "search.trials=7")
    assert code == 0, text
    assert list(study.ends().values()) == ["completed"] * 7
    times = [event["t"] for event in study.events()]
    assert times == sorted(times)
    assert times[-1] - times[0] < 600_000
    assert min(durations(study.storage)) >= 0


def durations(storage: Path) -> list[int]:
    """Milliseconds of every ended MLflow run."""
    with sqlite3.connect(f"file:{storage / 'mlflow.db'}?mode=ro", uri=True) as database:
        return [row[0] for row in database.execute("select end_time - start_time from runs where end_time not null")]
