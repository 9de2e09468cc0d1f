"""How trials spread: several on a GPU, the workers of one over nodes. Ray's GPUs are numbers; none need be there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from fake_trial import EVALUATIONS
from gpu_trial import GpuTrial
from harness import make_space
from orders import orders
from rich.console import Console

from search.cli.main import main
from search.running.ray_session import ENVIRONMENT, ever_fits, ray_session
from search.running.runner import Options, run_study
from search.space import Resources
from search.store.journal import read
from search.store.layout import StudyFolder

HERE = Path(__file__).parent
SPACES = HERE.parents[1] / "spaces"
pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(autouse=True)
def _no_other_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")  # trial processes find the fake trial by it
    ray.shutdown()
    yield
    ray.shutdown()


def options(**given: Any) -> Options:
    return Options(console=Console(quiet=True), handle_signals=False, **given)


def test_private_ray_uses_its_own_folder_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards `ray.init(_temp_dir=)`: all of a private Ray's files are below it, none where other Rays put theirs."""
    made: list[Path] = []
    plain = tempfile.mkdtemp

    def mkdtemp(**given: str) -> str:
        made.append(Path(plain(**given)))
        return str(made[-1])

    monkeypatch.setattr("search.running.private_ray.tempfile.mkdtemp", mkdtemp)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # as in a SLURM step of one CPU
    before = dict(os.environ)
    with ray_session(None, Resources(), None) as (capacity, resources):
        assert capacity() == 1
        assert [ever_fits(Resources(cpus=cpus)) for cpus in (1, 2)] == [True, False], "its size is fixed"
        assert resources.gpus is not None
        (session,) = [path for path in (made[0] / "ray").glob("session_2*") if not path.is_symlink()]
        assert (session / "logs" / "raylet.out").exists()
        assert not (Path("/tmp/ray") / session.name).exists()
        assert all(os.environ[name] == before.get(name, value) for name, value in ENVIRONMENT.items())
    assert not made[0].exists()
    assert {name: os.environ.get(name) for name in ENVIRONMENT} == {name: before.get(name) for name in ENVIRONMENT}


ONE_AFTER_THE_OTHER = """
import os
from search.running.ray_session import ray_session
from search.space.sections import Resources
import ray

def other():
    ray.init("local", num_cpus=1, log_to_driver=False, include_dashboard=False, object_store_memory=80 * 2**20)
    ray.shutdown()

other()
with ray_session(None, Resources(), None) as (capacity, _):
    assert capacity() >= 1
assert "RAY_AUTH_TOKEN" not in os.environ
other()
"""


@pytest.mark.slow
def test_private_ray_and_others_alternate_in_one_process(tmp_path: Path) -> None:
    """A notebook's own Ray before and after: each has its token, and a process remembers the first it met (guards
    `AuthenticationTokenLoader`)."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_AUTH_TOKEN", "RAY_ADDRESS")}
    environment["HOME"] = str(tmp_path)  # no user's token lies there
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a usable GPU")
def test_gpu_that_torch_cannot_use_is_a_one_line_error(tmp_path: Path) -> None:
    import ray

    ray.init("local", num_cpus=2, num_gpus=1, log_to_driver=False, **SMALL)
    space = yaml.safe_load((SPACES / "quickstart.yaml").read_text()) | {"resources": {"gpus": 1, "cpus": 1}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    began = time.monotonic()
    done = CliRunner().invoke(main, ["run", str(tmp_path / "space.yaml"), "--storage", str(tmp_path / "runs")])
    assert time.monotonic() - began < 30
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1), done.output
    assert re.search(r"resources.gpus: Ray counts 1 GPU, torch cannot use any: .*resources.gpus=0", done.stderr)
    assert not list((tmp_path / "runs").glob("*/journal*")), "no study is left behind"


@pytest.mark.slow
def test_four_trials_at_a_time_share_two_gpus(tmp_path: Path) -> None:
    import ray

    ray.init("local", num_cpus=8, num_gpus=2, log_to_driver=False, **SMALL)
    data = {"train": "builtin", "dev": ["stsb"], "language": "en", "columns": orders(sleep=0.5)}
    space = make_space({"trials": 8}, data=data, resources={"gpus": 0.5, "cpus": 1})
    folder = StudyFolder(str(tmp_path), "packed")
    result = run_study(space, folder.storage, name=folder.study, options=options(trainable=GpuTrial))
    assert (result.status, result.exit_code) == ("finished", 0)
    trials = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.local.glob("trials/*/steps.jsonl")
    ]
    assert [len(steps) for steps in trials] == [EVALUATIONS + 1] * 8
    steps = [step for steps in trials for step in steps]
    assert len({step["pid"] for step in steps}) == 4, "as many warm processes as trials at a time"
    gpu_of = {step["pid"]: step["gpus"] for step in steps}
    assert sorted(gpu_of.values()) == ["0", "0", "1", "1"], "two processes see each GPU, none sees both"
    assert all(step["gpus"] == gpu_of[step["pid"]] for step in steps)
    moments = [step["from"] for step in steps]
    assert max(sum(s["from"] <= moment < s["to"] for s in steps) for moment in moments) == 4


@pytest.mark.slow
def test_out_of_memory_trial_gets_a_whole_gpu(tmp_path: Path) -> None:
    import ray

    ray.init("local", num_cpus=8, num_gpus=2, log_to_driver=False, **SMALL)
    columns = orders(sleep=0.3, fault="oom", above=1e-4, enough=1)
    data = {"train": "builtin", "dev": ["stsb"], "language": "en", "columns": columns}
    space = make_space({"trials": 10}, data=data, resources={"gpus": 0.5, "cpus": 1})
    folder = StudyFolder(str(tmp_path), "packed")
    result = run_study(space, folder.storage, name=folder.study, options=options(trainable=GpuTrial))
    assert result.ledger.stops == {"completed": 10}
    events = list(read(folder.journal))
    retried = {e["id"] for e in events if e["e"] == "retry"}
    assert retried
    assert {e["cause"] for e in events if e["e"] == "retry"} == {"oom"}
    running: set[str] = set()
    for event in events:
        assert event["e"] != "again" or running, "it waits for all others to end"
        if event["e"] in ("start", "again"):
            running.add(event["id"])
        elif event["e"] in ("end", "retry"):
            running.remove(event["id"])
    for path in folder.local.glob("trials/*/steps.jsonl"):
        steps = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(step["reserved"] == step["spec"] for step in steps)
        assert {step["spec"] for step in steps} == ({0.5, 1.0} if path.parent.name in retried else {0.5})


@pytest.mark.slow
def test_workers_on_two_nodes_fill_each_cache_once(tmp_path: Path) -> None:
    import ray
    from ray._private.state import actors
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    caches = [tmp_path / "first", tmp_path / "second"]  # of each node, as on two machines
    try:
        for cache in caches:
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, env_vars={"SEARCH_CACHE_DIR": str(cache)})
        cluster.wait_for_nodes()
        space = make_space(
            {"trials": 2, "concurrent": 1},  # one after the other, in the same warm group
            data={"train": "builtin", "dev": ["builtin"], "language": "en"},
            metric={"name": "builtin_dev"},
            train={"max_examples": 1000, "eval_examples": 500},
            resources={"workers": 2, "cpus": 1, "gpus": 0},
        )
        folder = StudyFolder(str(tmp_path / "runs"), "spread")
        result = run_study(space, folder.storage, name=folder.study, options=options(address=cluster.address))
        ray.init(cluster.address, log_to_driver=False)
        homes = [(actor["ActorClassName"], actor["Address"]["NodeID"]) for actor in actors().values()]
        head = cluster.head_node.node_id
    finally:
        ray.shutdown()
        cluster.shutdown()
    events = list(read(folder.journal))
    assert (result.status, result.exit_code) == ("finished", 0), events
    assert [e["stop"] for e in events if e["e"] == "end"] == ["completed", "completed"]
    tunes_name = "with_resources.<locals>.ResourceTrainable"  # of a trial's process
    assert {tunes_name, "Mailbox", "TrainController"} <= {kind for kind, _ in homes}
    assert [kind for kind, node in homes if node == head] == [], "a small head's memory is not for trials"
    second_began = [e["t"] for e in events if e["e"] == "start"][1] / 1000
    for cache in caches:
        tokens = list(cache.glob("tokens-*"))
        assert tokens, f"no worker ran on the node of {cache.name}"
        assert all(path.stat().st_mtime < second_began for path in tokens), "tokenised again for the second trial"
    assert sorted(p.name for p in caches[0].glob("tokens-*")) == sorted(p.name for p in caches[1].glob("tokens-*"))
