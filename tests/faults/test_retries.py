"""Which ends of a trial are due to the trial, and which to its process, its node or other trials."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest
import ray.exceptions
from driver_sessions import Study
from harness import World, make_space
from orders import orders

from search.running import tuner
from search.running.tuner import describe
from search.store.journal import Journal, read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial
from search.study.driver import MAX_NODE_LOSSES, Driver, Fault
from search.study.search_plan import SearchPlan
from search.wording import headline
from trainables.contract.trial import Evaluation, Outcome, TrialSpec
from trainables.on_ray.messages import DeviceFault
from trainables.on_ray.trainable import TrialJob, placement

DONE = Outcome("completed", 0.5, 100, 600, 1.0)


def test_out_of_memory_trials_run_once_more(tmp_path: Path) -> None:
    """Trials that had no memory beside other trials complete; the rest are reported to the sampler as failed, once."""
    met = set[str]()

    def fault(trial: Trial, k: int) -> str | None:
        if trial.params["batch_size"] == 64 or (trial.params["batch_size"] == 32 and trial.id not in met and k == 3):
            met.add(trial.id)
            return "oom"
        return None

    world = World(make_space({"trials": 12, "max_failed_share": 1.0}), tmp_path, fault=fault)
    driver = world.session(concurrency=3)
    assert driver.status == "finished"
    sizes = {r.trial.params["batch_size"]: r.state for r in driver.ledger.trials.values()}
    assert sizes == {16: "completed", 32: "completed", 64: "failed:oom"}
    again = [event["id"] for event in read(world.folder.journal) if event["e"] == "retry"]
    assert sorted(again) == sorted(i for i, r in driver.ledger.trials.items() if r.trial.params["batch_size"] > 16)


def driver_of(root: Path, gpus: float = 1.0, fits: bool = True) -> Driver:
    """A driver with room for three trials at once."""
    space = make_space({"trials": 12, "max_retries": 1}, resources={"gpus": gpus})
    folder = StudyFolder(str(root), "study")
    journal = Journal(folder.journal, Ledger())
    plan = SearchPlan(space, "study", journal.ledger, [], lambda kind, **fields: journal.append(kind, 1, **fields))
    return Driver(
        space, folder, journal, plan, stage="search", capacity=lambda: 3, fits=lambda _: fits, observe=lambda _: None
    )


def started(driver: Driver) -> Trial:
    trial = driver.next_trial()
    assert trial is not None
    return trial


def out_of_memory(driver: Driver, trial: Trial) -> None:
    driver.on_trial_end(trial.id, Outcome("failed:oom", None, 0, 0, 0.0, "CUDA out of memory"))


@pytest.mark.parametrize(("gpus", "reserved"), [(0.5, (1.0, 1.0)), (0.4, (1.0, 1.0)), (0.0, (0.0, 2.0))])
def test_out_of_memory_trial_gets_a_larger_share_beside_others(
    gpus: float, reserved: tuple[float, float], tmp_path: Path
) -> None:
    driver = driver_of(tmp_path, gpus)
    first, second, third = (started(driver) for _ in range(3))
    out_of_memory(driver, first)
    assert started(driver).id == first.id, "the other two go on"
    spec, other = driver.spec(first), driver.spec(second)
    assert ((spec.gpus, spec.cpus), (other.gpus, other.cpus)) == (reserved, (gpus, 1.0))
    driver.on_trial_end(second.id, DONE)
    assert driver.next_trial() is None, "its share is not given to smaller trials"
    driver.on_trial_end(third.id, DONE)
    started(driver)
    out_of_memory(driver, first)
    assert driver.ledger.trials[first.id].state == "failed:oom", "once"


@pytest.mark.parametrize(("gpus", "fits"), [(1.0, True), (0.5, False), (0.0, False)])
def test_out_of_memory_trial_is_not_run_again_unchanged(gpus: float, fits: bool, tmp_path: Path) -> None:
    """It has its GPU for itself, or no node has a larger share."""
    driver = driver_of(tmp_path, gpus, fits)
    first = started(driver)
    out_of_memory(driver, first)
    assert driver.ledger.trials[first.id].state == "failed:oom"


def test_older_journals_retry_out_of_memory_with_a_larger_share(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, 0.5)
    first = started(driver)
    driver.ledger.apply({"e": "retry", "t": 0, "id": first.id, "reason": "oom: no memory left", "alone": True})
    assert driver.spec(first).gpus == 1.0


def test_node_is_avoided_after_device_faults_of_two_trials(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    first, second = started(driver), started(driver)
    driver.on_failure(first.id, Fault("device", "CUDA error", node="a"))
    assert (driver.avoided(), driver.avoided(first), driver.avoided(second)) == (set(), {"a"}, set())
    assert started(driver).id == first.id
    driver.on_failure(first.id, Fault("device", "CUDA error", node="a"))
    assert driver.ledger.trials[first.id].state == "failed:device"
    assert driver.avoided() == set(), "one trial alone may be at fault itself"
    driver.on_failure(second.id, Fault("device", "CUDA error", node="a"))
    assert driver.avoided() == {"a"}


def test_lost_nodes_cost_no_retry(tmp_path: Path) -> None:
    """Unless a trial loses one after another without an evaluation between them: it may be what kills them."""
    driver = driver_of(tmp_path)
    lost, trial = Fault("node", "a node of the trial died"), started(driver)
    for k in range(1, 4):
        for _ in range(MAX_NODE_LOSSES):
            driver.on_failure(trial.id, lost)
            assert started(driver).id == trial.id
        values = {"value": 0.5, "metrics": {}, "best": 0.5, "best_at": 1, "seconds": 1.0}
        driver.on_evaluation(trial.id, Evaluation(rung=k * 100, examples=k * 100, **values))
    assert "30 restarts after lost nodes" in headline(driver.space, driver.ledger, 0)
    for _ in range(MAX_NODE_LOSSES + 1):  # plus one retry, as if its process had crashed
        driver.on_failure(trial.id, lost)
        assert started(driver).id == trial.id
    driver.on_failure(trial.id, lost)
    assert driver.ledger.trials[trial.id].state == "failed:process"


def test_doubtful_end_is_resolved_while_tune_waits_for_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else runs, Tune only requests trials again and again."""
    monkeypatch.setattr(tuner, "doubt", lambda _: 0.01)
    monkeypatch.setattr(tuner, "RESOLVE_S", 0.0)
    shared = tuner.TuneTrials(driver_of(tmp_path))
    searcher = tuner.StudySearcher(shared)
    first, *_ = [searcher.suggest(name) for name in "abc"]
    shared.errors["a"] = ray.exceptions.RayActorError()
    searcher.on_trial_complete("a", error=True)
    assert searcher.suggest("d") is None, "its process may be on a node that is lost"
    time.sleep(0.02)
    assert searcher.suggest("d")["spec"]["folder"] == first["spec"]["folder"]


def test_broken_devices_do_not_count_towards_the_failure_share(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    for n in range(6):
        trial = started(driver)
        driver.on_failure(trial.id, Fault("device", "CUDA error", node=str(n)))
        assert started(driver).id == trial.id
        driver.on_failure(trial.id, Fault("device", "CUDA error", node=str(n)))
    assert driver.ledger.stops["failed:device"] == 6
    assert driver.reason == ""


def test_trial_waiting_for_its_retry_is_paused_with_its_session(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    trial = started(driver)
    driver.interrupt("SIGTERM")
    driver.on_failure(trial.id, Fault("process", "gone"))
    driver.close_session()
    assert {r.state for r in driver.ledger.trials.values()} == {"paused"}


class Broken:
    """A host whose device is broken."""

    def begin(self, spec: TrialSpec) -> None:
        """Nothing starts."""

    def receive(self) -> dict[str, object]:
        return {"done": True, "stop": "failed:device", "reason": "CUDA error", "traceback": "text", "node": "a"}


def test_broken_device_replaces_the_process() -> None:
    job = TrialJob.__new__(TrialJob)
    job._host = Broken()  # type: ignore[assignment]
    job._begin(TrialSpec(method="simcse", encoder="e", data={}, metric="m", folder="f"), {})
    with pytest.raises(DeviceFault) as fault:
        job.step()
    again = pickle.loads(pickle.dumps(fault.value))
    assert describe(again) == Fault("device", "CUDA error", "text", "a")


def test_process_that_does_not_start_is_explained() -> None:
    """A cluster of somebody else whose nodes lack a package."""
    error = ModuleNotFoundError("No module named 'trainables'")
    raised = ray.exceptions.RayTaskError("TrialJob.__init__", f"traceback\nModuleNotFoundError: {error}", error)
    fault = describe(ray.exceptions.ActorDiedError(raised))
    why = "the trial's process does not start: ModuleNotFoundError: No module named 'trainables'"
    assert (fault.kind, fault.reason) == ("process", why)


def test_avoided_nodes_are_part_of_the_reservation() -> None:
    anywhere, elsewhere = placement(1, 1, 0), placement(1, 1, 0, ["b", "a"])
    assert anywhere != elsewhere, "else Tune would hand it a process that it keeps there"
    assert elsewhere == placement(1, 1, 0, ["a", "b"])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_broken_device_of_the_only_machine_pauses_the_study(tmp_path: Path) -> None:
    """Two trials meet it; none of them fails by it, and the study goes on when the device is mended."""
    (tmp_path / "broken").touch()
    columns = orders(fault="device", marker=str(tmp_path / "broken"), above=0)
    data = {"train": "builtin", "dev": ["builtin"], "language": "en", "columns": columns}
    study = Study(tmp_path, trials=8, data=data)
    code, text = study.command("run", str(study.file), "--name", study.name)
    assert code == 1, text
    assert "device: CUDA error: an illegal memory access was encountered" in text
    assert "search resume" in text
    assert study.ends() == {}
    assert "RUNNING" not in study.mlflow_states()
    (tmp_path / "broken").unlink()
    code, text = study.command("resume", study.name)
    assert code == 0, text
    assert set(study.ends().values()) == {"completed"}
    assert len(study.ends()) == 8
