"""MLflow's own server application in a thread on loopback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from search.tracking.mlflow_store import make_store


@contextmanager
def mlflow_server(database: str, artifacts: Path) -> Iterator[str]:
    """Serve the store at the URI `database`; gives the server's address. One at a time in a process."""
    make_store(database)
    patch = pytest.MonkeyPatch()
    patch.setenv("_MLFLOW_SERVER_FILE_STORE", database)
    patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", artifacts.as_uri())
    from mlflow.server import app, handlers
    from werkzeug.serving import make_server

    patch.setenv("MLFLOW_TRACKING_URI", database)  # as MLflow does, for the whole process; so it is undone
    patch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    patch.setattr(handlers, "_tracking_store", None)  # that of an earlier server
    handlers._get_tracking_store()
    http = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=http.serve_forever, args=[0.02], daemon=True)  # checks its end as often
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        patch.undo()
