"""The ended trials of a study in one compressed artifact, so that reading ten thousand from a server is one request.

An MLflow server takes two seconds of processor time for every thousand runs it lists. The tracker therefore asks it for
each ended trial once, and keeps the answers on the study's run. Readers take the file, and ask the server only for what
it cannot hold: trials that run, those that ended later than the last in the file, deleted ones, and those whose test
sets were opened. So MLflow stays the source and no answer is older than it is.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from search import schema
from trainables.contract.trial import whole_file

MANY = 250  # ended trials not yet in the file that make it worth renewing while the search runs
SOME = 100  # ... when it has ended


class TrialsFile:
    """The local copy, one JSON line per run, newer lines count; renewed and sent by the tracker's thread.

    waiting: trials that ended since. until: milliseconds, the latest end in the file; whatever ends from now on must
    end later (`after`), since that is how readers find it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.until = self.waiting = 0

    def open(self, study_run: str, ends: Iterable[int | None]) -> None:
        """Go on with the file of an earlier life, if it is of this study run; `ends`: of all its trials."""
        self.until = 0
        for row in self._rows():
            if row["tags"].get(schema.PARENT) != study_run:  # of another store
                self.until = 0
                break
            self.until = max(self.until, row["end"])
        if not self.until:
            self._path.unlink(missing_ok=True)
        self.waiting = sum(end is not None and end > self.until for end in ends)

    def after(self, time: int) -> int:
        """The time, or if a clock was set back, the first one that readers take for new."""
        return max(time, self.until + 1)

    def due(self, ended: bool) -> bool:
        return self.waiting >= (SOME if ended else MANY)

    def renew(self, client: Any, experiment_id: str, study_run: str) -> None:
        """Fetch the runs that ended since, append them, and send the file.

        Raises: whatever MLflow raises; nothing is lost by that, the next call does it all.
        """
        from mlflow.entities import ViewType

        news = f"tags.`{schema.PARENT}` = '{study_run}' and attributes.end_time > {self.until}"
        rows, token = [], None
        while True:  # deleted runs too, lest they be missed once restored
            page = client.search_runs([experiment_id], news, ViewType.ALL, max_results=1000, page_token=token)
            rows += [_row(run) for run in page if run.info.status != "RUNNING"]
            token = page.token
            if not token:
                break
        if rows:
            text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
            with whole_file(self._path) as file:
                file.write((self._path.read_bytes() if self._path.exists() else b"") + gzip.compress(text.encode()))
            self.until = max(self.until, *(row["end"] for row in rows))
        self.waiting = 0
        if self._path.exists():
            client.log_artifact(study_run, str(self._path))
            client.set_tag(study_run, schema.TRIALS_TAG, self._path.name)

    def _rows(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in gzip.decompress(self._path.read_bytes()).splitlines()]
        except (OSError, EOFError, zlib.error, ValueError):  # none, or damaged: it is made anew
            return []


def _row(run: Any) -> dict[str, Any]:
    """Fields of `analysis.reading.runs.StoredRun`, but for the experiment's name."""
    info, data = run.info, run.data
    return {
        "run_id": info.run_id, "experiment_id": info.experiment_id, "name": info.run_name or "",
        "status": info.status, "start": info.start_time, "end": info.end_time, "artifact_uri": info.artifact_uri,
        "tags": data.tags, "params": data.params, "metrics": data.metrics,
    }  # fmt: skip
