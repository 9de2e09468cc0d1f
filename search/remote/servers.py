"""`search ui`: a lean MLflow server on the loopback.

MLflow's defaults cost 19 s, 15 processes and 2.8 GB; one worker without its job runner 5 s, 2 processes and 0.5 GB.
Nothing listens on an outer address: MLflow has no login.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from search.remote.cluster import free_port
from search.schema import SQLITE, tracking_uri
from search.store.layout import CLUSTER_FILE, UserError
from search.tracking.mlflow_store import make_store

HEAD_STORE = "~/search/mlflow.db"  # what is served where MLFLOW_TRACKING_URI names this machine itself
START_S = 120.0  # how long a server may take to answer on a busy machine
# One loop a database: the lock is its, not the server's, which may outlive it.
KEEP_RUNNING = 'exec 9>"$0"; flock -n 9 || exit 0; while :; do "$@" 9>&-; sleep 2; done'
LEAN = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


class Server:
    """An MLflow server. process: None where it was running already and is left alone."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None) -> None:
        self.url, self.process = url, process

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def serve_mlflow(storage: str, port: int, detach: bool = False) -> Server:
    """MLflow over the runs of a storage; a server that MLFLOW_TRACKING_URI names is used if it answers.

    Args:
        port: the one wanted, not guaranteed; a loopback address in MLFLOW_TRACKING_URI decides it.
        detach: leave it running, as on a cluster's head, and start it again whenever it ends.
    Raises: UserError when the server does not come up, or a server elsewhere does not answer.
    """
    uri = tracking_uri(storage=storage)
    if uri.startswith(SQLITE):
        store, port = Path(uri.removeprefix(SQLITE)), free_port(port)
    elif uri.startswith("http") and healthy(uri):
        return Server(uri.rstrip("/"), None)
    elif is_loopback(uri):
        store, port = Path(HEAD_STORE).expanduser(), urllib.parse.urlsplit(uri).port or 80
    else:
        raise UserError(f"MLFLOW_TRACKING_URI={uri}: no MLflow server answers there")
    make_store(f"{SQLITE}{store}")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"{SQLITE}{store}", "--artifacts-destination", str(store.parent / "artifacts")]
    url, log = f"http://127.0.0.1:{port}", store.parent / "mlflow.log"
    if detach:
        command = ["bash", "-c", KEEP_RUNNING, str(store.parent / "mlflow.lock"), *command]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **LEAN, "PYTHONSAFEPATH": "1"},  # no module of the folder that this was called in
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=detach,
        )
    until = time.monotonic() + START_S
    at_work = (None, 0) if detach else (None,)  # 0: another process keeps it running
    while not healthy(url):
        if process.poll() not in at_work or time.monotonic() > until:
            if detach:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            process.terminate()
            raise UserError(f"{url}: the server did not come up; see {log}")
        time.sleep(0.2)
    return Server(url, process)


def is_loopback(uri: str) -> bool:
    """Whether a tracking address is a server of this machine."""
    return uri.startswith(("http://127.0.0.1", "http://localhost"))


def out_of_reach(uri: str) -> bool:
    """Whether the user is on a laptop, and the tracking address is the head's own: `search ui` has the way."""
    return CLUSTER_FILE in os.environ and is_loopback(uri)


def healthy(url: str) -> bool:
    """Whether an MLflow server answers there."""
    with suppress(OSError, HTTPException), urllib.request.urlopen(url.rstrip("/") + "/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False
