"""In which order trials and points stand (a point = one configuration, any seeds)."""

from __future__ import annotations

import pandas as pd

from analysis.tables.metric import Metric

RANKED_STOPS = {"completed": 0, "pruned": 1}  # everything else has no value that could be compared


def rank_trials(trials: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Trials best first with their `rank`: completed ones, then pruned, then those without a value."""
    return _ranked(trials.assign(confirmed=False), metric)


def rank_points(points: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Points best first with their `rank` and `gain` over the baseline point as measured, larger is better.

    A pruned point has no gain: what it had reached after fewer examples is no match for a whole baseline.

    Confirmed points come first: their mean is over fresh seeds, so it alone owes nothing to having been picked. Then
    the completed ones by their mean, then the pruned, then those without a value.
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
    ordered.insert(0, "rank", ranks.where(ordered["value"].notna()))
    return ordered
