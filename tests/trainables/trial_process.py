"""A trial process driven as Tune drives it: an actor that is stepped, reset for the next trial and stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainables.contract.trial import PAUSE_FILE, TrialSpec
from trainables.on_ray.messages import PHASE
from trainables.on_ray.trainable import TrialJob, placement

RUNG, RUNGS = 16, 3


@contextmanager
def private_ray() -> Iterator[None]:
    """A Ray with four (logical) CPUs that finds the tests' helper modules and caches."""
    ray.init(
        "local",  # never one that happens to run on this machine
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 * 2**20,
    )
    try:
        yield
    finally:
        ray.shutdown()


def spec_of(
    study: Path, name: str, *, seed: int = 0, workers: int = 1, data: str = "builtin", **params: Any
) -> TrialSpec:
    """A trial of three evaluations on the builtin data."""
    shape = {"batch_size": 8, "max_examples": RUNG * RUNGS, "eval_examples": RUNG, "precision": "fp32"}
    return TrialSpec(
        method="simcse",
        encoder="builtin:tiny",
        data={"train": data, "dev": ["builtin"], "language": "en"},
        metric="builtin_dev",
        params={**shape, **params},
        seed=seed,
        folder=str(study / "trials" / name),
        workers=workers,
    )


class TrialProcess:
    """One process that runs trial after trial."""

    def __init__(self, spec: TrialSpec) -> None:
        self.phases: list[str] = []
        self.places = placement(spec.workers, spec.cpus, spec.gpus).to_placement_group()
        inside = PlacementGroupSchedulingStrategy(self.places, 0, placement_group_capture_child_tasks=True)
        job = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=inside)(TrialJob)
        self.actor = job.remote({"spec": spec.to_dict()})

    def step(self) -> dict[str, Any]:
        """The next evaluation or the end; what the trial is busy with before goes into `phases`."""
        while True:
            result: dict[str, Any] = ray.get(self.actor.train.remote(), timeout=240)
            if PHASE not in result:
                return result
            self.phases.append(result[PHASE])

    def to_the_end(self) -> list[dict[str, Any]]:
        """Results from here to the trial's last."""
        results = [self.step()]
        while not results[-1]["done"]:
            results.append(self.step())
        return results

    def next(self, spec: TrialSpec) -> None:
        """Another trial in the same process; stops the one that runs."""
        assert ray.get(self.actor.reset.remote({"spec": spec.to_dict()}), timeout=240)

    def stop(self) -> None:
        ray.get(self.actor.stop.remote(), timeout=240)
        ray.kill(self.actor)
        self.free()

    def free(self) -> None:
        """As Tune does when a trial's process is gone."""
        ray.util.remove_placement_group(self.places)


def ask_for_pause(study: Path) -> Path:
    """What the driver does when a study is interrupted."""
    study.mkdir(exist_ok=True)
    marker = study / PAUSE_FILE
    marker.touch()
    return marker
