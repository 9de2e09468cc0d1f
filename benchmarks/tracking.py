"""How many evaluations a second reach a real MLflow server, and how far the tracker lags behind many trials.

A synthetic journal: `TRIALS` trials at once, each with one evaluation in `EVERY_S` seconds, written at its own pace by
a thread while the tracker follows as it does beside a search. The server is MLflow's own on loopback, over SQLite.
Lag: from an evaluation's writing to the end of the call that gave it to MLflow.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from search.tracking.mlflow_store import make_store

TRIALS, EVERY_S, SECONDS = 400, 10.0, 60.0
DRAIN_S = 60.0  # for what is still on its way when the last evaluation is written


def run(runs: int) -> dict[str, Any]:
    """A row for every run: journal lines and evaluations a second, lag, processor seconds of tracker and server."""
    return {"rows": [measure() for _ in range(runs)], "trials": TRIALS, "evaluation every s": EVERY_S}


def measure() -> dict[str, float]:
    from search.space import space_from
    from search.store.journal import Journal
    from search.store.layout import new_study
    from search.store.ledger import Ledger
    from search.tracking.tracker import Tracker

    space = space_from(
        {
            "name": "bench", "method": "simcse", "encoder": "builtin:tiny",
            "data": {"train": "builtin", "dev": ["stsb"]}, "metric": {"name": "stsb_dev"},
            "params": {"learning_rate": {"float": [1e-6, 1e-3], "log": True}},
            "search": {"sampler": "random", "trials": TRIALS}, "train": {"eval_examples": 100},
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as root, server(Path(root)) as (uri, serving):
        study = new_study(root, "bench")
        study.space.write_text(space.to_yaml())
        journal = Journal(study.journal, Ledger(maximise=True))
        tracker = Tracker(uri, study, space)
        for kind, fields in starts(space):
            journal.append(kind, int(time.time() * 1000), **fields)
        began = time.perf_counter()
        tracker.catch_up()
        starting = time.perf_counter() - began

        written: list[float] = []
        done = threading.Event()

        def evaluate() -> None:
            begin = time.monotonic()
            for at, fields in evaluations():
                time.sleep(max(0.0, begin + at - time.monotonic()))
                journal.append("eval", int(time.time() * 1000), **fields)
                written.append(time.monotonic())
            done.set()

        writer = threading.Thread(target=evaluate)
        lags: list[float] = []
        with processor(serving) as used:
            began = time.perf_counter()
            writer.start()
            told = 0
            until = time.monotonic() + SECONDS + DRAIN_S
            while (told < len(written) and time.monotonic() < until) or not done.is_set():
                here = len(written)
                tracker.catch_up()
                now = time.monotonic()
                lags += [now - t for t in written[told:here]]
                told = here
                time.sleep(0.5)
            wall = time.perf_counter() - began
    return {
        "runs made a second": round(TRIALS / starting, 1),
        "evaluations a second offered": round(TRIALS / EVERY_S, 1),
        "taken": round(len(lags) / wall, 1),
        "lag s, median": round(statistics.median(lags), 1),
        "lag s, last tenth": round(statistics.median(lags[-len(lags) // 10 :]), 1),
        "longest": round(max(lags), 1),
        "not told in time": len(written) - told,
        "tracker's processor s": round(used[0], 1),
        "server's": round(used[1], 1),
    }


def starts(space: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The journal up to the start of all trials."""
    from search.store.ledger import Trial

    yield "life", {"stage": "search", "slots": TRIALS}
    for n in range(TRIALS):
        point = {"learning_rate": 1e-6 * (n + 1)}
        trial = Trial(
            id=f"t{n:04d}", number=n, repeat=0, seed=n, stage="search", point=point, params=space.values(point),
            point_id=f"{n:08x}",
        )  # fmt: skip
        yield "start", asdict(trial)


def evaluations() -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds after the beginning, fields) of every evaluation, in the order of time; eight metrics each."""
    from trainables.contract.trial import Evaluation

    rng = random.Random(0)
    offsets = sorted((rng.uniform(0, EVERY_S), n) for n in range(TRIALS))
    for k in range(1, int(SECONDS / EVERY_S) + 1):
        for offset, n in offsets:
            value = rng.random()
            names = ("stsb_dev", "sickr_dev", "loss", "alignment", "uniformity", "lr", "seconds_a", "tokens")
            shown = Evaluation(100 * k, 100 * k, value, dict.fromkeys(names, value), value, 100 * k, 10.0 * k)
            yield (k - 1) * EVERY_S + offset, {"id": f"t{n:04d}", **asdict(shown)}


@contextmanager
def server(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """`mlflow server` over a new SQLite database; its address and process."""
    make_store(f"sqlite:///{root}/mlflow.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--backend-store-uri", f"sqlite:///{root}/mlflow.db", "--artifacts-destination", str(root / "artifacts")]
    words = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), *place]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@contextmanager
def processor(serving: psutil.Process) -> Iterator[list[float]]:
    """Seconds of processor time within, after it: this process's, and those of the server with its workers."""
    used: list[float] = []
    before = seconds_of([psutil.Process()]), seconds_of([serving, *serving.children(recursive=True)])
    yield used
    after = seconds_of([psutil.Process()]), seconds_of([serving, *serving.children(recursive=True)])
    used += [a - b for a, b in zip(after, before, strict=True)]


def seconds_of(processes: list[psutil.Process]) -> float:
    return float(sum(p.cpu_times().user + p.cpu_times().system for p in processes))
