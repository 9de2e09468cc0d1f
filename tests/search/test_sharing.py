"""`resources: auto`: the first trial measures, then as many as fit share a GPU or the cores."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_space
from measured_trial import MeasuredTrial
from orders import orders
from rich.console import Console

from search.running.runner import Options, resume_study, run_study
from search.running.sharing import Sharing, peak_at_largest, share_cores, share_gpu
from search.schema import ROLE, SHARED_GPUS, SHARING
from search.store.journal import read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial, TrialRecord
from search.tracking.mlflow_store import client_of
from trainables.contract.trial import CARD_MEMORY, DEVICE_MEMORY, GPU_BUSY, MODEL_MEMORY

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("peak_gb", "gpu_gb", "busy", "cores", "trials"),
    [
        (3.0, 80.0, 23.0, 16, 4),  # utilisation
        (3.0, 80.0, 5.0, 16, 8),  # the most
        (30.0, 80.0, 5.0, 16, 2),  # memory
        (3.0, 80.0, 5.0, 3, 3),  # cores
        (100.0, 80.0, 5.0, 16, 1),  # one trial always runs
        (3.0, 80.0, 99.0, 16, 1),
        (3.0, 80.0, None, 16, 8),  # no nvidia-ml-py
        (3.0, 0.0, None, 16, 1),  # a script that reports no memory
    ],
)
def test_as_many_trials_share_a_gpu_as_fit(
    peak_gb: float, gpu_gb: float, busy: float | None, cores: int, trials: int
) -> None:
    share = share_gpu(peak_gb, gpu_gb, busy, cores)
    assert share.trials == trials
    assert math.floor(1 / share.gpus + 1e-9) == trials, "Ray puts as many on a GPU"
    assert share.reason.startswith(f"{trials} trial")


@pytest.mark.parametrize(
    ("step_s", "cores", "most", "memory", "expected"),
    [
        ({1: 1.0, 2: 0.9}, 2, 16, 2, (2, 1)),  # trials at once, threads: two threads gain little
        ({1: 1.0, 2: 0.5}, 2, 16, 2, (1, 2)),  # as fast: fewer trials learn more from each other
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4, 2, 4, (2, 2)),  # only two trials are wanted
        ({1: 1.0, 2: 0.8, 4: 0.7}, 4, 16, 1, (1, 4)),  # memory for one
        ({}, 4, 16, 4, (4, 1)),  # a script: nothing was timed
    ],
)
def test_threads_follow_the_measured_scaling(
    step_s: dict[int, float], cores: int, most: int, memory: int, expected: tuple[int, int]
) -> None:
    share = share_cores(step_s, cores, most, memory)
    assert (share.trials, share.cpus) == expected


def test_long_steps_are_printed_in_seconds() -> None:
    assert share_cores({1: 0.856, 2: 11.13}, 2, 4, 4).reason.endswith("(a step takes 856 ms on 1, 11.13 s on 2)")


def test_memory_is_that_of_the_largest_batch() -> None:
    assert peak_at_largest(3.0, 2.0, 64, 512) == 2.0 + 8 * 1.0
    assert peak_at_largest(3.0, 2.0, 512, 64) == 3.0


@pytest.mark.parametrize(
    ("nodes", "earlier", "trials"),
    [
        ([{"CPU": 16, "GPU": 2, "accelerator_type:T4": 1}], None, 8),
        ([{"CPU": 2}, {"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 2}], None, 4),  # cores of the smallest with a GPU
        ([{"CPU": 16, "GPU": 1, "accelerator_type:T4": 1}, {"CPU": 16, "GPU": 1, "accelerator_type:L4": 1}], None, 1),
        ([{"CPU": 16, "GPU": 2}], "GPU, 8 cores each", 3),  # as an earlier session decided
        ([{"CPU": 16, "GPU": 2}], "GPU, 4 cores each", 8),  # of another machine
    ],
    ids=["one kind of node", "several nodes", "several GPUs", "resumed", "resumed elsewhere"],
)
def test_nodes_decide_with_the_measured_gpu(nodes: list[Any], earlier: str | None, trials: int) -> None:
    space = make_space({"trials": 4}, resources={"gpus": "auto"})
    ledger = Ledger()
    if earlier:
        ledger.share = {"gpus": 0.3333, "cpus": 1.0, "trials": 3, "reason": "3 trials a GPU", "machine": earlier}
    known = replace(space.resources.numbers(), gpus=1.0)
    sharing = Sharing(space, known, lambda: nodes, ledger)
    if sharing.measuring:
        assert sharing.resources.gpus == 1 / 8, "others can join the first trial on its GPU"
        ledger.trials["t0000"] = TrialRecord(trial=Trial(**dict.fromkeys(Trial.__annotations__, 0) | {"params": {}}))  # type: ignore[arg-type]
        facts = {CARD_MEMORY: 80.0, DEVICE_MEMORY: 3.0, GPU_BUSY: 5.0}
        assert sharing.observe({"e": "eval", "id": "t0000", "metrics": facts}) is not None
    assert math.floor(1 / sharing.resources.gpus + 1e-9) == trials
    assert not sharing.measuring


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")  # trial processes find the fake trial by it
    ray.shutdown()
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    ray.init("local", num_cpus=16, num_gpus=2, log_to_driver=False, **small)
    yield
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("_two_gpus")
def test_the_first_trial_measures_and_then_four_share_each_gpu(tmp_path: Path) -> None:
    facts = {CARD_MEMORY: 80.0, DEVICE_MEMORY: 3.0, MODEL_MEMORY: 2.0, GPU_BUSY: 23.0}
    space = make_space(
        {"trials": 12},
        data={"train": "builtin", "dev": ["stsb"], "language": "en", "columns": orders(sleep=0.3, facts=facts)},
        resources={"gpus": "auto", "cpus": "auto"},
    )
    folder = StudyFolder(str(tmp_path), "shared")
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    options = Options(console=console, handle_signals=False, trainable=MeasuredTrial)
    result = run_study(space, folder.storage, name=folder.study, options=options)
    assert (result.status, result.exit_code) == ("finished", 0), (result.reason, console.export_text())
    printed = " ".join(console.export_text().split())
    assert "resources: 4 trials a GPU (8 CPU cores allow 8, " in printed
    assert "23 % busy with one allow 4; at most 8)" in printed

    asked = {path.parent.name: json.loads(path.read_text()) for path in folder.local.glob("trials/*/asked.json")}
    assert asked.pop("t0000") == {"gpus": 1.0, "cpus": 1.0, "measure": True}, "alone, with all memory"
    assert len(asked) == 11
    assert all(one == {"gpus": 0.25, "cpus": 1.0, "measure": False} for one in asked.values())

    events: list[dict[str, Any]] = list(read(folder.journal))
    shares = [event for event in events if event["e"] == "share"]
    assert [(s["gpus"], s["trials"]) for s in shares] == [(0.25, 4)]
    kinds = [event["e"] for event in events]
    assert kinds.index("share") < [n for n, kind in enumerate(kinds) if kind == "start"][1], "the first one runs alone"
    running = itertools.accumulate({"start": 1, "end": -1}.get(kind, 0) for kind in kinds)
    assert max(running) == 8, "four on each GPU"

    client = client_of(result.tracking_uri)
    experiment = client.get_experiment_by_name(space.name)
    (run,) = client.search_runs([experiment.experiment_id], f"tags.{ROLE} = 'study'")
    assert run.data.tags[SHARING].startswith("4 trials a GPU (")
    assert run.data.tags[SHARED_GPUS] == "0.25"

    more = resume_study(folder.storage, folder.study, overrides=["search.trials=14"], options=options)
    assert (more.status, len(more.ledger.trials)) == ("finished", 14)
    assert [e["e"] for e in read(folder.journal)].count("share") == 1, "a resume measures nothing again"
    assert "as measured before" in console.export_text(clear=False) + (tmp_path / "out").read_text()


@pytest.mark.slow  # four raylets; test_nodes_decide_with_the_measured_gpu has the rule
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_smallest_node_decides_and_other_gpus_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives every trial the same share; what one trial measured holds for GPUs of its kind."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    ray.shutdown()
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    options = Options(console=Console(quiet=True), handle_signals=False, trainable=MeasuredTrial)
    facts = {CARD_MEMORY: 80.0, DEVICE_MEMORY: 3.0, MODEL_MEMORY: 2.0, GPU_BUSY: 5.0}
    data = {"train": "builtin", "dev": ["stsb"], "language": "en", "columns": orders(sleep=0.3, facts=facts)}
    space = make_space({"trials": 2}, data=data, resources={"gpus": "auto", "cpus": "auto"})
    try:
        # node by node: sixteen cores for a GPU; three for another of its kind; a GPU of another kind
        for name, cpus, kind, a_gpu in (("alone", 16, "T4", 8), ("same", 3, "T4", 3), ("other", 16, "L4", 1)):
            cluster.add_node(num_cpus=cpus, num_gpus=1, resources={f"accelerator_type:{kind}": 1}, **small)
            cluster.wait_for_nodes()
            folder = StudyFolder(str(tmp_path), name)
            result = run_study(space, folder.storage, name=name, options=options)
            assert (result.status, result.exit_code) == ("finished", 0), result.reason
            events: list[dict[str, Any]] = list(read(folder.journal))
            assert [e["trials"] for e in events if e["e"] == "share"] == [a_gpu]
    finally:
        ray.shutdown()
        cluster.shutdown()
