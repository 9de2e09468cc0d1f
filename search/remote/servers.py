"""`search ui`: a lean MLflow server on the loopback, links to the saved views, optuna-dashboard beside it.

MLflow's defaults cost 19 s, 15 processes and 2.8 GB; one worker without its job runner 5 s, 2 processes and 0.5 GB.
Nothing listens on an outer address: MLflow has no login.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from search.remote.backup import ARTIFACTS, is_loopback, restore, store_path
from search.remote.tunnel import free_port
from search.schema import SQLITE, tracking_uri
from search.store.layout import StudyFolder, UserError, is_remote
from search.tracking.mlflow_store import make_store
from search.tracking.saved_views import view_address

START_S = 120.0  # how long a server may take to answer on a busy machine
SHOWN = 12  # links that are printed, of the newest studies
LEAN = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


class Server:
    """A server process of ours. process: None where one was running already and is left alone."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None) -> None:
        self.url, self.process = url, process

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def serve_mlflow(storage: str, port: int, detach: bool = False) -> Server:
    """MLflow over the runs of a storage; a server that MLFLOW_TRACKING_URI names is used if it answers.

    On a machine without database the last backup is fetched first. `port` is what is wanted, not a promise; a loopback
    address in MLFLOW_TRACKING_URI decides it. detach: leave it running, as on a head, with a process beside it that
    keeps the backup of a storage in a bucket (`backup.keep`).

    Raises: UserError when the server does not come up, or a server elsewhere does not answer.
    """
    uri = tracking_uri(storage=storage)
    if uri.startswith("http"):
        if healthy(uri):
            _keep_backup(storage, detach and is_loopback(uri))
            return Server(uri.rstrip("/"), None)
        if not is_loopback(uri):
            raise UserError(f"MLFLOW_TRACKING_URI={uri}: no MLflow server answers there")
        port = urllib.parse.urlsplit(uri).port or 80
    elif free_port(port) != port:
        port = free_port()
    restore(storage)
    store = store_path(storage)
    make_store(f"{SQLITE}{store}")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"{SQLITE}{store}", "--artifacts-destination", str(store.parent / ARTIFACTS)]
    server = _start(command, f"http://127.0.0.1:{port}", "/health", store.parent / "mlflow.log", detach)
    _keep_backup(storage, detach)
    return server


def _keep_backup(storage: str, wanted: bool) -> None:
    """Leave a process behind that keeps the backup; where there is one it goes at once."""
    if not wanted or not is_remote(storage):
        return
    code = "import sys; from search.remote.backup import keep; keep(sys.argv[1])"
    with (store_path(storage).parent / "backup.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-u", "-c", code, storage],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def serve_optuna(folder: StudyFolder, port: int) -> Server | None:
    """optuna-dashboard over a study's journal; None where it is not installed or the study has no journal."""
    if importlib.util.find_spec("optuna_dashboard") is None or not folder.optuna.exists():
        return None
    port = free_port(port)
    code = "import sys; from search.study.shown_points import serve; serve(*sys.argv[1:])"
    command = [sys.executable, "-c", code, folder.storage, folder.study, str(port)]
    return _start(command, f"http://127.0.0.1:{port}", "/dashboard", folder.local / "optuna-dashboard.log", False)


def view_links(url: str, experiments: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Name of each saved view -> its address, newest study first. `experiments` as MLflow's REST API lists them."""
    found: list[tuple[int, str, str]] = []
    for experiment in experiments:
        for tag in experiment.get("tags", ()):
            key = tag["key"].removeprefix("mlflow.sharedViewState.")
            if key != tag["key"]:
                address = view_address(url, experiment["experiment_id"], key)
                state = json.loads(tag["value"])
                found.append((-int(experiment.get("last_update_time") or 0), state["name"], address))
    return {name: address for _, name, address in sorted(found)}


def experiments_of(url: str) -> list[dict[str, Any]]:
    """All experiments of a server, over its REST API."""
    body = json.dumps({"max_results": 1000, "order_by": ["last_update_time DESC"]}).encode()
    request = urllib.request.Request(
        f"{url}/api/2.0/mlflow/experiments/search", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return list(json.load(answer).get("experiments", []))


def healthy(url: str, path: str = "/health") -> bool:
    """Whether a server answers there with success."""
    with suppress(OSError, HTTPException), urllib.request.urlopen(url.rstrip("/") + path, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _start(command: list[str], url: str, path: str, log: Path, detach: bool) -> Server:
    """Start a server and wait until it answers; its output goes to a file."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **LEAN},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=detach,
        )
    until = time.monotonic() + START_S
    while not healthy(url, path):
        if process.poll() is not None or time.monotonic() > until:
            process.terminate()
            raise UserError(f"{url}: the server did not come up; see {log}")
        time.sleep(0.2)
    return Server(url, process)
