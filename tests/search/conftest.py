"""An S3 server on this machine's loopback, the example of a method from outside, a study beside an MLflow database."""

from __future__ import annotations

import logging
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import World, make_space


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs every request
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """boto3's client of an S3 server with an empty bucket; what it does, another machine has done."""
    import boto3  # of half a second each: for those that want a bucket
    import s3fs

    given = {"ENDPOINT_URL": s3_server, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**given, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "first" / name))
    s3fs.S3FileSystem.clear_instance_cache()  # file systems of another test's server
    urllib.request.urlopen(f"{s3_server}/moto-api/reset", b"").close()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The example's two files, outside the repository."""
    for name in ("dcl.py", "dcl.yaml"):
        shutil.copy(Path(__file__).parents[2] / "docs" / "examples" / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh MLflow database: making one costs seconds, copying it nothing."""
    from search.tracking.mlflow_store import make_store

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    make_store(f"sqlite:///{path}")
    return path


@pytest.fixture
def world(tmp_path: Path, empty_store: Path) -> World:
    """A study with an MLflow database beside it; its point 2 gives NaN."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    space = make_space({"trials": 6}, pruner={"kind": "median"})
    return World(space, tmp_path, fault=lambda run, k: "nan" if run.number == 2 and k == 2 else None)
