"""Any other tracking URI (PostgreSQL, MySQL, Databricks, ...), read through MLflow's own client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analysis.errors import AnalysisError, InputError
from analysis.reading.runs import MetricRow, StoredRun, newest_first, oldest_first
from search.schema import PARENT, ROLE
from trainables.contract.errors import first_line


class ClientStore:
    """See `analysis.reading.runs.Store`."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self.uri = uri
        try:
            self._client = MlflowClient(tracking_uri=uri)
            self._names = {e.experiment_id: e.name for e in self._paged(self._client.search_experiments)}
        except MlflowException as fault:
            raise InputError(f"{uri} cannot be read as a tracking store: {first_line(fault)}") from None
        except Exception as fault:  # SQLAlchemy's and the drivers' own, which share no base class
            raise AnalysisError(f"cannot open the tracking store {uri}: {first_line(fault)}") from None

    def studies(self) -> list[StoredRun]:
        return newest_first(self._search(list(self._names), f"tags.`{ROLE}` = 'study'"))

    def trials(self, study: StoredRun) -> list[StoredRun]:
        found = self._search([study.experiment_id], f"tags.`{PARENT}` = '{study.run_id}'")
        return oldest_first(run for run in found if run.tags.get(ROLE) == "trial")

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        return sorted(
            (
                (run, metric, int(point.step), float(point.value))
                for run in run_ids
                for metric in metrics
                for point in sorted(self._client.get_metric_history(run, metric), key=lambda p: (p.step, p.timestamp))
            ),
            key=lambda row: row[:3],
        )

    def artifact(self, run: StoredRun, path: str) -> bytes | None:
        from mlflow.exceptions import MlflowException

        with TemporaryDirectory() as folder:
            try:
                return Path(self._client.download_artifacts(run.run_id, path, folder)).read_bytes()
            except (MlflowException, OSError):
                return None

    def count_runs(self) -> int:
        return len(self._client.search_runs(list(self._names), max_results=1)) if self._names else 0

    def _search(self, experiments: list[str], condition: str) -> list[StoredRun]:
        if not experiments:
            return []
        runs = self._paged(self._client.search_runs, experiment_ids=experiments, filter_string=condition)
        return [
            StoredRun(
                run_id=r.info.run_id, experiment_id=r.info.experiment_id, experiment=self._names[r.info.experiment_id],
                name=r.info.run_name or "", status=r.info.status, start=r.info.start_time or 0, end=r.info.end_time,
                artifact_uri=r.info.artifact_uri or "",
                tags=dict(r.data.tags), params=dict(r.data.params), metrics=dict(r.data.metrics),
            )
            for r in runs
        ]  # fmt: skip

    @staticmethod
    def _paged(call: Any, **arguments: Any) -> list[Any]:
        found: list[Any] = []
        token = None
        while True:
            page = call(page_token=token, **arguments)
            found += page
            token = page.token
            if not token:
                return found
