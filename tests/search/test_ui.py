"""`search ui` over REST: a lean server on the loopback, its saved views."""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from harness import make_space, unpacked

from search.cli.cluster import _print_views
from search.remote import servers as ui
from search.remote.cluster import free_port
from search.store.layout import UserError
from search.tracking import mlflow_store
from search.tracking.mlflow_store import make_store, view_links
from search.tracking.runs import saved_views, view_key

pytestmark = pytest.mark.costly

STUDY, UUID = "fake-1", "0123456789abcdef0123456789abcdef"
KEY = view_key(STUDY, UUID)


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage whose MLflow database has one study with one trial."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("runs")
    make_store(f"sqlite:///{folder}/mlflow.db")
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("fake", artifact_location=(folder / "artifacts").as_uri())
    run = client.create_run(experiment, tags={"role": "trial", "study_uuid": UUID})
    client.log_metric(run.info.run_id, "best_stsb_dev", 0.7)
    client.set_terminated(run.info.run_id)
    for tag, value in saved_views(make_space(), STUDY, UUID).items():
        client.set_experiment_tag(experiment, tag, value)
    return folder


@pytest.fixture(scope="module")
def server(storage: Path) -> Iterator[ui.Server]:
    with pytest.MonkeyPatch.context() as patch:  # set up before `own_store`, which is of a single test
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        running = ui.serve_mlflow(str(storage), free_port())
    yield running
    running.close()


def test_a_head_s_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    (tmp_path / "search").mkdir()
    first = ui.serve_mlflow("runs", port, detach=True)
    try:
        assert first.process is not None
        assert ui.serve_mlflow("runs", port, detach=True).process is None, "it answers"
        for crashed in psutil.Process(first.process.pid).children(recursive=True):
            crashed.kill()
        assert not ui.healthy(first.url)
        second = ui.serve_mlflow("runs", port, detach=True)  # as by `ray up`, while there is no answer
        assert ui.healthy(first.url)
        assert second.process is not None
        assert second.process.wait(10) == 0, "one loop a database"
    finally:
        os.killpg(first.process.pid, signal.SIGKILL)  # type: ignore[union-attr]


def test_saved_views_come_back_as_written(server: ui.Server) -> None:
    from mlflow import MlflowClient

    links = dict(view_links(server.url))
    assert list(links) == [
        "fake: studies", f"{STUDY}: trials, best first", f"{STUDY}: configurations, mean over seeds"
    ]  # fmt: skip
    experiment = MlflowClient(server.url).get_experiment_by_name("fake")
    number = experiment.experiment_id
    assert links[f"{STUDY}: trials, best first"] == (
        f"{server.url}/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={KEY}"
    )
    state = unpacked(experiment.tags[f"mlflow.sharedViewState.{KEY}"])
    found = search_runs(server.url, number, state["searchFilter"], state["orderByKey"])
    assert [run["data"]["metrics"][0]["value"] for run in found] == [0.7]


def search_runs(url: str, experiment: str, text: str, order: str) -> list[dict[str, Any]]:
    """The request of MLflow's page when it opens a view."""
    body = json.dumps({"experiment_ids": [experiment], "filter": text, "order_by": [f"{order} DESC"]}).encode()
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return list(json.load(answer)["runs"])


def test_the_server_is_lean_and_local(server: ui.Server) -> None:
    assert server.process is not None
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert len(family) <= 4, [p.cmdline() for p in family]
    listening = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    with urllib.request.urlopen(server.url, timeout=120) as answer:
        sources = re.findall(r'(?:src|href)="([^"]+)"', answer.read().decode())
    assert sources
    assert [s for s in sources if urllib.parse.urlsplit(s).netloc] == [], "the page names no other host"


def test_a_running_server_is_used_and_a_silent_one_rejected(
    server: ui.Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    used = ui.serve_mlflow(str(tmp_path), 5000)
    assert (used.url, used.process) == (server.url, None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.invalid:5000")
    with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI=http://mlflow.invalid:5000: no MLflow server answers"):
        ui.serve_mlflow(str(tmp_path), 5000)


class Login(BaseHTTPRequestHandler):
    """A server that wants a password for everything but its health."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_links_lead_to_the_newest_studies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = [*(f"s-{i}: {view}" for i in range(2, 12) for view in ("trials", "points")), "s: studies"]
    tags = {f"mlflow.sharedViewState.{i}": json.dumps({"name": name}) for i, name in enumerate(names)}
    experiment = SimpleNamespace(experiment_id="7", tags=tags)
    from mlflow.store.entities import PagedList

    client = SimpleNamespace(search_experiments=lambda **_: PagedList([experiment], None))
    monkeypatch.setattr(mlflow_store, "client_of", lambda _: client)
    _print_views("http://s")
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line in names][:3] == ["s: studies", "s-11: trials", "s-11: points"]
    _print_views("http://s", "s-9")
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line in names] == [f"s-9: {view}" for view in ("trials", "points")]


class NoServer(socketserver.StreamRequestHandler):
    """What answers, but not in HTTP."""

    def handle(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(("handler", "well"), [(Login, True), (NoServer, False), (None, False)])
def test_a_server_that_shows_no_experiments_has_no_links(
    handler: type[socketserver.BaseRequestHandler] | None, well: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler or NoServer) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        if handler is None:  # nothing listens there
            server.server_close()
        else:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ui.healthy(url) == well
        _print_views(url)
        if handler is not None:
            server.shutdown()
    assert capsys.readouterr().out == ""


def test_a_crashed_server_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(UserError, match=r"did not come up; see .*mlflow.log"):
        ui.serve_mlflow(str(tmp_path), free_port())
    assert "not a database" in (tmp_path / "mlflow.log").read_text()


def test_the_heads_database_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(ui, "healthy", Mock(side_effect=[False, True]))
    monkeypatch.setattr(ui.subprocess, "Popen", started := Mock())
    assert ui.serve_mlflow("s3://bucket/x", 5000).url == f"http://127.0.0.1:{port}"
    assert f"sqlite:///{tmp_path}/search/mlflow.db" in started.call_args[0][0]


def test_the_command_prints_links_and_ends_with_ctrl_c(storage: Path) -> None:
    """The whole command in a process of its own, as a user starts and ends it."""
    import signal

    process = subprocess.Popen(
        [sys.executable, "-c", "from search.cli.cluster import ui; ui()", "--storage", str(storage), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("Ctrl-C"):
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert lines[0].startswith("starting MLflow"), "which takes seconds: not in silence"
    assert re.match(r"MLflow: http://127\.0\.0\.1:\d+$", lines[1])
    assert f"{STUDY}: trials, best first" in lines
