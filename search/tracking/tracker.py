"""The journal replayed into MLflow, off the event loop of Tune, as often as it takes.

Every write can be repeated without harm: runs are found again by their tags, metrics carry the journal's times (MLflow
drops exact repetitions), tags and statuses are set to what they are. How far the tracker has come is kept beside the
journal, so that a later life, `search status` or the end of this one goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec

from search import schema
from search.space import Space
from search.store.journal import read, read_with_ends
from search.store.layout import StudyFolder
from search.store.ledger import Event, Ledger
from search.tracking.batches import PARAM_LIMIT, TrialBatch
from search.tracking.mlflow_store import client_of
from search.tracking.notes import study_note
from search.tracking.runs import study_metrics, study_params, study_tags, trial_name, trial_tags
from search.tracking.saved_views import saved_views, view_address
from search.tracking.trials_file import TrialsFile
from trainables.contract.trial import whole_file

# Journal lines between two notes of how far the tracker has come. A server takes some ten to forty calls a second, and
# a trial's lines of a batch are one call: the further behind, the more lines a call carries, so that hundreds of trials
# at once leave the tracker seconds behind and not ever further. What a death makes it tell twice does no harm.
BATCH_EVENTS = 10_000
CALLERS = 4  # of a server, at once
LATE_S = 20.0  # a pruned trial writes its checkpoint when its process is given the next one; seconds it is waited for


class Tracker:
    """Writes one study's journal to MLflow.

    Args: uri: of the tracking store.
    """

    def __init__(self, uri: str, folder: StudyFolder, space: Space) -> None:
        self.uri, self.folder, self.space = uri, folder, space
        self.experiment_id: str | None = None
        self._client: Any = None
        self._study_run: str | None = None
        self._run_ids: dict[str, str] = {}  # our trial id -> MLflow's run id
        self._at_best: dict[str, tuple[int, dict[str, float]]] = {}  # open trial -> its best evaluation so far
        self._file = TrialsFile(folder.local / schema.TRIALS_FILE) if uri.startswith("http") else None
        self._gone = ""  # what was in the way when everything was told again
        position = _read_json(folder.tracked)
        same = position.get("uri") == uri
        self._offset: int = position.get("offset", 0) if same else 0
        self._late: dict[str, int] = position.get("late", {}) if same else {}  # trial id -> ms of its end

    def catch_up(self, final: bool = False) -> None:
        """Write what the journal has and MLflow has not.

        Args: final: nobody is writing any more: artifacts that are missing now will not come.
        Raises: whatever MLflow raises when the store is locked, down or broken; call again later.
        """
        try:
            self._catch_up(final)
        except Exception as error:
            if not _run_is_gone(error) or str(error) == self._gone:
                raise
            self._gone = str(error)  # once: what MLflow takes in no way is not told for ever
            self._client, self._study_run = None, None  # somebody deleted a run: everything is told again
            self._run_ids.clear()
            self._offset, self._late = 0, {}
            self._catch_up(final)

    def _catch_up(self, final: bool) -> None:
        self._connect()
        events = []
        for event, end in read_with_ends(self.folder.journal, self._offset):
            events.append(event)
            if len(events) >= BATCH_EVENTS:
                self._write(events, end)
                events = []
            last = end
        if events:
            self._write(events, last)
        self._late_artifacts(final)
        if self._file and self._file.due(final):
            with contextlib.suppress(Exception):  # only makes reading faster; the next time will do
                self._file.renew(self._client, str(self.experiment_id), str(self._study_run))

    def close_stale(self) -> None:
        """Close as KILLED every run of this study that MLflow shows as running; call when no driver is alive."""
        self._connect()
        for run in self._search(f"tags.{schema.STUDY_ID} = '{self.folder.study}' and attributes.status = 'RUNNING'"):
            ended = max(int(time.time() * 1000), run.info.start_time)  # clocks are set back, and differ
            self._client.set_terminated(run.info.run_id, "KILLED", end_time=self._end(ended))

    @property
    def progress(self) -> tuple[int, int]:
        """Changes when something has been written: (bytes of the journal told, artifacts awaited)."""
        return self._offset, len(self._late)

    def link(self) -> str | None:
        """Address of the saved view in the MLflow UI, for an http(s) store."""
        if self.experiment_id is None or not self.uri.startswith("http"):
            return None
        return view_address(self.uri, self.experiment_id, self.folder.study)

    def _write(self, events: list[Event], end: int) -> None:
        """One batch: everything of a trial in one call, then its status."""
        self._connect()
        self._at_once(self._make_run_of, (event for event in events if event["e"] == "start"))
        batches: dict[str, TrialBatch] = {}
        for event in events:
            kind = event["e"]
            if kind == "life":
                self._client.update_run(self._study_run, status="RUNNING")
                if event["stage"] == "confirm":  # each is a look at the figures, which the verdict accounts for
                    plan = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("e", "t", "stage"))
                    self._client.set_tag(self._study_run, f"{schema.CONFIRMATION}{event['t']}", plan)
            elif kind == "close":
                self._close_study(event)
            elif "id" in event:
                self._remember(event)
                at, metrics = self._at_best.get(event["id"], (0, {}))
                at_best = metrics if at == event.get("best_at") else {}
                batches.setdefault(event["id"], TrialBatch()).add(event, self.space.metric.name, at_best)
        self._at_once(self._log, batches.items())
        for trial_id in [trial_id for trial_id, batch in batches.items() if batch.ended]:
            self._at_best.pop(trial_id, None)
            if self._file:
                self._file.waiting += 1
        self._offset = end
        self._save_position()

    def _at_once(self, call: Callable[[Any], object], items: Iterable[Any]) -> None:
        """A call for each: several at once of a server, one after the other of a file, which has one writer."""
        if not self.uri.startswith("http"):
            for item in items:
                call(item)
            return
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(call, items))  # raises what the first that failed did

    def _remember(self, event: Event) -> None:
        """The metrics of the best evaluation are logged once more at a trial's end, maybe batches or a life later."""
        if event["e"] == "eval" and event["best_at"] == event["examples"]:
            self._at_best[event["id"]] = event["examples"], event["metrics"]

    def _end(self, time_ms: int) -> int:
        return self._file.after(time_ms) if self._file else time_ms

    def _save_position(self) -> None:
        with whole_file(self.folder.tracked) as file:
            file.write(json.dumps({"uri": self.uri, "offset": self._offset, "late": self._late}).encode())

    def _log(self, one: tuple[str, TrialBatch]) -> None:
        from mlflow.entities import RunTag

        trial_id, batch = one
        client, run_id = self._client, self._run_ids[trial_id]
        tags = [RunTag(name, value) for name, value in batch.tags.items()]
        parts = [batch.metrics[i : i + 800] for i in range(0, len(batch.metrics), 800)]  # MLflow takes 1,000 items
        last = parts.pop() if parts else []
        for part in parts:
            client.log_batch(run_id, metrics=part)
        if last or batch.params or tags:
            client.log_batch(run_id, metrics=last, params=batch.params, tags=tags)
        if batch.traceback:
            client.log_text(run_id, batch.traceback, schema.TRACEBACK_FILE)
        if batch.status == "RUNNING":
            client.update_run(run_id, status="RUNNING")
        elif batch.status:
            client.set_terminated(run_id, batch.status, end_time=self._end(batch.time))
        if batch.ended:
            self._late[trial_id] = batch.time

    def _close_study(self, event: Event) -> None:
        status = {"finished": "FINISHED", "failed": "FAILED"}.get(event["status"], "KILLED")
        ledger = Ledger(maximise=self.space.metric.mode == "max")
        for past in read(self.folder.journal):
            ledger.apply(past)
        self._client.set_tag(self._study_run, schema.NOTE, study_note(self.space, self.folder, ledger))
        self._client.set_tag(self._study_run, schema.REASON, event["reason"])
        self._client.log_batch(self._study_run, metrics=study_metrics(ledger, self.space.metric.name, event["t"]))
        self._client.set_terminated(self._study_run, status, end_time=event["t"])

    def _late_artifacts(self, final: bool) -> None:
        """Log the similarities of ended trials, which may be written some seconds after the end."""
        if not self._late:
            return
        self._connect()
        for trial_id, ended in list(self._late.items()):
            source = f"{self.folder.trial(trial_id)}/best/{schema.SIMILARITIES}"
            filesystem, path = fsspec.core.url_to_fs(source)
            if filesystem.exists(path):
                with tempfile.TemporaryDirectory() as scratch:
                    local = Path(scratch) / schema.SIMILARITIES
                    filesystem.get_file(path, str(local))
                    self._client.log_artifact(self._run_ids[trial_id], str(local))
            elif not final and time.time() - ended / 1000 < LATE_S:
                continue
            del self._late[trial_id]
        self._save_position()

    def _connect(self) -> None:
        """Find or make the experiment, the study's run and what is known of its trials."""
        if self._client is not None:
            return
        client = client_of(self.uri)
        experiment = client.get_experiment_by_name(self.space.name)
        if experiment is None:
            place = None
            if self.uri.startswith(schema.SQLITE):  # else MLflow would put artifacts into the current folder
                place = (
                    Path(self.uri.removeprefix(schema.SQLITE)).absolute().parent / "artifacts" / self.space.name
                ).as_uri()
            self.experiment_id = client.create_experiment(self.space.name, artifact_location=place)
        else:
            self.experiment_id = experiment.experiment_id
        kind, training = schema.EXPERIMENT_KIND
        if experiment is None or kind not in experiment.tags:  # a user's own choice stays
            client.set_experiment_tag(self.experiment_id, kind, training)
        self._client = client
        try:
            ends = []
            for run in self._search(f"tags.{schema.STUDY_ID} = '{self.folder.study}'"):
                tags = run.data.tags
                ends.append(run.info.end_time)
                if tags.get(schema.ROLE) == "study":
                    self._study_run = run.info.run_id
                elif schema.TRIAL_ID in tags:
                    self._run_ids[tags[schema.TRIAL_ID]] = run.info.run_id
            if self._study_run is None:
                self._study_run = self._make_study_run()
                self._offset, self._late = 0, {}  # a new store, or an emptied one: everything is told again
                for run_id in self._run_ids.values():  # of a study's run that was deleted
                    client.set_tag(run_id, schema.PARENT, self._study_run)
            self._bring_openings()
            if self._file:
                self._file.open(str(self._study_run), ends)
            for event, end in read_with_ends(self.folder.journal):
                if end > self._offset:
                    break
                self._remember(event)
                if event["e"] == "end":
                    self._at_best.pop(event["id"], None)
        except BaseException:
            self._client = None  # half connected is not connected
            raise

    def _bring_openings(self) -> None:
        """The openings of the test sets that only the study's folder knows: MLflow's database was lost or is a copy."""
        filesystem, root = fsspec.core.url_to_fs(f"{self.folder.uri}/{schema.OPENINGS}")
        if not filesystem.exists(root):
            return
        known = self._client.get_run(self._study_run).data.tags
        for path in filesystem.ls(root, detail=False):
            tag = f"{schema.OPENING}{Path(path).stem}"
            if tag not in known:
                self._client.set_tag(self._study_run, tag, filesystem.cat_file(path).decode())

    def _make_study_run(self) -> str:
        from mlflow.entities import Param

        client, space = self._client, self.space
        began = int(self.folder.space.stat().st_mtime * 1000)
        tags = study_tags(space, self.folder)
        run = client.create_run(self.experiment_id, start_time=began, run_name=self.folder.study, tags=tags)
        run_id: str = run.info.run_id
        params = [Param(name, str(v)[:PARAM_LIMIT]) for name, v in study_params(space).items()]
        for i in range(0, len(params), 100):  # MLflow takes 100 at once
            client.log_batch(run_id, params=params[i : i + 100])
        for path in (self.folder.space, self.folder.environment):
            if path.exists():
                client.log_artifact(run_id, str(path))
        for tag, value in saved_views(space, self.folder.study).items():
            client.set_experiment_tag(self.experiment_id, tag, value)
        return run_id

    def _make_run_of(self, event: Event) -> None:
        """MLflow's run of a trial that starts, if it is not there."""
        trial_id = event["id"]
        if trial_id not in self._run_ids:
            tags = trial_tags(event, self.space, self.folder, self._study_run)
            name = trial_name(trial_id, event["point"])
            run = self._client.create_run(self.experiment_id, start_time=event["t"], run_name=name, tags=tags)
            self._run_ids[trial_id] = run.info.run_id

    def _search(self, text: str) -> list[Any]:
        found, token = [], None
        while True:
            page = self._client.search_runs([self.experiment_id], text, max_results=5000, page_token=token)
            found.extend(page)
            token = page.token
            if not token:
                return found


def _run_is_gone(error: Exception) -> bool:
    """Whether a call failed for a run that is not there, or is marked deleted, and would fail ever again."""
    codes = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
    return isinstance(error, KeyError) or getattr(error, "error_code", "") in codes


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        data = json.loads(path.read_text())
        if isinstance(data, dict):
            return data
    return {}
