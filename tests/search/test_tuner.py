"""The edges to Ray: results into evaluations, errors into kinds, resources into places."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import ray
import ray.exceptions
import yaml
from botocore.exceptions import NoCredentialsError
from ray._private.dict import flatten_dict

from search.running.ray_session import _Capacity, at_largest, fitting, ray_session
from search.running.tuner import describe, evaluation_from
from search.space import Resources
from trainables.contract.trial import Evaluation


def test_a_flattened_result_is_the_evaluation_again() -> None:
    evaluation = Evaluation(
        rung=100,
        examples=96,
        value=0.5,
        metrics={"stsb_dev": 0.5, "loss": 1.0, "mean(a_dev,b_dev)": 0.25},
        best=0.5,
        best_at=96,
        seconds=1.5,
        planned=600,
    )
    result = flatten_dict({**asdict(evaluation), "done": False, "training_iteration": 1, "config": {"spec": {}}})
    assert evaluation_from(result) == evaluation
    assert evaluation_from({**result, "metrics": {}}) == evaluation


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (None, "process", "the trial's process crashed"),
        (ray.exceptions.OutOfMemoryError("x"), "oom", "the host ran out of memory and Ray ended the trial's process"),
        (ray.exceptions.RayActorError(), "process", "the trial's process crashed (RayActorError)"),
        (RuntimeError("first line\nlast line"), "error", "RuntimeError: last line"),
        (ValueError(""), "error", "ValueError: ValueError"),
        (
            NoCredentialsError(),
            "disk",
            "storage: NoCredentialsError: Unable to locate credentials (trials have the environment of their node's"
            " `ray start`)",
        ),
    ],
)
def test_errors_have_a_kind_and_one_line(error: BaseException | None, kind: str, reason: str) -> None:
    fault = describe(error)
    assert (fault.kind, fault.reason) == (kind, reason)


@pytest.mark.parametrize(
    ("resources", "there", "expected"),
    [
        ({}, {"CPU": 2.0}, 2),
        ({}, {}, 0),
        ({"cpus": 2}, {"CPU": 7.0}, 3),
        ({"cpus": 3}, {"CPU": 2.0}, 0),
        ({"cpus": 0.5}, {"CPU": 2.0}, 4),
        ({"workers": 2}, {"CPU": 5.0}, 2),
        ({"gpus": 1}, {"CPU": 16.0}, 0),
        ({"gpus": 1}, {"CPU": 16.0, "GPU": 4.0}, 4),
        ({"gpus": 0.4}, {"CPU": 16.0, "GPU": 3.0}, 6),  # two on each: a trial's share lies on one GPU
        ({"gpus": 2}, {"CPU": 16.0, "GPU": 5.0}, 2),
        ({"gpus": 1, "workers": 2, "cpus": 2}, {"CPU": 16.0, "GPU": 4.0}, 2),
    ],
)
def test_how_many_trials_fit(resources: dict[str, float], there: dict[str, float], expected: int) -> None:
    assert fitting(Resources(**resources), there) == expected  # type: ignore[arg-type]


def head_file(folder: Path, **nodes: dict[str, float]) -> Path:
    """What `ray up` leaves on the head: a head without CPUs, up to 5 of each type of node, 8 in all."""
    head = {"head": {"resources": {"CPU": 0}, "max_workers": 0}}
    kinds = {name: {"resources": resources, "max_workers": 5} for name, resources in nodes.items()}
    file = folder / "ray_bootstrap_config.yaml"
    config = {"head_node_type": "head", "max_workers": 8, "available_node_types": {**head, **kinds}}
    file.write_text(yaml.safe_dump(config))
    return file


CARD, TWO = {"CPU": 4, "GPU": 1, "memory": 16e9}, {"CPU": 8, "GPU": 2}


@pytest.mark.parametrize(
    ("resources", "nodes", "trials"),
    [
        ({"gpus": 1}, {"card": CARD}, 5),
        ({"gpus": 1}, {"card": CARD, "two": TWO}, 5 * 2 + 3),  # the larger ones first
        ({"gpus": 0.5}, {"card": CARD}, 10),
        ({"gpus": 1, "workers": 2}, {"card": CARD}, 2),
        ({"gpus": 0}, {"card": CARD}, 20),
        ({"gpus": 1}, {"card": {}}, None),  # its file does not say what it has
    ],
)
def test_how_many_trials_fit_into_a_cluster_at_its_largest(
    resources: dict[str, float], nodes: dict[str, dict[str, float]], trials: int | None, tmp_path: Path
) -> None:
    assert at_largest(Resources(**resources), head_file(tmp_path, **nodes)) == trials  # type: ignore[arg-type]
    assert at_largest(Resources(**resources), tmp_path / "none.yaml") is None  # type: ignore[arg-type]


def test_a_growing_cluster_requests_all_its_nodes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts as many nodes as trials wait: one after another, each after minutes, where one more than fits waits."""
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 0.0})
    monkeypatch.setenv("HOME", str(tmp_path))
    one = Resources(gpus=1)
    assert _Capacity(one, None, grows=True)() == 1, "not on a head: nothing is known"
    head_file(tmp_path, card=CARD)
    assert _Capacity(one, None, grows=True)() == 5
    assert _Capacity(one, 3, grows=True)() == 3
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 20.0, "GPU": 5.0})
    assert _Capacity(one, None, grows=True)() == 5, "none waits for a node that may not come"


def test_running_ray_is_not_counted_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune requests a trial in every step; the count takes 3 ms, during which all trials would wait."""
    asked = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: asked.append(1) or {"CPU": 4.0})
    with ray_session(None, Resources(), 3) as (capacity, _):
        assert [capacity() for _ in range(100)] == [3] * 100
    assert len(asked) < 5
