"""One row per trial, from the runs that are stored. Values stay in the metric's own unit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd

from analysis.reading.runs import MetricRow, StoredRun
from search import schema

PARAM = "params."  # prefix of parameter columns, as in MLflow's own tables
TEXTS = {
    "trial": schema.TRIAL_ID, "point": schema.POINT_ID, "stage": schema.STAGE, "stop": schema.STOP,
    "method": schema.METHOD, "reason": schema.REASON, "folder": schema.FOLDER,
    "origin": schema.ORIGIN,
}  # fmt: skip
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


def values_at_best(trials: pd.DataFrame, history: Iterable[MetricRow], parts: Sequence[str]) -> dict[str, float]:
    """Run id -> mean of `parts` at the trial's best evaluation, the one its checkpoint is from.

    Trials that lack one of the parts there are left out. Of several values at one step the last written counts.
    """
    best = dict(zip(trials["run_id"], trials["examples"], strict=True))
    found: dict[str, dict[str, float]] = {}
    for run, metric, step, value in history:
        if best.get(run) == step:
            found.setdefault(run, {})[metric] = value
    return {run: sum(v.values()) / len(parts) for run, v in found.items() if len(v) == len(parts)}


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Failed trials: trial, kind, reason."""
    failed = trials[trials["stop"].str.startswith("failed")]
    kinds = failed["stop"].str.removeprefix("failed:")
    return pd.DataFrame({"trial": failed["trial"], "kind": kinds, "reason": failed["reason"]})


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


def _row(run: StoredRun) -> tuple[Any, ...]:
    tags = run.tags
    texts = {name: tags.get(key, "") for name, key in TEXTS.items()}
    texts["trial"] = texts["trial"] or run.name
    texts["point"] = texts["point"] or run.run_id  # a trial that says nothing is a point of its own
    texts["stage"] = texts["stage"] or "search"
    texts["stop"] = texts["stop"] or ("running" if run.status in ("RUNNING", "SCHEDULED") else "killed")
    if not texts["stop"].startswith("failed"):  # of an earlier try: older versions left it
        texts["reason"] = ""
    if texts["stop"] == "paused":  # waiting at its rung: it counts as pruned there, unless it is taken up again
        texts["stop"] = "pruned"
    numbers = [run.metrics.get(key, math.nan) for key in NUMBERS.values()]
    number, seed = (_int(tags.get(key)) for key in (schema.OPTUNA_NUMBER, schema.SEED))
    return (run.run_id, *texts.values(), number, seed, schema.BASELINE in tags, *numbers, run.start)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
