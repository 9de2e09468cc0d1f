"""Studies on a real (private) Ray with trials by formula: run, kill, resume, pause, faults, confirm."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_trial import EVALUATIONS, RUNG, FakeTrial
from faulty_job import DEVICE, DISK, KILL, NAN, OK, OOM, RAISE, FaultyJob, mount, unmount
from harness import make_space
from orders import orders
from rich.console import Console

from analysis.reading.store import find_study, open_store
from analysis.tables import record as reproduction
from analysis.tables.study import read_study
from search import schema
from search.running import tuner
from search.running.result import StudyResult, closing_lines
from search.running.runner import Options, confirm_study, resume_study, run_study
from search.space import Space
from search.store.journal import exclusive, read
from search.store.layout import StudyFolder, UserError
from search.store.ledger import Ledger

pytestmark = pytest.mark.ray
HERE = Path(__file__).parent
CHILD = """
import sys
sys.path.insert(0, {here!r})
from fake_trial import FakeTrial
from rich.console import Console
from search.running.runner import Options, resume_study, run_study
from search.space import load_space
options = Options(trainable=FakeTrial, console=Console(quiet=True))
if sys.argv[1] == "run":
    result = run_study(load_space(sys.argv[2]), sys.argv[3], options=options)
else:
    result = resume_study(sys.argv[3], options=options)
sys.exit(result.exit_code)
"""


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One Ray for the studies of this process: they connect to what is initialised."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{HERE}:{HERE.parents[1]}"  # trial processes find the fake trial by it
    ray.init(
        "local",  # never one that happens to run on this machine
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 * 2**20,
    )
    yield
    ray.shutdown()
    os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)


@pytest.fixture(autouse=True)
def local_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def options() -> Options:
    return Options(trainable=FakeTrial, console=Console(quiet=True), handle_signals=False)


def faulty(fault: str, search: dict[str, Any] | None = None, above: float = 1e-4) -> Space:
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(fault=fault, above=above)}
    return make_space({"trials": 8, "concurrent": 1, "max_failed_share": 1.0, **(search or {})}, data=data)


def child(command: str, space: Space, root: Path) -> subprocess.Popen[bytes]:
    file = root / "given.yaml"
    file.write_text(space.to_yaml())
    with (root / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD.format(here=str(HERE)), command, str(file), str(root / "runs")],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def retries(result: StudyResult) -> Counter[str]:
    """How often each trial was started again."""
    return Counter(e["id"] for e in read(result.folder.journal) if e["e"] == "retry")


def wait_for(folder: StudyFolder, kind: str, count: int) -> None:
    """Until the journal has `count` events of a kind."""
    until = time.monotonic() + 90
    while sum(e["e"] == kind for e in read(folder.journal)) < count:
        assert time.monotonic() < until, f"no {count} events of kind {kind}"
        time.sleep(0.05)


def mlflow_runs(result: StudyResult) -> dict[str, Any]:
    """MLflow's runs of a study by trial id; the study's own under "study"."""
    from mlflow import MlflowClient

    client = MlflowClient(result.tracking_uri)
    experiment = client.get_experiment_by_name("fake")
    found = client.search_runs([experiment.experiment_id], f"tags.study_id = '{result.folder.study}'")
    by_id = {run.data.tags.get(schema.TRIAL_ID, "study"): run for run in found}
    assert len(by_id) == len(found), "a trial has two runs"
    return by_id


def check_agreement(result: StudyResult) -> None:
    """MLflow stores of every trial what the journal stores."""
    runs = mlflow_runs(result)
    assert runs.keys() - {"study"} == result.ledger.trials.keys()
    for trial_id, record in result.ledger.trials.items():
        run = runs[trial_id]
        assert run.data.tags[schema.STOP] == record.state
        assert run.data.tags[schema.PARENT] == runs["study"].info.run_id
        assert run.data.tags[schema.SEED] == str(record.trial.seed)
        assert run.data.params["learning_rate"] == str(record.trial.params["learning_rate"])
        assert run.info.status == ("FAILED" if record.failed else "FINISHED")
        if record.best is not None:
            assert run.data.metrics[f"best_{result.space.metric.name}"] == pytest.approx(record.best)


def test_a_study_runs_to_its_end_and_mlflow_records_it(tmp_path: Path) -> None:
    space = make_space({"trials": 8, "keep_best": 2}, pruner={"kind": "median"})
    result = run_study(space, str(tmp_path / "runs"), options=options())
    assert (result.status, result.exit_code, result.reason, result.trouble) == ("finished", 0, "", "")
    assert result.ledger.ended() == 8
    check_agreement(result)
    runs = mlflow_runs(result)
    assert runs["study"].info.status == "FINISHED"
    assert runs["t0000"].data.tags[schema.BASELINE] == "paper"
    from mlflow import MlflowClient

    client = MlflowClient(result.tracking_uri)
    history = client.get_metric_history(runs["t0000"].info.run_id, "stsb_dev")
    assert [m.step for m in history] == [100 * k for k in range(1, EVALUATIONS + 1)]
    for trial_id, run in runs.items():
        names = {a.path for a in client.list_artifacts(run.info.run_id)}
        assert names == ({"space.yaml", "environment.json"} if trial_id == "study" else {"similarities.npz"})
    kept = {p.parents[1].name for p in (tmp_path / "runs").glob("*/trials/*/best/weights.safetensors")}
    assert kept == set(result.saved)
    assert len(kept) == 2
    assert not list((tmp_path / "runs").glob("*/trials/*/last"))


@pytest.mark.slow  # half a minute; rounds of kills are in test_kill
def test_a_killed_driver_is_resumed_without_loss(tmp_path: Path) -> None:
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(sleep=0.05)}
    space = make_space({"trials": 10}, data=data)
    process = child("run", space, tmp_path)
    folder = StudyFolder(str(tmp_path / "runs"), "fake-1")
    wait_for(folder, "end", 2)
    wait_for(folder, "eval", 2 * EVALUATIONS + 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ledger = Ledger()
    for event in read(folder.journal):
        ledger.apply(event)
    assert ledger.open_trials
    result = resume_study(str(tmp_path / "runs"), options=options())
    assert result.status == "finished"
    assert sorted(result.ledger.trials) == [f"t{n:04d}" for n in range(10)]
    assert result.ledger.stops == {"completed": 10}
    undisturbed = run_study(make_space({"trials": 10, "concurrent": 1}), str(tmp_path / "runs"), options=options())
    assert {i: (s.trial.point, s.trial.seed, s.best) for i, s in result.ledger.trials.items()} == {
        i: (s.trial.point, s.trial.seed, s.best) for i, s in undisturbed.ledger.trials.items()
    }
    evaluations = [(e["id"], e["examples"]) for e in read(folder.journal) if e["e"] == "eval"]
    assert len(evaluations) == len(set(evaluations)) == 10 * EVALUATIONS
    check_agreement(result)


@pytest.mark.slow
def test_ctrl_c_pauses_and_resume_goes_on(tmp_path: Path) -> None:
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(sleep=0.1)}
    process = child("run", make_space({"trials": 6}, data=data), tmp_path)
    folder = StudyFolder(str(tmp_path / "runs"), "fake-1")
    wait_for(folder, "end", 1)
    with pytest.raises(UserError, match="study fake-1 is being run by another process"), exclusive(folder):
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, (tmp_path / "stderr").read_text()
    assert not (folder.local / "PAUSE").exists()
    events = list(read(folder.journal))
    assert events[-1]["e"] == "close"
    assert (events[-1]["status"], events[-1]["reason"]) == ("interrupted", "SIGINT")
    seen = {e["id"]: e["examples"] for e in events if e["e"] == "eval"}
    paused = [e["id"] for e in events if e["e"] == "pause" and e["id"] in seen]
    assert paused
    result = resume_study(str(tmp_path / "runs"), options=options())
    assert result.status == "finished"
    assert result.ledger.stops == {"completed": 6}
    resumed = {e["id"]: e["resumed_from"] for e in read(folder.journal) if e["e"] == "eval"}
    assert all(resumed[trial_id] == seen[trial_id] for trial_id in paused if seen[trial_id] < EVALUATIONS * 100)
    check_agreement(result)


@pytest.mark.parametrize(("fault", "kind"), [("nan", "nan"), ("oom", "oom"), ("raise", "error"), ("kill", "process")])
def test_a_faulty_trial_fails_alone(fault: str, kind: str, tmp_path: Path) -> None:
    result = run_study(
        faulty(fault, {"max_retries": 1, "trials": 4, "seed": 2}), str(tmp_path / "runs"), options=options()
    )
    assert result.status == "finished"
    failed = [s for s in result.ledger.trials.values() if s.failed]
    assert failed
    assert {s.state for s in failed} == {f"failed:{kind}"}
    assert all((s.trial.params["learning_rate"] >= 1e-4) == s.failed for s in result.ledger.trials.values())
    check_agreement(result)
    runs = mlflow_runs(result)
    assert all(runs[s.trial.id].data.tags[schema.REASON] == s.reason for s in failed)
    if fault == "raise":
        assert failed[0].reason == "RuntimeError: a bug in the trial"
    if fault == "kill":
        assert retries(result) == {s.trial.id: 1 for s in failed}


def test_a_killed_trial_process_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    result = run_study(faulty("kill_once", {"trials": 4, "seed": 2}), str(tmp_path / "runs"), options=options())
    assert result.ledger.stops == {"completed": 4}
    killed = [s for s in result.ledger.trials.values() if s.trial.params["learning_rate"] >= 1e-4]
    assert killed
    assert retries(result) == {s.trial.id: 1 for s in killed}
    events = [e for e in read(result.folder.journal) if e["e"] == "eval"]
    assert {e["resumed_from"] for e in events if e["id"] == killed[0].trial.id} == {0, 100}


@pytest.mark.slow  # two sessions of Ray
def test_the_last_trial_of_a_plan_starts_again_too(tmp_path: Path) -> None:
    """Nothing else is planned then, and Tune had been notified."""
    storage = str(tmp_path / "runs")
    run_study(faulty("kill_once", {"trials": 1}, above=0.0), storage, options=options())
    result = confirm_study(storage, top=1, seeds=1, options=options())
    (confirmed,) = (r for r in result.ledger.trials.values() if r.trial.stage == "confirm")
    assert (confirmed.state, retries(result)[confirmed.trial.id]) == ("completed", 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[bool]:
    """Whether disks can be mounted here; what the test mounted is gone afterwards."""
    probe = tmp_path / "probe"
    yield mount(probe)
    for folder in [probe, *(tmp_path / "runs").glob("*/trials/*")]:
        unmount(folder)


@pytest.mark.slow  # half a minute of trial processes that load torch
def test_faults_of_real_trials(tmp_path: Path, small_disk: bool) -> None:
    """Every kind in one study: each trial fails alone, with its kind and reason, and other trials are complete."""
    rates = [OK, RAISE, OOM, KILL, NAN, DEVICE, *([DISK] if small_disk else [])]
    space = make_space(
        {"sampler": "grid", "trials": None, "max_failed_share": 1.0, "max_retries": 1, "baseline": "none"},
        data={"train": "builtin", "dev": ["builtin"], "language": "en"},
        metric={"name": "builtin_dev"},
        preset="none",
        params={"learning_rate": {"grid": rates}, "batch_size": 16},
        train={"max_examples": 96, "eval_examples": 32, "checkpoint_seconds": 0.0},
    )
    plain = Options(trainable=FaultyJob, console=Console(quiet=True), handle_signals=False)
    result = run_study(space, str(tmp_path / "runs"), options=plain)
    assert (result.status, result.exit_code) == ("finished", 0)
    ended = {s.trial.params["learning_rate"]: s for s in result.ledger.trials.values()}
    assert {rate: s.state for rate, s in ended.items()} == {
        OK: "completed",
        RAISE: "failed:error",
        OOM: "failed:oom",
        KILL: "completed",
        NAN: "failed:nan",
        DEVICE: "completed",
        **({DISK: "failed:disk"} if small_disk else {}),
    }
    assert ended[RAISE].reason == "KeyError: 'a bug in the trial'"
    assert "can't allocate memory" in ended[OOM].reason
    assert ended[KILL].examples == 96
    again = retries(result)
    assert [again[ended[rate].trial.id] for rate in (OOM, KILL, DEVICE)] == [1, 1, 1]
    evaluations = [e for e in read(result.folder.journal) if e["e"] == "eval" and e["id"] == ended[KILL].trial.id]
    assert [e["resumed_from"] for e in evaluations] == [0, 32, 32]
    check_agreement(result)
    notes = "".join(closing_lines(result))
    assert "1 oom" in notes
    if small_disk:
        assert "No space left on device" in ended[DISK].reason
        assert "1 disk" in notes
        left = [p for p in Path(result.folder.trial(ended[DISK].trial.id)).rglob("*") if p.is_file()]
        assert left == []  # no half file fills what is left of the disk


def test_confirm_runs_the_best_and_the_baseline_on_fresh_seeds(tmp_path: Path) -> None:
    storage = str(tmp_path / "runs")
    searched = run_study(make_space({"trials": 8, "seed": 3, "concurrent": 1}), storage, options=options())
    result = confirm_study(storage, top=2, seeds=2, options=options())
    confirmed = {i: s for i, s in result.ledger.trials.items() if s.trial.stage == "confirm"}
    ranked = sorted(searched.ledger.points.values(), key=lambda p: -p["value"])
    numbers = {0, *[p["number"] for p in ranked if p["number"] != 0][:2]}
    assert confirmed.keys() == {f"c{n:04d}.{s}" for n in numbers for s in range(2)}
    assert {s.trial.seed for s in confirmed.values()} == {4, 5}  # the search's own seed was 3
    check_agreement(result)
    assert mlflow_runs(result)["c0000.0"].data.tags[schema.STAGE] == "confirm"
    again = confirm_study(storage, top=2, seeds=2, options=options())
    assert again.ledger.trials.keys() == result.ledger.trials.keys()


def test_resume_refuses_to_change_what_is_searched(tmp_path: Path) -> None:
    storage = str(tmp_path / "runs")
    run_study(make_space({"trials": 2, "concurrent": 1}), storage, options=options())
    with pytest.raises(UserError, match="--set: metric cannot change when a study is resumed"):
        resume_study(storage, overrides=["metric.mode=min"], options=options())
    result = resume_study(storage, overrides=["search.trials=4"], options=options())
    assert result.ledger.stops == {"completed": 4}


def test_unusable_storage_and_names_are_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"storage .*file: (cannot be written|expected a folder)"):
        run_study(make_space(), str(tmp_path / "file"), options=options())
    with pytest.raises(UserError, match="no study in"):
        resume_study(str(tmp_path / "nothing"), options=options())
    storage = str(tmp_path / "runs")
    run_study(make_space({"trials": 1, "concurrent": 1}), storage, name="mine", options=options())
    with pytest.raises(UserError, match="study mine exists"):
        run_study(make_space({"trials": 1, "concurrent": 1}), storage, name="mine", options=options())
    with pytest.raises(UserError, match=r"no study 'other' in .*; the newest there: mine"):
        resume_study(storage, "other", options=options())


def test_journal_is_json_lines_and_encoder_notes_are_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = "batches are padded: no packed attention"
    monkeypatch.setattr("search.running.runner.encoder_notes", lambda _: [note])
    result = run_study(make_space({"trials": 1, "concurrent": 1}), str(tmp_path / "runs"), options=options())
    kinds = [json.loads(line)["e"] for line in result.folder.journal.read_text().splitlines()]
    kinds = [kind for kind in kinds if kind != "files"]  # written where the data are files
    assert kinds == ["space", "session", "start", *["eval"] * EVALUATIONS, "end", "point", "close"]
    store = open_store(result.tracking_uri)
    assert reproduction.environment(read_study(store, find_study(store, result.folder.study)))["encoder"] == note


def test_study_gets_each_result_before_tune_trims_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guards the order inside Tune's controller: the scheduler judges a result that is still whole, the callbacks cut
    it down, then Tune keeps statistics of every number that is left."""
    kept: dict[str, set[str]] = {}

    class Spy(tuner.NoProgress):
        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:  # noqa: ARG002
            for trial in trials:
                kept.setdefault(trial.trial_id, set()).update(trial.metric_analysis)

    monkeypatch.setattr(tuner, "NoProgress", Spy)
    space = make_space({"trials": 12, "concurrent": 1}, pruner={"kind": "median"})
    result = run_study(space, str(tmp_path / "runs"), options=options())
    names = set().union(*kept.values())
    assert "training_iteration" in names, "Tune keeps no statistics any more: the trimmer can go"
    assert names <= tuner.RETAINED_FIELDS
    events: dict[str, list[dict[str, Any]]] = {}
    for event in read(result.folder.journal):
        if "id" in event:
            events.setdefault(event["id"], []).append(event)
    assert all(
        e["metrics"].keys() == {"stsb_dev", "loss"} for seen in events.values() for e in seen if e["e"] == "eval"
    )
    pruned = [seen for seen in events.values() if seen[-1]["stop"] == "pruned"]
    assert pruned
    for seen in pruned:  # stopped at the evaluation that was judged: none after it, and its process went no further
        assert [e["e"] for e in seen[-2:]] == ["eval", "end"]
        assert seen[-2]["examples"] == seen[-1]["examples"] < EVALUATIONS * RUNG
