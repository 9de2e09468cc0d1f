"""The file of a study's ended trials, an artifact of its run."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search import schema
from search.tracking.mlflow_store import pages
from trainables.contract.trial import whole_file

NONE: Mapping[str, Any] = MappingProxyType({})


class TrialsFile:
    """The ended trials of a study in one compressed artifact of its run, so that reading ten thousand is one request.

    MLflow takes one to two seconds of processor time for every thousand runs it lists. The tracker therefore
    reads each ended trial from it once. Readers take the file, and query MLflow only for what the file lacks: running
    trials, trials that ended later than the last in the file, deleted trials, and trials whose test sets were opened.
    So MLflow stays the source and no answer is outdated.

    The local copy has one JSON line per run, of which newer lines count: fields of `analysis.reading.StoredRun`.
    waiting: trials that ended since. until: milliseconds, the latest end in the file; whatever ends from now on must
    end later (`after`), since that is how readers find it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.until = self.waiting = 0

    def open(self, study_run: str, ends: Iterable[int | None]) -> bool:
        """Go on with the file of an earlier session, if it is of this study run; whether it is. ends: of all trials."""
        try:
            rows = [json.loads(line) for line in gzip.decompress(self._path.read_bytes()).splitlines()]
        except (OSError, EOFError, zlib.error, ValueError):  # none, or damaged
            rows = []
        if not rows or any(row["tags"].get(schema.PARENT) != study_run for row in rows):  # of another store
            self.remove()
        else:
            self.until = max(row["end"] for row in rows)
        self.waiting = sum(end is not None and end > self.until for end in ends)
        return self.until > 0

    def remove(self) -> None:
        """Drop the local copy: it is made anew."""
        self._path.unlink(missing_ok=True)
        self.until = self.waiting = 0

    def after(self, time_ms: int) -> int:
        """The time, or if a clock was set back, the first one that readers take for new."""
        return max(time_ms, self.until + 1)

    def renew(self, client: Any, experiment_id: str, study_run: str, at_best: Mapping[str, Any] = NONE) -> None:
        """Fetch the runs that ended since, append them, and send the file.

        Args: at_best: trial -> (examples, metrics) of its best evaluation; MLflow itself has some of them as `best_*`.
        Raises: whatever MLflow raises; nothing is lost by that, the next call does it all.
        """
        from mlflow.entities import ViewType

        news = f"tags.`{schema.PARENT}` = '{study_run}' and attributes.end_time > {self.until}"
        runs = pages(client.search_runs, [experiment_id], news, ViewType.ALL, max_results=1000)  # deleted ones may be
        rows = [_row(run, at_best) for run in runs if run.info.status != "RUNNING"]  # restored later
        if rows:
            text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
            with whole_file(self._path) as file:
                file.write((self._path.read_bytes() if self._path.exists() else b"") + gzip.compress(text.encode()))
            self.until = max(self.until, *(row["end"] for row in rows))
        self.waiting = 0
        if self._path.exists():
            client.log_artifact(study_run, str(self._path))
            client.set_tag(study_run, schema.TRIALS_TAG, self._path.name)


def _row(run: Any, at_best: Mapping[str, Any]) -> dict[str, Any]:
    info, data = run.info, run.data
    examples, values = at_best.get(data.tags.get(schema.TRIAL_ID), (None, {}))
    same = examples == data.metrics.get(schema.BEST_AT_EXAMPLES)
    return {
        "run_id": info.run_id, "experiment_id": info.experiment_id, "name": info.run_name or "",
        "status": info.status, "start": info.start_time, "end": info.end_time, "artifact_uri": info.artifact_uri,
        "tags": data.tags, "params": data.params, "metrics": data.metrics,
        "at_best": {schema.stored(name): v for name, v in values.items() if same and not schema.is_dev(name)},
    }  # fmt: skip
