"""A study on a cluster of two nodes, one of which is lost."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_trial import EVALUATIONS, RUNG, FakeTrial
from harness import make_space
from orders import orders
from rich.console import Console

from search.running.ray_session import may_grow
from search.running.runner import Options, run_study
from search.store.journal import read
from search.store.layout import StudyFolder
from search.wording import headline

HERE = Path(__file__).parent
DATA = {"train": "builtin", "dev": ["stsb"], "language": "en"}
SMALL = {"gpus": 0, "cpus": 1, "workers": 1}


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs and two workers of one CPU."""
    yield from nodes(2, monkeypatch)


@pytest.fixture
def four_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("ray._private.utils.set_sigterm_handler", lambda _: None)  # a thread adds nodes
    yield from nodes(4, monkeypatch)


def nodes(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")  # trial processes find the fake trial by it
    ray.shutdown()
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    cluster.workers = [cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(count)]
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def options(cluster: Any) -> Options:
    return Options(address=cluster.address, trainable=FakeTrial, console=Console(quiet=True), handle_signals=False)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_a_lost_nodes_trial_resumes_elsewhere_from_its_checkpoint(two_nodes: Any, tmp_path: Path) -> None:
    space = make_space({"trials": 3, "concurrent": 2}, data={**DATA, "columns": orders(sleep=0.7)}, resources=SMALL)
    folder = StudyFolder(str(tmp_path / "runs"), "lost")
    killer = threading.Thread(target=kill_when_all_hold_a_checkpoint, args=(two_nodes, folder), daemon=True)
    killer.start()
    result = run_study(space, folder.storage, name=folder.study, options=options(two_nodes))
    killer.join(timeout=1)
    assert (result.status, result.exit_code, result.trouble) == ("finished", 0, "")
    events = list(read(folder.journal))
    retried = [e["id"] for e in events if e["e"] == "retry"]
    assert len(retried) == 1, "the trials of one node started again"
    assert [e["cause"] for e in events if e["e"] == "retry"] == ["node"]
    evaluations = [e for e in events if e["e"] == "eval" and e["id"] == retried[0]]
    resumed = {e["resumed_from"] for e in evaluations} - {0}
    assert len(resumed) == 1
    assert RUNG <= resumed.pop() < EVALUATIONS * RUNG
    # nothing is lost and nothing is written twice
    for run in result.ledger.trials:
        mine = [e for e in events if e.get("id") == run]
        assert [e["examples"] for e in mine if e["e"] == "eval"] == [RUNG * k for k in range(1, EVALUATIONS + 1)]
        assert [e["stop"] for e in mine if e["e"] == "end"] == ["completed"]


def kill_when_all_hold_a_checkpoint(cluster: Any, folder: StudyFolder) -> None:
    trials = folder.local / "trials"
    until = time.monotonic() + 60
    while len(list(trials.glob("*/last/state.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    cluster.remove_node(cluster.workers[0], allow_graceful=False)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_spot_cluster_costs_no_retry_for_lost_nodes(four_nodes: Any, tmp_path: Path) -> None:
    """30 nodes die at random and are replaced. A trial has no other retry."""
    columns = orders(sleep=1.0, hold=str(tmp_path / "killed"))
    space = make_space({"trials": 24, "max_retries": 0}, data={**DATA, "columns": columns}, resources=SMALL)
    folder = StudyFolder(str(tmp_path / "runs"), "spot")
    killer = threading.Thread(target=kill_at_random, args=(four_nodes, folder, tmp_path / "killed"), daemon=True)
    killer.start()
    result = run_study(space, folder.storage, name=folder.study, options=options(four_nodes))
    assert (result.status, result.ledger.stops) == ("finished", {"completed": 24})
    causes = Counter(e["cause"] for e in read(folder.journal) if e["e"] == "retry")
    assert causes.keys() == {"node"}
    assert result.ledger.lost_nodes == causes["node"] > 10
    assert f"{causes['node']} restarts after lost nodes" in headline(space, result.ledger, 0)


def kill_at_random(cluster: Any, folder: StudyFolder, marker: Path) -> None:
    """30 nodes, one after another, each of which is replaced."""
    rng = random.Random(3)
    while not list(folder.local.glob("trials/*/last/state.json")):
        time.sleep(0.1)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    for _ in range(30):
        time.sleep(rng.uniform(0.0, 1.0))
        cluster.remove_node(cluster.workers.pop(rng.randrange(len(cluster.workers))), allow_graceful=False)
        cluster.workers.append(cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, wait=False))
    marker.touch()
    threading.Event().wait()  # Ray's nodes die with the thread that has started them


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_a_node_whose_device_is_broken_is_avoided(two_nodes: Any, tmp_path: Path) -> None:
    """Two trials meet its fault and complete on the other node, as do all that follow."""
    marker = tmp_path / "broken"
    marker.write_text(two_nodes.workers[0].node_id)
    columns = orders(sleep=0.05, fault="device", marker=str(marker), above=0)
    space = make_space({"trials": 8, "concurrent": 2}, data={**DATA, "columns": columns}, resources=SMALL)
    result = run_study(space, str(tmp_path / "runs"), options=options(two_nodes))
    assert (result.status, result.ledger.stops) == ("finished", {"completed": 8})
    retried = [e["id"] for e in read(result.folder.journal) if e["e"] == "retry"]
    assert len(retried) == len(set(retried)) == 2


def test_what_slurm_allocated_does_not_grow() -> None:
    assert may_grow({})
    assert not may_grow({"SLURM_JOB_ID": "7"})
