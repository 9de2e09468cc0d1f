"""Which study a run in MLflow is of: users share a server, and names of studies repeat."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness import Death, World, make_space
from mlflow import MlflowClient
from mlflow_server import mlflow_server
from test_kill import Server, session

from analysis.commands.main import main as analysis
from search import schema
from search.cli.main import main
from search.remote.cluster import free_port
from search.running.session import write_space
from search.store.journal import Journal, fold, identity, new_identity, read
from search.store.ledger import Ledger
from search.tracking.mlflow_store import make_store, pages
from search.tracking.replayer import Replayer, replay
from search.tracking.tracker import Tracker

pytestmark = pytest.mark.costly


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    served = mlflow_server(f"sqlite:///{tmp_path}/server.db", tmp_path / "artifacts")
    with served as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", address)
        yield address


def begun(root: Path, user: str, now: float, **search: Any) -> World:
    """A study fake-1 of this user, as `search run` creates it."""
    world = World(make_space({"trials": 4, **search}), root / user, now=now)
    world.folder.local.mkdir(parents=True)
    journal = Journal(world.folder.journal, Ledger())
    write_space(journal, world.space, **{**new_identity(), "user": user})
    journal.close()
    return world


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URI of a database of PostgreSQL on loopback; it runs under the account of Debian's package for root."""
    pytest.importorskip("psycopg2", reason="needs psycopg2, with which MLflow reaches PostgreSQL")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("needs PostgreSQL (Debian: apt install postgresql)")
    account: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    folder, port = Path(tempfile.mkdtemp(prefix="postgres-")), free_port()
    if account:
        shutil.chown(folder, **account)
    try:
        initialise = [found[-1].with_name("initdb"), "-D", folder / "data", "-U", "mlflow", "-A", "trust", "-N"]
        subprocess.run(initialise, check=True, stdout=subprocess.DEVNULL, cwd="/", **account)
        options = ["-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
        database = subprocess.Popen([found[-1], *options], stderr=subprocess.DEVNULL, cwd="/", **account)
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < until, "PostgreSQL does not start"
            time.sleep(0.2)
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
        database.send_signal(signal.SIGINT)  # which ends its connections
        database.wait()
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_two_users_search_side_by_side_and_one_deletes(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole searches in processes of their own; MLflow's server has PostgreSQL as its store."""
    for name in ("server", "anna", "bob"):
        (tmp_path / name).mkdir()
    served = Server(tmp_path / "server", postgres)
    try:
        running = []
        for user in ("anna", "bob"):
            monkeypatch.setenv("LOGNAME", user)
            running.append(session("run", make_space({"trials": 5, "seed": len(user)}), tmp_path / user, served))
        assert [driver.wait() for driver in running] == [0, 0]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", served.uri)
        (anna, bob) = (everything(served.uri, str(tmp_path / user)) for user in ("anna", "bob"))
        for user, found in (("anna", anna), ("bob", bob)):
            ledger = fold(tmp_path / user / "runs" / "study" / "tracking.jsonl", Ledger())
            ended = {tags[schema.TRIAL_ID]: tags[schema.STOP] for _, tags, *_ in found.values() if schema.STOP in tags}
            assert ended == {name: record.state for name, record in ledger.trials.items()}
            assert len(found) == 6
            assert {tags[schema.USER] for _, tags, *_ in found.values()} == {user}
        done = CliRunner().invoke(main, ["delete", "study", "--yes", "--storage", str(tmp_path / "anna" / "runs")])
        assert "6 runs are marked deleted" in done.output, done.output
        assert everything(served.uri, str(tmp_path / "anna")) == {}
        assert everything(served.uri, str(tmp_path / "bob")) == bob
        assert (tmp_path / "bob" / "runs" / "study" / "tracking.jsonl").exists()
    finally:
        served.kill()


def everything(uri: str, folder: str) -> dict[str, Any]:
    """All that MLflow has of the studies of a storage: run id -> what is in it; and tags of the experiments."""
    client = MlflowClient(uri)
    found: dict[str, Any] = {}
    for experiment in client.search_experiments():
        runs = pages(client.search_runs, [experiment.experiment_id])
        of = {r.info.run_id for r in runs if r.data.tags.get(schema.FOLDER, "").startswith(folder)}
        for run in runs:
            if {run.info.run_id, run.data.tags.get(schema.PARENT)} & of:
                history = {m: [(v.step, v.value) for v in client.get_metric_history(run.info.run_id, m)]
                           for m in run.data.metrics}  # fmt: skip
                files = sorted(a.path for a in client.list_artifacts(run.info.run_id))
                found[run.info.run_id] = (run.info.status, run.data.tags, run.data.params, history, files)
    return found


@pytest.mark.parametrize("seeds", [(3, 3), (3, 4)], ids=["equal parameters", "other parameters"])
def test_equal_names_of_two_users_share_a_server(server: str, tmp_path: Path, seeds: tuple[int, int]) -> None:
    """Side by side, each study whole; then one is deleted, and nothing of the other is touched."""
    worlds = [begun(tmp_path, user, 1e6 + i, seed=seeds[i]) for i, user in enumerate(("anna", "bob"))]

    def search(world: World) -> str:
        replayer = Replayer(Tracker(server, world.folder, world.space))
        replayer.start()
        world.session()
        assert replayer.finish(patience_s=60), replayer.trouble
        return replayer.trouble

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(search, worlds)) == ["", ""]
    found = [everything(server, str(world.root)) for world in worlds]
    assert [len(each) for each in found] == [5, 5]
    for world, each in zip(worlds, found, strict=True):
        names = {tags.get(schema.TRIAL_ID, "study") for _, tags, *_ in each.values()}
        assert names == {"study", *world.session().ledger.trials}
    views = set(MlflowClient(server).get_experiment_by_name("fake").tags)

    told = CliRunner().invoke(analysis, ["best", "fake-1", "--storage", str(tmp_path)])
    assert told.exit_code == 2
    (line,) = told.output.splitlines()
    assert line.startswith("analysis: 2 studies are called fake-1: ")
    assert f"(in {worlds[0].root}, begun by anna " in line
    assert f"(in {worlds[1].root}, begun by bob " in line
    uuid = identity(worlds[0].folder.journal).uuid[:8]
    assert uuid in line
    for chosen in (["best", uuid], ["best", "fake-1", "--storage", str(worlds[1].root)]):
        told = CliRunner().invoke(analysis, chosen)
        assert told.exit_code == 0, told.output

    done = CliRunner().invoke(main, ["delete", "fake-1", "--yes", "--storage", str(worlds[0].root)])
    assert "5 runs are marked deleted" in done.output
    assert everything(server, str(worlds[0].root)) == {}
    assert everything(server, str(worlds[1].root)) == found[1]
    gone = views - set(MlflowClient(server).get_experiment_by_name("fake").tags)
    assert len(gone) == 2 * hasattr(MlflowClient, "delete_experiment_tag"), "the views of the deleted study; not on 3.1"
    assert CliRunner().invoke(analysis, ["best", "fake-1"]).exit_code == 0


def test_older_studies_of_one_name_find_their_own_runs(tmp_path: Path) -> None:
    """A version without uuids mixed them: its runs are known by their trials' starts."""
    uri = f"sqlite:///{tmp_path}/shared.db"
    make_store(uri)
    worlds = [World(make_space({"trials": 4}), tmp_path / user, now=1e6 + i) for i, user in enumerate(("anna", "bob"))]
    client, before = MlflowClient(uri), []
    for world in worlds:
        world.session(interrupt_at=8)
        assert replay(Tracker(uri, world.folder, world.space)) == ""
        before.append(everything(uri, str(world.root)).keys())
    for run_id in [*before[0], *before[1]]:
        client.delete_tag(run_id, schema.STUDY_UUID)
    for world, known in zip(worlds, before, strict=True):
        world.folder.tracked.unlink()
        world.session()
        assert replay(Tracker(uri, world.folder, world.space)) == ""
        assert everything(uri, str(world.root)).keys() > known
        assert len(everything(uri, str(world.root))) == 5
    moved = World(worlds[1].space, tmp_path / "carol")
    shutil.move(worlds[1].root, moved.root)
    assert replay(Tracker(uri, moved.folder, moved.space)) == ""
    assert everything(uri, str(worlds[1].root)) == {}
    assert len(everything(uri, str(moved.root))) == 5, "the folder's new place makes no new runs, and is tracked"


@pytest.mark.parametrize("position", ["lost", "stale"])
def test_a_head_behind_mlflow_replaces_what_was_lost(tmp_path: Path, position: str) -> None:
    """The last trials of a lost head reached MLflow and not the bucket; the next head starts others of their names."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    make_store(uri)
    world = begun(tmp_path, "anna", 1e6, trials=8)
    with pytest.raises(Death):
        world.session(die_at=40)
    assert replay(Tracker(uri, world.folder, world.space)) == ""
    lines = world.folder.journal.read_bytes().splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if b'"e":"start"' in line]
    world.folder.journal.write_bytes(b"".join(lines[: starts[2]]))
    if position == "lost":  # else it falls into the middle of a line of the other journal
        world.folder.tracked.unlink()
    world.last.clear()
    world.now += 1000
    ledger = world.session(seed=1).ledger
    assert replay(Tracker(uri, world.folder, world.space)) == ""
    runs = MlflowClient(uri).search_runs([MlflowClient(uri).get_experiment_by_name("fake").experiment_id])
    trials = [(run.data.tags[schema.TRIAL_ID], run) for run in runs if schema.TRIAL_ID in run.data.tags]
    assert len(trials) == 8
    assert {name: run.data.tags[schema.STOP] for name, run in trials} == {n: r.state for n, r in ledger.trials.items()}
    starts = {event["id"]: event["t"] for event in read(world.folder.journal) if event["e"] == "start"}
    assert {name: run.info.start_time for name, run in trials} == starts, "no run of the lost driver"
