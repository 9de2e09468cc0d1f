"""What a study's and its trials' runs in MLflow say: names, tags, parameters, and the metrics that compare studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search import schema
from search.space import Space
from search.store.layout import StudyFolder
from search.store.ledger import Event, Ledger
from search.tracking.notes import study_note, trial_note

SOURCE = {"mlflow.source.name": "search", "mlflow.source.type": "LOCAL"}  # MLflow's column "Source"


def study_tags(space: Space, folder: StudyFolder) -> dict[str, str]:
    """Of the parent run."""
    return {
        schema.ROLE: "study",
        schema.STUDY_ID: folder.study,
        schema.METHOD: space.method,
        schema.METRIC: space.metric.name,
        schema.MODE: space.metric.mode,
        schema.FOLDER: folder.uri,
        schema.SEARCHED: ",".join(space.params),
        schema.NOTE: study_note(space, folder),
        **SOURCE,
    }


def study_params(space: Space) -> dict[str, Any]:
    """The resolved space, flat; plugins and scripts by their files, since their texts are in the space file."""
    resolved = space.resolved()
    if space.plugins:
        resolved["plugins"] = [plugin.file for plugin in space.plugins]
    if space.script:
        resolved["script"] = space.script.file
    return flatten(resolved)


def study_metrics(ledger: Ledger, metric: str, time_ms: int) -> list[Any]:
    """What compares studies: the best value, which MLflow's compare page draws since it is the first, and its cost."""
    from mlflow.entities import Metric

    values: dict[str, float] = {}
    if ledger.best is not None and ledger.best.best is not None:
        values[schema.best_key(metric)] = ledger.best.best
    values |= {
        schema.TRIALS: ledger.ended(), schema.POINTS: len(ledger.tried), schema.FAILED: ledger.failed(),
        schema.HOURS: ledger.elapsed() / 3600,
    }  # fmt: skip
    return [Metric(name, round(float(value), 6), time_ms, 0) for name, value in values.items()]


def trial_tags(event: Event, space: Space, folder: StudyFolder, parent: str | None) -> dict[str, str | None]:
    """Of a child run.

    Args: event: the journal's "start" of the trial; parent: the study's run.
    """
    tags = {
        schema.ROLE: "trial",
        schema.STUDY_ID: folder.study,
        schema.TRIAL_ID: event["id"],
        schema.POINT_ID: event["point_id"],
        schema.SEED: str(event["seed"]),
        schema.STAGE: event["stage"],
        schema.OPTUNA_NUMBER: str(event["number"]),
        schema.METHOD: space.method,
        schema.FOLDER: f"trials/{event['id']}",
        schema.PARENT: parent,
        schema.NOTE: trial_note(event, space, folder),
        **SOURCE,
    }
    if event["baseline"]:
        tags[schema.BASELINE] = event["baseline"]
    if origin := event.get("origin"):
        tags[schema.ORIGIN] = origin
    return tags


def trial_name(trial_id: str, point: Mapping[str, Any]) -> str:
    """`t07 lr=3e-5`: the id and the first searched parameter, short enough for MLflow's table."""
    if not point:
        return trial_id
    name, value = next(iter(point.items()))
    text = f"{value:.2g}" if isinstance(value, float) else str(value)
    return f"{trial_id} {_short(name)}={text}"[:40]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as `a.b.c` keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _short(name: str) -> str:
    known = {"learning_rate": "lr", "batch_size": "batch", "temperature": "tau", "sample_size": "n"}
    return known.get(name, name)
