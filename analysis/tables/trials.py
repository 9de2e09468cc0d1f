"""A row per trial as it is stored, a row per point (a configuration, over its seeds), and their ranking.

Values stay in the metric's own unit.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.reading.store import StoredRun
from analysis.tables.metric import Metric
from search import schema

PARAM = "params."  # prefix of parameter columns, as in MLflow's own tables
TEXTS = {
    "trial": schema.TRIAL_ID, "point": schema.POINT_ID, "stage": schema.STAGE, "stop": schema.STOP,
    "method": schema.METHOD, "reason": schema.REASON, "folder": schema.FOLDER,
    "origin": schema.ORIGIN,
}  # fmt: skip
WORDS = {None: None, "": None, "None": None, "null": None} | dict.fromkeys(("True", "true"), True)
WORDS |= dict.fromkeys(("False", "false"), False)
NUMBERS = {
    "examples": schema.BEST_AT_EXAMPLES, "seconds": schema.TRAIN_SECONDS, "rate": schema.EXAMPLES_PER_SECOND
}  # fmt: skip


def trials_table(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """One row per trial, in the order of `runs`.

    Columns: run_id; trial, point, stage, stop, method, reason, folder, origin (texts); number and seed (ints); baseline
    (bool); examples at the best evaluation, train seconds, examples per second; started (UTC); params.<name>. `stop` of
    a trial without an end is "running", or "killed" if its run is closed.
    """
    rows = [_row(run) for run in runs]
    columns = ["run_id", *TEXTS, "number", "seed", "baseline", *NUMBERS, "started"]
    params = [run.params for run in runs]
    table = pd.DataFrame.from_records(rows, columns=columns)
    table["started"] = pd.to_datetime(table["started"], unit="ms", utc=True)
    parameters = {}
    for name in dict.fromkeys(chain.from_iterable(params)):
        texts = [one.get(name) for one in params]
        known = {text: parameter(text) for text in set(texts)}  # most values of a study occur in many trials
        parameters[PARAM + name] = [known[text] for text in texts]
    return pd.concat([table, pd.DataFrame(parameters, index=table.index)], axis=1)


def add_values(trials: pd.DataFrame, values: Mapping[str, float]) -> pd.DataFrame:
    """The trials with their `value`, by run id; NaN where there is none. Infinite values count as none."""
    value = trials["run_id"].map(dict(values)).astype(float)
    return trials.assign(value=value.where(value.abs() < math.inf))


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Failed trials: trial, kind, reason."""
    failed = trials[trials["stop"].str.startswith("failed")]
    kinds = failed["stop"].str.removeprefix("failed:")
    return pd.DataFrame({"trial": failed["trial"], "kind": kinds, "reason": failed["reason"]})


def parameter(text: str | None) -> Any:
    """A stored parameter as the number, bool, list or text it was; None for a missing or null one."""
    if text in WORDS:
        return WORDS[text]
    for read in (int, float, json.loads):
        with contextlib.suppress(ValueError):
            return read(text or "")
    return text


def _row(run: StoredRun) -> tuple[Any, ...]:
    tags = run.tags
    texts = {name: tags.get(key, "") for name, key in TEXTS.items()}
    texts["stop"] = texts["stop"] or ("running" if run.status in ("RUNNING", "SCHEDULED") else "killed")
    if not texts["stop"].startswith("failed"):  # a trial that failed, and was run again
        texts["reason"] = ""
    if texts["stop"] == "paused":  # waiting at its rung: it counts as pruned there, unless it is taken up again
        texts["stop"] = "pruned"
    numbers = [run.metrics.get(key, math.nan) for key in NUMBERS.values()]
    number, seed = int(tags[schema.OPTUNA_NUMBER]), int(tags[schema.SEED])
    return (run.run_id, *texts.values(), number, seed, schema.BASELINE in tags, *numbers, run.start)


def points_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per point of a trials table with values.

    A point's `value`, `sd` (n - 1 in the denominator) and `n` are over its completed trials of stage confirm if it has
    any (`confirmed`), else of stage search, else over its pruned ones. `search_value` and `search_n` are those of the
    search alone, `all_value` and `all_n` over both stages. `trial`, `run_id`, `seed`, `examples` and `seconds` are
    those of its first counted trial; `seeds` and `run_ids` list all counted. Order: first seen first.
    """
    code, names = pd.factorize(trials["point"])
    value = trials["value"].to_numpy(dtype=float)
    stop, stage = trials["stop"].to_numpy(dtype=object), trials["stage"].to_numpy(dtype=object)
    completed = (stop == "completed") & ~np.isnan(value)
    pruned = (stop == "pruned") & ~np.isnan(value)
    confirm = completed & (stage == "confirm")
    search = completed & ~confirm

    def any_of(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(code[rows], minlength=len(names)) > 0

    counted = confirm | (search & ~any_of(confirm)[code]) | (pruned & ~any_of(completed)[code])
    first = _first(code, np.ones(len(code), dtype=bool), len(names))
    shown = _first(code, counted, len(names))
    points = trials.iloc[np.where(shown >= 0, shown, first)].drop(columns="value").reset_index(drop=True)
    n, mean = _means(code, value, counted, len(names))
    squares = np.bincount(code[counted], (value - mean[code])[counted] ** 2, minlength=len(names))
    lists: dict[str, list[list[Any]]] = {"seeds": [[] for _ in names], "run_ids": [[] for _ in names]}
    seeds, run_ids = trials["seed"].tolist(), trials["run_id"].tolist()
    for at in np.flatnonzero(counted).tolist():
        lists["seeds"][code[at]].append(seeds[at])
        lists["run_ids"][code[at]].append(run_ids[at])
    columns: dict[str, Any] = {
        "value": mean,
        "sd": np.sqrt(np.divide(squares, n - 1, out=np.full(len(n), np.nan), where=n > 1)),
        "n": n,
        "confirmed": any_of(confirm),
        **lists,
    }
    for name, rows in (("search", search), ("all", completed)):
        columns[f"{name}_n"], columns[f"{name}_value"] = _means(code, value, rows, len(names))
    columns["baseline"] = any_of(trials["baseline"].to_numpy(dtype=bool))
    return pd.concat([points.drop(columns="baseline"), pd.DataFrame(columns, index=points.index)], axis=1)


def _first(code: NDArray[np.intp], rows: NDArray[np.bool_], groups: int) -> NDArray[np.intp]:
    """(groups,) place of the first of `rows` in each group, -1 where there is none."""
    found = np.full(groups, -1, dtype=np.intp)
    places = np.flatnonzero(rows)[::-1]
    found[code[places]] = places
    return found


def _means(
    code: NDArray[np.intp], value: NDArray[np.float64], rows: NDArray[np.bool_], groups: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """(groups,) number and mean of the values of `rows`; NaN where there is none."""
    n = np.bincount(code[rows], minlength=groups)
    total = np.bincount(code[rows], value[rows], minlength=groups)
    return n, np.divide(total, n, out=np.full(groups, np.nan), where=n > 0)


RANKED_STOPS = {"completed": 0, "pruned": 1}  # everything else has no value that could be compared


def rank_trials(trials: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Trials best first with their `rank`: completed ones, then pruned and those without a value, which have none."""
    return _ranked(trials.assign(confirmed=False), metric)


def rank_points(points: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Points with their `rank` and `gain` over the baseline point as measured, larger is better.

    Confirmed points come first: their mean is over fresh seeds, so it alone owes nothing to having been picked. Then
    the completed ones of the search, then the pruned, then those without a value. Ranks count on through the confirmed
    and the completed others, each by value. A pruned point has neither rank nor gain: what it had reached after fewer
    examples is no match for a full-length trial.
    """
    baseline = points.loc[points["baseline"] & (points["stop"] == "completed"), "value"]
    reference = float(baseline.iloc[0]) if len(baseline) else float("nan")
    gain = (points["value"] - reference).where(points["stop"] == "completed") * metric.sign
    return _ranked(points.assign(gain=gain), metric)


def _ranked(table: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    keys = pd.DataFrame(
        {
            "later": ~table["confirmed"],
            "stop": table["stop"].map(RANKED_STOPS).fillna(len(RANKED_STOPS)),
            "value": -metric.sign * table["value"],
        }
    )
    ordered = table.loc[keys.sort_values(["later", "stop", "value"], kind="stable").index].reset_index(drop=True)
    ranks = pd.Series(range(1, len(ordered) + 1), index=ordered.index, dtype="Int64")
    ordered.insert(0, "rank", ranks.where(ordered["value"].notna() & (ordered["stop"] == "completed")))
    return ordered
