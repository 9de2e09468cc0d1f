"""The journal replayed into MLflow: idempotent, patient, complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import EVALUATIONS, RUNG, Death, World, make_space, unpacked
from tracked import history, runs, tracker

from search import schema
from search.console.status import bring_up_to_date, study_status
from search.store.journal import exclusive, identity, tracking_lock
from search.tracking.mlflow_store import make_store, trouble
from search.tracking.replayer import BUSY_ELSEWHERE, Replayer, replay
from search.tracking.runs import TrialBatch, saved_views, trial_name, view_key
from search.tracking.tracker import Tracker

pytestmark = pytest.mark.costly
OPENED = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_process_killed_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    store = tmp_path / "runs" / "mlflow.db"
    uri = f"sqlite:///{store}"
    process = subprocess.Popen(
        [sys.executable, "-c", f"from search.tracking.mlflow_store import make_store; make_store({uri!r})"],
        env={**os.environ, "SEARCH_CACHE_DIR": str(tmp_path / "cache")},  # no empty database is there to be copied
    )
    until = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob("runs/.mlflow-*/mlflow.db")):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not store.exists()
    make_store(uri)
    written = store.stat().st_mtime_ns
    make_store(uri)  # what is there stays
    assert store.stat().st_mtime_ns == written
    from mlflow import MlflowClient

    assert MlflowClient(uri).create_experiment("after the kill")


def test_a_copied_database_is_like_one_that_mlflow_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second storage copies what the first one's migrations made, but no artifact folder of the first."""
    from mlflow import MlflowClient

    monkeypatch.setenv("SEARCH_CACHE_DIR", str(tmp_path / "cache"))
    told = []
    for name in ("migrated", "copied"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        make_store(f"sqlite:///{tmp_path / name}/mlflow.db")
        client = MlflowClient(f"sqlite:///{tmp_path / name}/mlflow.db")
        told.append([(e.experiment_id, e.name, e.lifecycle_stage) for e in client.search_experiments()])
        assert client.get_experiment("0").artifact_location.startswith(f"{tmp_path / name}/")
        with contextlib.closing(sqlite3.connect(tmp_path / name / "mlflow.db")) as database:
            told[-1] += sorted(database.execute("select name, sql from sqlite_master where type = 'table'"))
    assert told[0] == told[1]
    (kept,) = (tmp_path / "cache").iterdir()
    kept.chmod(0o600)
    kept.write_bytes(b"")  # as a full disk of former days might leave one
    make_store(f"sqlite:///{tmp_path}/third.db")
    assert MlflowClient(f"sqlite:///{tmp_path}/third.db").create_experiment("one")


def test_everything_in_the_journal_reaches_mlflow_once(world: World) -> None:
    ledger = world.session().ledger
    best = Path(world.folder.trial("t0000")) / "best"
    best.mkdir(parents=True)
    np.savez(best / "similarities.npz", stsb=np.zeros(3, np.float32))
    tracker(world).catch_up(final=True)
    world.folder.tracked.unlink()  # the note of how far it came is lost: all is sent again
    tracker(world).catch_up(final=True)
    found = runs(world)
    assert found.keys() == {"study", *ledger.trials}
    for trial_id, record in ledger.trials.items():
        run = found[trial_id]
        assert run.data.tags[schema.STOP] == record.state
        assert run.info.status == ("FAILED" if record.failed else "FINISHED")
        assert run.info.end_time == record.ended
        told = history(world, run.info.run_id, "stsb_dev")
        assert told == [(100 * k, world.value(record.trial, k)) for k in range(1, len(told) + 1)]
        assert len(told) * 100 == record.examples or record.failed
        assert run.data.metrics["best_at_examples"] == record.best_at
    assert len(history(world, found["t0000"].info.run_id, "loss")) == EVALUATIONS
    assert found["t0002"].data.tags[schema.REASON] == "nan happened"
    assert found["t0000"].info.run_name == "t0000 lr=3e-05"
    study = found["study"]
    assert study.info.status == "FINISHED"
    assert study.data.params["search.trials"] == "6"
    assert study.data.tags[schema.SEARCHED] == "learning_rate,batch_size"
    assert study.data.metrics["best_stsb_dev"] == pytest.approx(ledger.best.best, abs=1e-6)
    assert (study.data.metrics["trials"], study.data.metrics["failed"]) == (6, 1)
    assert study.data.metrics["hours"] == pytest.approx(ledger.elapsed() / 3600, abs=1e-6)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{world.root / 'mlflow.db'}")
    assert [a.path for a in client.list_artifacts(found["t0000"].info.run_id)] == ["similarities.npz"]


def test_a_trials_run_names_the_origin_of_its_point(world: World) -> None:
    world.memory = [{"point": {"learning_rate": 1e-4, "batch_size": 16}, "origin": "older-1 t0007"}]
    world.session()
    assert replay(tracker(world)) == ""
    found = runs(world)
    assert found["t0001"].data.tags[schema.ORIGIN] == "older-1 t0007"
    assert [name for name, run in found.items() if schema.ORIGIN in run.data.tags] == ["t0001"]


def test_replay_closes_the_runs_of_a_dead_driver(world: World) -> None:
    with pytest.raises(Death):
        world.session(die_at=25)
    tracker(world).catch_up()
    assert {run.info.status for run in runs(world).values()} >= {"RUNNING"}
    assert replay(tracker(world)) == ""
    left = {trial_id: run.info.status for trial_id, run in runs(world).items()}
    assert "RUNNING" not in left.values()
    assert left["study"] == "KILLED"
    world.session()
    tracker(world).catch_up(final=True)
    done = runs(world)
    assert {run.info.status for trial_id, run in done.items() if trial_id != "t0002"} == {"FINISHED"}
    assert len(done) == 7


def test_a_late_tracker_logs_each_trial_in_one_call(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes some ten calls a second: many trials at once are followed only if a call carries what waits."""
    from mlflow import MlflowClient

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    world = World(make_space({"trials": 50}), tmp_path)
    world.session(concurrency=50)
    calls: list[int] = []
    plain = MlflowClient.log_batch

    def counted(client: Any, run_id: str, metrics: Any = (), **more: Any) -> None:
        calls.append(len(metrics))
        plain(client, run_id, metrics=metrics, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    tracker(world).catch_up(final=True)
    assert len([n for n in calls if n]) == 50 + 1  # and the study's own
    assert history(world, runs(world)["t0049"].info.run_id, "stsb_dev")[-1][0] == EVALUATIONS * RUNG


def test_completed_trial_drops_the_reason_of_an_earlier_failure() -> None:
    outcome = {"t": 1, "best": 0.5, "best_at": 100, "examples": 100, "seconds": 1.0, "traceback": ""}
    batch, told = TrialBatch(), []
    for event in (
        {"e": "end", "stop": "failed:disk", "reason": "it was full", **outcome},
        {"e": "reopen", "t": 2},
        {"e": "again", "t": 3},
        {"e": "end", "stop": "completed", "reason": "", **outcome},
    ):
        batch.add(event, "stsb_dev", {})
        told.append(batch.tags.get(schema.REASON))
    assert told == ["it was full", "", "", ""]


def test_a_rejected_write_is_not_retried_forever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.session()
    tried = []

    def refused(self: Tracker, final: bool) -> bool:  # noqa: ARG001
        tried.append(self)
        raise KeyError("t0002")

    monkeypatch.setattr(Tracker, "_catch_up", refused)
    at_work = tracker(world)
    for count in (2, 3):  # everything again, once
        assert replay(at_work) == "'t0002'"
        assert len(tried) == count


def test_a_locked_store_is_waited_for(world: World) -> None:
    """The database is locked while the study runs; afterwards the replayer catches up."""
    blocker = sqlite3.connect(world.root / "mlflow.db")
    blocker.execute("BEGIN EXCLUSIVE")
    replayer = Replayer(tracker(world))
    replayer.start()
    world.session()  # not held up
    blocker.rollback()
    assert replayer.finish(patience_s=60)
    assert len(runs(world)) == 7


def test_unreachable_tracker_is_reported_and_catches_up_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    down = Tracker("http://127.0.0.1:9", world.folder, world.space)
    replayer = Replayer(down)
    replayer.start()
    world.session()
    began = time.monotonic()
    assert not replayer.finish(patience_s=2)
    assert time.monotonic() - began < 15
    assert "127.0.0.1" in replayer.trouble
    assert "\n" not in replayer.trouble
    tracker(world).catch_up(final=True)
    assert len(runs(world)) == 7


def test_a_lost_study_stops_the_tracker_before_its_next_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a batch: the new driver's own tracker writes the rest."""
    from mlflow import MlflowClient

    world.session()
    made, plain = list[str](), MlflowClient.create_run

    def create_run(*given: Any, **more: Any) -> Any:
        made.append(more["run_name"])
        return plain(*given, **more)

    monkeypatch.setattr(MlflowClient, "create_run", create_run)
    replayer = Replayer(tracker(world), lambda: len(made) < 3)
    assert not replayer._try()
    assert "not this process's" in replayer.trouble
    assert len(runs(world)) == 3, "the study's run and two trials"
    tracker(world).catch_up(final=True)
    assert len(runs(world)) == 7


def test_status_is_not_mistaken_for_a_driver(world: World) -> None:
    """`search status` brings MLflow up to date, which may take long; meanwhile others see, and take up, the study."""
    world.session(interrupt_at=8)
    with tracking_lock(world.folder):  # as another `search status` holds it
        status, space, _ = study_status(world.folder)
        assert status.state == "interrupted"
        assert bring_up_to_date(world.folder, space, running=False) == BUSY_ELSEWHERE
        with exclusive(world.folder):  # as a driver does
            replayer = Replayer(tracker(world))
            replayer.start()
            assert not replayer.finish(patience_s=0.5)
            assert replayer.trouble == BUSY_ELSEWHERE
    replayer = Replayer(tracker(world))
    replayer.start()
    assert replayer.finish(patience_s=20)
    assert len(runs(world)) > 2
    with tracking_lock(world.folder):
        """Free again."""


def test_the_saved_view_lists_the_trials_best_first(world: World) -> None:
    from mlflow import MlflowClient

    world.session()
    tracker(world).catch_up(final=True)
    client = MlflowClient(f"sqlite:///{world.root / 'mlflow.db'}")
    tags = client.get_experiment_by_name("fake").tags
    uuid = identity(world.folder.journal).uuid
    state = unpacked(tags[f"mlflow.sharedViewState.{view_key('fake-1', uuid)}"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`best_stsb_dev`", False)
    assert state["searchFilter"] == f"tags.role = 'trial' and tags.study_uuid = '{uuid}'"
    assert "params.`learning_rate`" in state["selectedColumns"]
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert tags.keys() >= saved_views(world.space, "fake-1", uuid).keys()
    found = client.search_runs(
        [client.get_experiment_by_name("fake").experiment_id],
        state["searchFilter"],
        order_by=[state["orderByKey"] + " DESC"],
    )
    values = [r.data.metrics["best_stsb_dev"] for r in found]
    assert values == sorted(values, reverse=True)
    best, rate = (
        state["columnOrder"].index("metrics.`best_stsb_dev`"),
        state["columnOrder"].index("params.`learning_rate`"),
    )
    assert best < rate
    grouped = unpacked(tags[f"mlflow.sharedViewState.{view_key('fake-1', uuid)}-points"])["groupBy"]
    assert grouped["groupByKeys"] == [{"mode": "tag", "groupByData": schema.OPTUNA_NUMBER}]
    (run,) = client.search_runs(
        [client.get_experiment_by_name("fake").experiment_id],
        unpacked(tags["mlflow.sharedViewState.fake-studies"])["searchFilter"],
    )
    assert list(run.data.metrics) == ["best_stsb_dev", "trials", "points", "failed", "hours"]


def test_the_compare_page_draws_what_selects() -> None:
    """It takes the first metric that was logged, which was the untrained encoder's: the same for every trial."""
    metrics = {"untrained_stsb_dev": 0.2, "loss": 1.0, "stsb_dev": 0.7}
    event = {"e": "eval", "t": 1, "id": "t0000", "examples": 100, "metrics": metrics}
    for metric, first in (("stsb_dev", "stsb_dev"), ("mean(stsb_dev,sickr_dev)", "loss")):
        batch = TrialBatch()
        batch.add(event, metric, {})
        assert batch.metrics[0].key == first
        assert batch.metrics[-1].key == "untrained_stsb_dev"


def test_a_trials_tags_name_its_device() -> None:
    batch = TrialBatch()
    event = {"e": "eval", "t": 1, "id": "t0000", "examples": 100, "metrics": {"stsb_dev": 0.7}}
    for place, held in (("", {}), ("a, CPU", {schema.PLACE: "a, CPU"}), ("", {schema.PLACE: "a, CPU"})):
        batch.add({**event, "place": place}, "stsb_dev", {})
        assert batch.tags == held


def test_names_fit_mlflow() -> None:
    assert trial_name("t0007", {"learning_rate": 3.14159e-5, "batch_size": 32}) == "t0007 lr=3.1e-05"
    assert trial_name("t0007", {}) == "t0007"
    assert schema.stored("mean(a_dev,b_dev)") == "mean_a_dev_b_dev"
    assert schema.best_key("mean(a_dev,b_dev)") == "best_mean_a_dev_b_dev"
    assert schema.stored("ndcg@10 of x/y") == "ndcg_10 of x/y"  # as sentence-transformers' evaluators call them


@pytest.mark.parametrize(
    ("option", "storage", "environ", "uri"),
    [
        (None, None, {}, "sqlite:///{here}/runs/mlflow.db"),
        (None, "other", {}, "sqlite:///{here}/other/mlflow.db"),
        (None, "/data/runs", {}, "sqlite:////data/runs/mlflow.db"),
        (None, "file:///data/runs", {}, "sqlite:////data/runs/mlflow.db"),
        (None, "s3://bucket/runs", {}, "sqlite:///{here}/runs/mlflow.db"),
        (None, "/data/runs", {"MLFLOW_TRACKING_URI": "http://host:5000"}, "http://host:5000"),
        (None, "/data/runs", {"MLFLOW_TRACKING_URI": "kept.db"}, "sqlite:///kept.db"),
        ("here.db", None, {"MLFLOW_TRACKING_URI": "http://host:5000"}, "sqlite:///here.db"),
    ],
)
def test_search_and_analysis_agree_where_the_store_is(
    option: str | None, storage: str | None, environ: dict[str, str], uri: str
) -> None:
    assert schema.tracking_uri(option, storage, environ) == uri.format(here=Path.cwd())


def test_trouble_of_a_database_is_its_own_message() -> None:
    """SQLAlchemy puts a hint to programmers before it, and MLflow its own error around it."""
    caught, wrapped = RuntimeError("(raised as a result of Query-invoked autoflush)"), RuntimeError("around it")
    caught.orig, wrapped.__cause__ = ValueError("NOT NULL constraint failed: rows.needed"), caught  # type: ignore[attr-defined]  # as SQLAlchemy's
    assert trouble(wrapped) == "MLflow's database: NOT NULL constraint failed: rows.needed"
    assert trouble(ValueError("first\nsecond")) == "first"
