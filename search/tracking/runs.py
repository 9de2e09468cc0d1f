"""What MLflow shows of a study and its trials: tags, parameters, metrics, the notes on their pages, and saved views."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from search import schema
from search.space import Space, paper_notes
from search.store.journal import Identity
from search.store.layout import StudyFolder, is_remote, storage_option
from search.store.ledger import Event, Ledger
from search.wording import best_trials, headline, show, trial_line
from trainables.contract import formats

SOURCE = {"mlflow.source.name": "search", "mlflow.source.type": "LOCAL"}  # MLflow's column "Source"
PARAM_LIMIT = 6000  # MLflow cuts longer values
SHOWN = 3  # best trials in a study's note
STATUS = {"completed": "FINISHED", "pruned": "FINISHED"}
SHORT = {"learning_rate": "lr", "batch_size": "batch", "temperature": "tau", "sample_size": "n"}


def study_tags(space: Space, folder: StudyFolder, which: Identity) -> dict[str, str]:
    """Of the parent run."""
    moved = ",".join(paper_notes(space))
    return {
        schema.ROLE: "study",
        **_of(folder, which),
        schema.METHOD: space.method,
        schema.METRIC: space.metric.name,
        schema.MODE: space.metric.mode,
        schema.FOLDER: folder.uri,
        schema.SEARCHED: ",".join(space.params),
        **({schema.MOVED: moved} if moved else {}),
        NOTE: study_note(space, folder),
        **SOURCE,
    }


def format_tags() -> dict[str, str]:
    """Of the parent run, when all else of it is there."""
    written = formats.stamp(formats.TRACKING)
    return {schema.FORMAT: str(written[formats.FORMAT]), schema.VERSION: written[formats.VERSION]}


def study_params(space: Space) -> dict[str, str]:
    """The resolved space, flat; code by its files, since their texts are in the space file."""
    resolved = space.resolved()
    if space.plugins:
        resolved["plugins"] = [plugin.file for plugin in space.plugins]
    if space.script:
        resolved["script"] = space.script.file
    for own in (resolved["search"]["sampler"], resolved["pruner"]):
        if isinstance(own, dict):
            own.pop("text", None)
    return texts(_flat(resolved))


def study_metrics(ledger: Ledger, metric: str) -> dict[str, float]:
    """What compares studies: the best value, which MLflow's compare page draws since it is the first, and its cost."""
    values = {}
    if ledger.best is not None and ledger.best.best is not None:
        values[schema.best_key(metric)] = ledger.best.best
    values |= {
        schema.TRIALS: ledger.ended(), schema.POINTS: len(ledger.tried), schema.FAILED: ledger.failed(),
        schema.HOURS: ledger.elapsed() / 3600,
    }  # fmt: skip
    return {name: round(float(value), 6) for name, value in values.items()}


def _of(folder: StudyFolder, which: Identity) -> dict[str, str]:
    """The tags by which a run is known to be the study's."""
    user = {schema.USER: which.user} if which.user else {}
    return {schema.STUDY_ID: folder.study, schema.STUDY_UUID: which.uuid, **user}


def trial_tags(event: Event, space: Space, folder: StudyFolder, which: Identity, parent: str) -> dict[str, str]:
    """Of a child run.

    Args: event: the journal's "start" of the trial; parent: the study's run.
    """
    tags = {
        schema.ROLE: "trial",
        **_of(folder, which),
        schema.TRIAL_ID: event["id"],
        schema.POINT_ID: event["point_id"],
        schema.SEED: str(event["seed"]),
        schema.STAGE: event["stage"],
        schema.OPTUNA_NUMBER: str(event["number"]),
        schema.METHOD: space.method,
        schema.FOLDER: f"trials/{event['id']}",
        schema.PARENT: parent,
        NOTE: trial_note(event, space, folder),
        **SOURCE,
    }
    if event["baseline"]:
        tags[schema.BASELINE] = event["baseline"]
    if origin := event.get("origin"):
        tags[schema.ORIGIN] = origin
    return tags


def trial_name(trial_id: str, point: Mapping[str, Any]) -> str:
    """`t07 lr=3e-5`: the id and the first searched parameter, short enough for MLflow's table."""
    if not point:
        return trial_id
    name, value = next(iter(point.items()))
    text = f"{value:.2g}" if isinstance(value, float) else str(value)
    return f"{trial_id} {SHORT.get(name, name)}={text}"[:40]


def final_metrics(event: Event, metric: str, at_best: Mapping[str, float]) -> dict[str, float]:
    """What is logged when a trial ends or waits at a rung, at the step of its last example.

    Args: at_best: all metrics of the trial's best evaluation, which are logged as `best_*`.
    """
    others = {schema.best_key(name): v for name, v in at_best.items() if schema.is_dev(name)}
    values = others | {
        schema.TRAIN_SECONDS: event["seconds"],
        schema.BEST_AT_EXAMPLES: event["best_at"],
        schema.EXAMPLES_PER_SECOND: event["examples"] / event["seconds"] if event["seconds"] else None,
        schema.best_key(metric): event["best"],
    }
    return {name: value for name, value in values.items() if value is not None}


class TrialBatch:
    """What one call logs of a trial to MLflow: the events of a stretch of the journal.

    metrics: MLflow's. status: "" where it stays as it is. time: of the last event, milliseconds.
    """

    def __init__(self) -> None:
        self.params: dict[str, str] = {}
        self.metrics: list[Any] = []
        self.tags: dict[str, str] = {}
        self.traceback = self.status = ""
        self.time, self.ended = 0, False

    def add(self, event: Event, metric: str, at_best: Mapping[str, float]) -> None:
        """at_best: all metrics of the trial's best evaluation, for its end."""
        self.time = event["t"]
        match event["e"]:
            case "start":  # MLflow makes runs RUNNING
                self.params = texts(event["params"])
            case "again":
                self.status = "RUNNING"
                self.tags[schema.STOP] = ""  # a promoted trial is no longer paused
            case "reopen":
                self.tags[schema.REASON] = ""  # it may be completed now
            case "pause":
                self.status = "KILLED"
                if event.get("rung") is not None:  # it counts as pruned here until it goes on
                    self.tags[schema.STOP] = "paused"
                    self._log(event, final_metrics(event, metric, at_best))
            case "eval":
                # MLflow's compare page draws the first metric that a run has: the selecting one goes first.
                names = sorted(event["metrics"], key=lambda n: (n != metric, n.startswith(schema.UNTRAINED_PREFIX)))
                self._log(event, {schema.stored(name): event["metrics"][name] for name in names})
                if place := event.get("place"):
                    self.tags[schema.PLACE] = place
            case "end":
                self._log(event, final_metrics(event, metric, at_best))
                self.tags[schema.STOP] = event["stop"]
                if event["reason"]:
                    self.tags[schema.REASON] = event["reason"][:PARAM_LIMIT]
                self.traceback, self.ended = event["traceback"], True
                self.status = STATUS.get(event["stop"], "FAILED")

    def _log(self, event: Event, values: Mapping[str, float]) -> None:
        self.metrics += metrics(values, event["t"], event["examples"])


def metrics(values: Mapping[str, float], time_ms: int, step: int) -> list[Any]:
    """As MLflow's client takes them."""
    from mlflow.entities import Metric

    return [Metric(name, float(value), time_ms, step) for name, value in values.items()]


def texts(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as MLflow stores them."""
    return {name: str(value)[:PARAM_LIMIT] for name, value in params.items()}


def study_note(space: Space, folder: StudyFolder, ledger: Ledger | None = None) -> str:
    """Markdown: what a study searches and how, its state, commands that show more, and how to run it again.

    Args: ledger: what happened so far; None before anything has.
    """
    search, pruner = space.search, space.pruner
    extent = [f"{n} {what}" for n, what in ((search.trials, "points"), (space.cardinality(), "in the grid")) if n]
    parts = [
        f"**{space.what}**" + (f", trained on `{space.data.train}`" if space.data.train else "") + ", "
        f"selected by `{space.metric.name}` ({space.metric.mode})."
    ]
    if ledger is not None and ledger.sessions:
        lines = [headline(space, ledger, ledger.sessions[-1][1])]
        lines += [trial_line(s, space) for s in best_trials(ledger, SHOWN) if s.state == "completed"]
        parts.append("**So far** (values x 100)\n\n```\n" + "\n".join(lines) + "\n```")
    rows = [f"| `{name}` | `{param.written()}` |" for name, param in space.params.items()]
    parts.append("| searched | range |\n|---|---|\n" + "\n".join(rows))
    parts.append(
        f"Sampler `{search.sampler}`, pruner `{pruner.kind}`, seed {search.seed}, {search.repeats} per point"
        + (f", {', '.join(extent)}." if extent else ".")
    )
    storage = storage_option(folder.storage)
    commands = [] if is_remote(folder.storage) else [f"search run {shlex.quote(str(folder.space))}"]
    commands += [f"search resume {folder.study}{storage}", f"analysis best --study {folder.study}"]
    parts.append("**Again, on, and further**\n\n```\n" + "\n".join(commands) + "\n```")
    return "\n\n".join(parts)


def trial_note(start: Event, space: Space, folder: StudyFolder) -> str:
    """Markdown: what a trial tries (its `start` event) and where its files are."""
    point = "\n".join(f"| `{name}` | {show(value)} |" for name, value in start["point"].items())
    kind = {"search": "Trial of the search", "confirm": "Confirming trial on a fresh seed"}[start["stage"]]
    of = f", the {start['baseline']} baseline" if start["baseline"] else ""
    of += f", from {origin}" if (origin := start.get("origin")) else ""
    return (
        f"{kind}{of}: point {start['number']}, seed {start['seed']}, `{space.what}`.\n\n"
        f"| searched | here |\n|---|---|\n{point}\n\nFiles: `{folder.trial(start['id'])}`"
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as `a.b.c` keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# MLflow keeps a shared view as an experiment tag; its format is not documented. A release that reads another one opens
# its plain table, and a test reads the tag back.
NOTE = "mlflow.note.content"
# MLflow opens its pages for language-model applications unless an address names the other kind; the tag alone does not
# change that, but it records the kind.
EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")
WORKFLOW = "workflowType=machine_learning"  # in an address, the same for this one visit
VIEW = "mlflow.sharedViewState."  # begins the tag's name
POINTS, STUDIES = "-points", "-studies"  # end the keys of the other views
NAMED = {"attributes.`Run Name`": 150, "runDateAndNestInfo": 50}  # columns that MLflow pins, widths in pixels
WIDE, NARROW = 150, 100


def of_study(uuid: str) -> str:
    """The filter that finds a study's run and those of its trials."""
    return f"tags.{schema.STUDY_UUID} = '{uuid}'"


def view_key(study: str, uuid: str) -> str:
    """Of the study's table of trials: names of studies repeat."""
    return f"{study}-{uuid[:8]}"


def saved_views(space: Space, study: str, uuid: str) -> dict[str, str]:
    """Experiment tags. `view_key` opens the table of trials, `<view_key>-points` the same grouped by configuration with
    the mean over its seeds, `<space>-studies` all studies.
    """
    key = view_key(study, uuid)
    params = [f"params.`{name}`" for name in space.params]
    table = _table(space, f"tags.{schema.ROLE} = 'trial' and {of_study(uuid)}", [*params, f"tags.`{schema.STOP}`"])
    group = {"mode": "tag", "groupByData": schema.OPTUNA_NUMBER}
    points = {**table, "groupBy": {"aggregateFunction": "average", "groupByKeys": [group]}}
    totals = (schema.TRIALS, schema.POINTS, schema.FAILED, schema.HOURS)
    studies = _table(space, f"tags.{schema.ROLE} = 'study'", [f"metrics.`{name}`" for name in totals])
    views = {
        key: _packed(f"{study}: trials, best first", table),
        f"{key}{POINTS}": _packed(f"{study}: configurations, mean over seeds", points),
        f"{space.name}{STUDIES}": _packed(f"{space.name}: studies", studies),
    }
    return {VIEW + key: view for key, view in views.items()}


def shared_view(space: Space) -> str:
    """The one of these tags that all studies of a space have in common."""
    return f"{VIEW}{space.name}{STUDIES}"


def _table(space: Space, runs: str, columns: Sequence[str]) -> dict[str, Any]:
    """The state of a table of `runs` (a filter), best first: the best value, then `columns`."""
    best = f"metrics.`{schema.best_key(space.metric.name)}`"
    return {
        "searchFilter": runs,
        "orderByKey": best,
        "orderByAsc": space.metric.mode == "min",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [best, *columns],
        "columnOrder": [*NAMED, best, *columns, "duration"],  # else by the alphabet
        "columnWidths": {**NAMED, best: WIDE, **dict.fromkeys([*columns, "duration"], NARROW)},
        "runsHiddenMode": "SHOWALL",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def view_address(server: str, experiment_id: str, key: str) -> str:
    """Where a server shows a saved view."""
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{WORKFLOW}&viewStateShareKey={key}"


def _packed(name: str, state: dict[str, Any]) -> str:
    data = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": "deflate;" + data})
