"""A session of a study without Ray: stored overrides, stop requests, exit codes, a display that fails."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import World, make_space, recorded
from rich.console import Console

from search.console.display import Phases, display_for
from search.running.result import StudyResult, closing_lines
from search.running.runner import resume_study, run_study
from search.running.session import SEARCH, Options, Session, _Observer
from search.space import Resources, load_space
from search.store.journal import fold, read
from search.store.layout import UserError
from search.store.ledger import Ledger
from search.store.retention import CheckpointRetention
from search.tracking.mlflow_store import NOT_OWNED

QUIET = Options(console=Console(quiet=True), handle_signals=False)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has less than a trial needs, and a tracker that costs nothing."""

    @contextlib.contextmanager
    def session(*_: Any) -> Iterator[None]:
        raise UserError("resources: a trial needs more")
        yield

    monkeypatch.setattr("search.running.session.ray_session", session)
    tracked = SimpleNamespace(start=lambda: None, finish=lambda _: True, trouble="")
    monkeypatch.setattr("search.running.session.Replayer", lambda *_: tracked)


def kept(world: World) -> tuple[int | None, bool]:
    """Points that the study's file specifies, and whether its journal records a change."""
    known = fold(world.folder.journal, Ledger()).space
    return load_space(world.folder.space).search.trials, known is not None


@pytest.mark.usefixtures("refusing")
def test_overrides_that_ray_refuses_are_not_stored(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    world.session(interrupt_at=9)
    before = kept(world)
    overrides = ["resources.cpus=64", "search.trials=9"]
    with pytest.raises(UserError, match="a trial needs more"):
        resume_study(str(tmp_path), overrides=overrides, options=QUIET)
    assert kept(world) == before == (6, False)
    assert load_space(world.folder.space).resources.cpus == 1


PAIRS = {"method": "pairs", "params": {"learning_rate": {"float": [1e-5, 1e-3]}, "false_negatives": "margin"}}
RELATIVE: dict[str, dict[str, Any]] = {
    "encoder": {"encoder": "./own"},
    "miner": {"data": {"train": "builtin", "dev": ["stsb"], "language": "en", "mine": {"encoder": "./own"}}},
    "guide": {"params": PAIRS["params"] | {"guide": "./own"}},
    "searched guide": {"params": PAIRS["params"] | {"guide": {"choice": [None, "./own"]}}},
}


@pytest.mark.parametrize("what", RELATIVE)
def test_relative_paths_are_resolved_where_the_study_began(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed session starts its trials in that folder."""
    where = []

    @contextlib.contextmanager
    def session(*_: Any) -> Iterator[None]:
        where.append(Path.cwd())
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("search.running.session.ray_session", session)
    monkeypatch.setattr("search.running.session.check_files", lambda *_: None)
    for folder in ("began/own", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    for folder, work in (
        ("began", lambda: run_study(make_space(**(PAIRS | RELATIVE[what])), options=QUIET)),
        ("elsewhere", lambda: resume_study("../began/runs", options=QUIET)),
    ):
        monkeypatch.chdir(tmp_path / folder)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert where == [tmp_path / "began"] * 2


@pytest.mark.usefixtures("refusing")
def test_overrides_are_stored_though_nothing_is_left_to_run(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    world.session()
    result = resume_study(str(tmp_path), overrides=["search.trials=4"], options=QUIET)
    assert (result.status, result.exit_code) == ("finished", 0)
    assert kept(world) == (4, True)


@pytest.mark.usefixtures("refusing")
def test_session_without_work_reports_the_reason(tmp_path: Path) -> None:
    World(make_space({"trials": None, "budget": 3}), tmp_path).session()
    result = resume_study(str(tmp_path), options=QUIET)
    assert result.reason == "the budget of 3 full-length trials is spent"
    assert any(line.endswith("search resume fake-1" + result.storage_option + " --set search.budget=6")
               for line in closing_lines(result))  # fmt: skip


@pytest.mark.parametrize("error", [UserError("no head"), RuntimeError("Version mismatch")], ids=["ours", "Ray's"])
def test_a_study_whose_ray_does_not_start_is_removed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("search.running.session.ray_session", fails)
    monkeypatch.setattr("search.running.session.check_files", lambda *_: None)
    with pytest.raises(type(error)):
        run_study(make_space(), str(tmp_path / "runs"), options=QUIET)
    assert not list((tmp_path / "runs").glob("fake*"))


def test_the_address_of_a_cluster_is_in_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("search.running.session.ray_session", stopped)
    monkeypatch.setattr("search.running.session.check_files", lambda *_: None)
    with pytest.raises(KeyboardInterrupt) as stop:
        run_study(make_space(), str(tmp_path), options=replace(QUIET, address="head:6379"))
    assert stop.value.__notes__ == [f"go on with `search resume fake-1 --storage {tmp_path} --address head:6379`"]
    result = replace(finished(tmp_path / "other"), status="interrupted", address="head:6379")
    assert any(line.endswith(f"{result.storage_option} --address head:6379") for line in closing_lines(result))
    monkeypatch.setenv("SEARCH_CLUSTER", "cluster.yaml")
    assert not any("--address" in line for line in closing_lines(result)), "the laptop's commands"


def finished(folder: Path) -> StudyResult:
    World(make_space({"trials": 6}), folder).session()
    return resume_study(str(folder), "fake-1", options=QUIET)


def test_answer_of_a_cluster_names_the_way_to_its_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(**changes: Any) -> str:
        lines = closing_lines(replace(result, **changes))
        return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("  answer:"))

    result = finished(tmp_path)
    assert answer().startswith("analysis best fake-1")
    monkeypatch.setenv("SEARCH_CLUSTER", "c.yaml")
    there = "search ui --cluster c.yaml, then analysis best fake-1 with the MLFLOW_TRACKING_URI that it prints"
    for uri in ("sqlite:////home/ubuntu/search/mlflow.db", "http://127.0.0.1:5000"):
        assert answer(tracking_uri=uri) == there
    assert answer(tracking_uri="https://a.example").startswith("analysis best fake-1"), "a server in reach"


@pytest.mark.parametrize("cluster", [False, True])
def test_ctrl_c_is_explained_by_who_gets_it(cluster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that follows a job detaches by it."""
    monkeypatch.delenv("SEARCH_CLUSTER", raising=False)
    if cluster:
        monkeypatch.setenv("SEARCH_CLUSTER", "c.yaml")
    World(make_space({"trials": 6}), tmp_path).session()
    shown = io.StringIO()
    resume_study(str(tmp_path), options=replace(QUIET, console=Console(file=shown, width=200)))
    assert ("Ctrl-C pauses the search" in shown.getvalue()) is not cluster
    assert "MLflow: " in shown.getvalue()


def test_nodes_of_a_notebooks_ray_must_reach_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []

    def unreached(storage: str) -> None:
        probed.append(storage)
        raise UserError("node a: storage: not the driver's folder")

    monkeypatch.setattr("search.running.session.connected", lambda: True)
    monkeypatch.setattr("search.running.session.check_storage", unreached)
    with pytest.raises(UserError, match="node a"):
        run_study(make_space(), str(tmp_path), options=QUIET)
    assert probed == [str(tmp_path)]
    assert not list(tmp_path.glob("fake*"))


def test_interrupted_start_stores_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    world = World(make_space({"trials": 6}), tmp_path)
    world.session(interrupt_at=9)
    monkeypatch.setattr("search.running.session.ray_session", stopped)
    with pytest.raises(KeyboardInterrupt):
        resume_study(str(tmp_path), overrides=["search.trials=9"], options=QUIET)
    assert kept(world) == (9, True)


def test_stop_request_counts_from_the_lock_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking data and taking a bucket may last a minute, and `search stop` counts the study as running."""
    world = World(make_space(), tmp_path)
    world.session(interrupt_at=3)
    found: list[bool] = []
    monkeypatch.setattr(Session, "_run", lambda session, *_: found.append(session.folder.asked_to_stop()))
    monkeypatch.setattr("search.running.session.check_files", lambda *_: None)
    world.folder.ask_to_stop()
    Session(world.space, world.folder, QUIET, [SEARCH]).run()
    monkeypatch.setattr("search.running.session.check_files", lambda *_: world.folder.ask_to_stop())
    Session(world.space, world.folder, QUIET, [SEARCH]).run()
    assert found == [False, True]


@pytest.mark.parametrize("moment", ["tick", "end"])
def test_signal_inside_a_tick_keeps_its_reason(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM requeues a job by its exit code."""
    world = World(make_space(), tmp_path)
    world.session(interrupt_at=3)
    session = Session(world.space, world.folder, replace(QUIET, handle_signals=True), [SEARCH])
    monkeypatch.setattr("search.running.session.check_files", lambda *_: None)
    monkeypatch.setattr("search.running.session.ray_session", no_ray)

    def run(driver: Any, *_: Any) -> None:
        def now() -> float:
            signal.raise_signal(signal.SIGTERM)
            return world.now

        with monkeypatch.context() as within:
            within.setattr(driver, "_clock", now)
            driver.tick()
        if moment == "tick":
            assert driver.next_trial() is None

    monkeypatch.setattr("search.running.tuner.run_tune", run)
    result = session.run()
    assert (result.status, result.reason, result.exit_code) == ("interrupted", "SIGTERM", 143)


@contextlib.contextmanager
def no_ray(*_: Any) -> Iterator[tuple[Any, Any]]:
    yield (lambda: 1), Resources(gpus=0.0)


@pytest.mark.parametrize(("fresh", "code"), [([None, None], 1), ([0.7, None], 0)])
def test_confirmation_without_a_completed_trial_fails(fresh: list[float | None], code: int, tmp_path: Path) -> None:
    world = World(make_space(), tmp_path)
    ledger = recorded(world.space, {0: [0.6], 1: [0.7]}, {1: fresh})
    session = Session(world.space, world.folder, QUIET, [SEARCH])
    assert session._exit_code(ledger) == 0, "nothing was to do"
    session.drivers = [SimpleNamespace(status="finished", stage="confirm", reason="")]  # type: ignore[list-item]
    assert session._exit_code(ledger) == code
    result = StudyResult(
        space=world.space, folder=world.folder, status="finished", exit_code=code, reason="", ledger=ledger
    )
    failed = ": no confirming trial came to its end" if code else ""
    assert closing_lines(result)[0] == f"study fake-1 is finished{failed}"


def test_a_silent_storage_is_printed_once_and_not_as_trouble_of_the_tracker(tmp_path: Path) -> None:
    world = World(make_space({"trials": 2}), tmp_path)
    ledger = world.session().ledger
    shown = io.StringIO()
    display = display_for(Console(file=shown, width=200), world.space, ledger, verbose=False)
    replayer: Any = SimpleNamespace(trouble="")
    hold: Any = SimpleNamespace(trouble="")
    observe = _Observer(display, lambda: None, replayer, Phases(Console(quiet=True)), hold)
    replayer.trouble = NOT_OWNED  # the bucket answers again, and the tracker has not tried since
    for event in read(world.folder.journal):
        observe(event)
        hold.trouble = "s3://bucket/search does not answer"
    assert shown.getvalue().count("storage s3://bucket/search does not answer; the search goes on") == 1
    assert "tracker" not in shown.getvalue()


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("terminal", [False, True])
def test_display_failure_is_no_trial_failure(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error raised inside Tune would end the trial."""
    monkeypatch.setattr("search.running.session.RETENTION_S", 0.0)
    applied: list[bool] = []
    monkeypatch.setattr(CheckpointRetention, "apply", lambda *_: applied.append(True))
    world = World(make_space({"trials": 2}), tmp_path)
    ledger = world.session().ledger
    console = Console(file=Full(), force_terminal=terminal)
    display = display_for(console, world.space, ledger, verbose=True)
    retention = CheckpointRetention(world.folder, ledger, 1)
    replayer: Any = SimpleNamespace(trouble="it is down")
    hold: Any = SimpleNamespace(trouble="")
    observe = _Observer(display, retention.apply, replayer, Phases(console), hold)
    with caplog.at_level(logging.WARNING):
        for event in read(world.folder.journal):
            observe(event)
    assert len(applied) == 2, "checkpoints go on to be deleted"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith("No space left on device")
