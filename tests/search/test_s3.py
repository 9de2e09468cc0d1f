"""A storage behind s3://, spoken to over HTTP as AWS's: an S3 server (moto) on this machine's loopback."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import s3fs
from botocore.exceptions import EndpointConnectionError
from harness import World, make_space

from search.console.status import print_status
from search.running.remove import deletable, stop_study
from search.store.bucket import fetch, held, pull
from search.store.housekeeper import Housekeeper
from search.store.journal import Journal, fold
from search.store.layout import StudyFolder, UserError, find_study, new_study, studies
from search.store.ledger import Ledger
from search.store.retention import CheckpointRetention
from search.study.driver import Driver
from search.study.search_plan import SearchPlan
from trainables.on_ray.messages import pause_requested

STORAGE = "s3://bucket/search"


def machine(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """From now on a machine with working copies of its own."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(home / name))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats every fifth of a second."""
    for name, seconds in {"LOST_S": 1.5, "TRUST_S": 0.6, "POLL_S": 0.1, "BEAT_S": 0.2, "PUSH_S": 0.05}.items():
        monkeypatch.setattr(f"search.store.bucket.{name}", seconds)


def study(lines: int = 1) -> StudyFolder:
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    grow(folder, lines)
    return folder


def grow(folder: StudyFolder, lines: int = 1) -> None:
    """Lines that no other machine writes."""
    with folder.journal.open("a") as journal:
        journal.writelines(f'{{"e":"eval","t":{time.time_ns()}}}\n' for _ in range(lines))


def objects(bucket: Any, prefix: str = "search/") -> dict[str, str]:
    listed = bucket.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return {o["Key"]: o["ETag"] for o in listed}


def fetched() -> bytes | None:
    return fetch(s3fs.S3FileSystem(), "bucket/search/mine-1")


@pytest.mark.usefixtures("bucket")
def test_a_study_moves_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study()
    with held(folder, str) as hold:
        hold.push()
        grow(folder, 2)
        hold.push()
    here = folder.journal.read_bytes()
    machine(monkeypatch, tmp_path / "second")
    assert [f.study for f in studies(STORAGE)] == ["mine-1"]
    there = find_study(STORAGE, None)
    assert not there.journal.exists()
    pull(there)
    assert there.journal.read_bytes() == here
    assert there.space.read_text() == "name: mine\n"
    assert new_study(STORAGE, "mine").study == "mine-2", "the name is taken, though not on this machine"


def test_segments_are_written_once_and_merged(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.store.bucket.MERGED", 8)
    written: list[str] = []
    pipe = s3fs.S3FileSystem.pipe_file

    def recorded(fs: Any, path: str, value: bytes, **how: Any) -> Any:
        assert how == {"mode": "create"}
        pipe(fs, path, value, **how)  # raises where there is one
        written.append(path)

    monkeypatch.setattr(s3fs.S3FileSystem, "pipe_file", recorded)
    folder = study()
    for _ in range(2):
        with held(folder, str) as hold:
            for _ in range(30):
                grow(folder, 10)
                hold.push()
    assert len(set(written)) == len(written) > 60
    assert len(objects(bucket, "search/mine-1/journal/")) <= 1 + 30 // 8 + 8
    assert fetched() == folder.journal.read_bytes()


@pytest.mark.usefixtures("bucket")
def test_a_reader_may_meet_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge between a reader's listing and its reading removes segments that were listed."""
    folder = study()
    with held(folder, str) as hold:
        for _ in range(3):
            grow(folder)
            hold.push()
        read, merges = hold._filesystem.cat_file, [True]

        def merged(*given: Any, **more: Any) -> Any:
            if merges:
                merges.clear()
                hold._merge(1, 4, folder.journal.read_bytes())
            return read(*given, **more)

        monkeypatch.setattr(hold._filesystem, "cat_file", merged)
        assert fetch(hold._filesystem, hold._root) == folder.journal.read_bytes()
        assert not merges


@pytest.mark.usefixtures("bucket", "quick")
def test_two_machines_never_drive_one_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    lost: list[str] = []
    folder = study()
    with held(folder, told.append, lost.append) as first:
        first.push()
        first.start()
        machine(monkeypatch, tmp_path / "second")
        with pytest.raises(UserError, match=r"is being run by .* \(process \d+\)"), held(folder, told.append):
            pass
        assert "for a heartbeat" in told[0]
        first.stop()  # the first machine hangs
        first._thread.join()
        with held(folder, told.append) as second:
            assert folder.journal.stat().st_size > 0, "brought up to date"
            assert second.owned()
            grow(folder)
            second.push()
            there = fetched()
            machine(monkeypatch, tmp_path / "first")  # and comes back
            assert not first.owned()
            grow(folder, 5)
            first.push()
            assert lost == ["another driver has taken study mine-1"]
            assert fetched() == there
            machine(monkeypatch, tmp_path / "second")
    machine(monkeypatch, tmp_path / "first")
    told.clear()
    with held(folder, told.append):  # given back: nothing to wait for
        assert told == []
        assert folder.journal.read_bytes() == there
        assert folder.journal.with_name("tracking.jsonl.unsent-1").exists()


@pytest.mark.usefixtures("bucket", "quick")
def test_a_lost_driver_s_free_number_is_no_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new driver has merged the segment away that would have stopped the old one."""
    folder, lost = study(), list[str]()
    with held(folder, str, lost.append) as first:
        first.push()
        machine(monkeypatch, tmp_path / "second")
        with held(folder, str) as second:
            for _ in range(3):
                grow(folder)
                second.push()
            second._merge(1, second._number, folder.journal.read_bytes())
            there = fetched()
            machine(monkeypatch, tmp_path / "first")
            grow(folder)
            first.push()
            assert lost
            assert fetched() == there


def test_lost_study_stops_deletions_and_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    world.session()
    done: list[str] = []
    monkeypatch.setattr(StudyFolder, "delete", lambda _, path: bool(done.append(path)))
    monkeypatch.setattr(StudyFolder, "mark_trial", lambda _, trial, pausing: done.append(f"{trial} {pausing}"))
    retention = CheckpointRetention(world.folder, fold(world.folder.journal, Ledger()), 0, owned=lambda: len(done) < 2)
    assert "not this process's" in retention.apply(final=True)
    keeper = Housekeeper(world.folder, lambda: len(done) < 3)
    keeper.mark("t0000", True)
    keeper.mark("t0001", True)
    assert len(done) == 3


@pytest.mark.parametrize("moment", ["budget", "tick"])
def test_a_lost_study_never_counts_as_finished(moment: str, tmp_path: Path) -> None:
    """The bucket's thread reports the loss in the middle of a budget check."""
    space = make_space({"trials": 4, "time": 1.0 if moment == "budget" else None})
    journal = Journal(tmp_path / "tracking.jsonl", Ledger())
    plan = SearchPlan(space, "mine", journal.ledger, [], journal.append)
    journal.append("session", 1, stage="search")
    seconds = iter([1.0] if moment == "budget" else [])

    def clock() -> float:
        driver.lose("another driver has taken study mine")
        return next(seconds, 1.0) * 1e6

    driver = Driver(
        space, StudyFolder(str(tmp_path), "mine"), journal, plan,
        stage="search", capacity=lambda: 1, observe=lambda _: None, clock=clock,
    )  # fmt: skip
    driver.tick()
    driver.close_session()
    assert (driver.status, driver.reason) == ("failed", "another driver has taken study mine")
    assert not driver.owns()


@pytest.mark.usefixtures("bucket")
def test_a_creation_that_seemed_to_fail_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had made the segment when its answer got lost; the next attempt has more events and finds it there."""
    folder = study()
    with held(folder, str) as hold:
        pipe = hold._filesystem.pipe_file

        def unanswered(*given: Any, **how: Any) -> Any:
            pipe(*given, **how)
            raise TimeoutError

        monkeypatch.setattr(hold._filesystem, "pipe_file", unanswered)
        with pytest.raises(TimeoutError):
            hold.push()
        monkeypatch.setattr(hold._filesystem, "pipe_file", pipe)
        grow(folder)
        hold.push()
        grow(folder)
        hold.push()
        assert not hold.is_lost
    assert fetched() == folder.journal.read_bytes()


@pytest.mark.usefixtures("bucket")
def test_a_store_that_overwrites_is_for_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, told = s3fs.S3FileSystem.pipe_file, list[str]()
    monkeypatch.setattr(s3fs.S3FileSystem, "pipe_file", lambda fs, path, value, **_: pipe(fs, path, value))
    folder = study(3)
    with held(folder, told.append) as hold:
        hold.push()
    assert "from one machine only" in told[0]
    assert fetched() == folder.journal.read_bytes()


@pytest.mark.usefixtures("bucket", "quick")
def test_a_store_in_trouble_is_not_a_lost_study(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study()
    with held(folder, str) as hold:
        pipe = hold._filesystem.pipe_file
        monkeypatch.setattr(hold._filesystem, "pipe_file", lambda *_, **__: 1 / 0)
        hold.start()
        time.sleep(1.0)
        assert hold.trouble == "s3://bucket/search: division by zero"
        assert not hold.owned(), "not known"
        assert not hold.is_lost
        monkeypatch.setattr(hold._filesystem, "pipe_file", pipe)
        until = time.monotonic() + 20
        while not hold.owned():  # its thread reaches the bucket again
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.usefixtures("bucket", "quick")
def test_a_push_that_hangs_is_trouble_before_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of S3 tries for a minute before it raises."""
    folder, over = study(), threading.Event()
    with held(folder, str) as hold:
        pipe = hold._filesystem.pipe_file

        def hangs(*given: Any, **more: Any) -> Any:
            over.wait(20)
            return pipe(*given, **more)

        monkeypatch.setattr(hold._filesystem, "pipe_file", hangs)
        hold.start()
        assert hold.trouble == ""
        time.sleep(1.0)
        assert hold.trouble == "s3://bucket/search does not answer"
        over.set()
        until = time.monotonic() + 20
        while hold.trouble:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.usefixtures("bucket", "quick")
def test_trials_wait_after_a_silence_until_the_bucket_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine that slept: another may have the study. A bucket that stays down holds up no trial for long."""
    monkeypatch.setattr("search.store.bucket.DOUBT_S", 0.5)
    folder = study()
    with held(folder, str) as hold:
        keeper = Housekeeper(folder, hold.owned, hold.unsure)
        assert not keeper.waiting("t0000")
        pipe = hold._filesystem.pipe_file
        monkeypatch.setattr(hold._filesystem, "pipe_file", lambda *_, **__: 1 / 0)
        time.sleep(0.8)  # no thread runs, as in a process that is stopped
        assert keeper.waiting("t0000")
        assert keeper.waiting("t0000"), "also after an attempt that failed"
        time.sleep(0.6)
        assert not keeper.waiting("t0000")
        monkeypatch.setattr(hold._filesystem, "pipe_file", pipe)
        time.sleep(0.7)
        assert hold.owned()
        assert not keeper.waiting("t0000")


@pytest.mark.usefixtures("bucket")
def test_markers_wait_for_the_bucket_and_the_loop_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, left, plain = StudyFolder(STORAGE, "mine"), [3], StudyFolder.mark_pause

    def away(*given: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise EndpointConnectionError(endpoint_url="http://bucket")
        plain(*given)

    monkeypatch.setattr(StudyFolder, "mark_pause", away)
    journal = Journal(tmp_path / "tracking.jsonl", Ledger())
    plan = SearchPlan(make_space(), "mine", journal.ledger, [], journal.append)
    driver = Driver(make_space(), folder, journal, plan, stage="search", capacity=lambda: 1, observe=lambda _: None)
    trial = driver.next_trial()
    assert trial is not None
    driver.interrupt("SIGTERM")
    assert (driver.status, driver.reason) == ("interrupted", "SIGTERM")
    assert driver.waits(trial.id), "else it would not save its state"
    until = time.monotonic() + 20
    while driver.waits(trial.id):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert pause_requested(folder.uri)


def test_other_commands_report_who_holds_a_study(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From its first moment, however long its journal gets no event, until some time after its last heartbeat."""
    monkeypatch.setattr("search.console.status.bring_up_to_date", lambda *_: "")
    folder = new_study(STORAGE, "mine")
    folder.space.write_text(make_space().to_yaml())
    folder.journal.write_text('{"e": "session","t":1,"stage":"search"}\n')
    with held(folder, str) as hold:
        hold.push()
        machine(monkeypatch, tmp_path / "second")
        print_status(STORAGE, "mine-1", "table")
        shown = capsys.readouterr().out
        assert shown.startswith("mine-1: running\n")
        assert re.search(r"held by \S+ \(process \d+\), last heartbeat \d+s ago\n", shown)
        with pytest.raises(UserError, match=r"is not running on this machine: held by .* \(process \d+\)"):
            stop_study(STORAGE, "mine-1")
        with pytest.raises(UserError, match="is being run by"):
            deletable(STORAGE, "mine-1")
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + 1000)
        print_status(STORAGE, "mine-1", "table")
        shown = capsys.readouterr().out
        assert shown.startswith("mine-1: crashed\n")
        assert re.search(r"held by \S+ \(process \d+\), last heartbeat 16m\d\ds ago\n", shown)
    print_status(STORAGE, "mine-1", "table")
    assert "held by" not in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_the_journal_reaches_the_bucket_on_its_own_clock(bucket: Any) -> None:  # noqa: ARG001
    folder = study()
    with held(folder, str) as hold:
        hold.start()
        for _ in range(3):
            grow(folder)
            until = time.monotonic() + 20
            while fetched() != folder.journal.read_bytes():
                assert time.monotonic() < until, "the journal does not get there"
                time.sleep(0.05)
        grow(folder)
        hold.finish(5.0)
        assert hold.trouble == ""
        assert fetched() == folder.journal.read_bytes()
