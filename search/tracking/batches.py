"""What a stretch of the journal says of one trial, in MLflow's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search import schema
from search.store.ledger import Event

PARAM_LIMIT = 6000  # MLflow cuts longer values
STATUS = {"completed": "FINISHED", "pruned": "FINISHED"}


class TrialBatch:
    """What MLflow gets to hear of one trial at once."""

    def __init__(self) -> None:
        self.params: list[Any] = []
        self.metrics: list[Any] = []
        self.tags: dict[str, str] = {}  # the last of a name is what holds
        self.traceback = self.status = ""
        self.time, self.ended = 0, False

    def add(self, event: Event, metric: str, at_best: Mapping[str, float]) -> None:
        """at_best: all metrics of the trial's best evaluation, for its end."""
        from mlflow.entities import Metric, Param

        self.time = event["t"]
        match event["e"]:
            case "start":  # MLflow makes runs RUNNING
                self.params = [Param(name, str(v)[:PARAM_LIMIT]) for name, v in event["params"].items()]
            case "again":
                self.status = "RUNNING"
                self.tags[schema.STOP] = ""  # a promoted trial is no longer paused
            case "reopen":
                self.tags[schema.REASON] = ""  # it may be completed now
            case "pause":
                self.status = "KILLED"
                if event.get("rung") is not None:  # it counts as pruned here until it goes on
                    self.tags[schema.STOP] = "paused"
                    self.metrics += self._final(event, metric, at_best)
            case "eval":
                ordered = sorted(event["metrics"].items(), key=lambda item: _place(item[0], metric))
                self.metrics += [
                    Metric(schema.stored(name), float(v), event["t"], event["examples"]) for name, v in ordered
                ]
                if place := event.get("place"):
                    self.tags[schema.PLACE] = place
            case "end":
                self.metrics += self._final(event, metric, at_best)
                self.tags[schema.STOP] = event["stop"]
                if event["reason"]:
                    self.tags[schema.REASON] = event["reason"][:PARAM_LIMIT]
                self.traceback, self.ended = event["traceback"], True
                self.status = STATUS.get(event["stop"], "FAILED")

    def _final(self, event: Event, metric: str, at_best: Mapping[str, float]) -> list[Any]:
        from mlflow.entities import Metric

        values = final_metrics(event, metric, at_best)
        return [Metric(name, float(v), event["t"], event["examples"]) for name, v in values.items()]


def _place(name: str, metric: str) -> tuple[bool, bool]:
    """MLflow's compare page draws the first metric that a run has: what selects, and last what is always the same."""
    return name != metric, name.startswith(schema.UNTRAINED_PREFIX)


def final_metrics(event: Event, metric: str, at_best: Mapping[str, float]) -> dict[str, float]:
    """What is logged when a trial ends, at the step of its last example: `best_*` are all of its best evaluation."""
    others = {schema.best_key(name): v for name, v in at_best.items() if schema.is_dev(name)}
    values = others | {
        schema.TRAIN_SECONDS: event["seconds"],
        schema.BEST_AT_EXAMPLES: event["best_at"],
        schema.EXAMPLES_PER_SECOND: event["examples"] / event["seconds"] if event["seconds"] else None,
        schema.best_key(metric): event["best"],
    }
    return {name: value for name, value in values.items() if value is not None}
