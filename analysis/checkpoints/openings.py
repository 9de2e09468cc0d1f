"""The record of a study's opened test sets: in its run, and in its folder, which outlives a machine's MLflow."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from analysis.errors import AnalysisError, InputError
from analysis.tables.study import Study
from analysis.tables.test_scores import openings
from search.schema import FOLDER, OPENING, OPENINGS
from trainables.contract.errors import first_line


def check_reason(reason: str) -> None:
    """Raises: InputError for an empty reason."""
    if not reason.strip():
        raise InputError("expected a reason for opening the test sets, got an empty one")


@dataclass(frozen=True)
class Opening:
    """A recorded opening. number: 1 = the study's first; when: ISO time; earlier: the openings before it."""

    client: Any
    number: int
    when: str
    earlier: tuple[str, ...]

    def log(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Write finite metrics to a trial's run, which is tagged with the opening. Raises: AnalysisError."""
        from mlflow.entities import Metric, RunTag

        at = int(datetime.fromisoformat(self.when).timestamp() * 1000)
        kept = [Metric(n, float(v), at, self.number) for n, v in metrics.items() if np.isfinite(v)]
        with self._writing():
            self.client.log_batch(run_id, metrics=kept, tags=[RunTag(f"{OPENING}{self.number}", self.when)])

    def log_files(self, run_id: str, folder: Path, into: str | None = None) -> None:
        """Write a folder's files to a trial's artifacts. Raises: AnalysisError if that is refused."""
        with self._writing():
            self.client.log_artifacts(run_id, str(folder), into)

    def _writing(self) -> AbstractContextManager[None]:
        return _as_error(f"the test sets were opened ({OPENING}{self.number}), but their scores cannot all be written")


def record_opening(study: Study, what: str, reason: str, now: datetime | None = None) -> Opening:
    """Write to the study's run and folder that its test sets are opened, before anything is scored.

    The folder has them, too, because MLflow's database may be lost with its machine; the search's tracker brings what
    is missing in the run from there.

    Raises: AnalysisError if MLflow takes no record: then nothing may be opened.
    """
    from mlflow import MlflowClient

    folder = f"{study.stored.tags.get(FOLDER, '')}/{OPENINGS}"
    earlier = tuple(sorted({*openings(study.stored), *_written(folder)}))  # oldest first: texts begin with the time
    when = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    text = f"{when}: {what}: {reason.strip()}"
    with _as_error(f"nothing was opened: {study.store.uri} takes no record of it"):
        opening = Opening(MlflowClient(tracking_uri=study.store.uri), len(earlier) + 1, when, earlier)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # its errors become one line here
        opening.client.set_tag(study.stored.run_id, f"{OPENING}{opening.number}", text)
    with suppress(OSError):  # who may only read the folder has MLflow's record
        _write(f"{folder}/{opening.number}.txt", text)
    return opening


@contextmanager
def _as_error(what: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as fault:
        raise AnalysisError(f"{what}: {first_line(fault)}") from None


def _written(folder: str) -> list[str]:
    """The texts of the openings that a study's folder has."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    try:
        return [filesystem.cat_file(path).decode() for path in filesystem.ls(root, detail=False)]
    except OSError:
        return []


def _write(file: str, text: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(file)
    filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    filesystem.pipe_file(path, text.encode())
