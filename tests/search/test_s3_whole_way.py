"""A study in a bucket whose machine is lost: the whole way with real trials."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from harness import make_space

from search.store.bucket import fetch

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
def test_a_study_whose_machine_is_gone_goes_on_elsewhere_from_its_checkpoints(
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
