"""What `search` wrote to a tracking store, read through MLflow's client; and the few writes of `analysis test`."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import logging
import math
import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from analysis.errors import AnalysisError, InputError, unknown
from search.schema import (
    BEST_AT_EXAMPLES,
    FOLDER,
    OPENING,
    PARENT,
    ROLE,
    STUDY_ID,
    STUDY_UUID,
    TRIALS_TAG,
    USER,
    best_key,
    database,
    is_dev,
    masked,
    moved_artifacts,
    recorded_uri,
    unreachable,
)
from trainables.contract.errors import first_line
from trainables.contract.origin import JOURNAL
from trainables.contract.remote_code import this_user

MetricRow = tuple[str, str, int, float]  # (run id, metric, step = training examples seen, value)
SHORT_UUID = 8  # digits that name a study in messages
PAGE = 1000  # runs per request; MLflow takes one to two seconds for as many
PARALLEL = 4  # requests at a time to a server, which has four workers by default
NONE: Mapping[str, float] = MappingProxyType({})
MAGIC = b"SQLite format 3\0"
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # with these pauses some seconds, not the minutes of MLflow's defaults
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One MLflow run as it is stored; `metrics` holds the latest value of each metric (NaN and infinities as floats).

    start, end: milliseconds since 1970, end None while running. status: RUNNING, FINISHED, FAILED or KILLED.
    at_best: metrics at the trial's best evaluation that `metrics` does not have as `best_*`, as far as they are known.
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
    at_best: Mapping[str, float] = field(default_factory=dict)

    @property
    def space(self) -> str:
        """The name of a study's space; its experiment may have a number behind it, where one was deleted in MLflow."""
        return self.params.get("name", self.experiment)


class Store:
    """A tracking store. Deleted runs and experiments are never returned.

    storage: absolute path or URI of the folder of studies that is meant where several studies have a name; "" = any.

    Every call raises AnalysisError, one line, for a store that cannot be read or written; InputError where the
    credentials are refused.
    """

    def __init__(self, uri: str, storage: str = "") -> None:
        self.uri, self.storage = uri, storage
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        with without_garbage_collection(), self._errors():
            from mlflow import MlflowClient

            for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # after the import, which sets levels
                logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported below, in one line
            self._client: Any = MlflowClient(tracking_uri=uri)
            self._names = {e.experiment_id: e.name for e in _pages(self._client.search_experiments)}

    def studies(self) -> list[StoredRun]:
        """All study runs (tag role=study), newest first."""
        found = self._search(sorted(self._names), f"tags.`{ROLE}` = 'study'")
        return sorted(map(self._located, found), key=lambda run: run.start, reverse=True)

    def _located(self, study: StoredRun) -> StoredRun:
        """A study with the folder where it lies now: in the storage that is named or beside the database, if the study
        of its uuid is there; the folder where it ran is only the last to be tried."""
        file = database(self.uri)
        for storage in (self.storage, str(file.parent) if file else ""):
            folder = f"{storage}/{study_name(study)}"
            if not storage or folder == study.tags.get(FOLDER):
                break
            if _is_of(folder, study.tags.get(STUDY_UUID, ""), study.tags.get(FOLDER, "")):
                return replace(study, tags={**study.tags, FOLDER: folder})
        return study

    def trials(self, study: StoredRun) -> list[StoredRun]:
        """The study's trial runs in the order they started, most of them from the file of ended trials that the search
        leaves for that."""
        ours, children = [study.experiment_id], f"tags.`{PARENT}` = '{study.run_id}'"
        with without_garbage_collection():
            found = self._ended_trials(study)
            if not found:
                found = {run.run_id: run for run in self._search(ours, children)}
            else:
                until = max(run.end or 0 for run in found.values())
                # Those that run come first: a trial that ends meanwhile is then found by its end.
                newer = ["attributes.status = 'RUNNING'", f"attributes.end_time > {until}"]
                newer += [f"tags.`{tag}` LIKE '%'" for tag in study.tags if tag.startswith(OPENING)]
                for condition in newer:
                    for run in self._search(ours, f"{children} and {condition}"):
                        known = found.get(run.run_id)
                        found[run.run_id] = (
                            replace(run, at_best=known.at_best) if known and known.end == run.end else run
                        )
                for run in self._search(ours, children, "deleted_only"):
                    found.pop(run.run_id, None)
        trials = (run for run in found.values() if run.tags.get(ROLE) == "trial")
        return sorted(trials, key=lambda run: (run.start, run.name))

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[MetricRow]:
        """Every logged value of these metrics, ordered by (run, metric, step, time)."""

        def of_one(job: tuple[str, str]) -> list[MetricRow]:
            points = sorted(self._client.get_metric_history(*job), key=lambda point: (point.step, point.timestamp))
            return [(*job, int(point.step), _number(point.value)) for point in points]

        jobs = sorted((run, metric) for run in run_ids for metric in metrics)
        with self._errors(), ThreadPoolExecutor(PARALLEL if self.uri.startswith("http") else 1) as pool:
            return [row for rows in pool.map(of_one, jobs) for row in rows]

    def at_best(self, runs: Sequence[StoredRun], metrics: Sequence[str]) -> dict[str, dict[str, float]]:
        """Run id -> these metrics at the trial's best evaluation, the one its checkpoint is from.

        Without trials that have not ended, and without metrics that were not logged at that evaluation. Of several
        values at one step the last written counts.
        """
        found: dict[str, dict[str, float]] = {}
        missing: dict[str, list[str]] = {}
        best = {run.run_id: run.metrics[BEST_AT_EXAMPLES] for run in runs if BEST_AT_EXAMPLES in run.metrics}
        for run in runs:
            for metric in metrics if run.run_id in best else ():
                value = run.metrics.get(best_key(metric)) if is_dev(metric) else run.at_best.get(metric)
                if value is not None:
                    found.setdefault(run.run_id, {})[metric] = value
                elif metric in run.metrics:
                    missing.setdefault(metric, []).append(run.run_id)
        for metric, run_ids in missing.items():
            for run_id, _, step, value in self.history(run_ids, [metric]):
                if step == best[run_id]:
                    found.setdefault(run_id, {})[metric] = value
        return found

    def artifact(self, run: StoredRun, path: str) -> bytes | None:
        """Content of an artifact file; None if there is no such file or it cannot be reached from here."""
        moved = moved_artifacts(self.uri, run.artifact_uri)
        with TemporaryDirectory() as folder:
            try:
                if moved is not None:
                    return (moved / path).read_bytes()
                return Path(self._client.download_artifacts(run.run_id, path, folder)).read_bytes()
            except Exception:  # the artifact stores have no error in common
                return None

    def deleted(self) -> dict[str, str]:
        """Name -> id of the experiments with studies that were deleted in MLflow."""
        from mlflow.entities import ViewType

        with self._errors():
            found = _pages(self._client.search_experiments, view_type=ViewType.DELETED_ONLY)
        held = {e.experiment_id: e.name for e in found}
        runs = self._search(sorted(held), f"tags.`{ROLE}` = 'study'", "all", held)
        return {run.experiment: run.experiment_id for run in runs}

    def count_runs(self) -> int:
        """Runs of any kind (1 stands for "some"): distinguishes an empty store from another program's."""
        with self._errors():
            return len(self._client.search_runs(sorted(self._names), max_results=1)) if self._names else 0

    def log(
        self, run_id: str, tags: Mapping[str, str], metrics: Mapping[str, float] = NONE, time_ms: int = 0, step: int = 0
    ) -> None:
        """Write tags and metrics to a run."""
        from mlflow.entities import Metric, RunTag

        with self._errors("cannot write to"):
            values = [Metric(name, float(value), time_ms, step) for name, value in metrics.items()]
            self._client.log_batch(run_id, metrics=values, tags=[RunTag(*tag) for tag in tags.items()])

    def log_files(self, run_id: str, folder: Path, into: str | None = None) -> None:
        """Write a folder's files to a run's artifacts."""
        with self._errors("cannot write to"):
            stored = self._client.get_run(run_id).info.artifact_uri if database(self.uri) else ""
            moved = moved_artifacts(self.uri, stored)
            if moved is not None:
                shutil.copytree(folder, moved / (into or ""), dirs_exist_ok=True)
            else:
                self._client.log_artifacts(run_id, str(folder), into)

    def _ended_trials(self, study: StoredRun) -> dict[str, StoredRun]:
        """Run id -> trial, of the study's file of ended trials; {} if it has none, or an unreadable one."""
        path = study.tags.get(TRIALS_TAG)
        content = self.artifact(study, path) if path else None
        if content is None:
            return {}
        try:
            rows = map(json.loads, gzip.decompress(content).splitlines())
            return {row["run_id"]: _run(study.experiment, **row) for row in rows}
        except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError):  # cut off, or of another version
            return {}

    def _search(
        self, experiments: list[str], condition: str, view: str = "active_only", names: Mapping[str, str] | None = None
    ) -> list[StoredRun]:
        if not experiments:
            return []
        from mlflow.entities import ViewType

        with self._errors():
            runs = _pages(
                self._client.search_runs, experiments, condition, ViewType.from_string(view), max_results=PAGE,
                order_by=["attributes.start_time ASC"],  # runs that start meanwhile come last and move no page
            )  # fmt: skip
        return [
            _run(
                (names or self._names)[r.info.experiment_id], run_id=r.info.run_id, experiment_id=r.info.experiment_id,
                name=r.info.run_name or "", status=r.info.status, start=r.info.start_time or 0, end=r.info.end_time,
                artifact_uri=r.info.artifact_uri or "", tags=r.data.tags, params=r.data.params, metrics=r.data.metrics,
            )
            for r in runs
        ]  # fmt: skip

    @contextlib.contextmanager
    def _errors(self, what: str = "cannot read") -> Iterator[None]:
        try:
            yield
        except Exception as fault:  # MLflow's, SQLAlchemy's and the drivers' own share no base class
            code = getattr(fault, "get_http_status_code", lambda: 0)()
            if code in (401, 403):
                raise InputError(f"{masked(self.uri)} refused the credentials (HTTP {code})") from None
            raise AnalysisError(masked(f"{what} the tracking store {self.uri}: {first_line(fault)}")) from None


def open_store(uri: str, storage: str = "") -> Store:
    """The tracking store at a URI. storage: as the user gives it, see `Store`.

    Raises: InputError if an SQLite file is missing or may not be read, AnalysisError if the store cannot be read.
    """
    if (path := database(uri)) is not None:
        try:
            if not path.is_file():
                hint = "start a search first, or give --storage, --tracking-uri or MLFLOW_TRACKING_URI"
                raise InputError(f"no tracking store at {path}: {hint}")
            with path.open("rb") as file:  # MLflow would try again for two minutes, and fill an empty file
                if file.read(len(MAGIC)) != MAGIC:
                    raise InputError(f"{path}: cannot be read: it is no SQLite database")
        except OSError as fault:
            raise InputError(f"{path}: cannot be read: {fault.strerror or fault}") from None
    elif why := unreachable(uri):
        raise AnalysisError(f"cannot reach the tracking server: {why}")
    storage = storage.removeprefix("file://")
    return Store(uri, storage.rstrip("/") if "://" in storage else os.path.abspath(os.path.expanduser(storage)))


def studies(store: Store) -> list[StoredRun]:
    """All studies, newest first.

    Raises: AnalysisError if there is none, with whether the store is empty or holds another program's runs.
    """
    found = store.studies()
    if found:
        return found
    where = masked(store.uri)
    if deleted := store.deleted():
        raise AnalysisError(
            f"{where}: its studies were deleted in MLflow, with experiment {', '.join(deleted)}; `search track STUDY` "
            f"writes one again, `mlflow experiments restore -x {next(iter(deleted.values()))}` brings back all"
        )
    if store.count_runs():
        raise AnalysisError(f"{where} holds runs, but none of a study of `search` (no run has the tag {ROLE}=study)")
    raise AnalysisError(f"{where} is empty: no study has been run yet")


def find_study(store: Store, name: str | None = None) -> StoredRun:
    """This user's newest study (anybody's, if all studies are of one user), or the one called `name`: its name, the
    first 8 or more digits of its uuid, or the name of a space (then this user's newest study of that space, or
    anybody's). Of several studies called so the newest in the store's `storage`.

    Raises: AnalysisError for a store without studies, InputError for an unknown name, one that several studies have of
        which none lies in the storage, or those of several users do (on machines of their own), and without a name for
        a store of several other users.
    """
    found = studies(store)
    if name is None:
        newest = {study.tags.get(USER, ""): study for study in reversed(found)}
        if len(newest) > 1 and this_user() not in newest:
            each = ", ".join(f"{study_name(study)} (of {user or 'no one'})" for user, study in newest.items())
            raise InputError(f"{masked(store.uri)} has studies of several users, none of yours; name one: {each}")
        return newest.get(this_user(), found[0])
    of_name = {_which(study): study for study in reversed(found) if study_name(study) == name}
    if len(of_name) > 1:
        here = [study for study in of_name.values() if study.tags.get(FOLDER) == f"{store.storage}/{name}"]
        if len({study.tags.get(USER) for study in here}) != 1:
            raise InputError(_ambiguous(name, list(of_name.values())))
        return here[-1]  # the other folders are gone
    of_uuid = [study for study in found if len(name) >= SHORT_UUID and study.tags.get(STUDY_UUID, "").startswith(name)]
    of_space = sorted((s for s in found if s.space == name), key=lambda s: s.tags.get(USER, "") != this_user())
    for study in [*of_name.values(), *of_uuid, *of_space]:
        return study
    if (other := recorded_uri(store.storage, name)) not in ("", masked(store.uri)):
        raise InputError(f"study {name!r} was tracked at {other}; set MLFLOW_TRACKING_URI or give --tracking-uri")
    raise unknown("study", name, map(study_name, found))


def _is_of(folder: str, uuid: str, stored: str) -> bool:
    """Whether a folder is that of the study with this uuid. One whose journal does not tell, of an older version or a
    bucket that is mounted, is where the stored folder is not there."""
    try:
        with open(f"{folder}/{JOURNAL}", "rb") as file:
            first = json.loads(file.readline())
        if "uuid" in first:
            return bool(first["uuid"] == uuid)
    except (OSError, ValueError, TypeError):
        pass
    return os.path.isdir(f"{folder}/trials") and not os.path.isdir(stored)


def _which(study: StoredRun) -> str:
    """Equal for runs of the same study."""
    return study.tags.get(STUDY_UUID, study.run_id)


def _ambiguous(name: str, found: Sequence[StoredRun]) -> str:
    each = []
    for study in found:
        began = datetime.fromtimestamp(study.start / 1000).astimezone().isoformat(" ", "minutes")
        storage = study.tags.get(FOLDER, "").removesuffix(f"/{name}") or "an unknown storage"
        user = f" by {study.tags[USER]}" if study.tags.get(USER) else ""
        each.append(f"{study.tags.get(STUDY_UUID, '')[:SHORT_UUID] or 'no id'} (in {storage}, begun{user} {began})")
    return f"{len(found)} studies are called {name}: {'; '.join(each)}. Give the id as the study's name, or --storage"


def study_name(study: StoredRun) -> str:
    return study.tags.get(STUDY_ID) or study.name


def _run(experiment: str, *, metrics: Mapping[str, float], **fields: Any) -> StoredRun:
    return StoredRun(experiment=experiment, metrics={k: _number(v) for k, v in metrics.items()}, **fields)


def _number(value: float) -> float:
    """MLflow's databases hold the largest number for an infinity."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def _pages(call: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """All results of a paged call of MLflow's client."""
    found: list[Any] = []
    token = None
    while True:
        page = call(*args, **kwargs, page_token=token)
        found += page
        if not (token := page.token):
            return found


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No garbage collection: importing MLflow, and reading a large study, make hundreds of thousands of small objects,
    none of them garbage. That saves a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
