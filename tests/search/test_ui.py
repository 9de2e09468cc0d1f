"""`search ui` over REST: a lean server on the loopback, its saved views, backup of its database."""

from __future__ import annotations

import json
import re
import socketserver
import sqlite3
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
from harness import World, make_space, unpacked

from search.cli.ui import _say_views
from search.remote import backup
from search.remote import servers as ui
from search.remote.tunnel import free_port
from search.store.layout import UserError
from search.study.plan import point_means
from search.tracking.mlflow_store import make_store
from search.tracking.saved_views import saved_views

pytestmark = pytest.mark.costly

STUDY = "fake-1"


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
    run = client.create_run(experiment, tags={"role": "trial", "study_id": STUDY})
    client.log_metric(run.info.run_id, "best_stsb_dev", 0.7)
    client.set_terminated(run.info.run_id)
    for tag, value in saved_views(make_space(), STUDY).items():
        client.set_experiment_tag(experiment, tag, value)
    return folder


@pytest.fixture(scope="module")
def server(storage: Path) -> Iterator[ui.Server]:
    with pytest.MonkeyPatch.context() as patch:  # set up before `own_store`, which is of a single test
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        running = ui.serve_mlflow(str(storage), free_port())
    yield running
    running.close()


def test_the_saved_views_come_back_over_rest_as_they_were_written(server: ui.Server) -> None:
    experiments = ui.experiments_of(server.url)
    links = ui.view_links(server.url, experiments)
    assert list(links) == [
        f"{STUDY}: charts", f"{STUDY}: configurations, mean over seeds", f"{STUDY}: trials, best first", "fake: studies"
    ]  # fmt: skip
    number = next(e["experiment_id"] for e in experiments if e["name"] == "fake")
    assert links[f"{STUDY}: trials, best first"] == (
        f"{server.url}/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={STUDY}"
    )
    tags = {t["key"]: t["value"] for e in experiments for t in e.get("tags", ())}
    state = unpacked(tags[f"mlflow.sharedViewState.{STUDY}"])
    found = search_runs(server.url, number, state["searchFilter"], state["orderByKey"])
    assert [run["data"]["metrics"][0]["value"] for run in found] == [0.7]


def search_runs(url: str, experiment: str, text: str, order: str) -> list[dict[str, Any]]:
    """What MLflow's page asks for when it opens a view."""
    body = json.dumps({"experiment_ids": [experiment], "filter": text, "order_by": [f"{order} DESC"]}).encode()
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return list(json.load(answer)["runs"])


def test_the_server_is_lean_and_listens_on_the_loopback_only(server: ui.Server) -> None:
    assert server.process is not None
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert len(family) <= 4, [p.cmdline() for p in family]
    listening = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_the_page_names_no_other_host(server: ui.Server) -> None:
    with urllib.request.urlopen(server.url, timeout=120) as answer:
        page = answer.read().decode()
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources
    assert [s for s in sources if urllib.parse.urlsplit(s).netloc] == []


def test_a_server_that_answers_is_used_and_a_silent_one_elsewhere_is_said(
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


class NoServer(socketserver.StreamRequestHandler):
    """What answers, but not in HTTP."""

    def handle(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(("handler", "well"), [(Login, True), (NoServer, False)])
def test_a_server_that_shows_no_experiments_has_no_links(
    handler: type[socketserver.BaseRequestHandler], well: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert ui.healthy(url) == well
        _say_views(url)
        server.shutdown()
    _say_views(url)  # nothing listens there any more
    assert capsys.readouterr().out == ""


def test_a_server_that_dies_is_said_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no disk')"]
    with pytest.raises(UserError, match=r"did not come up; see .*ui.log"):
        ui._start(command, f"http://127.0.0.1:{free_port()}", "/", tmp_path / "ui.log", False)
    assert "no disk" in (tmp_path / "ui.log").read_text()


@pytest.fixture
def bucket() -> Iterator[str]:
    """A storage behind a URI, in this process's memory."""
    yield "memory://bucket/search"
    fsspec.filesystem("memory").store.clear()


def test_a_backup_comes_back_on_a_new_head(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new" / "mlflow.db"
    monkeypatch.setattr(backup, "store_path", lambda storage: old)  # noqa: ARG005
    with pytest.raises(UserError, match="no MLflow database"):
        backup.backup(bucket)
    writing = sqlite3.connect(old)
    writing.execute("create table runs (name text)")
    writing.execute("insert into runs values ('t0000')")
    writing.commit()
    writing.execute("insert into runs values ('not yet')")  # a server in the middle of a write
    (tmp_path / "artifacts" / "1").mkdir(parents=True)
    (tmp_path / "artifacts" / "1" / "space.yaml").write_text("name: x")
    assert backup.backup(bucket) == f"{bucket}/mlflow-backup"
    writing.close()

    monkeypatch.setattr(backup, "store_path", lambda storage: new)  # noqa: ARG005
    assert backup.restore(bucket)
    assert sqlite3.connect(new).execute("select name from runs").fetchall() == [("t0000",)]
    assert (tmp_path / "new" / "artifacts" / "1" / "space.yaml").read_text() == "name: x"
    assert not backup.restore(bucket), "what is there is never overwritten"


def test_a_backup_into_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder, not a bucket.*`ray down` deletes"):
        backup.backup(str(tmp_path))


def test_which_database_is_the_heads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert backup.store_path(str(tmp_path)) == tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert backup.store_path("s3://bucket/x") == Path("~/search/mlflow.db").expanduser()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    with pytest.raises(UserError, match=r"MLflow is at https://mlflow.example.org"):
        backup.store_path("s3://bucket/x")


def test_optuna_dashboard_shows_a_study(tmp_path: Path) -> None:
    """A budget ended it before its points had all their seeds: none of them is running."""
    pytest.importorskip("optuna_dashboard")
    world = World(make_space({"sampler": "tpe", "trials": 12, "repeats": 3, "examples": 6000}), tmp_path, study=STUDY)
    assert ui.serve_optuna(world.folder, free_port()) is None  # no journal yet
    ended = world.session()
    server = ui.serve_optuna(world.folder, free_port())
    assert server is not None
    try:
        with urllib.request.urlopen(f"{server.url}/api/studies", timeout=120) as answer:
            assert [s["study_name"] for s in json.load(answer)["study_summaries"]] == [STUDY]
        with urllib.request.urlopen(f"{server.url}/api/studies/0?after=0", timeout=120) as answer:
            study = json.load(answer)
    finally:
        server.close()
    assert study["objective_names"] == ["stsb_dev"]
    states = [trial["state"] for trial in study["trials"]]
    assert states.count("Complete") == len(point_means(ended.ledger)) > 3
    assert "Running" not in states


def test_the_command_prints_links_and_ends_with_ctrl_c(storage: Path) -> None:
    """The whole command in a process of its own, as a user starts and ends it."""
    import signal

    process = subprocess.Popen(
        [sys.executable, "-c", "from search.cli.ui import ui; ui()", "--storage", str(storage), "--port", "0"],
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
