"""`analysis best` at 1,000 and 10,000 trials, process start included, on SQLite and over an MLflow server.

Also with a metric that did not select (a mean of two sets). The server holds the study as `search` leaves it there.
Processor seconds stand beside wall seconds: on a busy machine only they compare. Stores take turns.
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
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = {1000: 3.0, 10_000: 5.0}  # trials -> seconds allowed
METRICS = ("stsb_dev", "mean(stsb_dev,sickr_dev)")
COMMAND = "from analysis.commands.main import main; main(prog_name='analysis')"


def run(runs: int) -> dict[str, Any]:
    """Median wall and processor seconds per store, size and metric."""
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    from make_store import make_store

    rows = []
    for trials, allowed in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            database = make_store(Path(folder) / "mlflow.db", trials)
            with server(database, Path(folder)) as address:
                attach_trials(address, Path(folder))
                stores = {"sqlite": database, "http": address}
                cases = [(store, metric) for store in stores for metric in METRICS]
                timed: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
                for store, metric in cases * runs:
                    timed[store, metric].append(best(stores[store], metric))
            for (store, metric), found in timed.items():
                wall, processor = (statistics.median(side) for side in zip(*found, strict=True))
                row = {"store": store, "trials": trials, "metric": metric, "allowed s": allowed}
                rows.append({**row, "wall s": wall, "processor s": processor})
    return {"rows": rows}


def best(uri: str, metric: str) -> tuple[float, float]:
    """(wall, processor) seconds of one `analysis best`."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "best", "--tracking-uri", uri, "--metric", metric],
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def attach_trials(address: str, folder: Path) -> None:
    """Leave the file of ended trials on the server, as the tracker does."""
    from mlflow import MlflowClient

    from search import schema
    from search.tracking.trials_file import TrialsFile

    client = MlflowClient(address)
    experiments = [e.experiment_id for e in client.search_experiments()]
    study = client.search_runs(experiments, f"tags.{schema.ROLE} = 'study'")[0]
    TrialsFile(folder / schema.TRIALS_FILE).renew(client, study.info.experiment_id, study.info.run_id)


@contextmanager
def server(database: str, folder: Path) -> Iterator[str]:
    """The address of a real `mlflow server` on loopback, with its default number of workers."""
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
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while time.monotonic() < until:
            with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                break
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its job runners take a minute over a polite request
        process.wait(30)
