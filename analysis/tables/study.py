"""One study as tables: what every command starts from."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from analysis.errors import InputError, NoTrialsError, unknown
from analysis.reading.store import Store, StoredRun, study_name
from analysis.tables.metric import Metric, Mode, parse_metric
from analysis.tables.trials import PARAM, add_values, parameter, points_table, trials_table
from search import schema
from search.schema import best_key
from trainables.contract.formats import NewerFormatError
from trainables.contract.trial import at_width, held_metric, metric_parts, retrieval_measure
from trainables.data.catalogue import set_name

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Study:
    """A study's trials, valued by one metric.

    stored, stored_trials: MLflow's run of the study and those of its trials. trials: `trials_table` with `value`.
    searched: names of the searched parameters. planned: `search.trials` of the space, None if its end is another.
    options: that named the store to the command that reads the study, such as `--storage`.
    """

    store: Store
    stored: StoredRun
    stored_trials: Sequence[StoredRun]
    metric: Metric
    trials: pd.DataFrame
    searched: tuple[str, ...]
    planned: int | None
    options: Mapping[str, str] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # what was computed of it

    @property
    def name(self) -> str:
        return study_name(self.stored)

    def command(self, words: str) -> str:
        """A command on this study that finds it as this one did: `analysis export` -> `analysis export mine-1`."""
        options = self.options
        if words.startswith("search "):  # it reads no tracking store, and needs the study's folder
            options = {"--storage": self.options.get("--storage") or self._other_storage()}
        given = [f" {option} {shlex.quote(value)}" for option, value in options.items() if value]
        return f"{words} {shlex.quote(self.name)}{''.join(given)}"

    def _other_storage(self) -> str:
        """Where the study's folder is, unless commands search there anyway or it is missing."""
        folder = self.stored.tags.get(schema.FOLDER, "").rstrip("/")
        storage = os.path.dirname(folder)
        usual = os.environ.get("SEARCH_STORAGE") or schema.DEFAULT_STORAGE
        there = "://" in folder or os.path.isdir(folder)
        return storage if there and storage not in (usual.rstrip("/"), os.path.abspath(usual)) else ""

    @property
    def selecting(self) -> str:
        """The metric that selected, by which `search confirm`, `analysis export` and `analysis test` choose."""
        return self.stored.tags.get(schema.METRIC, self.metric.name)

    @cached_property
    def points(self) -> pd.DataFrame:
        return points_table(self.trials)

    @property
    def finished(self) -> bool:
        """Whether the study has come to its end: neither running nor interrupted."""
        return self.stored.status in ("FINISHED", "FAILED") and not (self.trials["stop"] == "running").any()

    @cached_property
    def space(self) -> Mapping[str, Any]:
        """The resolved space file; {} if it is out of reach."""
        content = self.store.artifact(self.stored, schema.SPACE_FILE)
        space = yaml.safe_load(content) if content else {}
        return space if isinstance(space, dict) else {}

    @property
    def data(self) -> Mapping[str, Any]:
        """The space's section on data; {} if it is out of reach, or empty."""
        return self.space.get("data") or {}

    @property
    def limits(self) -> tuple[float, float]:
        """Between which values the metric lies: [0, 1] for retrieval, [-1, 1] for correlations, endless for others."""
        if all(retrieval_measure(part) for part in self.metric.parts):
            return 0.0, 1.0
        own = self.data.get("evaluations") or self.space.get("method") == "script"
        correlations = self.data and not own and all(map(schema.is_dev, self.metric.parts))
        return (-1.0, 1.0) if correlations else (-np.inf, np.inf)

    @property
    def known_metric(self) -> bool:
        """Whether all that the metric is made of are correlations or retrieval measures of the study's dev sets, of
        which larger is better; as far as is known: the space may be out of reach."""
        if not self.data and self.space.get("method") != "script":
            return True
        correlations = {set_name(name) + schema.DEV_SUFFIX for name in self.data.get("dev") or ()}
        ours = {*correlations, *map(held_metric, correlations)}
        return all(at_width(part)[0] in ours or retrieval_measure(part) for part in self.metric.parts)

    @property
    def baseline_name(self) -> str:
        """What the baseline point is: a published setting, a script's own one, or the method's defaults."""
        preset = self.space.get("preset")
        if isinstance(preset, dict):
            return "the space's preset"
        names = {"none": "the method's defaults", "sentence_transformers": "sentence-transformers' recipe"}
        name = names.get(str(preset), "the paper's setting")
        moved = self.stored.tags.get(schema.MOVED, "").replace(",", ", ")
        return f"{name} (changed by the space: {moved})" if moved else name

    @property
    def confirmations(self) -> int | None:
        """How often the study was confirmed, resumed confirmations counted each; None if not counted."""
        return sum(tag.startswith(schema.CONFIRMATION) for tag in self.stored.tags) or None

    def counts(self) -> dict[str, int]:
        """Trials per way to end; all failures together."""
        kinds = self.trials["stop"].str.split(":").str[0]
        return {str(kind): int(n) for kind, n in kinds.value_counts().items()}

    def similarities(self, run_id: str) -> Arrays | None:
        """Per dev set, cosines and gold scores (n,) of the trial's best checkpoint (`stsb_dev`, `stsb_gold`).

        None if they were not stored or are out of reach.
        """
        content = self.store.artifact(self._by_id[run_id], schema.SIMILARITIES)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    @cached_property
    def _by_id(self) -> dict[str, StoredRun]:
        return {run.run_id: run for run in self.stored_trials}


def read_study(
    store: Store, study: StoredRun, metric: str | Metric | None = None, trials: Sequence[StoredRun] | None = None
) -> Study:
    """Read a study, valuing its trials by `metric` (default: the one that selected) at each trial's best evaluation.

    trials: the study's trials, if they have been read already.

    Raises: InputError for an unknown metric or one with an unknown direction, NoTrialsError if the
        study has none, or a newer version wrote them.
    """
    try:
        schema.check_format(study.tags)
    except NewerFormatError as error:
        raise NoTrialsError(f"study {study_name(study)}: {error}") from None
    trials = store.trials(study) if trials is None else trials
    if not trials:
        raise NoTrialsError(f"study {study_name(study)} has no trials yet ({study.status.lower()})")
    selecting = study.tags[schema.METRIC]
    parsed = metric if isinstance(metric, Metric) else parse_metric(metric or selecting)
    selected = {*parsed.parts} <= {*metric_parts(selecting), *metric_parts(held_metric(selecting))}
    if selected:
        parsed = replace(parsed, mode=cast(Mode, study.tags.get(schema.MODE, "max")))
    table, planned = trials_table(trials), parameter(study.params.get("search.trials"))
    read = Study(
        store=store,
        stored=study,
        stored_trials=trials,
        metric=parsed,
        trials=add_values(table, _values(store, study, trials, parsed)),
        searched=_searched(study, table),
        planned=planned if isinstance(planned, int) else None,
    )
    if not (selected or parsed.explicit_mode or read.known_metric):
        raise InputError(
            f"{parsed.name} did not select, and its direction is not known: "
            f"write max({parsed.name}) or min({parsed.name})"
        )
    return read


def dev_metrics(study: StoredRun, trials: Sequence[StoredRun]) -> list[str]:
    """What the study's trials can be ranked by: the selecting metric first."""
    logged = {name for run in trials for name in run.metrics if schema.is_dev(name)}
    selecting = study.tags[schema.METRIC]
    return [selecting, *sorted(schema.named(name) for name in logged - {selecting, schema.stored(selecting)})]


def _values(store: Store, study: StoredRun, trials: Sequence[StoredRun], metric: Metric) -> dict[str, float]:
    """Run id -> the metric at the trial's best evaluation; without trials that lack a part of it there."""
    key = best_key(metric.name)
    if metric.name == study.tags[schema.METRIC] and any(key in run.metrics for run in trials):
        return {run.run_id: run.metrics[key] for run in trials if key in run.metrics}
    allowed = dev_metrics(study, trials)
    for part in metric.parts:
        if part not in allowed:
            raise unknown("metric", part, allowed)
    found = store.at_best(trials, metric.parts)
    complete = {run: values for run, values in found.items() if values.keys() >= {*metric.parts}}
    return {run: sum(values[part] for part in metric.parts) / len(metric.parts) for run, values in complete.items()}


def _searched(study: StoredRun, table: pd.DataFrame) -> tuple[str, ...]:
    """Searched parameters by the study's tag, else those that vary."""
    tagged = [name for name in study.tags.get(schema.SEARCHED, "").split(",") if name]
    columns = [c for c in map(str, table.columns) if c.startswith(PARAM)]
    return tuple(tagged) or tuple(c.removeprefix(PARAM) for c in columns if table[c].astype(str).nunique() > 1)


@dataclass(frozen=True)
class Held:
    """A point's mean over its counted seeds, on the pairs that selected and on those held out; units of the metric."""

    selecting: float
    held: float


def held(study: Study, point: str) -> Held | None:
    """Both means at each trial's best evaluation, which the selecting pairs chose; None where nothing was held out."""
    rows = study.points[study.points["point"] == point]
    if rows.empty:
        return None
    runs: Sequence[str] = rows.iloc[0]["run_ids"]
    keys = [best_key(part) for part in metric_parts(held_metric(study.metric.name))]
    found = [run.metrics for run in study.stored_trials if run.run_id in runs]
    if not found or not all(key in metrics for metrics in found for key in keys):
        return None
    values = pd.DataFrame([[metrics[key] for key in keys] for metrics in found])
    return Held(float(rows.iloc[0]["value"]), float(np.mean(values.to_numpy())))


def untrained(study: Study, point: str) -> float | None:
    """The metric of the encoder before training, as a point's counted trials measured it; None where none did."""
    key = schema.stored(schema.UNTRAINED_PREFIX + study.metric.name)
    (runs,) = study.points.loc[study.points["point"] == point, "run_ids"]
    found = [run.metrics[key] for run in study.stored_trials if run.run_id in runs and key in run.metrics]
    value = float(np.mean(found)) if found else np.nan
    return value if np.isfinite(value) else None
