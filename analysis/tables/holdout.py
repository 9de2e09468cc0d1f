"""What the held-out dev pairs say of a point (`metric.holdout`): no choice was made by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.tables.study import Study
from search.schema import best_key
from trainables.contract.trial import held_metric, metric_parts


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
