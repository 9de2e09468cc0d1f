"""The copy of MLflow's database that a head keeps: what is sent when, by whom, and what SIGTERM leaves."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fsspec
import pytest

from search.remote import backup
from search.remote.backup import Copy, keep_until

BUCKET = "memory://kept/search"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A database with an artifact beside it, as MLflow's server has them."""
    path = tmp_path / "mlflow.db"
    add(path, "t0000")
    (tmp_path / "artifacts" / "1").mkdir(parents=True)
    (tmp_path / "artifacts" / "1" / "space.yaml").write_text("name: x")
    yield path
    fsspec.filesystem("memory").store.clear()


def add(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("create table if not exists runs (name text)")
        store.execute("insert into runs values (?)", [name])


def names(copy: bytes, folder: Path) -> list[str]:
    (folder / "read.db").write_bytes(copy)
    with closing(sqlite3.connect(folder / "read.db")) as store:
        return [name for (name,) in store.execute("select name from runs")]


def kept(folder: Path) -> list[str]:
    return names(fsspec.filesystem("memory").cat_file("/kept/search/mlflow-backup/mlflow.db"), folder)


def test_only_what_changed_is_sent(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    sent: list[str] = []
    plain = type(memory).put_file
    monkeypatch.setattr(
        type(memory), "put_file", lambda fs, here, there, **more: (sent.append(there), plain(fs, here, there, **more))
    )
    copy = Copy(database, BUCKET)
    assert copy.send()
    assert [path.rsplit("mlflow-backup/")[-1] for path in sent] == ["artifacts/1/space.yaml", "mlflow.db"]
    assert not copy.send()
    assert len(sent) == 2
    add(database, "t0001")
    (tmp_path / "artifacts" / "2.txt").write_text("new")
    assert copy.send()
    assert [path.rsplit("mlflow-backup/")[-1] for path in sent[2:]] == ["artifacts/2.txt", "mlflow.db"]
    assert kept(tmp_path) == ["t0000", "t0001"]


def test_a_bucket_in_trouble_is_tried_again_and_a_newer_head_is_left_alone(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "EVERY_S", 0.01)
    copy, said = Copy(database, BUCKET), list[str]()
    troubles = iter([OSError("no network")] * 3)

    def send() -> bool:
        if trouble := next(troubles, None):
            raise trouble
        return Copy.send(copy)

    monkeypatch.setattr(copy, "send", send)
    keeper = threading.Thread(target=keep_until, args=(threading.Event(), copy, said.append), daemon=True)
    keeper.start()
    until = time.monotonic() + 20
    while len(said) < 3 or not fsspec.filesystem("memory").exists("/kept/search/mlflow-backup/mlflow.db"):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert said == ["MLflow's copy: no network"] * 3
    Copy(database, BUCKET).take()  # a new head
    keeper.join(20)
    assert not keeper.is_alive()
    add(database, "of the old head")
    assert said[3:] == ["another head keeps MLflow's copy now: this one's database goes there no more"]
    assert kept(tmp_path) == ["t0000"]


def test_sigterm_sends_what_is_new_and_a_second_keeper_goes_at_once(database: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    command = [sys.executable, "-c", "import sys; from search.remote.backup import keep; keep(sys.argv[1])"]
    command += [f"local://{bucket}"]
    (tmp_path / "artifacts" / "1" / "space.yaml").unlink()  # `local://` makes no folders; buckets have none
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{database}"}
    keeper = subprocess.Popen(command, env=env)
    try:
        until = time.monotonic() + 20
        while not (copy := bucket / "mlflow-backup" / "mlflow.db").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        add(database, "t0001")  # half a minute before it would be looked at
        assert subprocess.run(command, env=env, timeout=20, check=False).returncode == 0
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(timeout=20) == 0
    finally:
        keeper.kill()
    assert names(copy.read_bytes(), tmp_path) == ["t0000", "t0001"]
