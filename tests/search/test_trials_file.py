"""The file of ended trials against the plain read of one real store: half-finished, resumed, confirmed, edited."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import Death, World, make_space
from mlflow import MlflowClient
from mlflow_server import mlflow_server

from analysis.reading.store import Store
from analysis.reading.store import StoredRun
from analysis.reading.store import find_study, open_store
from analysis.tables.study import read_study
from search import schema
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker

pytestmark = pytest.mark.costly


class Served:
    """A study told to a server, and both ways to read it."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address
        self.client = MlflowClient(address)

    def tell(self, final: bool = True) -> Tracker:
        """What a new process does: everything that the journal has and the server has not."""
        self._second_metric()
        tracker = Tracker(self.address, self.world.folder, self.world.space)
        tracker.catch_up(final)
        return tracker

    def check(self) -> list[StoredRun]:
        """Read over HTTP; the same as the database itself, run for run."""
        plain = open_store(f"sqlite:///{self.world.root / 'mlflow.db'}")
        served = open_store(self.address)
        found, truth = (store.trials(find_study(store)) for store in (served, plain))
        assert [dataclasses.asdict(run) for run in found] == [dataclasses.asdict(run) for run in truth]
        return found

    def _second_metric(self) -> None:
        """The journal's evaluations get a second dev metric, which peaks elsewhere."""
        events = [json.loads(line) for line in self.world.folder.journal.read_text().splitlines()]
        for event in events:
            if event["e"] == "eval":
                event["metrics"]["sickr_dev"] = round(0.3 + (event["examples"] * 7 % 11) / 20, 2)
        text = "".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n" for event in events)
        self.world.folder.journal.write_text(text)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr("search.tracking.tracker.MANY", 4)
    monkeypatch.setattr("search.tracking.tracker.SOME", 2)
    space = make_space({"trials": 12}, pruner={"kind": "median"})
    world = World(space, tmp_path, fault=lambda run, k: "nan" if run.number == 2 and k == 2 else None)
    with mlflow_server(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts") as address:
        yield Served(world, address)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs the server had to list, per question."""
    counts: list[int] = []
    plain = Store._search

    def search(self: Store, experiments: Sequence[str], condition: str, *view: str) -> list[StoredRun]:
        found = plain(self, experiments, condition, *view)
        if schema.PARENT in condition:
            counts.append(len(found))
        return found

    monkeypatch.setattr(Store, "_search", search)
    return counts


def test_every_state_of_a_study_reads_as_without_the_file(served: Served, listed: list[int]) -> None:
    with pytest.raises(Death):
        served.world.life(die_at=110)
    served.tell(final=False)
    assert {run.status for run in served.check()} >= {"RUNNING", "FINISHED"}
    assert 0 < sum(listed) < len(served.check())  # the file was there already and spared most
    replay(served.tell())
    assert "KILLED" in {run.status for run in served.check()}
    served.world.life(interrupt_at=served.world.evaluations + 8)
    served.tell()
    served.check()
    (served.world.folder.local / schema.TRIALS_FILE).unlink()  # as on another machine
    served.world.life()
    served.tell()
    listed.clear()
    assert len(served.check()) == 12
    assert sum(listed) == 0
    served.world.life(confirm=(2, 3))
    served.tell()
    assert len(served.check()) > 15


def test_what_happens_to_ended_trials_is_seen(served: Served, listed: list[int]) -> None:
    served.world.life()
    tracker = served.tell()
    trials = served.check()
    assert sum(listed) == 0
    study = find_study(open_store(served.address))
    served.client.delete_run(trials[3].run_id)
    assert len(served.check()) == len(trials) - 1
    served.client.restore_run(trials[3].run_id)
    assert len(served.check()) == len(trials)
    served.client.set_tag(study.run_id, f"{schema.OPENING}1", "the reason")
    served.client.log_metric(trials[1].run_id, "stsb_test", 0.5)
    served.client.set_tag(trials[1].run_id, f"{schema.OPENING}1", "the time")
    assert served.check()[1].metrics["stsb_test"] == 0.5
    # A clock set back by an hour: the end is told as one that readers notice.
    journal = served.world.folder.journal
    last = [json.loads(line) for line in journal.read_text().splitlines() if '"e":"start"' in line][-1]
    late: list[dict[str, Any]] = [
        {**last, "t": last["t"] - 3_600_000, "id": "t0099"},
        {"e": "end", "t": last["t"] - 3_599_000, "id": "t0099", "stop": "failed:oom", "best": None, "best_at": 0,
         "examples": 0, "seconds": 1.0, "reason": "memory", "traceback": ""},
    ]  # fmt: skip
    with journal.open("a") as f:
        f.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in late)
    tracker.catch_up()
    assert len(served.check()) == len(trials) + 1


def test_a_damaged_file_is_not_needed(served: Served) -> None:
    served.world.life()
    served.tell()
    file = next((served.world.root / "artifacts").rglob(schema.TRIALS_FILE))
    file.write_bytes(file.read_bytes()[:-40])
    assert len(served.check()) == 12
    file.unlink()
    assert len(served.check()) == 12


def test_a_store_that_was_emptied_gets_a_new_file(served: Served) -> None:
    served.world.life()
    served.tell()
    study = find_study(open_store(served.address))
    for run in (*served.check(), study):
        served.client.delete_run(run.run_id)
    served.tell()
    again = served.check()
    assert len(again) == 12
    assert again[0].tags[schema.PARENT] != study.run_id


def test_all_dev_metrics_of_the_best_evaluation_stand_in_the_run(served: Served) -> None:
    """Whether batches, or the lives of two trackers, come between an evaluation and the end."""
    with pytest.raises(Death):
        served.world.life(die_at=60)
    served.tell(final=False)
    served.world.life()
    served.tell()
    store = open_store(served.address)
    trials = served.check()
    history = store.history([t.run_id for t in trials], ["sickr_dev"])
    ended = [t for t in trials if t.metrics.get(schema.BEST_AT_EXAMPLES)]
    assert sum("best_sickr_dev" in trial.metrics for trial in ended) >= 11
    for trial in ended:
        at_best = [v for run, _, step, v in history if (run, step) == (trial.run_id, trial.metrics["best_at_examples"])]
        assert [trial.metrics[name] for name in ("best_sickr_dev",) if name in trial.metrics] == at_best
    study = read_study(store, find_study(store), "max(mean(stsb_dev,sickr_dev))")
    for value, run in zip(study.trials["value"], study.stored_trials, strict=True):
        if "best_sickr_dev" in run.metrics:
            assert value == pytest.approx((run.metrics["best_stsb_dev"] + run.metrics["best_sickr_dev"]) / 2)
