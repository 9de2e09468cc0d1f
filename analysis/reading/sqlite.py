"""MLflow's SQLite store, read directly and read-only (schema of MLflow 3.17; guarded by a test against its client)."""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from analysis.errors import AnalysisError
from analysis.reading.runs import MetricRow, StoredRun, newest_first, oldest_first
from search.schema import PARENT, ROLE

NEEDED = {
    "runs": "run_uuid, name, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id",
    "experiments": "experiment_id, name, lifecycle_stage",
    "tags": "run_uuid, key, value",
    "params": "run_uuid, key, value",
    "metrics": "run_uuid, key, value, step, timestamp, is_nan",
    "latest_metrics": "run_uuid, key, value, is_nan",
}
HUGE = 1.7976931348623157e308  # how MLflow's SQL store writes an infinity
CHUNK = 500  # run ids per query; SQLite allows 999 variables in its oldest supported builds
TAGGED = "SELECT run_uuid FROM tags WHERE key = ? AND value = ?"


class SqliteStore:
    """See `analysis.reading.runs.Store`."""

    def __init__(self, path: Path) -> None:
        self.uri = f"sqlite:///{path}"
        self._db = _connect(path)

    @staticmethod
    def can_read(path: Path) -> bool:
        """Whether the file has the tables and columns read here (another MLflow version may have others)."""
        try:
            db = _connect(path)
            for table, columns in NEEDED.items():
                db.execute(f"SELECT {columns} FROM {table} LIMIT 0")
        except sqlite3.DatabaseError:
            return False
        return True

    def studies(self) -> list[StoredRun]:
        return newest_first(self._runs(ROLE, "study"))

    def trials(self, study: StoredRun) -> list[StoredRun]:
        return oldest_first(run for run in self._runs(PARENT, study.run_id) if run.tags.get(ROLE) == "trial")

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        rows: list[MetricRow] = []
        for at in range(0, len(run_ids), CHUNK):
            ids = run_ids[at : at + CHUNK]
            found = self._query(
                "SELECT run_uuid, key, step, value, is_nan FROM metrics "
                f"WHERE run_uuid IN ({_marks(ids)}) AND key IN ({_marks(metrics)}) "
                "ORDER BY run_uuid, key, step, timestamp",
                (*ids, *metrics),
            )
            rows += [(run, key, step, _number(value, is_nan)) for run, key, step, value, is_nan in found]
        return rows

    def artifact(self, run: StoredRun, path: str) -> bytes | None:
        parts = urlsplit(run.artifact_uri)
        if parts.scheme in ("", "file"):
            file = Path(unquote(parts.path)) / path
            return file.read_bytes() if file.is_file() else None
        if parts.scheme == "mlflow-artifacts":  # only the server that wrote it knows where that is
            return None
        import fsspec

        try:
            with fsspec.open(f"{run.artifact_uri}/{path}", "rb") as stream:
                return bytes(stream.read())
        except (OSError, ImportError, ValueError):  # missing file, missing driver, unknown scheme
            return None

    def count_runs(self) -> int:
        return int(self._query("SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'")[0][0])

    def _query(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(text, values).fetchall()
        except sqlite3.DatabaseError as fault:  # locked for longer than the time-out, or damaged
            raise AnalysisError(f"cannot read {self.uri}: {fault}") from None

    def _runs(self, tag: str, value: str) -> list[StoredRun]:
        args = (tag, value)
        texts: dict[str, dict[str, dict[str, str]]] = {}
        for table in ("tags", "params"):
            texts[table] = defaultdict(dict)
            for run, key, text in self._query(
                f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN ({TAGGED})", args
            ):
                texts[table][run][key] = text
        metrics: Mapping[str, dict[str, float]] = defaultdict(dict)
        for run, key, number, is_nan in self._query(
            f"SELECT run_uuid, key, value, is_nan FROM latest_metrics WHERE run_uuid IN ({TAGGED})", args
        ):
            metrics[run][key] = _number(number, is_nan)
        found = self._query(
            "SELECT r.run_uuid, r.experiment_id, e.name, r.name, r.status, r.start_time, r.end_time, r.artifact_uri "
            "FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id "
            f"WHERE r.run_uuid IN ({TAGGED}) AND r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active'",
            args,
        )
        return [
            StoredRun(
                run_id=run, experiment_id=str(experiment_id), experiment=experiment, name=name or "", status=status,
                start=start or 0, end=end, artifact_uri=uri or "",
                tags=texts["tags"][run], params=texts["params"][run], metrics=metrics[run],
            )
            for run, experiment_id, experiment, name, status, start, end, uri in found
        ]  # fmt: skip


def _connect(path: Path) -> sqlite3.Connection:
    # Read-only, so that a mistyped path creates nothing; the time-out waits for a driver in the middle of a write.
    # One thread at a time reads, but not always the same one.
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=30, check_same_thread=False)


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def _number(value: float, is_nan: int) -> float:
    if is_nan:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= HUGE else value
