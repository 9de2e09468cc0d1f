"""The output of `search status`, `search list`, the live table and the last lines of a session."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import EVALUATIONS, Death, World, make_space
from rich.console import Console

from search.console.display import LiveTable, display_for
from search.console.status import listing, print_status, print_studies, study_status
from search.running.result import StudyResult, closing_lines
from search.running.session import SEARCH, Options, Session
from search.store.journal import exclusive, read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial, TrialRecord
from search.store.retention import CheckpointRetention
from search.tracking.tracker import Tracker
from search.wording import best_trials, duration, headline, seconds_left, trial_line


def nan_for_two(trial: Trial, k: int) -> str | None:
    return "nan" if trial.number == 2 and k == 2 else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("search.console.status.bring_up_to_date", lambda *_: "")  # the tracker has tests of its own
    return World(make_space({"trials": 6}), tmp_path, fault=nan_for_two)


def test_a_finished_study(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.session()
    status, _, ledger = study_status(world.folder)
    assert (status.state, status.points, status.of, status.failed) == ("finished", 6, 6, {"nan": 1})
    assert status.best == max(s.best or 0 for s in ledger.trials.values() if s.state == "completed")
    assert (status.running, status.paused, status.left_high_s) == (0, 0, None)
    print_status(str(world.root), None, "table")
    shown = capsys.readouterr().out
    for text in ("fake-1: finished", "6 of 6 points", "1 failed (1 nan)"):
        assert text in shown
    assert "search resume" not in shown


def test_a_crashed_study(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Death):
        world.session(die_at=30)
    status, _, ledger = study_status(world.folder)
    assert (status.state, status.paused) == ("crashed", len(ledger.open_trials))
    assert ledger.open_trials
    print_status(str(world.root), "fake-1", "table")
    shown = capsys.readouterr().out
    assert "go on: search resume fake-1" in shown
    assert " left" not in shown
    print_studies(str(world.root), "table")
    shown += (listed := capsys.readouterr().out)
    assert "crashed" in listed
    assert "running" not in shown


def test_a_running_study_has_a_rate_and_a_time_left(world: World) -> None:
    with pytest.raises(Death):
        world.session(die_at=42)
    world.folder.lock.touch()
    with exclusive(world.folder):
        status, space, ledger = study_status(world.folder, now=world.now)
    assert status.state == "running"
    assert status.running == len(ledger.open_trials)
    assert 0 < status.points < 6
    assert status.per_hour == pytest.approx(status.points / status.elapsed_s * 3600, rel=0.1)
    left = seconds_left(space, ledger, status.elapsed_s)
    assert left is not None
    assert (status.left_low_s, status.left_high_s) == (round(left[0], 1), round(left[1], 1))
    assert 0 <= left[0] < left[1] < 60


def test_a_trial_without_an_evaluation_has_no_best(world: World) -> None:
    point = {"learning_rate": 0.001}
    trial = Trial(id="t0000", number=0, repeat=0, seed=0, stage="search", point=point, params=point, point_id="")
    record = TrialRecord(trial=trial)
    assert trial_line(record, world.space) == "t0000 running  0 examples, 0s  learning_rate=0.001"


def test_further_seeds_count_in_the_time_left(tmp_path: Path) -> None:
    """All six points have been seen, none is complete: it is the seeds to come that take time."""
    space = make_space({"trials": 6, "repeats": 3})
    world = World(space, tmp_path, value=lambda trial, k: 0.1 * k)  # noqa: ARG005  # equal points: none is dominated
    ledger = world.session(interrupt_at=6 * (EVALUATIONS + 1) + 3).ledger
    assert not ledger.points
    assert headline(space, ledger, 0).startswith("fake: 6 of 6 points")
    ended = ledger.ended()
    assert 6 <= ended < 10
    left = seconds_left(space, ledger, 100.0)
    assert left is not None
    assert left[1] >= 0.6 * (18 - ended) * 0.99  # of 0.6 s each, one after the other


def test_a_trial_of_unknown_length_has_a_time_left(tmp_path: Path) -> None:
    """A script that does not say how much it will train."""
    ledger = World(make_space({"trials": 6}), tmp_path).session(interrupt_at=3).ledger
    for record in ledger.open_trials.values():
        record.state, record.planned = "running", 0
    assert any(record.examples for record in ledger.open_trials.values())
    assert seconds_left(make_space({"trials": 6}), ledger, 100.0) is not None


def test_all_formats_hold_the_same(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.session()
    status = study_status(world.folder)[0]
    as_json, as_yaml = json.loads(listing([status], "json")), yaml.safe_load(listing([status], "yaml"))
    assert as_json == as_yaml
    assert as_json[0]["failed"] == {"nan": 1}
    rows = list(csv.DictReader(io.StringIO(listing([status], "csv"))))
    assert rows[0]["study"] == "fake-1"
    assert rows[0]["failed"] == "nan=1"
    print_studies(str(world.root), "json")
    assert json.loads(capsys.readouterr().out) == as_json
    print_studies(str(world.root / "none"), "table")
    assert "no study in" in capsys.readouterr().out


def test_a_listed_study_is_one_line_at_any_width(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.session()
    monkeypatch.setenv("COLUMNS", "40")
    print_studies(str(world.root), "table")
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "study"
    assert re.match(r"fake-1 .* stsb_dev 7\d\.\d\d ", line)


def test_lines_for_a_log_file(world: World) -> None:
    out = io.StringIO()
    display = display_for(Console(file=out, width=300), world.space, world.session().ledger)
    for event in ({"e": "end", "id": "t0000"}, {"e": "end", "id": "t0002"}):
        display.observe({**event, "t": 0})
    display.observe({"e": "retry", "t": 0, "id": "t0001", "reason": "process: gone"})
    completed, failed, retried = out.getvalue().splitlines()
    assert re.fullmatch(r"t0000 completed  best 7.*learning_rate=3e-05 batch_size=64", completed)
    assert failed.startswith("t0002 failed:nan  nan happened")
    assert retried == "t0001: process: gone; started again from its last checkpoint"


def test_the_live_table_shows_running_and_best_trials(world: World) -> None:
    with pytest.raises(Death):
        world.session(die_at=42)
    ledger = study_status(world.folder)[2]
    out = io.StringIO()
    display = LiveTable(Console(file=out, width=160, force_terminal=True, color_system=None), world.space, ledger)
    display.note("tracker: down")
    display._console.print(display._draw())
    trials = [record.trial.id for record in [*ledger.open_trials.values(), *best_trials(ledger, 3)]]
    for text in (*trials, "tracker: down", "best stsb_dev 7"):
        assert text in out.getvalue()


def ended(world: World, driver: Any, **fields: Any) -> StudyResult:
    given = {"status": driver.status, "exit_code": 0, "reason": driver.reason, "ledger": driver.ledger}
    return StudyResult(space=world.space, folder=world.folder, **{**given, **fields})


def test_the_last_lines_print_the_next_commands(world: World) -> None:
    reasons = [("nan: the loss is nan", 2)]
    uri = "sqlite:////else where.db"
    driver = world.session(interrupt_at=9)
    result = ended(world, driver, saved=["t0000"], frequent_reasons=reasons, tracking_uri=uri, trouble="locked")
    text = "\n".join(closing_lines(result))
    for part in (
        "study fake-1 is paused: SIGINT",
        f"search resume fake-1 --storage {world.root}",
        "analysis best fake-1 --tracking-uri 'sqlite:////else where.db'",
        "2 x nan: the loss is nan",
        "(locked)",
    ):
        assert part in text


def test_a_finished_search_names_confirmation_and_answer(world: World) -> None:
    text = "\n".join(closing_lines(ended(world, world.session())))
    assert f"  confirm:      search confirm fake-1 --storage {world.root}\n  answer:       analysis best fake-1" in text
    assert "go on:" not in text


@pytest.mark.parametrize("budget", [{"budget": 3}, {"examples": 1800}, {"time": 2}, {"device_hours": 1 / 3600}])
def test_the_spent_budget_is_named(budget: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(make_space({"trials": None, **budget}), tmp_path)
    (line,) = [line for line in closing_lines(ended(world, world.session())) if "extend:" in line]
    assert line.endswith(option := " --set " + " ".join(f"search.{key}={2 * n:.12g}" for key, n in budget.items()))
    print_status(str(world.root), "fake-1", "table")
    assert option in capsys.readouterr().out


def test_the_headline_names_trials_with_reserved_budget(tmp_path: Path) -> None:
    world = World(make_space({"trials": None, "budget": 4, "baseline": "none"}, pruner={"kind": "asha"}), tmp_path)
    driver = world.session(concurrency=4)
    ledger, said = Ledger(), set()
    for event in read(world.folder.journal):
        ledger.apply(event)
        if ", the rest for " in (line := headline(world.space, ledger, 1)):
            said.add(line.split(", the rest for ")[1].split(",")[0])
    assert len(said) == 1
    assert driver.ledger.trials[said.pop()].state == "completed"
    assert ", the rest for " not in headline(world.space, driver.ledger, 0)


def test_best_trials_are_completed_ones_first(world: World) -> None:
    ledger = world.session().ledger
    shown = best_trials(ledger, 10)
    values = [s.best for s in shown if s.state == "completed"]
    assert values == sorted((v for v in values if v is not None), reverse=True)
    assert shown[-1].failed
    assert trial_line(shown[0], world.space).startswith(shown[0].trial.id)
    assert headline(world.space, ledger, 0).startswith("fake: 6 of 6 points, best stsb_dev 7")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (190, "3m10s"), (3725, "1h02m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_retention_keeps_the_best_and_nothing_resumable(tmp_path: Path) -> None:
    world = World(make_space({"trials": 5}), tmp_path, fault=nan_for_two)
    ledger = world.session().ledger
    folder = world.folder

    def write(record: TrialRecord, late: bool = False) -> None:
        trial = Path(folder.trial(record.trial.id))
        (trial / "best").mkdir(parents=True, exist_ok=True)
        (trial / "best" / "weights.safetensors").write_text("w")
        (trial / "best" / "similarities.npz").write_text("s")
        if not late:
            (trial / "last").mkdir()

    *early, late = ledger.trials.values()
    for record in early:
        write(record)
    retention = CheckpointRetention(folder, ledger, keep=2)
    assert retention.apply() == ""
    write(late, late=True)  # a pruned trial writes when its process gets the next one
    retention.apply(final=True)
    root = Path(folder.uri) / "trials"
    assert {p.parents[1].name for p in root.glob("*/best/weights.safetensors")} == set(retention.kept())
    assert len(retention.kept()) == 2
    assert len(list(root.glob("*/best/similarities.npz"))) == 5
    assert not list(root.glob("*/last"))
    ranked = sorted((s for s in ledger.trials.values() if not s.failed), key=lambda s: -(s.best or 0))
    assert retention.kept() == retention.saved() == [s.trial.id for s in ranked[:2]]
    (root / retention.kept()[0] / "best" / "weights.safetensors").unlink()  # of a script that saves no model
    assert retention.saved() == retention.kept()[1:]


def test_a_failed_deletion_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that still writes its checkpoint makes its folder fill again while it is emptied."""
    world = World(make_space({"trials": 4}), tmp_path)
    ledger = world.session().ledger
    trials = [Path(world.folder.trial(trial_id)) for trial_id in ledger.trials]
    for trial in trials:
        (trial / "last").mkdir(parents=True)
    delete = StudyFolder.delete

    def busy(folder: StudyFolder, path: str) -> bool:
        if path == str(trials[1] / "last"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return delete(folder, path)

    retention = CheckpointRetention(world.folder, ledger, keep=1)
    with monkeypatch.context() as patched:
        patched.setattr(StudyFolder, "delete", busy)
        assert "Directory not empty" in retention.apply(final=True)
    assert [trial for trial in trials if (trial / "last").exists()] == [trials[1]]
    assert retention.apply(final=True) == ""
    assert not (trials[1] / "last").exists()


def test_an_empty_ledger_has_a_headline() -> None:
    assert headline(make_space(), Ledger(), 0) == "fake: 0 of 12 points, 0s"
    assert StudyFolder("/a", "b").uri == "/a/b"


def test_a_confirmation_has_counts_of_its_own(world: World) -> None:
    ledger = world.session().ledger
    ledger.apply({"e": "session", "t": 10**13, "stage": "confirm", "top": 3, "seeds": 5})
    assert seconds_left(world.space, ledger, 100.0) is None
    shown = headline(world.space, ledger, 10**13)
    assert shown.startswith("fake: 6 of 6 points, confirming: 0 of at most 20 trials, best ")
    assert "left" not in shown
    ledger.apply({"e": "close", "t": 10**13 + 1, "status": "finished", "reason": ""})
    assert "confirming" not in headline(world.space, ledger, 0)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_terminal_breaks_between_words(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    with pytest.raises(Death):
        world.session(die_at=25)
    print_status(str(tmp_path), None, "table")
    whole = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    print_status(str(tmp_path), None, "table")
    shown = capsys.readouterr().out.splitlines()
    commands = [line for line in shown if "search resume" in line]
    assert [line for line in shown if len(line) > width] == [line for line in commands if len(line) > width]
    assert " ".join(" ".join(shown).split()) == " ".join(whole.split())
    assert len(shown) > len(whole.splitlines())
    assert commands == [line for line in whole.splitlines() if "search resume" in line], "what is copied stays whole"


def test_a_study_beside_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts a Ray of its own, which takes the whole machine for its own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    others = [StudyFolder(str(tmp_path), f"other-{n}") for n in (1, 2)]
    for folder in (*others, mine := StudyFolder(str(tmp_path), "fake-1")):
        folder.local.mkdir()
        folder.space.write_text(make_space().to_yaml(), encoding="utf-8")

    def said(**options: Any) -> str:
        out = io.StringIO()
        session = Session(make_space(), mine, Options(console=Console(file=out, width=200), **options), [SEARCH])
        session._introduce(Tracker("sqlite:///nowhere.db", mine, make_space()))
        return out.getvalue()

    with exclusive(mine):
        assert "other" not in said()
        with exclusive(others[1]):
            assert "other-2 of this storage is running, too; each search takes all CPUs" in said()
            assert "other" not in said(address="head:6379"), "a cluster's Ray knows of both"
