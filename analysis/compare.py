"""A published table beside our grid of it, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.axes import label
from analysis.published import FOUR_AVERAGE, FOUR_SETS, PaperRow, PaperTable, metric_of
from analysis.store import Run
from analysis.study import Study
from analysis.tables import PARAM
from search.record import BEST_AT_EXAMPLES, is_dev


def compare(table: PaperTable, studies: Sequence[Study]) -> pd.DataFrame:
    """One row per cell: row, metric, published, ours, sd, n, difference, target.

    All in points (x 100). `ours` is the mean over completed trials of the row's configuration that have the metric,
    `sd` their standard deviation (n - 1; NaN for one); difference = ours - published; NaN where we have nothing. Dev
    metrics are those of the trial's best evaluation. `target` is False where the printed value is none (see notes).
    A metric of ours that the paper does not print has a NaN as `published`.
    """
    values = [_values(study) for study in studies]
    cells = []
    for row in table.rows:
        mine = (
            pd.concat([v[_matches(study, row)] for study, v in zip(studies, values, strict=True)]) if studies else None
        )
        extra = [m for m in _selecting(studies) if m not in row.cells]
        for metric in [*row.cells, *extra]:
            found = 100 * mine[metric].dropna() if mine is not None and metric in mine else pd.Series(dtype=float)
            printed = row.cells.get(metric, np.nan)
            ours = float(found.mean()) if len(found) else np.nan
            sd = float(found.std(ddof=1)) if len(found) > 1 else np.nan
            cells.append((row.label, metric, printed, ours, sd, len(found), ours - printed, metric not in table.unfit))
    return pd.DataFrame(cells, columns=["row", "metric", "published", "ours", "sd", "n", "difference", "target"])


def _selecting(studies: Sequence[Study]) -> list[str]:
    return list(dict.fromkeys(study.metric.name for study in studies))


def _values(study: Study) -> pd.DataFrame:
    """Per trial, every metric that may be compared: test metrics, dev metrics at the best evaluation, the value."""
    runs = [run for run in study.runs if BEST_AT_EXAMPLES in run.metrics]
    names = sorted({n for run in runs for n in run.metrics if is_dev(n)})
    dev: dict[tuple[str, str], float] = {}
    at = {run.run_id: run.metrics[BEST_AT_EXAMPLES] for run in runs}
    for run_id, metric, step, value in study.store.history(list(at), names):
        if at[run_id] == step:
            dev[run_id, metric] = value
    by_id = {run.run_id: _tests(run) for run in study.runs}
    for (run_id, metric), value in dev.items():
        by_id[run_id][metric] = value
    table = pd.DataFrame([by_id[run_id] for run_id in study.trials["run_id"]], index=study.trials.index)
    return table.assign(**{study.metric.name: study.trials["value"]})


def _tests(run: Run) -> dict[str, float]:
    found = {name: value for name, value in run.metrics.items() if name.endswith("_test")}
    four = [found.get(metric_of(name), np.nan) for name in FOUR_SETS]
    if not np.isnan(four).any():
        found[FOUR_AVERAGE] = float(np.mean([round(100 * v, 2) for v in four])) / 100
    return found


def _matches(study: Study, row: PaperRow) -> pd.Series:
    """Completed trials whose parameters are the row's; a parameter that is not stored does not match."""
    hit = study.trials["stop"] == "completed"
    for name, value in row.params.items():
        column = PARAM + name
        same = study.trials[column].map(label) == label(value) if column in study.trials else False
        hit &= same
    return hit
