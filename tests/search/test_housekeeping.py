"""`search logs`, `search stop` and `search delete`, on studies without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from harness import World, make_space

from search.cli.main import main
from search.running import remove
from search.schema import tracking_uri
from search.store.journal import exclusive
from search.store.layout import UserError
from search.store.ledger import Trial
from search.tracking.tracker import Tracker
from trainables.contract.trial import LOG


def nan_for_two(trial: Trial, k: int) -> str | None:
    return "nan" if trial.number == 2 and k == 2 else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return World(make_space({"trials": 4}), tmp_path / "runs", fault=nan_for_two)


def test_logs_shows_what_failed_and_what_was_printed(world: World) -> None:
    world.session()
    log = Path(world.folder.trial("t0001")) / LOG
    log.parent.mkdir(parents=True)
    log.write_text("something odd\n")
    said = CliRunner().invoke(main, ["logs", "fake-1", "--storage", str(world.root)])
    assert said.exit_code == 0, said.output
    assert "t0001 completed" in said.output
    assert "  something odd" in said.output
    assert "t0000" not in said.output
    one = CliRunner().invoke(main, ["logs", "fake-1", "t0000", "--storage", str(world.root)])
    assert "nothing was printed" in one.output
    wrong = CliRunner().invoke(main, ["logs", "fake-1", "t9999", "--storage", str(world.root)])
    assert wrong.exit_code == 2
    assert "no trial 't9999' in study fake-1; they are called t0000, t0001" in wrong.output


def test_logs_of_a_study_without_trials_names_none(world: World) -> None:
    world.session(interrupt_at=3)
    world.folder.journal.write_text("")
    wrong = CliRunner().invoke(main, ["logs", "fake-1", "t0000", "--storage", str(world.root)])
    assert (wrong.exit_code, wrong.output) == (2, "no trial 't0000' in study fake-1; none has started\n")


def test_the_next_command_after_a_stop_names_the_storage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.session(interrupt_at=3)
    monkeypatch.setattr("search.running.remove.check_driven_here", lambda *_: None)
    stopped = CliRunner().invoke(main, ["stop", "fake-1", "--storage", str(world.root)])
    assert f"`search resume fake-1 --storage {world.root}`" in stopped.output


def test_a_word_left_for_the_driver_pauses_the_study(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.study.driver.STOP_CHECK_S", 0.0)
    world.folder.ask_to_stop()
    driver = world.session()
    assert (driver.status, driver.reason) == ("interrupted", "SIGINT")
    assert world.session().status == "finished", "it is heard once"


def test_stop_request_ends_a_trial_at_its_next_evaluation(world: World) -> None:
    world.folder.ask_to_stop("t0001")
    ledger = world.session().ledger
    assert (ledger.trials["t0001"].state, ledger.trials["t0001"].examples) == ("pruned", 100)
    assert ledger.trials["t0000"].state == "completed"


def test_stop_refuses_what_does_not_run(world: World) -> None:
    world.session()
    with pytest.raises(UserError, match="study fake-1 is not running: finished"):
        remove.stop_study(str(world.root), None)
    world.folder.lock.touch()
    with exclusive(world.folder):
        assert remove.stop_study(str(world.root), "fake-1") == "fake-1"
    assert world.folder.asked_to_stop()


@pytest.mark.costly
def test_delete_prompts_and_removes_folder_runs_and_artifacts(world: World) -> None:
    from mlflow import MlflowClient

    world.session()
    uri = tracking_uri(storage=str(world.root))
    Tracker(uri, world.folder, world.space).catch_up(final=True)
    artifacts = list((world.root / "artifacts").rglob("space.yaml"))
    assert len(artifacts) == 1
    arguments = ["delete", "fake-1", "--storage", str(world.root)]
    kept = CliRunner().invoke(main, arguments, input="n\n")
    assert (kept.exit_code, world.folder.exists()) == (1, True)
    world.folder.lock.touch()
    with exclusive(world.folder):
        held = CliRunner().invoke(main, [*arguments, "--yes"])
        assert (held.exit_code, "is being run" in held.output) == (2, True)
    done = CliRunner().invoke(main, arguments, input="y\n")
    assert done.exit_code == 0, done.output
    assert "4 trials" in done.output
    assert "5 runs" in done.output
    assert not world.folder.local.exists()
    assert not artifacts[0].exists()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("fake")
    assert client.search_runs([experiment.experiment_id]) == []
    assert not [tag for tag in experiment.tags if "sharedViewState" in tag]


@pytest.mark.costly
@pytest.mark.parametrize("where", ["down", "damaged"])
def test_a_study_whose_runs_cannot_be_deleted_stays(world: World, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.session()
    if where == "down":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    else:
        (world.root / "mlflow.db").write_bytes(b"no database" * 1000)
    done = CliRunner().invoke(main, ["delete", "fake-1", "--storage", str(world.root), "--yes"])
    assert done.exit_code == 2
    assert done.stderr.startswith("study fake-1: its runs in MLflow cannot be deleted: ")
    assert done.stderr.endswith("; its folder was left\n")
    assert done.stderr.count("\n") == 1
    assert world.folder.exists()
