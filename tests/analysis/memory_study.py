"""Studies in memory: a table of trials and a space file, without MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from analysis.reading.store import MetricRow, Store, StoredRun
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from analysis.tables.trials import PARAM

METRIC = Metric("stsb_dev", ("stsb_dev",))


class MemoryStore(Store):
    """Artifacts of the study's run and metric rows."""

    uri = "memory"

    def __init__(self, space: Mapping[str, Any], rows: Sequence[MetricRow] = ()) -> None:  # connects to nothing
        self._space, self._rows = yaml.safe_dump(dict(space)).encode(), rows

    def studies(self) -> list[StoredRun]:
        return []

    def trials(self, study: StoredRun) -> list[StoredRun]:  # noqa: ARG002  # the interface's
        return []

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        return [row for row in self._rows if row[0] in run_ids and row[1] in metrics]

    def artifact(self, run: StoredRun, path: str) -> bytes | None:  # noqa: ARG002  # the interface's
        return self._space if path == "space.yaml" else None


def run(run_id: str = "study", metrics: Mapping[str, float] | None = None, **tags: str) -> StoredRun:
    return StoredRun(
        run_id=run_id, experiment_id="1", experiment="memory", name=run_id, status="FINISHED", start=0, end=1000,
        artifact_uri="", tags=tags, params={}, metrics=dict(metrics or {}),
    )  # fmt: skip


def memory_study(
    points: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    space_params: Mapping[str, Any],
    stops: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    metrics: Sequence[Mapping[str, float]] | None = None,
    space: Mapping[str, Any] | None = None,
) -> Study:
    """One trial per entry; trials of equal parameters are one point. metrics: what each trial's run holds beside."""
    n = len(points)
    stops, seeds = stops or ["completed"] * n, seeds or [0] * n
    searched = tuple(name for name, value in space_params.items() if isinstance(value, dict))
    names = dict.fromkeys(name for point in points for name in point)
    table = pd.DataFrame(
        {
            "run_id": [f"r{i}" for i in range(n)],
            "trial": [f"t{i:04}" for i in range(n)],
            "point": [str(sorted(p.items(), key=str)) for p in points],
            "stage": "search",
            "stop": stops,
            "method": "simcse",
            "reason": "",
            "folder": [f"trials/t{i:04}" for i in range(n)],
            "number": range(n),
            "seed": seeds,
            "baseline": [i == 0 for i in range(n)],
            "examples": 1000.0,
            "seconds": [float(10 + i) for i in range(n)],
            "rate": 100.0,
            "value": values,
            **{PARAM + name: pd.Series([p.get(name) for p in points], dtype=object) for name in names},
        }
    )
    runs = [run(f"r{i}", metrics[i] if metrics else {}) for i in range(n)]
    content = {"params": dict(space_params), **(space or {})}
    return Study(MemoryStore(content), run(study_id="memory-1"), runs, METRIC, table, searched, n)
