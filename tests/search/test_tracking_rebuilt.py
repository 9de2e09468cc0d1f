"""An MLflow that is lost, empty or cleared is filled again from the journal."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Death, World
from tracked import history, runs, tracker

from analysis.checkpoints.openings import record_opening
from analysis.reading.store import find_study, open_store
from analysis.tables.study import read_study
from search import schema
from search.console.status import track_study
from search.store.journal import exclusive, read, tracking_lock
from search.store.layout import UserError
from search.tracking.replayer import BUSY_ELSEWHERE, replay

pytestmark = pytest.mark.costly
OPENED = datetime(2026, 3, 1, 12, tzinfo=UTC)


def snapshot(world: World, *, ids: bool = True) -> dict[str, Any]:
    """All that MLflow has of the study; `ids`: with what MLflow itself chose."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{world.root / 'mlflow.db'}")
    found = {}
    for name, run in runs(world).items():
        run_id, tags = run.info.run_id, dict(run.data.tags)
        if not ids:
            tags.pop(schema.PARENT, None)
        histories = {metric: history(world, run_id, metric) for metric in run.data.metrics}
        artifacts = sorted(artifact.path for artifact in client.list_artifacts(run_id))
        about = (run.info.status, run.info.run_name, run.info.start_time, run.info.end_time, run_id if ids else "")
        found[name] = (*about, tags, run.data.params, histories, artifacts)
    return found


@pytest.mark.parametrize("lost", ["database", "nothing", "newest"])
def test_a_lost_mlflow_is_rebuilt_and_twice_changes_nothing(
    world: World, empty_store: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a study that was killed, resumed, confirmed, and whose test sets were opened."""
    monkeypatch.setattr("search.tracking.tracker.SOME", 3)
    uri = f"sqlite:///{world.root / 'mlflow.db'}"
    with pytest.raises(Death):
        world.session(die_at=30)
    assert replay(tracker(world)) == ""
    world.session()
    older = (world.root / "mlflow.db").read_bytes()
    world.session(confirm=(1, 2))
    best = Path(world.folder.trial("t0000")) / "best"
    best.mkdir(parents=True)
    np.savez(best / "similarities.npz", stsb=np.zeros(3, np.float32))
    store = open_store(uri)
    assert replay(tracker(world)) == ""
    opening = record_opening(read_study(store, find_study(store)), "t0000 on builtin", "the paper", OPENED)
    run = runs(world)["t0000"].info.run_id
    opening.log(run, {"a_test": 0.25})
    opening.log(run, {"b_test": 0.5, "c_test": float("nan")})
    opening.log_files(run, best)
    opening.log_files(run, best, "mteb")
    before = snapshot(world, ids=False)
    assert before["t0000"][-2]["b_test"] == [(1, 0.5)]
    assert before["t0000"][-1] == ["mteb", "similarities.npz"]
    if lost == "newest":  # an older copy of the database was put back
        (world.root / "mlflow.db").write_bytes(older)
    elif lost == "database":
        shutil.copy(empty_store, world.root / "mlflow.db")
    assert track_study(str(world.root), world.folder.study) == "fake-1"
    assert snapshot(world, ids=False) == before
    rebuilt = snapshot(world)
    assert track_study(str(world.root), None) == "fake-1"
    assert snapshot(world) == rebuilt
    assert len(store.trials(find_study(open_store(uri)))) == len(before) - 1


def test_resume_fills_an_empty_mlflow_with_openings(world: World, empty_store: Path) -> None:
    world.session(interrupt_at=8)
    tracker(world).catch_up(final=True)
    text = "2026-03-01T12:00:00+00:00: t0000 on builtin: for the paper"
    (world.folder.local / schema.OPENINGS).mkdir()
    (world.folder.local / schema.OPENINGS / "1.txt").write_text(text)  # an older version wrote no results
    shutil.copy(empty_store, world.root / "mlflow.db")
    world.session()
    tracker(world).catch_up(final=True)
    assert len(runs(world)) == 7
    assert runs(world)["study"].data.tags[f"{schema.OPENING}1"] == text


def test_mlflow_is_not_rebuilt_beside_another_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.session(interrupt_at=8)
    with exclusive(world.folder), pytest.raises(UserError, match="fake-1 is running"):
        track_study(str(world.root), "fake-1")
    with tracking_lock(world.folder), pytest.raises(UserError, match=BUSY_ELSEWHERE):
        track_study(str(world.root), "fake-1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"fake-1: MLflow: .*127\.0\.0\.1"):
        track_study(str(world.root), "fake-1")


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("study", [True, False])
def test_a_run_deleted_in_mlflow_is_made_again(world: World, study: bool, live: bool) -> None:
    """Of a trial that goes on, or the study's own; while the tracker is at work or before a later session."""
    from mlflow import MlflowClient

    (paused, *_) = world.session(interrupt_at=8).ledger.open_trials
    at_work = tracker(world)
    at_work.catch_up()
    MlflowClient(at_work.uri).delete_run(runs(world)["study" if study else paused].info.run_id)
    world.session()
    assert replay(at_work if live else tracker(world)) == ""
    there = runs(world)
    assert len(there) == 7
    assert {run.info.status for run in there.values()} == {"FINISHED", "FAILED"}
    trials = [run for name, run in there.items() if name != "study"]
    assert {run.data.tags[schema.PARENT] for run in trials} == {there["study"].info.run_id}
    assert "learning_rate" in there[paused].data.params
    said = [e["examples"] for e in read(world.folder.journal) if e["e"] == "eval" and e["id"] == paused]
    assert [step for step, _ in history(world, there[paused].info.run_id, "stsb_dev")] == said
