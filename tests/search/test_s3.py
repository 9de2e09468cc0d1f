"""A storage behind s3://, spoken to over HTTP as AWS's: an S3 server (moto) on this machine's loopback."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import s3fs
import torch
from harness import make_space

from search.console.status import print_status
from search.running.remove import deletable, stop_study
from search.store.errors import UserError
from search.store.layout import StudyFolder, find_study, new_study, studies
from search.store.lease import Held, _create, lease, newest
from search.store.mirror import Mirror
from search.store.parts import Parts, fetch, there
from trainables.contract.spec import TrialSpec
from trainables.on_ray.host import pausing
from trainables.training.checkpoint import TrialFiles

STORAGE = "s3://bucket/search"


def machine(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """From now on a machine with working copies of its own."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(home / name))


def test_a_study_moves_to_another_machine(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    folder.journal.write_text('{"e":"life"}\n')
    mirror = Mirror(folder)
    mirror.push()
    with folder.journal.open("a") as journal:
        journal.write('{"e":"close"}\n')
    mirror.push()

    machine(monkeypatch, tmp_path / "second")
    assert [f.study for f in studies(STORAGE)] == ["mine-1"]
    there = find_study(STORAGE, None)
    assert not there.journal.exists()
    there.pull()
    assert there.journal.read_text() == '{"e":"life"}\n{"e":"close"}\n'
    assert there.space.read_text() == "name: mine\n"
    assert new_study(STORAGE, "mine").study == "mine-2", "the name is taken, though not on this machine"


def test_a_push_sends_what_is_new(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole journal again; however many pushes there were, it lies in few parts that give the file."""
    sent: list[int] = []
    pipe = s3fs.S3FileSystem.pipe_file
    monkeypatch.setattr(
        s3fs.S3FileSystem,
        "pipe_file",
        lambda fs, path, value, **k: sent.append(len(value)) or pipe(fs, path, value, **k),
    )
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    mirror, line = Mirror(folder), '{"e":"eval","n":%06d}\n'
    for n in range(100):
        with folder.journal.open("a") as journal:
            journal.writelines(line % k for k in range(10 * n, 10 * n + 10))
        mirror.push()
    whole = folder.journal.read_bytes()
    assert sum(sent) < 8 * len(whole), "as whole files it would be 50 times"
    keys = [o["Key"] for o in bucket.list_objects_v2(Bucket="bucket", Prefix="search/mine-1/tracking")["Contents"]]
    assert len(keys) <= 8
    filesystem, root = s3fs.S3FileSystem(), "bucket/search/mine-1/tracking.jsonl"
    assert fetch(filesystem, root) == whole
    folder.journal.write_bytes(whole[:1000])  # salvaged: shorter than what is there
    Mirror(folder).push()
    assert fetch(filesystem, root) == whole[:1000]


def test_a_reader_is_not_in_the_way_of_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push between a reader's listing and its reading takes parts together: some that were listed are gone."""
    filesystem, target, source = fsspec.filesystem("memory"), "/parts/tracking.jsonl", tmp_path / "journal"
    parts, read = Parts(filesystem, target), filesystem.cat_file
    for size in (8, 12, 13):
        source.write_bytes(b"0123456789abcdefghij"[:size])
        parts.push(source)
    assert len(there(filesystem, target)) == 3

    def later(name: str, *given: Any, **more: Any) -> Any:
        source.write_bytes(b"0123456789abcdefghij")
        parts.push(source)
        return read(name, *given, **more)

    monkeypatch.setattr(filesystem, "cat_file", later)
    assert fetch(filesystem, target) == b"0123456789abcdefghij"


def test_two_machines_never_drive_one_study(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("search.store.lease.LOST_S", 1.0)
    monkeypatch.setattr("search.store.lease.LOOK_S", 0.1)
    monkeypatch.setattr("search.store.lease.BEAT_S", 0.2)
    said: list[str] = []
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    folder.journal.write_text('{"e":"life"}\n')
    taken: list[str] = []
    with lease(folder, said.append) as held:
        mirror = Mirror(folder, held, taken.append)
        monkeypatch.setattr("search.store.mirror.EVERY_S", 0.1)
        mirror.push()
        mirror.start()  # it beats; what it would push lies on the machine that this process plays no more
        machine(monkeypatch, tmp_path / "second")
        with pytest.raises(UserError, match=r"is being run by .* \(process \d+\)"), lease(folder, said.append):
            pass
        assert "looking" in said[0]
        mirror.stop()  # the first machine hangs
        mirror._thread.join()
        mirror._beats.join()
        with lease(folder, said.append) as other:
            assert folder.journal.read_text() == '{"e":"life"}\n', "brought up to date"
            assert other.beat()
            with folder.journal.open("a") as journal:
                journal.write('{"e":"second"}\n')
            Mirror(folder, other).push()
            machine(monkeypatch, tmp_path / "first")  # and comes back
            with folder.journal.open("a") as journal:
                journal.write('{"e":"first, never sent"}\n')
            mirror.push()
            assert taken == ["another driver has taken study mine-1 over"]
            mirror.push()
            assert len(taken) == 1
    said.clear()
    with lease(folder, said.append):  # given back: nothing to wait for
        assert said == []
        assert folder.journal.read_text() == '{"e":"life"}\n{"e":"second"}\n'
        aside = folder.journal.with_name("tracking.jsonl.unsent-1")
        assert "never sent" in aside.read_text()


def test_a_slow_push_is_no_silence(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that sends for longer than it may be silent, and waits long after that, keeps its study."""
    for name, seconds in {"LOST_S": 1.0, "LOOK_S": 0.1, "BEAT_S": 0.2}.items():
        monkeypatch.setattr(f"search.store.lease.{name}", seconds)
    monkeypatch.setattr("search.store.mirror.EVERY_S", 0.1)
    push = Parts.push
    monkeypatch.setattr(Parts, "push", lambda parts, source: (time.sleep(1.5), push(parts, source)))
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    folder.journal.write_text('{"e":"life"}\n')
    with lease(folder, str) as held:
        mirror = Mirror(folder, held)
        mirror.start()
        time.sleep(0.3)
        machine(monkeypatch, tmp_path / "second")
        for _ in range(2):
            with pytest.raises(UserError, match="is being run by"), lease(folder, str):
                pass
        mirror.stop()
        mirror._beats.join()
        mirror._thread.join()  # the next test has the same bucket


def test_a_long_silence_is_not_waited_for_again(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bucket's own clock says how long nobody has given a sign of life; only a beat's time is looked for more."""
    monkeypatch.setattr("search.store.lease.LOST_S", 1.5)
    monkeypatch.setattr("search.store.lease.LOOK_S", 0.1)
    monkeypatch.setattr("search.store.lease.BEAT_S", 0.2)
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    said: list[str] = []
    with lease(folder, str):
        machine(monkeypatch, tmp_path / "second")
        time.sleep(3)  # S3 tells whole seconds
        with lease(folder, said.append):
            pass
    assert "looking 0 s" in said[0]  # else 2 s; the wait itself takes longer on a busy machine
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    assert not filesystem.glob(f"{root}/looked*")


def test_others_are_told_who_holds_a_study(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From its first moment on, however long its journal says nothing, until some time after its last sign of life."""
    monkeypatch.setattr("search.console.status.bring_up_to_date", lambda *_: "")
    folder = new_study(STORAGE, "mine")
    folder.space.write_text(make_space().to_yaml())
    folder.journal.write_text('{"e":"life","t":1,"stage":"search"}\n')
    with lease(folder, str) as held:
        Mirror(folder, held).push()
        machine(monkeypatch, tmp_path / "second")
        print_status(STORAGE, "mine-1", "table")
        shown = capsys.readouterr().out
        assert shown.startswith("mine-1: running\n")
        assert re.search(r"held by \S+ \(process \d+\), last sign of life \d+s ago\n", shown)
        with pytest.raises(UserError, match=r"is not running on this machine: held by .* \(process \d+\)"):
            stop_study(STORAGE, "mine-1")
        with pytest.raises(UserError, match="is being run by"):
            deletable(STORAGE, "mine-1")
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + 1000)
        print_status(STORAGE, "mine-1", "table")
        shown = capsys.readouterr().out
        assert shown.startswith("mine-1: died\n")
        assert re.search(r"held by \S+ \(process \d+\), last sign of life 16m\d\ds ago\n", shown)
    print_status(STORAGE, "mine-1", "table")
    assert "held by" not in capsys.readouterr().out


def test_one_of_several_is_first(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    folder = new_study(STORAGE, "mine")
    folder.space.write_text("name: mine\n")
    mine = Held(1, "one", "a")
    _create(folder, mine)
    with pytest.raises(UserError, match="has just been taken"):
        _create(folder, Held(1, "other", "b"))
    assert newest(folder) == mine


def test_a_trial_sees_the_pause_that_the_driver_marks_elsewhere(bucket: Any) -> None:
    folder = StudyFolder(STORAGE, "mine")
    spec = TrialSpec(
        method="simcse", encoder="builtin:tiny", data={}, metric="stsb_dev", mode="max", params={}, seed=0,
        folder=folder.trial("t0000"), workers=1, gpus=0, cpus=1,
    )  # fmt: skip
    assert not pausing(spec)
    bucket.put_object(Bucket="bucket", Key="search/mine/PAUSE", Body=b"")
    assert pausing(spec)
    bucket.delete_object(Bucket="bucket", Key="search/mine/PAUSE")
    assert not pausing(spec)
    folder.mark_pause(True)
    assert pausing(spec)
    folder.mark_pause(False)
    assert not pausing(spec)


def test_a_trials_files(bucket: Any) -> None:
    folder = StudyFolder(STORAGE, "mine")
    files = TrialFiles(folder.trial("t0000"))
    assert files.load_last() is None
    files.save_last({"step": 1})
    files.save_last({"step": torch.tensor(2)})
    assert files.load_last() == {"step": torch.tensor(2)}
    torn = bucket.get_object(Bucket="bucket", Key="search/mine/trials/t0000/last/state.pt")["Body"].read()[:100]
    bucket.put_object(Bucket="bucket", Key="search/mine/trials/t0000/last/state.pt", Body=torn)
    assert files.load_last() is None, "a state that cannot be read counts as none"
    files.drop_last()
    files.drop_last()
    with pytest.raises(FileNotFoundError, match=r"best/weights\.safetensors"):
        files.load_best()
    weights = {"w": torch.arange(4.0)}
    files.save_best(weights, {"seed": 3}, {"stsb": np.zeros(2, np.float32)})
    read, trial = files.load_best()
    assert torch.equal(read["w"], weights["w"])
    assert trial == {"seed": 3}
    keys = [o["Key"] for o in bucket.list_objects_v2(Bucket="bucket", Prefix="search/mine/trials/")["Contents"]]
    assert sorted(key.rsplit("/", 1)[-1] for key in keys) == ["similarities.npz", "trial.json", "weights.safetensors"]
    assert folder.delete(folder.trial("t0000"))
    assert not folder.delete(folder.trial("t0000"))


@pytest.mark.costly
def test_the_journal_reaches_the_bucket_on_its_own_clock(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the tracker is: nothing of it is asked."""
    monkeypatch.setattr("search.store.mirror.EVERY_S", 0.05)
    folder = new_study(STORAGE, "mine")
    mirror = Mirror(folder)
    mirror.start()
    for size in (1, 2, 3):
        folder.journal.write_text('{"e":"life"}\n' * size)
        until = time.monotonic() + 20
        key = f"search/{folder.study}/tracking.jsonl"
        while fetch(s3fs.S3FileSystem(), f"bucket/{key}") != folder.journal.read_bytes():
            assert time.monotonic() < until, "the journal does not get there"
            time.sleep(0.05)
    folder.journal.write_text('{"e":"life"}\n')
    mirror.finish(5.0)
    assert mirror.trouble == ""
    there = bucket.get_object(Bucket="bucket", Key=f"search/{folder.study}/tracking.jsonl")
    assert there["Body"].read() == b'{"e":"life"}\n'
