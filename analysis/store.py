"""Reading what `search` wrote to MLflow: which store, which study, its trials. Never writes.

`import mlflow` costs over a second, so the two usual stores are read without it: an SQLite file directly
(`store_sqlite`) and a server through its REST interface (`store_rest`). Every other URI goes through MLflow's client.
Tests compare all three on one real store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from analysis.errors import AnalysisError, InputError, unknown
from search.record import ROLE, STUDY_ID

DEFAULT_STORAGE = "./runs"
DATABASE = "mlflow.db"
ENVIRONMENT = "MLFLOW_TRACKING_URI"
Row = tuple[str, str, int, float]  # (run id, metric, step = training examples seen, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
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

    def studies(self) -> list[Run]:
        """All study runs (tag role=study), newest first."""

    def trials(self, study: Run) -> list[Run]:
        """The study's trial runs in the order they started."""

    def history(self, run_ids: Sequence[str], metrics: Sequence[str]) -> list[Row]:
        """Every logged value of these metrics, ordered by (run, metric, step, time)."""

    def artifact(self, run: Run, path: str) -> bytes | None:
        """Content of an artifact file; None if there is no such file or it cannot be reached from here."""

    def count_runs(self) -> int:
        """Runs of any kind (1 may stand for "some"): tells an empty store from another program's."""


def tracking_uri(
    option: str | None = None, storage: str | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """The store to read: `option`, else MLFLOW_TRACKING_URI, else `<storage>/mlflow.db` (storage ./runs by default).

    A storage behind a URI keeps its database in ./runs, where the search puts it.
    """
    given = option or (os.environ if environ is None else environ).get(ENVIRONMENT)
    if given:
        return given if "://" in given or given == "databricks" else f"sqlite:///{given}"
    folder = DEFAULT_STORAGE if storage is None or "://" in storage else storage
    return f"sqlite:///{Path(folder) / DATABASE}"


def open_store(uri: str) -> Store:
    """The reader for a tracking URI.

    Raises: InputError if an SQLite file is missing or is no tracking store.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("http", "https"):
        from analysis.store_rest import RestStore

        return RestStore(uri)
    if scheme == "sqlite":
        from analysis.store_sqlite import SqliteStore

        path = Path(unquote(uri.removeprefix("sqlite:///").split("?")[0]))
        if not path.is_file():
            raise InputError(f"no tracking store at {path}: start a search first, or give --storage or --tracking-uri")
        if SqliteStore.can_read(path):
            return SqliteStore(path)
    from analysis.store_client import ClientStore

    return ClientStore(uri)


def studies(store: Store) -> list[Run]:
    """All studies, newest first.

    Raises: AnalysisError if there is none, saying whether the store is empty or holds another program's runs.
    """
    found = store.studies()
    if found:
        return found
    if store.count_runs():
        raise AnalysisError(
            f"{store.uri} holds runs, but none of a study of `search` (no run has the tag {ROLE}=study)"
        )
    raise AnalysisError(f"{store.uri} is empty: no study has been run yet")


def find_study(store: Store, name: str | None = None) -> Run:
    """The newest study, or the one called `name`: a study id, or a space name (then the newest study of that space).

    Raises: AnalysisError for a store without studies, InputError for an unknown name.
    """
    found = studies(store)
    if name is None:
        return found[0]
    for study in found:
        if study.tags.get(STUDY_ID) == name:
            return study
    for study in found:
        if study.experiment == name:
            return study
    raise unknown("study", name, (study_name(s) for s in found))


def study_name(study: Run) -> str:
    return study.tags.get(STUDY_ID) or study.name


def newest_first(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.start, reverse=True)


def oldest_first(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.start, run.name))
