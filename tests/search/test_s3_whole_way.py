"""A study in a bucket whose machine is lost: the whole way with real trials."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from fake_trial import FakeTrial
from harness import make_space
from orders import orders
from rich.console import Console
from werkzeug.serving import make_server

from search.running.runner import Options, run_study
from search.store.bucket import fetch
from search.store.journal import read
from search.store.layout import StudyFolder

HERE = Path(__file__).parent
STORAGE = "s3://bucket/search"
STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(STARTED.pop().pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_study_of_a_lost_machine_resumes_elsewhere_from_checkpoints(
    bucket: Any,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    """The whole way with real trials: killed, resumed with an empty cache, exported."""
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    train = {"epochs": 5, "max_examples": 30000, "eval_examples": 1000, "checkpoint_seconds": 0.1}
    search = {"trials": 2, "concurrent": 1}
    space = make_space(search, data=data, train=train, encoder="builtin:tiny", metric={"name": "builtin_dev"},
                       resources={"gpus": 0, "cpus": 1, "workers": 1})  # fmt: skip
    (tmp_path / "mine.yaml").write_text(space.to_yaml())
    first = command(tmp_path, "first", "run", "mine.yaml", "--name", "study", "--storage", STORAGE)
    until = time.monotonic() + 300
    while not any(3000 <= e["examples"] < 25000 for e in journal() if e["e"] == "eval"):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)  # driver, raylet and trials: the power is cut
    first.wait()

    again = command(tmp_path, "second", "resume", "study", "--storage", STORAGE)
    assert again.wait(timeout=600) == 0
    events = journal()
    assert max(e["resumed_from"] for e in events if e["e"] == "eval") >= 1000
    assert [e["stop"] for e in events if e["e"] == "end"] == ["completed"] * 2
    for trial in ("t0000", "t0001"):
        examples = [e["examples"] for e in events if e["e"] == "eval" and e["id"] == trial]
        assert examples == sorted(set(examples))
        assert examples[-1] == 30000
    out = tmp_path / "model"
    analysis = str(Path(sys.executable).parent / "analysis")
    export = [analysis, "export", "study", "--out", str(out)]
    subprocess.run(export, env=environment(tmp_path, "second"), check=True, timeout=300)
    assert (out / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_driver_that_wakes_after_a_takeover_writes_nothing(bucket: Any, tmp_path: Path) -> None:
    """Stopped for more than a minute in the middle of a search, while another machine finishes the study."""
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    train = {"epochs": 5, "max_examples": 20000, "eval_examples": 1000, "checkpoint_seconds": 0.1}
    space = make_space({"trials": 3, "concurrent": 1}, data=data, train=train, encoder="builtin:tiny",
                       metric={"name": "builtin_dev"}, resources={"gpus": 0, "cpus": 1, "workers": 1})  # fmt: skip
    (tmp_path / "mine.yaml").write_text(space.to_yaml())
    first = command(tmp_path, "first", "run", "mine.yaml", "--name", "study", "--storage", STORAGE)
    until = time.monotonic() + 300
    while not any(3000 <= e["examples"] < 15000 for e in journal() if e["e"] == "eval"):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    second = command(tmp_path, "second", "resume", "study", "--storage", STORAGE)
    assert second.wait(timeout=600) == 0
    time.sleep(max(0.0, stopped + 60 - time.monotonic()))

    def written() -> tuple[dict[str, Any], list[Any]]:
        listed = bucket.list_objects_v2(Bucket="bucket")["Contents"]
        with sqlite3.connect(tmp_path / "mlflow.db") as store:
            runs = store.execute("select run_uuid, status, end_time from runs order by 1").fetchall()
            metrics = store.execute("select count(*) from metrics").fetchall()
        return {o["Key"]: (o["ETag"], o["LastModified"]) for o in listed}, [*runs, *metrics]

    before = written()
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(timeout=120) == 1
    time.sleep(3)
    after = written()
    assert {k: v for k, v in after[0].items() if before[0].get(k) != v} == {}
    assert before[0].keys() - after[0].keys() == set()
    assert after[1] == before[1]
    assert {e["stop"] for e in journal() if e["e"] == "end"} == {"completed"}


class Shaky:
    """An S3 server that fails every third call, or is not there, for a time."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._app, self._calls, self.failing, self.port = DomainDispatcherApplication(create_backend_app), 0, False, 0
        self.start()

    def __call__(self, environ: Any, start: Any) -> Any:
        self._calls += 1
        if self.failing and self._calls % 3 == 0:
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"]
        return self._app(environ, start)

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self.port, self, threaded=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shaky]:
    import boto3

    server = Shaky()
    given = {"ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**given, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")  # trial processes find the fake trial by it
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)  # the fake trial's own files
    s3fs.S3FileSystem.clear_instance_cache()
    urllib.request.urlopen(f"http://127.0.0.1:{server.port}/moto-api/reset", b"").close()  # it is the process's
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield server
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("trouble", "seconds"), [("every third call fails", 60), ("gone", 120)])
def test_a_study_outlasts_trouble_of_its_bucket(trouble: str, seconds: float, shaky: Shaky, tmp_path: Path) -> None:
    columns = orders(sleep=0.5, hold=str(tmp_path / "over"))
    space = make_space(
        {"trials": 24, "max_retries": 0, "concurrent": 2, "baseline": "none"},
        data={"train": "builtin", "dev": ["stsb"], "language": "en", "columns": columns},
        pruner={"kind": "asha", "reduction": 2}, resources={"gpus": 0, "cpus": 1, "workers": 1},
    )  # fmt: skip
    folder = StudyFolder(STORAGE, "study")

    def break_and_mend() -> None:
        while not folder.journal.exists() or sum(e["e"] == "eval" for e in read(folder.journal)) < 4:
            time.sleep(0.1)
        if trouble == "gone":
            shaky.stop()
        shaky.failing = True
        time.sleep(seconds)
        shaky.failing = False
        if trouble == "gone":
            shaky.start()
        (tmp_path / "over").touch()

    threading.Thread(target=break_and_mend, daemon=True).start()
    shown = io.StringIO()
    given = Options(trainable=FakeTrial, console=Console(file=shown, width=200), handle_signals=False)
    result = run_study(space, STORAGE, name="study", options=given)
    assert (result.status, result.exit_code, result.trouble) == ("finished", 0, ""), shown.getvalue()
    assert result.ledger.ended() == 24
    assert result.ledger.failed() == 0
    assert [e for e in journal() if e["e"] == "retry"] == []
    assert fetch(s3fs.S3FileSystem(), "bucket/search/study") == folder.journal.read_bytes()
    warnings = [line for line in shown.getvalue().splitlines() if STORAGE in line and "the search goes on" in line]
    assert len(warnings) == 1 if trouble == "gone" else len(warnings) <= 1
    assert "tracker:" not in shown.getvalue()


def environment(root: Path, home: str) -> dict[str, str]:
    store = f"sqlite:///{root / 'mlflow.db'}"
    env = {**os.environ, "XDG_CACHE_HOME": str(root / home), "MLFLOW_TRACKING_URI": store, "OMP_NUM_THREADS": "1"}
    env.pop("RAY_ADDRESS", None)
    return env


def command(root: Path, home: str, *words: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "search", *words]
    started = subprocess.Popen(line, cwd=root, env=environment(root, home), start_new_session=True)
    STARTED.append(started)
    return started


def journal() -> list[dict[str, Any]]:
    """Whole lines in the bucket, [] before there is a journal."""
    lines = (fetch(s3fs.S3FileSystem(), "bucket/search/study") or b"").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
