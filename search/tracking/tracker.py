"""The journal of a study replayed into MLflow, off the event loop of Tune, as often as it takes.

Every write can be repeated without harm: runs are found again by their tags, metrics carry the journal's times (MLflow
drops exact repetitions), tags and statuses are set. The offset in the journal that MLflow has reached is saved beside
the journal, so that a later session or `search status` goes on from there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from search import schema
from search.space import Space
from search.store.journal import Identity, fold, identity, read_with_ends
from search.store.layout import StudyFolder
from search.store.ledger import Event, Ledger
from search.tracking.mlflow_store import client_of, pages, runs_of
from search.tracking.runs import (
    EXPERIMENT_KIND,
    NOTE,
    TrialBatch,
    format_tags,
    metrics,
    of_study,
    saved_views,
    shared_view,
    study_metrics,
    study_note,
    study_params,
    study_tags,
    trial_name,
    trial_tags,
    view_address,
    view_key,
)
from search.tracking.trials_file import NONE, TrialsFile
from trainables.contract.trial import whole_file

# Journal lines between two notes of how far the tracker has come. A server takes some ten to forty calls a second, and
# a trial's lines of a batch are one call: the further behind, the more lines a call carries, so that hundreds of trials
# at once leave the tracker seconds behind and not ever further. After a crash a batch is written again.
BATCH_EVENTS = 10_000
CALLERS = 4  # of a server, at once
LATE_S = 20.0  # seconds to wait for a pruned trial's checkpoint: it is written when its process is given another trial
MANY = 250  # ended trials not yet in the file of ended trials that make it worth renewing while the search runs
SOME = 100  # ... when it has ended


class Tracker:
    """Writes one study's journal, and the record of its opened test sets, to the MLflow store at `uri`."""

    def __init__(self, uri: str, folder: StudyFolder, space: Space) -> None:
        self.uri, self.folder, self.space = uri, folder, space
        self.owned: Callable[[], bool] | None = None  # whether this process may write the study now
        self.experiment_id: str | None = None
        self._client: Any = None
        self._which: Identity | None = None  # None while the journal is empty
        self._study_run = ""
        self._run_ids: dict[str, str] = {}  # our trial id -> MLflow's run id
        self._at_best: dict[str, tuple[int, dict[str, float]]] = {}  # trial -> examples and metrics of its best so far
        self._last = 0  # milliseconds, of the latest event
        self._file = TrialsFile(folder.local / schema.TRIALS_FILE)
        self._restored = self._rewound = False  # openings, journal
        self._gone = ""  # why everything was written again
        position = _read_json(folder.tracked)
        same = position.get("uri") == schema.masked(uri)
        self._offset: int = position.get("offset", 0) if same else 0
        self._at: int | None = position.get("at") if same else None  # milliseconds, of the last event so far
        self._followed: str = position.get("run", "") if same else ""  # the study's run that has so much of the journal
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
        if not self._connect():
            return
        for run in self._search("attributes.status = 'RUNNING'"):
            ended = max(self._last, run.info.start_time)
            self._client.set_terminated(run.info.run_id, "KILLED", end_time=self._file.after(ended))

    @property
    def progress(self) -> tuple[int, int]:
        """Changes when something has been written: (bytes of the journal written, artifacts awaited)."""
        return self._offset, len(self._late)

    def link(self) -> str | None:
        """Address of the saved view in the MLflow UI, for an http(s) store."""
        if self.experiment_id is None or self._which is None or not self.uri.startswith("http"):
            return None
        return view_address(self.uri, self.experiment_id, view_key(self.folder.study, self._which.uuid))

    def _catch_up(self, final: bool) -> None:
        if not self._connect():
            return
        lines = read_with_ends(self.folder.journal, self._offset)
        while batch := list(itertools.islice(lines, BATCH_EVENTS)):
            self._write([event for event, _ in batch], batch[-1][1])
        self._late_artifacts(final)
        self._restore_openings()
        if self._file.waiting >= (SOME if final else MANY):
            with contextlib.suppress(Exception):  # only makes reading faster; the next time will do
                self._file.renew(self._client, str(self.experiment_id), self._study_run, self._at_best)

    def _connect(self) -> bool:
        """Find or make the experiment and the study's run, and find those of its trials; False for an empty journal."""
        if self._client is not None:
            return True
        self._which = which = identity(self.folder.journal)
        if which is None:
            return False
        client = client_of(self.uri, self.owned)
        experiment = self._experiment(client)
        self.experiment_id = experiment.experiment_id
        kind, training = EXPERIMENT_KIND
        if kind not in experiment.tags:  # a user's own choice stays
            client.set_experiment_tag(self.experiment_id, kind, training)
        self._client = client
        try:
            starts = self._read_to_position()
            runs = runs_of(client, [self.experiment_id], self.folder, which)
            studies: list[Any] = []
            self._run_ids, parents = {}, {}
            # Of two runs of a trial the fuller one stays: MLflow made one without its answer reaching us.
            for run in sorted(runs, key=lambda run: len(run.data.params) + len(run.data.metrics), reverse=True):
                trial_id = run.data.tags.get(schema.TRIAL_ID, "")
                if run.data.tags.get(schema.ROLE) == "study" and not studies:
                    studies.append(run)
                elif starts.get(trial_id) == run.info.start_time and trial_id not in self._run_ids:
                    self._run_ids[trial_id], parents[run.info.run_id] = run.info.run_id, run.data.tags[schema.PARENT]
                else:  # also of a lost driver, whose last trials never reached the bucket: others may have their ids
                    client.delete_run(run.info.run_id)
            run = studies[0] if studies else self._make_study_run(which)
            schema.check_format(run.data.tags)
            self._study_run = run.info.run_id
            if run.data.tags.get(schema.FOLDER, self.folder.uri) != self.folder.uri:  # it was moved
                client.set_tag(self._study_run, schema.FOLDER, self.folder.uri)
            if schema.FORMAT not in run.data.tags:
                self._complete_study_run(run, which)
            for run_id, parent in parents.items():
                if parent != self._study_run:  # which was deleted
                    client.set_tag(run_id, schema.PARENT, self._study_run)
            if not studies or self._followed not in ("", self._study_run):  # "": an older version noted the position
                self._offset, self._late = 0, {}  # another store, or an emptied one: everything is written again
            self._followed = self._study_run
            ends = [run.info.end_time for run in runs]
            if not self._file.open(self._study_run, ends) and schema.TRIALS_TAG in run.data.tags:
                client.delete_tag(self._study_run, schema.TRIALS_TAG)  # it may list runs that are lost
        except BaseException:
            self._client = None  # half connected is not connected
            raise
        return True

    def _experiment(self, client: Any) -> Any:
        """That of the space, made if it is not there. Where one of its name was deleted in MLflow, which takes nothing
        for it until it is restored, a number follows the name."""
        for number in itertools.count(1):
            name = self.space.name if number == 1 else f"{self.space.name}-{number}"
            found = client.get_experiment_by_name(name)
            if found is None:
                # Without a place beside the database MLflow would put artifacts into the current folder.
                file = schema.database(self.uri)
                place = (file.parent / schema.ARTIFACTS / name).as_uri() if file else None
                found = client.get_experiment(client.create_experiment(name, artifact_location=place))
            if found.lifecycle_stage == "active":
                return found
        raise AssertionError("numbers do not end")

    def _read_to_position(self) -> dict[str, int]:
        """Trial id -> milliseconds of its start, of the whole journal. What MLflow has of it is remembered; a position
        in another journal (its end was put aside, it was salvaged or restored) is dropped."""
        starts, valid = {}, self._offset == 0
        for event, end in read_with_ends(self.folder.journal):
            if event["e"] == "start":
                starts[event["id"]] = event["t"]
            if end <= self._offset:
                self._remember(event)
                valid = end == self._offset and self._at in (None, event["t"])
        if not valid:
            self._offset, self._late = 0, {}
        return starts

    def _make_study_run(self, which: Identity) -> Any:
        began = int(self.folder.space.stat().st_mtime * 1000)
        tags = study_tags(self.space, self.folder, which)
        made = self._client.create_run(self.experiment_id, start_time=began, run_name=self.folder.study, tags=tags)
        self._drop_twins(f"tags.{schema.ROLE} = 'study'", {"": made.info.run_id})
        return made

    def _complete_study_run(self, run: Any, which: Identity) -> None:
        """Parameters, files and views, as far as an earlier attempt did not come to them; a tag marks the end."""
        client, run_id, space = self._client, run.info.run_id, self.space
        known = run.data.params
        self._log(run_id, params={name: value for name, value in study_params(space).items() if name not in known})
        for path in (self.folder.space, self.folder.environment):
            if path.exists():
                client.log_artifact(run_id, str(path))
        there = client.get_experiment(self.experiment_id).tags
        for tag, value in saved_views(space, self.folder.study, which.uuid).items():
            if tag != shared_view(space) or tag not in there:  # that one may be another user's
                client.set_experiment_tag(self.experiment_id, tag, value)
        self._log(run_id, tags=format_tags())

    def _make_trial_run(self, start: Event) -> None:
        """MLflow's run of a trial, if it is not there."""
        trial_id = start["id"]
        if trial_id not in self._run_ids:
            assert self._which is not None
            tags = trial_tags(start, self.space, self.folder, self._which, self._study_run)
            name = trial_name(trial_id, start["point"])
            run = self._client.create_run(self.experiment_id, start_time=start["t"], run_name=name, tags=tags)
            self._run_ids[trial_id] = run.info.run_id

    def _drop_twins(self, condition: str, known: Mapping[str, str]) -> None:
        """Delete runs that a server created twice: its answer was lost, and MLflow's client or we repeated the request.

        Args: known: trial id ("" for the study) -> the run that stays.
        """
        for run in self._search(condition):
            run_id: str = run.info.run_id
            if known.get(run.data.tags.get(schema.TRIAL_ID, ""), run_id) != run_id:
                self._client.delete_run(run_id)

    def _write(self, events: list[Event], end: int) -> None:
        """One batch: everything of a trial in one call, then its status."""
        starts = [event for event in events if event["e"] == "start"]
        self._each(self._make_trial_run, starts)
        if starts and self.uri.startswith("http"):
            self._drop_twins(f"attributes.start_time >= {min(start['t'] for start in starts)}", self._run_ids)
        batches: dict[str, TrialBatch] = {}
        study: Event | None = None
        for event in events:
            self._remember(event)
            if event["e"] in ("life", "session", "close"):
                study = event
                if event.get("stage") == "confirm":  # each is an interim analysis, which the verdict accounts for
                    plan = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("e", "t", "stage"))
                    self._client.set_tag(self._study_run, f"{schema.CONFIRMATION}{event['t']}", plan)
            elif event["e"] == "share":
                tags = {schema.SHARING: event["reason"], schema.SHARED_GPUS: str(event["gpus"])}
                self._log(self._study_run, tags=tags)
            elif "id" in event:
                at, values = self._at_best.get(event["id"], (0, {}))
                at_best = values if at == event.get("best_at") else {}
                batches.setdefault(event["id"], TrialBatch()).add(event, self.space.metric.name, at_best)
        self._each(self._write_trial, batches.items())
        if study is not None:
            self._write_study(study)
        self._file.waiting += sum(batch.ended for batch in batches.values())
        self._offset, self._at = end, events[-1]["t"]
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
            position = {"uri": schema.masked(self.uri), "run": self._study_run, "offset": self._offset, "at": self._at}
            file.write(json.dumps({**position, "late": self._late}).encode())

    def _search(self, condition: str) -> list[Any]:
        assert self._which is not None
        condition = f"{of_study(self._which.uuid)} and {condition}"
        return pages(self._client.search_runs, [self.experiment_id], condition, max_results=5000)


def _run_is_gone(error: Exception) -> bool:
    """Whether a call failed for a run that is not there, or is marked deleted, and would fail ever again."""
    codes = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
    return isinstance(error, KeyError) or getattr(error, "error_code", "") in codes


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}
