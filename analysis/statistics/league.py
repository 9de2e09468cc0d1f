"""Methods compared at equal budget: what n trials of each buy, and whether the difference outlives the noise.

A method tuned with more trials looks better for that alone (Dodge et al. 2019), so every method is valued at the number
of configurations that the least searched one has tried: its best as if the search had ended there, and the expected
best of that many of all its configurations. Duels compare the latter, over what other searches would have found: at a
common budget the luck of picking and of the dev set is in both sides alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from analysis.errors import AnalysisError
from analysis.reading.runs import StoredRun
from analysis.statistics.correlation import (
    MIN_VALUES,
    Floats,
    expected_best,
    expected_best_error,
    expected_best_interval,
)
from analysis.statistics.picked import LEVEL
from analysis.statistics.study_verdict import study_verdict
from analysis.statistics.verdict import Verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from search import schema

COMPARABLE = ("completed", "pruned")


@dataclass(frozen=True)
class Entry:
    """One method. Units of the metric.

    trials: configurations evaluated over all its studies. expected_best, low, high: expected best of `League.budget` of
    them, with its interval over searches (NaN below three configurations). verdict: on the best of its first
    `League.budget` configurations, those of study `study`. seconds: median training time of a trial.
    """

    label: str
    study: str
    trials: int
    expected_best: float
    low: float
    high: float
    verdict: Verdict
    seconds: float


@dataclass(frozen=True)
class Duel:
    """Expected best of `first` minus that of `second` at the common budget, larger is better: LEVEL interval, two-sided
    p after Holm."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    significant: bool


@dataclass(frozen=True)
class League:
    """metric; budget: trials per method; entries best first; duels: every pair of entries."""

    metric: Metric
    budget: int
    entries: list[Entry]
    duels: list[Duel]


def label_of(run: StoredRun) -> str:
    """What is compared: the method with its encoder."""
    encoder = run.params.get("encoder", "")
    return f"{run.tags.get(schema.METHOD, run.experiment)}{f' ({encoder})' if encoder else ''}"


def league(studies: Sequence[Study]) -> League:
    """The league of the methods in these studies, all valued by one metric.

    Studies without a completed trial are left out; several studies of one method and encoder count together.

    Raises: AnalysisError if fewer than two methods are left, or if the studies' metrics differ.
    """
    if len({study.metric for study in studies}) > 1:
        names = ", ".join(sorted({study.metric.name for study in studies}))
        raise AnalysisError(f"a league needs one metric for all studies, got {names}; give --metric")
    groups: dict[str, list[Study]] = {}
    for study in studies:
        if (study.trials["stop"] == "completed").any():
            groups.setdefault(label_of(study.stored), []).append(study)
    if len(groups) < 2:
        raise AnalysisError(f"a league needs two methods at least, got {', '.join(groups) or 'none'}")
    sign = studies[0].metric.sign
    values = {label: sign * _values(group) for label, group in groups.items()}
    budget = min(len(v) for v in values.values())
    entries = []
    for label, group in groups.items():
        middle = float(expected_best(values[label], [budget])[0])
        low, high = (float(end[0]) for end in _interval(values[label], budget))
        bottom, top = sorted((sign * low, sign * high))
        study, verdict = _best([first_points(study, n) for study, n in _shares(group, budget)])
        seconds = pd.concat([s.trials.loc[s.trials["stop"] == "completed", "seconds"] for s in group]).median()
        entries.append(
            Entry(label, study.name, len(values[label]), sign * middle, bottom, top, verdict, float(seconds))
        )
    entries.sort(key=lambda entry: -sign * entry.expected_best)
    duels = [duel(a.label, values[a.label], b.label, values[b.label], budget) for a, b in combinations(entries, 2)]
    return League(studies[0].metric, budget, entries, _holm(duels))


def duel(first: str, ours: Floats, second: str, theirs: Floats, budget: int) -> Duel:
    """Welch's t on the expected bests of `budget` configurations; values (n,), larger is better; before Holm.

    p = 1 where one of them has too few values for an error (fewer than three).
    """
    difference = float(expected_best(ours, [budget])[0] - expected_best(theirs, [budget])[0])
    if min(len(ours), len(theirs)) < MIN_VALUES:
        return Duel(first, second, difference, -np.inf, np.inf, 1.0, False)
    (a, df_a), (b, df_b) = (expected_best_error(values, [budget]) for values in (ours, theirs))
    variances = np.array([float(a[0]) ** 2, float(b[0]) ** 2])
    variance = max(float(variances.sum()), np.finfo(float).tiny)
    df = max(variance**2 / max(float((variances**2 / (df_a, df_b)).sum()), np.finfo(float).tiny), min(df_a, df_b))
    reach = float(stdtrit(df, (1 + LEVEL) / 2)) * variance**0.5
    p_value = 2 * float(stdtr(df, -abs(difference) / variance**0.5))
    return Duel(first, second, difference, difference - reach, difference + reach, p_value, False)


def first_points(study: Study, count: int) -> Study:
    """The study as if its search had ended after so many evaluated points; confirmations of these stay."""
    value = study.trials["value"].notna() & study.trials["stop"].isin(COMPARABLE)
    points = study.trials.loc[value, "point"].drop_duplicates()
    return replace(study, trials=study.trials[study.trials["point"].isin(points[:count])].reset_index(drop=True))


def _shares(group: Sequence[Study], budget: int) -> list[tuple[Study, int]]:
    """How many of a method's first `budget` configurations each study has, oldest study first."""
    shares: list[tuple[Study, int]] = []
    for study in sorted(group, key=lambda study: study.stored.start):
        n = min(budget, len(_values([study])))
        if n:
            shares.append((study, n))
            budget -= n
    return shares


def _interval(values: Floats, budget: int) -> tuple[Floats, Floats]:
    if len(values) < MIN_VALUES:
        return np.array([np.nan]), np.array([np.nan])
    return expected_best_interval(values, [budget], LEVEL)


def _values(group: Sequence[Study]) -> Floats:
    """One value per configuration tried in the search: its mean, or what it had reached when pruned."""
    points = pd.concat([study.points for study in group])
    value = points["search_value"].fillna(points["value"].where(points["stop"] == "pruned"))
    return np.asarray(value.dropna(), dtype=float)


def _best(group: Sequence[Study]) -> tuple[Study, Verdict]:
    """The group's study with the best corrected value; confirmed ones go first."""
    judged = [(s, study_verdict(s)) for s in group if (s.trials["stop"] == "completed").any()]
    if not judged:
        names = ", ".join(study.name for study in group)
        raise AnalysisError(f"{names}: none of the configurations up to the common budget was completed")
    return max(judged, key=lambda sv: (sv[1].confirmed, sv[0].metric.sign * sv[1].expected))


def _holm(duels: Sequence[Duel]) -> list[Duel]:
    """Step-down adjustment of the p-values for the number of duels (Holm 1979)."""
    adjusted: dict[int, float] = {}
    largest = 0.0
    order = sorted(range(len(duels)), key=lambda i: duels[i].p_value)
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, duels[i].p_value * (len(duels) - place)))
        adjusted[i] = largest
    return [replace(d, p_value=adjusted[i], significant=adjusted[i] < 1 - LEVEL) for i, d in enumerate(duels)]
