"""(f) `analysis best` at 1,000 and 10,000 trials, process start included, on SQLite and over an MLflow server.

Also with a metric that did not select (a mean of two sets). The server holds the study as `search` leaves it there, and
once more without the file of ended trials, as another program would find it. Seconds of the processor are given beside
wall seconds, the client's and the server's: on a busy machine only those say something. Stores take turns.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = {1000: 2.0, 10_000: 3.0}  # trials -> seconds allowed
METRICS = ("stsb_dev", "mean(stsb_dev,sickr_dev)")
COMMAND = "from analysis.commands.main import main; main(prog_name='analysis')"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A running `mlflow server`; processes: its process group."""

    address: str
    processes: int

    def seconds(self) -> float:
        """Processor seconds of all its processes so far (Linux)."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # gone meanwhile
                continue
            if int(fields[2]) == self.processes:
                total += int(fields[11]) + int(fields[12])
        return total / TICKS


def run(runs: int) -> dict[str, Any]:
    """Median wall and processor seconds per store, size and metric."""
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    from make_store import make_store

    rows = []
    for trials, allowed in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            database = make_store(Path(folder) / "mlflow.db", trials)
            with server(database, Path(folder)) as served:
                cases = [(store, metric) for store in ("sqlite", "http", "http, no file") for metric in METRICS]
                timed: dict[tuple[str, str], list[tuple[float, float, float]]] = {case: [] for case in cases}
                study, path = keep_trials(served.address, Path(folder))
                for store, metric in cases * runs:
                    _mark(served.address, study, path if store == "http" else "")
                    uri = database if store == "sqlite" else served.address
                    timed[store, metric].append(best(uri, metric, served))
                for (store, metric), found in timed.items():
                    wall, processor, its = (statistics.median(side) for side in zip(*found, strict=True))
                    row = {"store": store, "trials": trials, "metric": metric, "allowed s": allowed, "wall s": wall}
                    rows.append({**row, "processor s": processor, "server's processor s": its})
    return {"rows": rows}


def best(uri: str, metric: str, served: Server) -> tuple[float, float, float]:
    """(wall, processor, server's processor) seconds of one `analysis best`."""
    its, before, started = served.seconds(), resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "best", "--tracking-uri", uri, "--metric", metric],
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, served.seconds() - its


def keep_trials(address: str, folder: Path) -> tuple[str, str]:
    """Leave the file of ended trials on the server, as the tracker does; (study run, the tag's value)."""
    from mlflow import MlflowClient

    from search import schema
    from search.tracking.tracker import TrialsFile

    client = MlflowClient(address)
    experiments = [e.experiment_id for e in client.search_experiments()]
    study = client.search_runs(experiments, f"tags.{schema.ROLE} = 'study'")[0]
    TrialsFile(folder / schema.TRIALS_FILE).renew(client, study.info.experiment_id, study.info.run_id)
    return study.info.run_id, client.get_run(study.info.run_id).data.tags[schema.TRIALS_TAG]


def _mark(address: str, study: str, path: str) -> None:
    from mlflow import MlflowClient

    from search import schema

    MlflowClient(address).set_tag(study, schema.TRIALS_TAG, path)


@contextmanager
def server(database: str, folder: Path) -> Iterator[Server]:
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
        yield Server(address, process.pid)
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
