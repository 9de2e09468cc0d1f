"""The record of a study's opened test sets: in its run, and in its folder, which outlives a machine's MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import numpy as np

from analysis.errors import AnalysisError, InputError
from analysis.reading.store import Store
from analysis.tables.record import openings
from analysis.tables.study import Study
from search.schema import FOLDER, OPENED_FILES, OPENED_METRICS, OPENING, OPENINGS
from trainables.contract.errors import first_line


def check_reason(reason: str) -> None:
    """Raises: InputError for an empty reason."""
    if not reason.strip():
        raise InputError("expected a reason for opening the test sets, got an empty one")


@dataclass(frozen=True)
class Opening:
    """A recorded opening. number: 1 = the study's first; when: ISO time; earlier: the openings before it.

    folder: of all openings of the study. What is logged goes to MLflow, and to `<folder>/<number>/<trial>/`, from where
    the search's tracker writes it to an MLflow that has lost it.
    """

    store: Store
    number: int
    when: str
    earlier: tuple[str, ...]
    folder: str
    trials: Mapping[str, str]  # run id -> trial id
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # run id -> what was logged

    def log(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Write finite metrics to a trial's run, which is tagged with the opening. Raises: AnalysisError."""
        logged = {name: float(value) for name, value in metrics.items() if np.isfinite(value)}
        with self._writing():
            milliseconds = int(datetime.fromisoformat(self.when).timestamp() * 1000)  # as MLflow counts
            self.store.log(run_id, {f"{OPENING}{self.number}": self.when}, logged, milliseconds, self.number)
        scores = self.scores.setdefault(run_id, {})
        scores |= logged
        with suppress(OSError):
            _write(f"{self._folder(run_id)}/{OPENED_METRICS}", json.dumps(scores))

    def log_files(self, run_id: str, folder: Path, into: str | None = None) -> None:
        """Write a folder's files to a trial's artifacts. Raises: AnalysisError if that is refused."""
        with self._writing():
            self.store.log_files(run_id, folder, into)
        with suppress(OSError):
            filesystem, path = fsspec.core.url_to_fs("/".join(filter(None, (self._folder(run_id), OPENED_FILES, into))))
            filesystem.makedirs(path, exist_ok=True)
            filesystem.put(f"{folder}/", f"{path}/", recursive=True)

    def _folder(self, run_id: str) -> str:
        return f"{self.folder}/{self.number}/{self.trials[run_id]}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except AnalysisError as fault:
            what = f"the test sets were opened ({OPENING}{self.number}), but their scores cannot all be written"
            raise AnalysisError(f"{what}: {first_line(fault)}") from None


def record_opening(study: Study, what: str, reason: str, now: datetime | None = None) -> Opening:
    """Write to the study's run and folder that its test sets are opened, before anything is scored.

    Raises: AnalysisError if MLflow takes no record: then nothing may be opened.
    """
    folder = f"{study.stored.tags.get(FOLDER, '')}/{OPENINGS}"
    earlier = tuple(sorted({*openings(study.stored), *_written(folder)}))  # oldest first: they begin with the time
    when = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    text = f"{when}: {what}: {reason.strip()}"
    trials = dict(zip(study.trials["run_id"], study.trials["trial"], strict=True))
    opening = Opening(study.store, len(earlier) + 1, when, earlier, folder, trials)
    try:
        study.store.log(study.stored.run_id, {f"{OPENING}{opening.number}": text})
    except AnalysisError as fault:
        raise AnalysisError(f"nothing was opened: {first_line(fault)}") from None
    with suppress(OSError):  # who may only read the folder has MLflow's record
        _write(f"{folder}/{opening.number}.txt", text)
    return opening


def _written(folder: str) -> Sequence[str]:
    """The texts of the openings that a study's folder has."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    try:
        return [filesystem.cat_file(path).decode() for path in filesystem.glob(f"{root}/*.txt")]
    except OSError:
        return []


def _write(file: str, text: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(file)
    filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    filesystem.pipe_file(path, text.encode())
