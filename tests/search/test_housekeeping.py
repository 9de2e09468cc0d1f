"""`search logs`, `search stop` and `search delete`, on studies without Ray."""

from __future__ import annotations

import subprocess
import sys
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
from trainables.contract.trial_files import LOG
from trainables.training.trial_log import FIRST, LAST, kept_log


def nan_for_two(trial: Trial, k: int) -> str | None:
    return "nan" if trial.number == 2 and k == 2 else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return World(make_space({"trials": 4}), tmp_path / "runs", fault=nan_for_two)


def test_what_a_trial_prints_and_warns_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "t0000"
    program = (
        "import sys, warnings\n"
        "from trainables.training.trial_log import kept_log\n"
        "with kept_log(sys.argv[1]):\n"
        "    print('printed')\n"
        "    print('progress 1 %\\rprogress 2 %', file=sys.stderr)\n"
        "    warnings.warn('a warning')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True)
    with kept_log(str(folder)):
        print("the next life")
    lines = (folder / LOG).read_text().splitlines()
    assert lines[:2] == ["printed", "progress 2 %"]
    assert any("UserWarning: a warning" in line for line in lines)
    assert lines[-1] == "the next life"


def test_a_log_is_bounded_and_says_what_it_left_out(tmp_path: Path) -> None:
    with kept_log(str(tmp_path)):
        for k in range(5_000):
            print(k)
    lines = (tmp_path / LOG).read_text().splitlines()
    assert len(lines) == FIRST + 1 + LAST
    assert lines[FIRST] == f"[{5_000 - FIRST - LAST} lines left out]"
    assert (lines[0], lines[-1]) == ("0", "4999")


def test_whatever_may_be_asked_of_a_stream_may_be_asked_in_a_trial(tmp_path: Path) -> None:
    program = (
        "import faulthandler, io, subprocess, sys\n"
        "from trainables.training.trial_log import kept_log\n"
        "with kept_log(sys.argv[1]):\n"
        "    faulthandler.enable()\n"
        "    sys.stdout.reconfigure(line_buffering=True)\n"
        "    subprocess.run(['echo', 'of a child'], stdout=sys.stdout, check=True)\n"
        "    for part in (b'gr\\xc3', b'\\xb6\\xc3\\x9fer\\n', memoryview(b'\\xff\\n')):\n"
        "        sys.stdout.buffer.write(part)\n"
        "    sys.stdout.buffer.flush()\n"
        "    print(sys.stdout.encoding, sys.stdout.errors, sys.stdout.isatty(), sys.stdout.mode)\n"
        "    assert not hasattr(sys.stdout, 'nothing')\n"
        "    sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\n"
        "    print('of its own', flush=True)\n"
        "    sys.stderr.close()\n"
        "    print('after all', file=sys.stderr)\n"
        "print('outside', file=sys.stderr)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, encoding="utf-8")
    kept = ["größer", "\\xff", "utf-8 backslashreplace False w", "of its own", "after all"]
    assert (tmp_path / LOG).read_text(encoding="utf-8").splitlines() == kept
    assert sorted(done.stderr.splitlines()) == sorted([*kept, "of a child", "outside"])


def test_half_an_emoji_costs_no_log(tmp_path: Path) -> None:
    for _ in range(2):
        with kept_log(str(tmp_path)):
            print("\ud83d lone")
            print("größer")
    assert (tmp_path / LOG).read_text(encoding="utf-8") == "\\ud83d lone\ngrößer\n" * 2


def test_a_silent_trial_has_no_log(tmp_path: Path) -> None:
    with kept_log(str(tmp_path)):
        pass
    assert not (tmp_path / LOG).exists()


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


def test_a_word_left_for_the_driver_pauses_the_study(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.study.driver.STOP_LOOK_S", 0.0)
    world.folder.ask_to_stop()
    driver = world.session()
    assert (driver.status, driver.reason) == ("interrupted", "SIGINT")
    assert world.session().status == "finished", "it is heard once"


def test_a_trial_that_is_asked_to_ends_at_its_next_evaluation(world: World) -> None:
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
def test_delete_asks_and_removes_folder_runs_and_artifacts(world: World) -> None:
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
