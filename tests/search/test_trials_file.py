"""The file of ended trials against the plain read of one real store: half-finished, resumed, confirmed, edited."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Death, World, make_space
from mlflow import MlflowClient
from mlflow_server import mlflow_server

from analysis.reading.store import StoredRun, find_study, open_store
from analysis.tables.study import read_study
from search import schema
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker

pytestmark = pytest.mark.costly


class Tracked:
    """A study written to a store, and both ways to read it."""

    def __init__(self, world: World, uri: str) -> None:
        self.world, self.uri = world, uri
        self.client = MlflowClient(uri)

    def write(self, final: bool = True) -> Tracker:
        """What a new process does: everything that the journal has and the store has not."""
        self._second_metric()
        tracker = Tracker(self.uri, self.world.folder, self.world.space)
        tracker.catch_up(final)
        return tracker

    def check(self) -> list[StoredRun]:
        """Read with the file; the same as without it, run for run."""
        store = open_store(self.uri)
        study = find_study(store)
        without = {tag: text for tag, text in study.tags.items() if tag != schema.TRIALS_TAG}
        found, truth = store.trials(study), store.trials(dataclasses.replace(study, tags=without))
        assert [dataclasses.replace(run, at_best={}) for run in found] == truth
        return found

    def _second_metric(self) -> None:
        """The journal's evaluations get a second dev metric, which peaks elsewhere."""
        events = [json.loads(line) for line in self.world.folder.journal.read_text().splitlines()]
        for event in events:
            if event["e"] == "eval":
                event["metrics"]["sickr_dev"] = round(0.3 + (event["examples"] * 7 % 11) / 20, 2)
        text = "".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n" for event in events)
        self.world.folder.journal.write_text(text)


@pytest.fixture(params=["file", "server"])
def tracked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracked]:
    monkeypatch.setattr("search.tracking.tracker.MANY", 4)
    monkeypatch.setattr("search.tracking.tracker.SOME", 2)
    space = make_space({"trials": 12}, pruner={"kind": "median"})
    world = World(space, tmp_path, fault=lambda run, k: "nan" if run.number == 2 and k == 2 else None)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    if request.param == "file":
        yield Tracked(world, uri)
    else:
        with mlflow_server(uri, tmp_path / "artifacts") as address:
            yield Tracked(world, address)


def test_every_state_of_a_study_reads_as_without_the_file(tracked: Tracked) -> None:
    with pytest.raises(Death):
        tracked.world.session(die_at=50)
    tracked.write(final=False)
    assert {run.status for run in tracked.check()} >= {"RUNNING", "FINISHED"}
    replay(tracked.write())
    assert "KILLED" in {run.status for run in tracked.check()}
    tracked.world.session(interrupt_at=tracked.world.evaluations + 8)
    tracked.write()
    tracked.check()
    (tracked.world.folder.local / schema.TRIALS_FILE).unlink()  # as on another machine
    tracked.world.session()
    tracked.write()
    assert len(tracked.check()) == 12
    tracked.world.session(confirm=(2, 3))
    tracked.write()
    assert len(tracked.check()) > 15


def test_readers_notice_changes_of_ended_trials(tracked: Tracked) -> None:
    tracked.world.session()
    tracker = tracked.write()
    trials = tracked.check()
    study = find_study(open_store(tracked.uri))
    tracked.client.delete_run(trials[3].run_id)
    assert len(tracked.check()) == len(trials) - 1
    tracked.client.restore_run(trials[3].run_id)
    assert len(tracked.check()) == len(trials)
    tracked.client.set_tag(study.run_id, f"{schema.OPENING}1", "the reason")
    tracked.client.log_metric(trials[1].run_id, "stsb_test", 0.5)
    tracked.client.set_tag(trials[1].run_id, f"{schema.OPENING}1", "the time")
    assert tracked.check()[1].metrics["stsb_test"] == 0.5
    # A clock set back by an hour: the end is written as one that readers notice.
    journal = tracked.world.folder.journal
    last = [json.loads(line) for line in journal.read_text().splitlines() if '"e":"start"' in line][-1]
    late: list[dict[str, Any]] = [
        {**last, "t": last["t"] - 3_600_000, "id": "t0099"},
        {"e": "end", "t": last["t"] - 3_599_000, "id": "t0099", "stop": "failed:oom", "best": None, "best_at": 0,
         "examples": 0, "seconds": 1.0, "reason": "memory", "traceback": ""},
    ]  # fmt: skip
    with journal.open("a") as f:
        f.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in late)
    tracker.catch_up()
    assert len(tracked.check()) == len(trials) + 1


def test_of_a_finished_study_no_trial_is_listed(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    tracked.world.session()
    tracked.write()
    store = open_store(tracked.uri)
    study, found = find_study(store), []
    plain = store._search
    monkeypatch.setattr(store, "_search", lambda *args: found.append(plain(*args)) or found[-1])
    assert len(store.trials(study)) == 12
    assert found == [[]] * 3  # running, ended since, deleted


def test_a_damaged_or_lost_file_is_not_needed(tracked: Tracked) -> None:
    tracked.world.session()
    tracked.write()
    file = next((tracked.world.root / "artifacts").rglob(schema.TRIALS_FILE))
    file.write_bytes(file.read_bytes()[:-40])
    assert len(tracked.check()) == 12
    file.unlink()
    assert len(tracked.check()) == 12


def test_a_store_that_was_emptied_gets_a_new_file(tracked: Tracked) -> None:
    tracked.world.session()
    tracked.write()
    study = find_study(open_store(tracked.uri))
    for run in (*tracked.check(), study):
        tracked.client.delete_run(run.run_id)
    tracked.write()
    again = tracked.check()
    assert len(again) == 12
    assert again[0].tags[schema.PARENT] != study.run_id


def test_metrics_of_the_best_evaluation_are_in_run_and_file(tracked: Tracked) -> None:
    """Whether batches, or the sessions of two trackers, come between an evaluation and the end."""
    with pytest.raises(Death):
        tracked.world.session(die_at=30)
    tracked.write(final=False)
    tracked.world.session()
    tracked.write()
    store = open_store(tracked.uri)
    trials = tracked.check()
    rows = store.history([t.run_id for t in trials], ["sickr_dev", "loss"])
    ended = [t for t in trials if t.metrics.get(schema.BEST_AT_EXAMPLES)]
    assert sum("best_sickr_dev" in trial.metrics for trial in ended) >= 11
    assert sum("loss" in trial.at_best for trial in ended) >= 11
    for trial in ended:
        at = trial.metrics["best_at_examples"]
        truth = {metric: value for run, metric, step, value in rows if (run, step) == (trial.run_id, at)}
        if "best_sickr_dev" in trial.metrics:
            assert (trial.metrics["best_sickr_dev"], trial.at_best["loss"]) == (truth["sickr_dev"], truth["loss"])
        assert store.at_best([trial], ["sickr_dev", "loss"]).get(trial.run_id, {}) == truth
    study = read_study(store, find_study(store), "max(mean(stsb_dev,sickr_dev))")
    for value, run in zip(study.trials["value"], study.stored_trials, strict=True):
        if "best_sickr_dev" in run.metrics:
            assert value == pytest.approx((run.metrics["best_stsb_dev"] + run.metrics["best_sickr_dev"]) / 2)
