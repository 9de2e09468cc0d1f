"""A study taken out of MLflow."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from search import schema
from search.space import Space
from search.tracking.mlflow_store import client_of
from search.tracking.saved_views import STUDIES, saved_views


def remove_runs(uri: str, space: Space, study: str) -> int:
    """Mark all runs of a study as deleted, and remove their artifacts where those lie on this machine.

    Returns: how many runs there were.
    Raises: whatever MLflow raises when the store is locked, down or broken.
    """
    store = Path(uri.removeprefix(schema.SQLITE))
    if uri.startswith(schema.SQLITE) and not store.exists():
        return 0
    client = client_of(uri)
    experiment = client.get_experiment_by_name(space.name)
    if experiment is None:
        return 0
    count, wanted = 0, f"tags.{schema.STUDY_ID} = '{study}'"
    while runs := client.search_runs([experiment.experiment_id], wanted, max_results=1000):
        for run in runs:
            client.delete_run(run.info.run_id)
            parts = urlsplit(run.info.artifact_uri)
            if parts.scheme in ("", "file"):
                shutil.rmtree(Path(url2pathname(parts.path)).parent, ignore_errors=True)
            count += 1
    left = client.search_runs([experiment.experiment_id], f"tags.{schema.ROLE} = 'study'", max_results=1)
    shared = {f"mlflow.sharedViewState.{space.name}{STUDIES}"} if left else set()
    for tag in experiment.tags.keys() & (saved_views(space, study).keys() - shared):
        client.delete_experiment_tag(experiment.experiment_id, tag)
    return count
