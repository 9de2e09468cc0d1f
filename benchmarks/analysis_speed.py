"""(f) `analysis best` at 1,000 and 10,000 trials, process start included, on SQLite and over an MLflow server.

Also with a metric that has to be looked up in the history (a mean of two sets), which is the dearer question. Seconds
of the processor are given beside wall seconds: on a busy machine only the former say something.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = {1000: 2.0, 10_000: 10.0}  # trials -> seconds allowed
METRICS = ("stsb_dev", "mean(stsb_dev,sickr_dev)")
COMMAND = "from analysis.cli import main; main(prog_name='analysis')"


def run(runs: int) -> dict[str, Any]:
    """Median wall and processor seconds per store, size and metric."""
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    from make_store import make_store

    rows = []
    for trials, allowed in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            database = make_store(Path(folder) / "mlflow.db", trials)
            with server(database, Path(folder)) as address:
                for name, uri in (("sqlite", database), ("http", address)):
                    for metric in METRICS:
                        timed = [best(uri, metric) for _ in range(runs)]
                        wall, processor = (statistics.median(side) for side in zip(*timed, strict=True))
                        row = {"store": name, "trials": trials, "metric": metric, "allowed s": allowed}
                        rows.append({**row, "wall s": wall, "processor s": processor})
    return {"rows": rows}


def best(uri: str, metric: str) -> tuple[float, float]:
    """(wall, processor) seconds of one `analysis best`; the server's processor seconds are not in it."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "best", "--tracking-uri", uri, "--metric", metric],
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def server(database: str, folder: Path) -> Iterator[str]:
    """A real `mlflow server` on loopback, with the workers it has unless told otherwise."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--host", "127.0.0.1",
        "--port", str(port), "--default-artifact-root", (folder / "artifacts").as_uri(),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{address}/health", 120)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its job runners take a minute over a polite request
        process.wait(30)


def _wait(url: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
