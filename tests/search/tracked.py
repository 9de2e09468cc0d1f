"""What an MLflow database holds of a study (the fixture `world` of conftest.py)."""

from __future__ import annotations

from typing import Any

from harness import World

from search import schema
from search.tracking.tracker import Tracker


def tracker(world: World) -> Tracker:
    return Tracker(f"sqlite:///{world.root / 'mlflow.db'}", world.folder, world.space)


def runs(world: World) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{world.root / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("fake").experiment_id])
    by_id = {run.data.tags.get(schema.TRIAL_ID, "study"): run for run in found}
    assert len(by_id) == len(found)
    return by_id


def history(world: World, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{world.root / 'mlflow.db'}")
    return [(m.step, m.value) for m in client.get_metric_history(run_id, name)]
