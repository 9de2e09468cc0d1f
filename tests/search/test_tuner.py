"""The edges to Ray: results into evaluations, errors into kinds, resources into places."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import ray.exceptions
from ray._private.dict import flatten_dict

from search.running.ray_session import fitting
from search.running.tuner import describe, evaluation_from
from search.space import Resources
from trainables.contract.spec import Evaluation


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
        (None, "process", "the trial's process died"),
        (ray.exceptions.OutOfMemoryError("x"), "oom", "the host ran out of memory and Ray ended the trial's process"),
        (ray.exceptions.RayActorError(), "process", "the trial's process died (RayActorError)"),
        (RuntimeError("first line\nlast line"), "error", "RuntimeError: last line"),
        (ValueError(""), "error", "ValueError: ValueError"),
    ],
)
def test_errors_have_a_kind_and_one_line(error: BaseException | None, kind: str, reason: str) -> None:
    fault = describe(error)
    assert (fault.kind, fault.reason) == (kind, reason)


@pytest.mark.parametrize(
    ("resources", "there", "expected"),
    [
        ({}, {"CPU": 2.0}, 2),
        ({"cpus": 3}, {"CPU": 2.0}, 0),
        ({"cpus": 0.5}, {"CPU": 2.0}, 4),
        ({"workers": 2}, {"CPU": 5.0}, 2),
        ({"gpus": 1}, {"CPU": 16.0}, 0),
        ({"gpus": 1}, {"CPU": 16.0, "GPU": 4.0}, 4),
        ({"gpus": 0.25}, {"CPU": 16.0, "GPU": 2.0}, 8),
        ({"gpus": 0.4}, {"CPU": 16.0, "GPU": 3.0}, 6),  # two on each: a trial's share lies on one GPU
        ({"gpus": 2}, {"CPU": 16.0, "GPU": 5.0}, 2),
        ({"gpus": 1, "workers": 2, "cpus": 2}, {"CPU": 16.0, "GPU": 4.0}, 2),
    ],
)
def test_how_many_trials_fit(resources: dict[str, float], there: dict[str, float], expected: int) -> None:
    assert fitting(Resources(**resources), there) == expected  # type: ignore[arg-type]
