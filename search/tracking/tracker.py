"""The journal of a study replayed into MLflow, off the event loop of Tune, as often as it takes.

Every write can be repeated without harm: runs are found again by their tags, metrics carry the journal's times (MLflow
drops exact repetitions), tags and statuses are set. The offset in the journal that MLflow has reached is saved beside
the journal, so that a later session or `search status` goes on from there.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fsspec

from search import schema
from search.space import Space
from search.store.journal import fold, read_with_ends
from search.store.layout import StudyFolder
from search.store.ledger import Event, Ledger
from search.tracking.mlflow_store import client_of, pages
from search.tracking.runs import (
    EXPERIMENT_KIND,
    NOTE,
    TrialBatch,
    metrics,
    of_study,
    saved_views,
    study_metrics,
    study_note,
    study_params,
    study_tags,
    trial_name,
    trial_tags,
    view_address,
)
from trainables.contract.trial import whole_file

# Journal lines between two notes of how far the tracker has come. A server takes some ten to forty calls a second, and
# a trial's lines of a batch are one call: the further behind, the more lines a call carries, so that hundreds of trials
# at once leave the tracker seconds behind and not ever further. After a crash a batch is written again.
BATCH_EVENTS = 10_000
CALLERS = 4  # of a server, at once
LATE_S = 20.0  # seconds to wait for a pruned trial's checkpoint: it is written when its process is given another trial
NONE: Mapping[str, Any] = MappingProxyType({})
MANY = 250  # ended trials not yet in the file of ended trials that make it worth renewing while the search runs
SOME = 100  # ... when it has ended


class Tracker:
    """Writes one study's journal, and the record of its opened test sets, to the MLflow store at `uri`."""

    def __init__(self, uri: str, folder: StudyFolder, space: Space) -> None:
        self.uri, self.folder, self.space = uri, folder, space
        self.owned: Callable[[], bool] | None = None  # whether this process may write the study now
        self.experiment_id: str | None = None
        self._client: Any = None
        self._study_run = ""
        self._run_ids: dict[str, str] = {}  # our trial id -> MLflow's run id
        self._at_best: dict[str, tuple[int, dict[str, float]]] = {}  # trial -> examples and metrics of its best so far
        self._last = 0  # milliseconds, of the latest event
        self._file = TrialsFile(folder.local / schema.TRIALS_FILE)
        self._restored = self._rewound = False  # openings, journal
        self._gone = ""  # why everything was written again
        position = _read_json(folder.tracked)
        same = position.get("uri") == uri
        self._offset: int = position.get("offset", 0) if same else 0
        self._late: dict[str, int] = position.get("late", {}) if same else {}  # trial id -> ms of its end

    def catch_up(self, final: bool = False) -> None:
        """Write what the journal has and MLflow has not.

        Args: final: no driver writes any more: artifacts that are missing now will not come.
        Raises: whatever MLflow raises when the store is locked, down or broken; call again later.
        """
        try:
            self._catch_up(final)
        except Exception as error:
            if not _run_is_gone(error) or str(error) == self._gone:
                raise
            self._gone = str(error)  # once: what MLflow rejects every time is not written for ever
            self.rewind()  # a run was deleted in MLflow
            self._catch_up(final)

    def rewind(self) -> None:
        """Let the next `catch_up` write everything once more; what MLflow has already does not change by that."""
        self._client, self._study_run, self._run_ids = None, "", {}
        self._offset, self._late = 0, {}
        self._restored, self._rewound = False, True
        self._file.remove()

    def close_stale(self) -> None:
        """Close as KILLED every run of this study that MLflow shows as running; call when no driver is alive."""
        self._connect()
        for run in self._search(f"{of_study(self.folder.study)} and attributes.status = 'RUNNING'"):
            ended = max(self._last, run.info.start_time)
            self._client.set_terminated(run.info.run_id, "KILLED", end_time=self._file.after(ended))

    @property
    def progress(self) -> tuple[int, int]:
        """Changes when something has been written: (bytes of the journal written, artifacts awaited)."""
        return self._offset, len(self._late)

    def link(self) -> str | None:
        """Address of the saved view in the MLflow UI, for an http(s) store."""
        if self.experiment_id is None or not self.uri.startswith("http"):
            return None
        return view_address(self.uri, self.experiment_id, self.folder.study)

    def _catch_up(self, final: bool) -> None:
        self._connect()
        lines = read_with_ends(self.folder.journal, self._offset)
        while batch := list(itertools.islice(lines, BATCH_EVENTS)):
            self._write([event for event, _ in batch], batch[-1][1])
        self._late_artifacts(final)
        self._restore_openings()
        if self._file.waiting >= (SOME if final else MANY):
            with contextlib.suppress(Exception):  # only makes reading faster; the next time will do
                self._file.renew(self._client, str(self.experiment_id), self._study_run, self._at_best)

    def _connect(self) -> None:
        """Find or make the experiment and the study's run, and find those of its trials."""
        if self._client is not None:
            return
        client = client_of(self.uri, self.owned)
        experiment = client.get_experiment_by_name(self.space.name)
        if experiment is None:
            place = None
            if self.uri.startswith(schema.SQLITE):  # else MLflow would put artifacts into the current folder
                beside = Path(self.uri.removeprefix(schema.SQLITE)).absolute().parent
                place = (beside / "artifacts" / self.space.name).as_uri()
            experiment = client.get_experiment(client.create_experiment(self.space.name, artifact_location=place))
        self.experiment_id = experiment.experiment_id
        kind, training = EXPERIMENT_KIND
        if kind not in experiment.tags:  # a user's own choice stays
            client.set_experiment_tag(self.experiment_id, kind, training)
        self._client = client
        try:
            ends, listed = [], False
            for run in self._search(of_study(self.folder.study)):
                ends.append(run.info.end_time)
                if run.data.tags.get(schema.ROLE) == "study":
                    self._study_run, listed = run.info.run_id, schema.TRIALS_TAG in run.data.tags
                elif schema.TRIAL_ID in run.data.tags:
                    self._run_ids[run.data.tags[schema.TRIAL_ID]] = run.info.run_id
            if not self._study_run:
                self._study_run = self._make_study_run()
                self._offset, self._late = 0, {}  # a new store, or an emptied one: everything is written again
                for run_id in self._run_ids.values():  # of a study's run that was deleted
                    client.set_tag(run_id, schema.PARENT, self._study_run)
            if not self._file.open(self._study_run, ends) and listed:  # it may list runs that are lost
                client.delete_tag(self._study_run, schema.TRIALS_TAG)
            for event, end in read_with_ends(self.folder.journal):
                if end > self._offset:
                    break
                self._remember(event)
        except BaseException:
            self._client = None  # half connected is not connected
            raise

    def _make_study_run(self) -> str:
        client, space = self._client, self.space
        began = int(self.folder.space.stat().st_mtime * 1000)
        tags = study_tags(space, self.folder)
        run = client.create_run(self.experiment_id, start_time=began, run_name=self.folder.study, tags=tags)
        run_id: str = run.info.run_id
        self._log(run_id, params=study_params(space))
        for path in (self.folder.space, self.folder.environment):
            if path.exists():
                client.log_artifact(run_id, str(path))
        for tag, value in saved_views(space, self.folder.study).items():
            client.set_experiment_tag(self.experiment_id, tag, value)
        return run_id

    def _make_trial_run(self, start: Event) -> None:
        """MLflow's run of a trial, if it is not there."""
        trial_id = start["id"]
        if trial_id not in self._run_ids:
            tags = trial_tags(start, self.space, self.folder, self._study_run)
            name = trial_name(trial_id, start["point"])
            run = self._client.create_run(self.experiment_id, start_time=start["t"], run_name=name, tags=tags)
            self._run_ids[trial_id] = run.info.run_id

    def _write(self, events: list[Event], end: int) -> None:
        """One batch: everything of a trial in one call, then its status."""
        self._each(self._make_trial_run, (event for event in events if event["e"] == "start"))
        batches: dict[str, TrialBatch] = {}
        study: Event | None = None
        for event in events:
            self._remember(event)
            if event["e"] in ("life", "session", "close"):
                study = event
                if event.get("stage") == "confirm":  # each is an interim analysis, which the verdict accounts for
                    plan = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("e", "t", "stage"))
                    self._client.set_tag(self._study_run, f"{schema.CONFIRMATION}{event['t']}", plan)
            elif "id" in event:
                at, values = self._at_best.get(event["id"], (0, {}))
                at_best = values if at == event.get("best_at") else {}
                batches.setdefault(event["id"], TrialBatch()).add(event, self.space.metric.name, at_best)
        self._each(self._write_trial, batches.items())
        if study is not None:
            self._write_study(study)
        self._file.waiting += sum(batch.ended for batch in batches.values())
        self._offset = end
        self._save_position()

    def _each(self, call: Callable[[Any], object], items: Iterable[Any]) -> None:
        """A call for each: several at once of a server, one after the other of a file, which has one writer."""
        if not self.uri.startswith("http"):
            for item in items:
                call(item)
            return
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(call, items))  # raises what the first that failed did

    def _remember(self, event: Event) -> None:
        """The metrics of the best evaluation are logged again at a trial's end, maybe batches or a session later."""
        self._last = max(self._last, event["t"])
        if event["e"] == "eval" and event["best_at"] == event["examples"]:
            self._at_best[event["id"]] = event["examples"], event["metrics"]

    def _write_trial(self, one: tuple[str, TrialBatch]) -> None:
        trial_id, batch = one
        client, run_id = self._client, self._run_ids[trial_id]
        self._log(run_id, batch.metrics, batch.params, batch.tags)
        if batch.traceback:
            client.log_text(run_id, batch.traceback, schema.TRACEBACK_FILE)
        if batch.status == "RUNNING":
            client.update_run(run_id, status="RUNNING")
        elif batch.status:
            client.set_terminated(run_id, batch.status, end_time=self._file.after(batch.time))
        if batch.ended:
            self._late[trial_id] = batch.time

    def _write_study(self, event: Event) -> None:
        if event["e"] != "close":
            self._client.update_run(self._study_run, status="RUNNING")
            return
        ledger = fold(self.folder.journal, Ledger(maximise=self.space.metric.mode == "max"))
        totals = metrics(study_metrics(ledger, self.space.metric.name), event["t"], 0)
        tags = {NOTE: study_note(self.space, self.folder, ledger), schema.REASON: event["reason"]}
        self._log(self._study_run, totals, tags=tags)
        status = {"finished": "FINISHED", "failed": "FAILED"}.get(event["status"], "KILLED")
        self._client.set_terminated(self._study_run, status, end_time=event["t"])

    def _log(
        self, run_id: str, values: Sequence[Any] = (), params: Mapping[str, str] = NONE, tags: Mapping[str, str] = NONE
    ) -> None:
        """In as few calls as MLflow allows: its client makes batches."""
        from mlflow.entities import Param, RunTag

        written, tagged = [Param(*item) for item in params.items()], [RunTag(*item) for item in tags.items()]
        self._client.log_batch(run_id, metrics=values, params=written, tags=tagged)

    def _late_artifacts(self, final: bool) -> None:
        """Log the similarities of ended trials, which may be written some seconds after the end."""
        if not self._late:
            return
        for trial_id, ended in list(self._late.items()):
            source = f"{self.folder.trial(trial_id)}/best/{schema.SIMILARITIES}"
            filesystem, path = fsspec.core.url_to_fs(source)
            if filesystem.exists(path):
                with tempfile.TemporaryDirectory() as scratch:
                    local = f"{scratch}/{schema.SIMILARITIES}"
                    filesystem.get_file(path, local)
                    self._client.log_artifact(self._run_ids[trial_id], local)
            elif not final and time.time() - ended / 1000 < LATE_S:
                continue
            del self._late[trial_id]
        self._save_position()

    def _restore_openings(self) -> None:
        """Log the openings of the test sets, and their results, that only the study's folder has: MLflow was lost."""
        if self._restored:
            return
        filesystem, root = fsspec.core.url_to_fs(f"{self.folder.uri}/{schema.OPENINGS}")
        known = {} if self._rewound else self._client.get_run(self._study_run).data.tags
        for path in filesystem.glob(f"{root}/*.txt"):
            number = Path(path).stem
            if (tag := f"{schema.OPENING}{number}") not in known:
                text = filesystem.cat_file(path).decode()
                for folder in filesystem.glob(f"{root}/{number}/*"):
                    self._restore_results(filesystem, folder, tag, text.partition(": ")[0])
                self._client.set_tag(self._study_run, tag, text)
        self._restored = True

    def _restore_results(self, filesystem: Any, folder: str, tag: str, when: str) -> None:
        """What an opening measured of one trial: metrics and files."""
        run_id = self._run_ids.get(Path(folder).name)
        if run_id is None:
            return
        scores = json.loads(filesystem.cat_file(f"{folder}/{schema.OPENED_METRICS}"))
        time_ms = int(datetime.fromisoformat(when).timestamp() * 1000)
        self._log(run_id, metrics(scores, time_ms, int(tag.removeprefix(schema.OPENING))), tags={tag: when})
        if filesystem.exists(f"{folder}/{schema.OPENED_FILES}"):
            with tempfile.TemporaryDirectory() as scratch:
                filesystem.get(f"{folder}/{schema.OPENED_FILES}/", f"{scratch}/", recursive=True)
                self._client.log_artifacts(run_id, scratch)

    def _save_position(self) -> None:
        with whole_file(self.folder.tracked) as file:
            file.write(json.dumps({"uri": self.uri, "offset": self._offset, "late": self._late}).encode())

    def _search(self, condition: str) -> list[Any]:
        return pages(self._client.search_runs, [self.experiment_id], condition, max_results=5000)


class TrialsFile:
    """The ended trials of a study in one compressed artifact of its run, so that reading ten thousand is one request.

    MLflow takes one to two seconds of processor time for every thousand runs it lists. The tracker therefore asks it
    for each ended trial once. Readers take the file, and ask MLflow only for what it cannot hold: trials that run,
    those that ended later than the last in the file, deleted ones, and those whose test sets were opened. So MLflow
    stays the source and no answer is older than it is.

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


def _run_is_gone(error: Exception) -> bool:
    """Whether a call failed for a run that is not there, or is marked deleted, and would fail ever again."""
    codes = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
    return isinstance(error, KeyError) or getattr(error, "error_code", "") in codes


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}
