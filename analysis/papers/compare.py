"""A published table beside our grid of it, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.papers.published import PaperTable
from analysis.papers.rows import FOUR_AVERAGE, FOUR_SETS, PaperRow, metric_of
from analysis.papers.settings import Setting, departures, setting_of
from analysis.reading.store import StoredRun
from analysis.tables.axes import label
from analysis.tables.study import Study
from analysis.tables.trials import PARAM
from search.schema import BEST_AT_EXAMPLES, UNTRAINED_PREFIX, is_dev

COLUMNS = ["row", "from", "metric", "published", "ours", "sd", "n", "difference", "target", "departs"]
PRINTED, RUN = "printed", "run"


def compare(table: PaperTable, studies: Sequence[Study]) -> pd.DataFrame:
    """Every printed cell, and beside those of rows that the space runs our trials.

    Columns: row; from ("printed" only, "run" by this space, or the name of the table that another space runs); metric;
    published; ours, sd, n; difference; target; departs. All in points (x 100). `ours` is the mean over completed trials
    of the row's configuration that have the metric, `sd` their standard deviation (n - 1; NaN for one); difference =
    ours - published; NaN where we have nothing. Trials that depart from the paper's setting (another encoder, corpus,
    length, rule set, a smoke study) are never averaged with those that do not, nor with others: they stand in lines of
    their own, `departs` says in what. Dev metrics are those of the trial's best evaluation. `target` is False where the
    printed value is none (see notes). A metric of ours that the paper does not print has a NaN as `published`.
    """
    setting = setting_of(table.space)
    values = [(study, _values(study)) for study in studies]
    cells = []
    for row in table.rows:
        kind = RUN if row.params is not None else table.elsewhere.get(row.label, PRINTED)
        groups: dict[str, list[pd.DataFrame]] = {"": []}
        if row.params is not None:
            for study, frame in values:
                for departs, trials in _by_departure(setting, row, study).items():
                    groups.setdefault(departs, []).append(frame.loc[trials])
        extra = [] if row.params is None or row.untrained else [m for m in _selecting(studies) if m not in row.cells]
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
        found.setdefault(
            departures(setting, row, study, {str(name): value for name, value in trial.items()}), []
        ).append(index)
    return found


def _selecting(studies: Sequence[Study]) -> list[str]:
    return list(dict.fromkeys(study.metric.name for study in studies))


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
    four = [found.get(metric_of(name), np.nan) for name in FOUR_SETS]
    if not np.isnan(four).any():
        found[FOUR_AVERAGE] = float(np.mean([round(100 * v, 2) for v in four])) / 100
    return found


def _matches(study: Study, row: PaperRow) -> pd.Series:
    """Completed trials whose parameters are the row's; a parameter that is not stored does not match."""
    hit = study.trials["stop"] == "completed"
    for name, value in (row.params or {}).items():
        column = PARAM + name
        same = study.trials[column].map(label) == label(value) if column in study.trials else False
        hit &= same
    return hit
