"""One real MLflow store read as a database and over a server: equal contents; errors are one line each."""

from __future__ import annotations

import dataclasses
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from harness import World, make_space
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow_server import mlflow_server
from small_store import SmallStore, fill

from analysis.commands.main import main as analysis
from analysis.errors import AnalysisError, InputError
from analysis.reading.store import Store, StoredRun, find_study, open_store, studies
from search import schema
from search.cli.main import main as search
from search.schema import masked, tracking_uri
from search.tracking.mlflow_store import make_store
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker
from trainables.contract.origin import TRACKED

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    store = SmallStore(tmp_path_factory.mktemp("store"))
    fill(store, "small-1", trials=12)
    fill(store, "small-2", trials=6, confirm=False)
    run = store.client.create_run("0", tags={"mlflow.user": "somebody else"}).info.run_id  # another program's
    store.client.log_metric(run, "accuracy", 1.0)
    broken = store.client.search_runs(["1"], f"tags.{schema.TRIAL_ID} = 't0001'")[-1].info.run_id
    for step, value in ((4001, float("nan")), (4002, float("inf")), (4002, 0.5)):
        store.client.log_metric(broken, "loss", value, step=step)
    gone = store.study("deleted-1")
    store.client.delete_run(gone)
    return store


@pytest.fixture(scope="module")
def server(small: SmallStore) -> Iterator[str]:
    with mlflow_server(small.uri, small.folder / "artifacts") as address:
        yield address


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is repeated without a pause."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")


def comparable(run: StoredRun) -> dict[str, object]:
    """NaN is not equal to itself: compare texts."""
    return {k: str(sorted(v.items())) if isinstance(v, dict) else v for k, v in dataclasses.asdict(run).items()}


def contents(store: Store) -> dict[str, Any]:
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


def test_database_and_server_give_what_was_written(
    small: SmallStore, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = contents(open_store(small.uri))
    assert [s["name"] for s in found["studies"]] == ["small-2", "small-1"]
    assert len(found["trials"]) == 18
    assert found["artifact"]
    assert found["no artifact"] is None
    assert {"nan", "inf"} < {row[3] for row in found["history"]}
    assert found["history"] == sorted(found["history"], key=lambda row: row[:3])
    assert contents(open_store(server)) == found
    monkeypatch.setattr("analysis.reading.store.PAGE", 5)
    assert contents(open_store(server)) == found


def test_history_longer_than_a_server_page_is_complete(small: SmallStore, server: str) -> None:
    run = small.client.create_run("0").info.run_id
    for first in range(0, 26_000, 1000):
        points = [Metric("loss", float(step), step, step) for step in range(first, first + 1000)]
        small.client.log_batch(run, metrics=points)
    for uri in (small.uri, server):
        assert [row[2:] for row in open_store(uri).history([run], ["loss"])] == [(n, float(n)) for n in range(26_000)]


def test_metrics_at_the_best_evaluation_come_from_one_step(small: SmallStore) -> None:
    store = open_store(small.uri)
    trials = store.trials(find_study(store, "small-1"))
    (ended, *_) = [trial for trial in trials if schema.BEST_AT_EXAMPLES in trial.metrics]
    at = int(ended.metrics[schema.BEST_AT_EXAMPLES])
    truth = {(metric, value) for _, metric, step, value in store.history([ended.run_id], ["loss"]) if step == at}
    assert {*store.at_best([ended], ["loss"])[ended.run_id].items()} == truth
    known = dataclasses.replace(ended, at_best={"loss": 9.0})  # as the file of ended trials has it
    assert store.at_best([known], ["loss", "nothing"]) == {ended.run_id: {"loss": 9.0}}
    best = ended.metrics["best_builtin_dev"]
    assert store.at_best(trials, ["builtin_dev"])[ended.run_id] == {"builtin_dev": best}
    without = dataclasses.replace(ended, metrics={k: v for k, v in ended.metrics.items() if k != "best_builtin_dev"})
    assert store.at_best([without], ["builtin_dev"]) == {ended.run_id: {"builtin_dev": best}}


def test_find_study_by_id_space_and_age(small: SmallStore) -> None:
    store = open_store(small.uri)
    assert find_study(store).name == "small-2"
    assert find_study(store, "small-1").name == "small-1"
    assert find_study(store, "small").name == "small-2"
    with pytest.raises(InputError, match=r"unknown study 'smal-1'; did you mean 'small-1'\?"):
        find_study(store, "smal-1")


def test_without_a_name_the_own_newest_study_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = SmallStore(tmp_path)
    for number, user in enumerate(["me", "ann", "bob"], start=1):
        written.client.set_tag(written.study(f"small-{number}"), "mlflow.user", user)
    store = open_store(written.uri)
    monkeypatch.setenv("SEARCH_USER", "me")
    assert find_study(store).name == "small-1"
    assert find_study(store, "small").name == "small-1"
    monkeypatch.setenv("SEARCH_USER", "eve")
    assert find_study(store, "small").name == "small-3"
    monkeypatch.setenv("SEARCH_USER", "ann")
    first = CliRunner().invoke(analysis, ["table", "--storage", str(tmp_path), "--tracking-uri", written.uri])
    assert "small-2" in first.output
    monkeypatch.setenv("SEARCH_USER", "eve")
    with pytest.raises(InputError, match=r"none of yours; name one: small-1 \(of me\), small-2 \(of ann\), small-3"):
        find_study(store)


def test_a_study_tracked_elsewhere_names_the_store(small: SmallStore, tmp_path: Path) -> None:
    (tmp_path / "shared-1").mkdir()
    (tmp_path / "shared-1" / TRACKED).write_text('{"uri": "http://mlflow.lan:5000", "offset": 9}')
    message = "study 'shared-1' was tracked at http://mlflow.lan:5000; set MLFLOW_TRACKING_URI or give --tracking-uri"
    with pytest.raises(InputError, match=f"^{message}$"):
        find_study(open_store(small.uri, str(tmp_path)), "shared-1")


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
    for text in ("not a database", ""):
        (tmp_path / "text.db").write_text(text)
        with pytest.raises(InputError, match=r"text\.db: cannot be read: it is no SQLite database"):
            open_store(f"sqlite:///{tmp_path}/text.db")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://localhost:5000x", "http://[::1", "http://.:5000"])
def test_server_that_is_not_there_is_one_line(address: str) -> None:
    with pytest.raises(AnalysisError, match="cannot reach the tracking server") as told:
        open_store(address)
    assert address in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]"])
@pytest.mark.usefixtures("quick")
def test_what_is_no_mlflow_server_is_one_line(answer: bytes) -> None:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with serving(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        with pytest.raises(AnalysisError, match="cannot read the tracking store") as told:
            open_store(f"http://127.0.0.1:{port}")
        assert "\n" not in str(told.value)


@pytest.mark.usefixtures("quick")
def test_a_busy_server_is_retried(server: str) -> None:
    """A gateway before the real server that lets no request through at the first try."""
    whole = contents(open_store(server))
    tried: set[str] = set()

    def busy(request: str, _: Any) -> int | None:
        code = None if request in tried else 503
        tried.add(request)
        return code

    with gateway(server, busy) as address:
        assert contents(open_store(address)) == whole


@pytest.mark.parametrize(("code", "times"), [(503, 4), (404, 1)])  # what is not there will not come
@pytest.mark.usefixtures("quick")
def test_a_server_that_stays_busy_is_reported(server: str, code: int, times: int) -> None:
    asked: list[str] = []

    def refused(request: str, _: Any) -> int:
        asked.append(request)
        return code

    with gateway(server, refused) as address, pytest.raises(AnalysisError, match=str(code)):
        open_store(address)
    assert len(asked) == times


def test_refused_credentials_are_reported(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is uploaded and downloaded: a gateway lets nothing through without them."""
    with gateway(server, lambda _, headers: None if headers.get("Authorization") == "Bearer t" else 401) as address:
        with pytest.raises(InputError, match=r"refused the credentials \(HTTP 401\)"):
            open_store(address)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t")
        assert contents(open_store(address)) == contents(open_store(server))


LOGINS = ("token", "variables", "file", "address", "address of two", "refused", "refused address")


@pytest.mark.parametrize("way", LOGINS)
def test_whatever_lets_mlflow_in_lets_search_and_analysis_in(
    way: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no output, file or message has the password."""
    password = "wrong" if way.startswith("refused") else "se:cr%t"
    basic = "Basic " + b64encode(b"me:se:cr%t").decode()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")  # what a command sets is gone with the test
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}")
    if way == "token":
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", password)
    elif way in ("variables", "refused", "address of two"):
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "other" if way == "address of two" else password)
    elif way == "file":
        (tmp_path / ".mlflow").mkdir()
        content = f"[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = {password.replace('%', '%%')}\n"
        (tmp_path / ".mlflow" / "credentials").write_text(content)
    allowed = (basic, f"Bearer {password}")
    with gateway(server, lambda _, headers: None if headers.get("Authorization") in allowed else 401) as address:
        if "address" in way:
            address = address.replace("//", f"//me:{quote(password)}@")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        done = CliRunner().invoke(analysis, ["best", "--study", "small-1"])
        defaults = CliRunner().invoke(search, ["config"])
        world = World(make_space({"trials": 1}), tmp_path)
        world.session()
        tracked = replay(Tracker(tracking_uri(), world.folder, world.space))
    assert (done.exit_code, tracked) == ((0, "") if way not in LOGINS[-2:] else (2, tracked)), (done.output, tracked)
    written = "".join(path.read_text() for path in Path(world.folder.uri).glob("*.json*"))
    said = done.output + defaults.output + tracked + written
    assert password not in said
    assert quote(password) not in said


def test_a_database_s_password_is_in_no_message() -> None:
    uri = "postgresql+psycopg2://me:secret@127.0.0.1:1/x"
    with pytest.raises(AnalysisError) as caught:
        open_store(uri)
    assert "secret" not in str(caught.value)
    assert masked(f"a {uri} b") == "a postgresql+psycopg2://me:***@127.0.0.1:1/x b"


@contextmanager
def serving(http: Any) -> Iterator[int]:
    """The port of a server in a thread."""
    with http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield http.server_address[1]
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def gateway(server: str, refuses: Callable[[str, Any], int | None]) -> Iterator[str]:
    """An address that passes requests on, but for those (path and body, headers) that are refused with a code."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            code = refuses(f"{self.path} {body!r}", self.headers)
            if code is not None:
                self.send_error(code)
                return
            request = Request(server + self.path, body, {"Content-Type": "application/json"}, method=self.command)
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

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}"
