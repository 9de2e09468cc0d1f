"""The sealed test sets of a study: when they were opened, and what its trials scored there."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.reading.runs import StoredRun
from search.schema import BASELINE, OPENING, POINT_ID, TEST_SUFFIX, TRIAL_ID, UNTRAINED_PREFIX

ENDS = ("_low", "_high")


def openings(run: StoredRun) -> list[str]:
    """What the study's run says about openings of the test sets, oldest first."""
    found = {tag: text for tag, text in run.tags.items() if tag.startswith(OPENING)}
    return [found[tag] for tag in sorted(found, key=lambda tag: int(tag.removeprefix(OPENING)))]


def scores_by_configuration(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Test metrics of these trials' runs, one row per configuration and metric; empty if there is none.

    Columns: trials (their names), baseline, metric, n, mean, sd, low, high in the metrics' unit. Configurations stay
    apart: a mean over two of them is a mean of nothing.
    low, high: mean of the trials' 95 % intervals over pairs, NaN for averages.
    """
    points: dict[str, list[StoredRun]] = {}
    for run in runs:
        points.setdefault(run.tags.get(POINT_ID, run.run_id), []).append(run)
    rows = []
    for mine in points.values():
        trials = ", ".join(run.tags.get(TRIAL_ID, run.name) for run in mine)
        names = {n for run in mine for n in run.metrics if n.endswith(TEST_SUFFIX)}
        for name in sorted(n for n in names if not n.startswith(UNTRAINED_PREFIX)):
            values = pd.Series([run.metrics[name] for run in mine if name in run.metrics])
            ends = [pd.Series([run.metrics.get(name + end, float("nan")) for run in mine]).mean() for end in ENDS]
            spread = values.std(ddof=1)
            rows.append((trials, BASELINE in mine[0].tags, name, len(values), values.mean(), spread, *ends))
    return pd.DataFrame(rows, columns=["trials", "baseline", "metric", "n", "mean", "sd", "low", "high"])
