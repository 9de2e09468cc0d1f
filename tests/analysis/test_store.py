"""The three readers give the same on one real MLflow store; faults are one line each."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from analysis.reading.sqlite import SqliteStore
from mlflow import MlflowClient
from mlflow_server import mlflow_server
from small_store import SmallStore, fill

from analysis.errors import AnalysisError, InputError
from analysis.reading.store import Store, StoredRun, find_study, open_store, studies
from search import schema
from search.tracking.mlflow_store import make_store

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    store = SmallStore(tmp_path_factory.mktemp("store"))
    fill(store, "small-1", trials=12)
    fill(store, "small-2", trials=6, confirm=False)
    run = store.client.create_run("0", tags={"mlflow.user": "somebody else"}).info.run_id  # another program's
    store.client.log_metric(run, "accuracy", 1.0)
    broken = store.client.search_runs(["1"], f"tags.{schema.TRIAL_ID} = 't0001'")[0].info.run_id
    for step, value in ((4001, float("nan")), (4002, float("inf")), (4002, 0.5)):
        store.client.log_metric(broken, "loss", value, step=step)
    gone = store.study("deleted-1")
    store.client.delete_run(gone)
    return store


@pytest.fixture(scope="module")
def server(small: SmallStore) -> Iterator[str]:
    with mlflow_server(small.uri, small.folder / "artifacts") as address:
        yield address


def comparable(run: StoredRun) -> dict[str, object]:
    """NaN is not equal to itself: compare texts."""
    return {k: str(sorted(v.items())) if isinstance(v, dict) else v for k, v in dataclasses.asdict(run).items()}


def contents(store: Store) -> dict[str, object]:
    found = studies(store)
    trials = store.trials(found[-1])
    history = store.history([t.run_id for t in trials], ["builtin_dev", "loss"])
    return {
        "studies": [comparable(s) for s in found],
        "trials": [comparable(t) for t in trials],
        "history": [(*row[:3], str(row[3])) for row in history],
        "artifact": store.artifact(trials[0], schema.SIMILARITIES),
        "no artifact": store.artifact(trials[0], "nothing.npz"),
        "some": store.count_runs() > 0,
    }


def test_sqlite_reads_what_mlflow_s_client_reads(small: SmallStore) -> None:
    direct = open_store(small.uri)
    assert isinstance(direct, SqliteStore)
    found = contents(direct)
    assert found == contents(Store(small.uri))
    assert [s["name"] for s in found["studies"]] == ["small-2", "small-1"]  # type: ignore[attr-defined]
    assert len(found["trials"]) == 18  # type: ignore[arg-type]
    assert found["artifact"]
    assert found["no artifact"] is None


def test_rest_reads_what_sqlite_reads(small: SmallStore, server: str) -> None:
    store = open_store(server)
    assert isinstance(store, Store)
    assert contents(store) == contents(open_store(small.uri))


def test_rest_pages_and_splits(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(open_store(server))
    monkeypatch.setattr("analysis.reading.store.PAGE", 5)
    monkeypatch.setattr("analysis.reading.store.HISTORY_RUNS", 4)
    monkeypatch.setattr("analysis.reading.store.HISTORY_ROWS", 6)
    assert contents(open_store(server)) == whole


def test_find_study_by_id_space_and_age(small: SmallStore) -> None:
    store = open_store(small.uri)
    assert find_study(store).name == "small-2"
    assert find_study(store, "small-1").name == "small-1"
    assert find_study(store, "small").name == "small-2"
    with pytest.raises(InputError, match=r"unknown study 'smal-1'; did you mean 'small-1'\?"):
        find_study(store, "smal-1")


def test_reading_creates_and_changes_nothing(small: SmallStore, tmp_path: Path) -> None:
    before = (small.folder / "mlflow.db").read_bytes()
    contents(open_store(small.uri))
    assert (small.folder / "mlflow.db").read_bytes() == before
    with pytest.raises(InputError, match="no tracking store at"):
        open_store(f"sqlite:///{tmp_path}/none/mlflow.db")
    assert not list(tmp_path.iterdir())


def test_empty_store_foreign_store_and_no_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    make_store(uri)
    client = MlflowClient(tracking_uri=uri)
    with pytest.raises(AnalysisError, match=r"is empty: no study has been run yet") as empty:
        studies(open_store(uri))
    assert empty.value.exit_code == 1
    client.create_run("0")
    with pytest.raises(AnalysisError, match="none of a study of `search`"):
        studies(open_store(uri))
    (tmp_path / "text.db").write_text("not a database")
    with pytest.raises(AnalysisError, match="cannot"):
        open_store(f"sqlite:///{tmp_path}/text.db")


def test_server_that_is_not_there_or_not_mlflow(server: str) -> None:
    with pytest.raises(AnalysisError, match=r"cannot reach the tracking server http://127\.0\.0\.1:9"):
        studies(open_store("http://127.0.0.1:9"))
    with pytest.raises(AnalysisError, match="HTTP 404"):
        studies(open_store(f"{server}/elsewhere"))


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_what_speaks_no_http_or_dies_over_it_is_one_line(answer: bytes) -> None:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            with pytest.raises(AnalysisError, match="cannot reach the tracking server"):
                studies(open_store(f"http://127.0.0.1:{served.server_address[1]}"))
        finally:
            served.shutdown()
            thread.join()


@pytest.mark.parametrize("address", ["http://localhost:5000x", "http://[::1", "http://.:5000"])
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(AnalysisError, match="cannot reach the tracking server"):
        studies(open_store(address))


@pytest.mark.parametrize("trouble", [500, 503, "reset"])
def test_a_server_that_is_busy_is_asked_again(server: str, monkeypatch: pytest.MonkeyPatch, trouble: int | str) -> None:
    """A gateway before the real server that does not let every second request through."""
    monkeypatch.setattr("analysis.reading.store.PAUSES", (0.01, 0.01))
    whole = contents(open_store(server))
    with gateway(server, lambda count: trouble if count % 2 else None) as address:
        assert contents(open_store(address)) == whole


def test_a_server_that_stays_busy_is_told_of(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.reading.store.PAUSES", (0.01, 0.01))
    asked: list[int] = []

    def refused(code: int, _: int) -> int:
        asked.append(code)
        return code

    for code, times in ((503, 3), (404, 1)):  # what is not there will not come
        asked.clear()
        busy = gateway(server, partial(refused, code))
        with busy as address, pytest.raises(AnalysisError, match=f"answered HTTP {code}"):
            studies(open_store(address))
        assert len(asked) == times


@contextmanager
def gateway(server: str, refuses: Callable[[int], int | str | None]) -> Iterator[str]:
    """An address that passes requests on, but for those, counted from 1, that are refused or dropped."""
    counts = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            trouble = refuses(next(counts))
            if trouble == "reset":
                return  # without an answer the connection closes
            if trouble is not None:
                self.send_error(int(trouble))
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            request = Request(server + self.path, data=body, headers={"Content-Type": "application/json"})
            try:
                with urlopen(request) as answer:
                    status, content = answer.status, answer.read()
            except HTTPError as fault:
                status, content = fault.code, fault.read()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Nothing: pytest shows what is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}"
        finally:
            served.shutdown()
            thread.join()


def test_credentials_as_mlflow_takes_them() -> None:
    from analysis.reading.store import _authorization

    assert _authorization({"MLFLOW_TRACKING_TOKEN": "t"}) == {"Authorization": "Bearer t"}
    basic = _authorization({"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"})
    assert basic == {"Authorization": "Basic dTpw"}
    assert _authorization({}) == {}
