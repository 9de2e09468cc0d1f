"""Which tracking store is read, and which of its studies.

`import mlflow` costs over a second, so the two usual stores are read without it: an SQLite file directly (`sqlite`) and
a server through its REST interface (`rest`). Every other URI goes through MLflow's client (`client`). Tests compare all
three on one real store.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from analysis.errors import AnalysisError, InputError, unknown
from analysis.reading.runs import Store, StoredRun, study_name
from search.schema import ROLE, STUDY_ID


def open_store(uri: str) -> Store:
    """The reader for a tracking URI.

    Raises: InputError if an SQLite file is missing, may not be read or is no tracking store.
    """
    scheme = uri.partition(":")[0].lower()  # `urlsplit` raises for an address that is none
    if scheme in ("http", "https"):
        from analysis.reading.rest import RestStore

        return RestStore(uri)
    if scheme == "sqlite":
        from analysis.reading.sqlite import SqliteStore

        path = Path(unquote(uri.removeprefix("sqlite:///").split("?")[0]))
        try:
            if not path.is_file():
                hint = "start a search first, or give --storage or --tracking-uri"
                raise InputError(f"no tracking store at {path}: {hint}")
            path.open("rb").close()  # MLflow would try again for two minutes
        except OSError as fault:
            raise InputError(f"{path}: cannot be read: {fault.strerror or fault}") from None
        if SqliteStore.can_read(path):
            return SqliteStore(path)
    from analysis.reading.client import ClientStore

    return ClientStore(uri)


def studies(store: Store) -> list[StoredRun]:
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


def find_study(store: Store, name: str | None = None) -> StoredRun:
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
