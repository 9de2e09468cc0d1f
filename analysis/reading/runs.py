"""What is read: MLflow's runs as they are stored, and what a tracking store must answer. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from search.schema import STUDY_ID

MetricRow = tuple[str, str, int, float]  # (run id, metric, step = training examples seen, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One MLflow run as it is stored; `metrics` holds the latest value of each metric (NaN and infinities as floats).

    start, end: milliseconds since 1970, end None while running. status: RUNNING, FINISHED, FAILED or KILLED.
    """

    run_id: str
    experiment_id: str
    experiment: str
    name: str
    status: str
    start: int
    end: int | None
    artifact_uri: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


class Store(Protocol):
    """What reading needs of a tracking store. Deleted runs and experiments are never returned."""

    uri: str

    def studies(self) -> list[StoredRun]:
        """All study runs (tag role=study), newest first."""

    def trials(self, study: StoredRun) -> list[StoredRun]:
        """The study's trial runs in the order they started."""

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        """Every logged value of these metrics, ordered by (run, metric, step, time)."""

    def artifact(self, run: StoredRun, path: str) -> bytes | None:
        """Content of an artifact file; None if there is no such file or it cannot be reached from here."""

    def count_runs(self) -> int:
        """Runs of any kind (1 may stand for "some"): tells an empty store from another program's."""


def study_name(study: StoredRun) -> str:
    return study.tags.get(STUDY_ID) or study.name


def newest_first(runs: Iterable[StoredRun]) -> list[StoredRun]:
    return sorted(runs, key=lambda run: run.start, reverse=True)


def oldest_first(runs: Iterable[StoredRun]) -> list[StoredRun]:
    return sorted(runs, key=lambda run: (run.start, run.name))
