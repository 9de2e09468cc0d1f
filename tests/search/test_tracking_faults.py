"""MLflow's server fails in the middle of a call, or somebody deletes in its page: each run is there once, and whole."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from harness import World, make_space
from mlflow import MlflowClient
from mlflow_server import mlflow_server

from analysis.commands.main import main
from analysis.reading.store import find_study, open_store, studies
from search import schema
from search.tracking.mlflow_store import make_store
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker

pytestmark = pytest.mark.costly
Fault = Callable[[str, bytes], str]  # (path, body of a request) -> "" | "refuse" | "lose" (its answer)


class Proxy:
    """Before a server. fault: what happens to a request; it changes while the proxy runs."""

    def __init__(self, server: str) -> None:
        proxy = self
        self.fault: Fault = lambda path, body: ""  # noqa: ARG005

        class Handler(BaseHTTPRequestHandler):
            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = proxy.fault(self.path, body)
                if what == "refuse":
                    return self.send_error(500)
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(server + self.path, body or None, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request) as answer:
                        status, content = answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    status, content = error.code, error.read()
                if what == "lose":
                    return self.connection.close()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return None

            do_GET = do_POST = do_PATCH = do_DELETE = _forward

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, args=[0.02], daemon=True).start()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with mlflow_server(f"sqlite:///{tmp_path}/server.db", tmp_path / "artifacts") as server:
        proxy = Proxy(server)
        yield proxy
        proxy.http.shutdown()
        proxy.http.server_close()


def first(count: int, path: str, what: str, name: bytes = b"") -> Fault:
    """The first requests of a path."""
    seen: list[str] = []

    def fault(given: str, body: bytes) -> str:
        if given.endswith(path) and name in body:
            seen.append(given)
            return what if len(seen) <= count else ""
        return ""

    return fault


def whole(client: MlflowClient, world: World, experiment: str = "fake") -> None:
    """Each run once, with all that it has to have."""
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id])
    by_id = {run.data.tags.get(schema.TRIAL_ID, "study"): run for run in runs}
    assert sorted(run.data.tags.get(schema.TRIAL_ID, "study") for run in runs) == sorted(by_id)
    assert by_id.keys() == {"study", *world.session().ledger.trials}
    assert by_id["study"].data.params["search.trials"] == "3"
    assert {a.path for a in client.list_artifacts(by_id["study"].info.run_id)} >= {"space.yaml"}
    assert len([tag for tag in found.tags if "sharedViewState" in tag]) == 3
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags.get(schema.PARENT, by_id["study"].info.run_id) == by_id["study"].info.run_id
        assert run.data.metrics["best_stsb_dev"] > 0


CREATED, LOGGED, TAGGED = "runs/create", "runs/log-batch", "set-experiment-tag"


@pytest.mark.parametrize(
    "fault",
    [
        first(1, CREATED, "lose", b'"study"'),
        first(2, CREATED, "lose", b'"study"'),
        first(1, CREATED, "lose", b"t0001"),  # MLflow's client repeats the request
        first(2, CREATED, "lose", b"t0001"),  # and gives up
        first(2, LOGGED, "refuse"),
        first(4, TAGGED, "refuse", b"sharedViewState"),
        first(4, TAGGED, "lose", b"sharedViewState"),
    ],
    ids=["study", "study twice", "trial", "trial twice", "parameters", "views", "answers"],
)  # fmt: skip
def test_fault_in_any_call_leaves_each_run_whole_once(
    fault: Fault, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    world = World(make_space({"trials": 3}), tmp_path)
    world.session()
    proxy.fault = fault
    at_work = Tracker(proxy.address, world.folder, world.space)
    tried = [replay(at_work) for _ in range(4)]
    assert tried[-1] == ""
    whole(MlflowClient(proxy.address), world)


def test_study_is_analysed_after_another_was_deleted_in_mlflow(tmp_path: Path) -> None:
    """Also in the next experiment, and until something is written again the command is named that does it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    make_store(uri)
    client = MlflowClient(uri)
    for number, name in enumerate(("fake", "fake-2", "fake-3"), start=1):
        world = World(make_space({"trials": 2}), tmp_path, study=f"fake-{number}")
        world.session()
        assert replay(Tracker(uri, world.folder, world.space)) == ""
        done = CliRunner().invoke(main, ["best", "fake", "--tracking-uri", uri])
        assert (done.exit_code, f"Study {world.study} " in done.output) == (0, True), done.output
        client.delete_experiment(gone := client.get_experiment_by_name(name).experiment_id)
        done = CliRunner().invoke(main, ["best", "--tracking-uri", uri])
        assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
        assert "were deleted in MLflow, with experiment fake" in done.output
        assert "`search track STUDY` writes one again" in done.output
    client.restore_experiment(gone)
    assert CliRunner().invoke(main, ["best", "--tracking-uri", uri]).exit_code == 0


@pytest.mark.parametrize("live", [True, False])
def test_an_experiment_deleted_in_mlflow_does_not_block_tracking(live: bool, tmp_path: Path) -> None:
    """What is in it stays deleted; the study goes on in a new one, and in the old one again when it is restored."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    make_store(uri)
    client, world = MlflowClient(uri), World(make_space({"trials": 3}), tmp_path)
    world.session(interrupt_at=8)
    at_work = Tracker(uri, world.folder, world.space)
    at_work.catch_up()
    deleted = client.get_experiment_by_name("fake").experiment_id
    client.delete_experiment(deleted)
    world.session()
    assert replay(at_work if live else Tracker(uri, world.folder, world.space)) == ""
    whole(client, world, "fake-2")
    assert [study.name for study in studies(open_store(uri))] == ["fake-1"]
    assert find_study(open_store(uri), "fake").experiment == "fake-2"
    assert client.get_experiment(deleted).lifecycle_stage == "deleted"
    client.restore_experiment(deleted)
    assert replay(Tracker(uri, world.folder, world.space)) == ""
    whole(client, world)
