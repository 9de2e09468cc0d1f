"""Which metric, and in which order: the ranking of trials and of points (a point = one configuration, any seeds)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.errors import InputError
from search.record import DEV_SUFFIX, TEST_SUFFIX

Mode = Literal["max", "min"]
MEAN = re.compile(r"^mean\((.*)\)$")
RANKED_STOPS = {"completed": 0, "pruned": 1}  # everything else has no value that could be compared


@dataclass(frozen=True)
class Metric:
    """A dev metric or the mean of several. name: as typed, without blanks; parts: the stored metrics it is made of."""

    name: str
    parts: tuple[str, ...]
    mode: Mode = "max"

    @property
    def sign(self) -> float:
        """1 if larger is better, else -1."""
        return 1.0 if self.mode == "max" else -1.0

    @property
    def scale(self) -> float:
        """What a value is multiplied by when printed for people: 100 for dev correlations, as papers do, else 1."""
        return 100.0 if all(part.endswith(DEV_SUFFIX) for part in self.parts) else 1.0


def parse_metric(text: str, mode: Mode = "max") -> Metric:
    """`stsb_dev`, or `mean(stsb_dev,atec_dev)`.

    Raises: InputError for test metrics, which rank nothing, and for anything that is no metric name.
    """
    name = re.sub(r"\s", "", text)
    inside = MEAN.match(name)
    parts = tuple((inside.group(1) if inside else name).split(","))
    for part in parts:
        if not re.fullmatch(r"[A-Za-z][\w.\-]*", part) or (len(parts) > 1 and not inside):
            raise InputError(f"expected a metric such as stsb_dev or mean(stsb_dev,atec_dev), got '{text}'")
        if part.endswith(TEST_SUFFIX):
            raise InputError(f"'{part}' is a test metric: those are reported, never ranked; use a *{DEV_SUFFIX} metric")
    return Metric(name, parts, mode)


def rank_trials(trials: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Trials best first with their `rank`: completed ones, then pruned, then those without a value."""
    return _ranked(trials.assign(confirmed=False), metric)


def rank_points(points: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Points best first with their `rank` and `gain` over the baseline point (NaN if there is none).

    Confirmed points come first: their mean is over fresh seeds, so it alone owes nothing to having been picked. Then
    the completed ones by their mean, then the pruned, then those without a value.
    """
    baseline = points.loc[points["baseline"] & (points["stop"] == "completed"), "value"]
    reference = float(baseline.iloc[0]) if len(baseline) else float("nan")
    return _ranked(points.assign(gain=(points["value"] - reference) * metric.sign), metric)


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
