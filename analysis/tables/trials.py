"""From stored runs to tables: one row per trial, one row per point. Values stay in the metric's own unit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.store import Row, Run
from search import record

PARAM = "params."  # prefix of parameter columns, as in MLflow's own tables
TEXTS = {
    "trial": record.TRIAL_ID, "point": record.POINT_ID, "stage": record.STAGE, "stop": record.STOP,
    "method": record.METHOD, "reason": record.REASON, "folder": record.FOLDER,
}  # fmt: skip
NUMBERS = {
    "examples": record.BEST_AT_EXAMPLES, "seconds": record.TRAIN_SECONDS, "rate": record.EXAMPLES_PER_SECOND
}  # fmt: skip


def trials_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per trial, in the order of `runs`.

    Columns: run_id; trial, point, stage, stop, method, reason, folder (texts); number and seed (ints); baseline (bool);
    examples at the best evaluation, train seconds, examples per second; started (UTC); params.<name>. `stop` of a trial
    without an end is "running", or "killed" if its run is closed.
    """
    rows = [_row(run) for run in runs]
    columns = ["run_id", *TEXTS, "number", "seed", "baseline", *NUMBERS, "started"]
    names = dict.fromkeys(name for run in runs for name in run.params)
    table = pd.DataFrame.from_records(rows, columns=columns)
    table["started"] = pd.to_datetime(table["started"], unit="ms", utc=True)
    parameters = {PARAM + name: [parameter(run.params.get(name)) for run in runs] for name in names}
    return pd.concat([table, pd.DataFrame(parameters, index=table.index)], axis=1)


def add_values(trials: pd.DataFrame, values: Mapping[str, float]) -> pd.DataFrame:
    """The trials with their `value`, by run id; NaN where there is none. Infinite values count as none."""
    value = trials["run_id"].map(dict(values)).astype(float)
    return trials.assign(value=value.where(value.abs() < math.inf))


def values_at_best(trials: pd.DataFrame, history: Iterable[Row], parts: Sequence[str]) -> dict[str, float]:
    """Run id -> mean of `parts` at the trial's best evaluation, the one its checkpoint is from.

    Trials that lack one of the parts there are left out. Of several values at one step the last written counts.
    """
    best = dict(zip(trials["run_id"], trials["examples"], strict=True))
    found: dict[str, dict[str, float]] = {}
    for run, metric, step, value in history:
        if best.get(run) == step:
            found.setdefault(run, {})[metric] = value
    return {run: sum(v.values()) / len(parts) for run, v in found.items() if len(v) == len(parts)}


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


def parameter(text: str | None) -> Any:
    """A stored parameter as the number, bool or text it was; None for a missing or null one."""
    if text is None or text in ("None", "null", ""):
        return None
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return json.loads(text) if text.startswith(("[", "{", '"')) and _is_json(text) else text


def _row(run: Run) -> tuple[Any, ...]:
    tags = run.tags
    texts = {name: tags.get(key, "") for name, key in TEXTS.items()}
    texts["trial"] = texts["trial"] or run.name
    texts["point"] = texts["point"] or run.run_id  # a trial that says nothing is a point of its own
    texts["stage"] = texts["stage"] or "search"
    texts["stop"] = texts["stop"] or ("running" if run.status in ("RUNNING", "SCHEDULED") else "killed")
    numbers = [run.metrics.get(key, math.nan) for key in NUMBERS.values()]
    number, seed = (_int(tags.get(key)) for key in (record.OPTUNA_NUMBER, record.SEED))
    return (run.run_id, *texts.values(), number, seed, record.BASELINE in tags, *numbers, run.start)


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


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
