"""A published table beside our grid of it, cell by cell, and in what a trial of ours departs from its setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.papers.published import PaperRow, PaperTable, columns
from analysis.reading.store import StoredRun
from analysis.tables.axes import label
from analysis.tables.study import Study
from analysis.tables.trials import PARAM, parameter
from search import schema
from search.schema import BEST_AT_EXAMPLES, UNTRAINED_PREFIX, is_dev
from trainables.contract.registry import declared

COLUMNS = ["row", "from", "metric", "published", "ours", "sd", "n", "difference", "target", "departs"]
PRINTED, RUN = "printed", "run"
UNCOMPARED = ("precision", "micro_batch", "checkpointing", "checkpoint_seconds")  # how a trial is run, not what it is
UNTRAINED = ("pooling", "max_words")  # what an encoder before training depends on


def compare(table: PaperTable, studies: Sequence[Study]) -> pd.DataFrame:
    """Every printed cell, and beside those of rows that the space runs our trials.

    Columns: row; from ("printed" only, "run" by this space, or the name of the table that another space runs); metric;
    published; ours, sd, n; difference; target; departs. All in points (x 100). `ours` is the mean over completed trials
    of the row's configuration that have the metric, `sd` their standard deviation (n - 1; NaN for one); difference =
    ours - published; NaN where we have nothing. Trials that depart from the paper's setting (another encoder, corpus,
    length, rule set, a smoke study) are never averaged with those that do not, nor with others: they stand in lines of
    their own, `departs` names in what. Dev metrics are those of the trial's best evaluation. `target` is False where
    the printed value is none (see notes). A metric of ours that the paper does not print has a NaN as `published`.
    """
    setting = setting_of(table.space)
    values = [(study, _values(study)) for study in studies]
    selecting = list(dict.fromkeys(study.metric.name for study in studies))
    cells = []
    for row in table.rows:
        kind = RUN if row.params is not None else table.elsewhere.get(row.label, PRINTED)
        groups: dict[str, list[pd.DataFrame]] = {"": []}
        if row.params is not None:
            for study, frame in values:
                for departs, trials in _by_departure(setting, row, study).items():
                    groups.setdefault(departs, []).append(frame.loc[trials])
        extra = [] if row.params is None or row.untrained else [m for m in selecting if m not in row.cells]
        for departs, parts in groups.items():
            mine = pd.concat(parts) if parts else pd.DataFrame()
            for metric in [*row.cells, *extra]:
                stored = UNTRAINED_PREFIX + metric if row.untrained else metric
                found = 100 * mine[stored].dropna() if stored in mine else pd.Series(dtype=float)
                if row.untrained:
                    found = found.drop_duplicates()  # the same encoder, whichever trial it was scored with
                if departs and not len(found):
                    continue
                printed = row.cells.get(metric, np.nan)
                ours = float(found.mean()) if len(found) else np.nan
                sd = float(found.std(ddof=1)) if len(found) > 1 else np.nan
                fits = metric not in table.unfit
                cells.append((row.label, kind, metric, printed, ours, sd, len(found), ours - printed, fits, departs))
    return pd.DataFrame(cells, columns=COLUMNS)


def _by_departure(setting: Setting, row: PaperRow, study: Study) -> dict[str, list[int]]:
    """What they depart in -> the row's trials of a study, by their place in `study.trials`."""
    hit = study.trials[_matches(study, row)]
    found: dict[str, list[int]] = {}
    for index, trial in zip(hit.index, hit.to_dict("records"), strict=True):
        apart = departures(setting, row, study, {str(name): value for name, value in trial.items()})
        found.setdefault(apart, []).append(index)
    return found


def _values(study: Study) -> pd.DataFrame:
    """Per trial, every metric that may be compared: test metrics, dev metrics at the best evaluation, the value."""
    runs = [run for run in study.stored_trials if BEST_AT_EXAMPLES in run.metrics]
    names = sorted({n for run in runs for n in run.metrics if is_dev(n)})
    dev: dict[tuple[str, str], float] = {}
    at = {run.run_id: run.metrics[BEST_AT_EXAMPLES] for run in runs}
    for run_id, metric, step, value in study.store.history(list(at), names):
        if at[run_id] == step:
            dev[run_id, metric] = value
    by_id = {run.run_id: _tests(run) for run in study.stored_trials}
    for (run_id, metric), value in dev.items():
        by_id[run_id][metric] = value
    table = pd.DataFrame([by_id[run_id] for run_id in study.trials["run_id"]], index=study.trials.index)
    return table.assign(**{study.metric.name: study.trials["value"]})


def _tests(run: StoredRun) -> dict[str, float]:
    found = {n: v for n, v in run.metrics.items() if n.endswith("_test") or n.startswith(UNTRAINED_PREFIX)}
    *four, average = columns("four").values()  # GCLSR's ablations average STS12 to STS15 only
    if all(np.isfinite(found.get(name, np.nan)) for name in four):
        found[average] = float(np.mean([round(100 * found[name], 2) for name in four])) / 100
    return found


def _matches(study: Study, row: PaperRow) -> pd.Series:
    """Completed trials whose parameters are the row's; a parameter that is not stored does not match."""
    hit = study.trials["stop"] == "completed"
    for name, value in (row.params or {}).items():
        column = PARAM + name
        same = study.trials[column].map(label) == label(value) if column in study.trials else False
        hit &= same
    return hit


@dataclass(frozen=True)
class Setting:
    """What a space of `spaces/papers` fixes: `values` by hyperparameter, and the values its grid or points allow."""

    encoder: str
    train: str
    values: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]] = ()
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def allowed(self, row: PaperRow) -> dict[str, set[str]]:
        """Hyperparameter -> the labels that a trial of the row may have in it."""
        fitting = [p for p in self.points if all(p.get(k, v) == v for k, v in (row.params or {}).items())]
        found = {name: {label(value)} for name, value in self.values.items()}
        for name, values in self.grid.items():
            found[name] = {*found.get(name, set()), *map(label, values)}
        for point in fitting:
            found |= {name: {label(value)} for name, value in point.items()}
        return found | {name: {label(value)} for name, value in (row.params or {}).items()}


@cache
def setting_of(space: str) -> Setting:
    """The setting of `spaces/papers/<space>.yaml`: the method's defaults, its preset, the file's values."""
    written = _written(space)
    declaration = declared(written["method"])
    preset = written.get("preset") or declaration.preset_for(written["encoder"])
    params = written.get("params", {})
    constants = {name: value for name, value in params.items() if not isinstance(value, Mapping)}
    values = declaration.values(None if preset == "none" else preset) | constants | written.get("train", {})
    return Setting(
        encoder=written["encoder"],
        train=written["data"]["train"],
        values=values,
        points=written.get("points", ()),
        grid={name: value["grid"] for name, value in params.items() if isinstance(value, Mapping)},
    )


def _written(space: str) -> dict[str, Any]:
    """A space file over what it extends, section by section."""
    package = Path(schema.__file__).parent  # installed, its ready spaces lie in it; in a source tree beside it
    folder = next(f for f in (package / "ready_spaces", package.parent / "spaces") if f.is_dir())
    own: dict[str, Any] = yaml.safe_load((folder / "papers" / f"{space}.yaml").read_text(encoding="utf-8"))
    if "extends" not in own:
        return own
    base = _written(own.pop("extends").removesuffix(".yaml"))
    if "points" in own:
        base.pop("params", None)
    for key, value in own.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, Mapping) else value
    return base


def departures(setting: Setting, row: PaperRow, study: Study, trial: Mapping[str, Any]) -> str:
    """In what a trial departs from the setting of a printed row: "encoder builtin:tiny, max_length 24"; "" in nothing.

    What a study does not have stored is not compared. A dev set that selected is not part of a setting.
    """
    stored = study.stored.params
    found = []
    if _short(stored.get("encoder", setting.encoder)) != _short(setting.encoder):
        found.append(f"encoder {stored['encoder']}")
    if stored.get("data.train", setting.train) != setting.train:
        found.append(f"trained on {stored['data.train']}")
    if parser := parameter(stored.get("data.parser")):
        found.append(f"parser {parser}")
    for name, allowed in setting.allowed(row).items():
        if name in UNCOMPARED or PARAM + name not in trial or (row.untrained and name not in UNTRAINED):
            continue
        value = label(trial[PARAM + name])
        if value not in allowed:
            found.append(f"{name} {value}")
    return ", ".join(found)


def _short(encoder: str) -> str:
    """An encoder without the folder it lies in and without its revision."""
    return encoder.split("@")[0].rstrip("/").rsplit("/", 1)[-1]
