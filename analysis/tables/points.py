"""One row per point (a configuration, over its seeds). Values stay in the metric's own unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


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
