"""Methods compared at equal budget: what n trials of each buy, and whether the difference outlives the noise.

A method tuned with more trials looks better for that alone (Dodge et al. 2019), so every method is valued at the number
of trials that the least searched one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from analysis.errors import AnalysisError
from analysis.pairs import PairNoise, pair_noise
from analysis.rank import Metric
from analysis.stats import Floats, expected_best, expected_best_interval
from analysis.store import Run
from analysis.study import Arrays, Study
from analysis.verdict import LEVEL, Verdict, judge
from search import record


@dataclass(frozen=True)
class Entry:
    """One method. Units of the metric.

    study: the study its best is from. trials: configurations evaluated over all its studies. expected_best, low, high:
    expected best of `League.budget` trials with bootstrap interval. verdict: on its best. seconds: median training time
    of a trial.
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
    """Corrected best of `first` minus that of `second`, larger is better: LEVEL interval, two-sided p after Holm."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    significant: bool
    pairs: PairNoise | None


@dataclass(frozen=True)
class League:
    """metric; budget: trials per method; entries best first; duels: every pair of entries."""

    metric: Metric
    budget: int
    entries: list[Entry]
    duels: list[Duel]


def label_of(run: Run) -> str:
    """What is compared: the method with its encoder."""
    encoder = run.params.get("encoder", "")
    return f"{run.tags.get(record.METHOD, run.experiment)}{f' ({encoder})' if encoder else ''}"


def league(studies: Sequence[Study], rng: np.random.Generator) -> League:
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
            groups.setdefault(label_of(study.run), []).append(study)
    if len(groups) < 2:
        raise AnalysisError(f"a league needs two methods at least, got {', '.join(groups) or 'none'}")
    sign = studies[0].metric.sign
    values = {label: sign * _values(group) for label, group in groups.items()}
    budget = min(len(v) for v in values.values())
    judged = {label: _best(group, rng) for label, group in groups.items()}
    entries = []
    for label, group in groups.items():
        low, high = expected_best_interval(values[label], [budget], rng)
        bottom, top = sorted((sign * float(low[0]), sign * float(high[0])))
        study, verdict = judged[label]
        seconds = pd.concat([s.trials.loc[s.trials["stop"] == "completed", "seconds"] for s in group]).median()
        middle = sign * float(expected_best(values[label], [budget])[0])
        entries.append(Entry(label, study.name, len(values[label]), middle, bottom, top, verdict, float(seconds)))
    entries.sort(key=lambda entry: -sign * entry.verdict.expected)
    duels = [_duel(a, b, judged[a.label][0], judged[b.label][0]) for a, b in combinations(entries, 2)]
    return League(studies[0].metric, budget, entries, _holm(duels))


def _values(group: Sequence[Study]) -> Floats:
    """One value per configuration tried in the search: its mean, or what it had reached when pruned."""
    points = pd.concat([study.points for study in group])
    value = points["search_value"].fillna(points["value"].where(points["stop"] == "pruned"))
    return np.asarray(value.dropna(), dtype=float)


def _best(group: Sequence[Study], rng: np.random.Generator) -> tuple[Study, Verdict]:
    """The group's study with the best corrected value; confirmed ones go first."""
    judged = [(s, judge(s.trials, s.points, s.metric, s.searched, s.similarities, rng)) for s in group]
    return max(judged, key=lambda sv: (sv[1].confirmed, sv[0].metric.sign * sv[1].expected))


def _duel(a: Entry, b: Entry, study_a: Study, study_b: Study) -> Duel:
    """Welch's t on the corrected values, with the paired variance over dev pairs added to that over seeds."""
    first, second = a.verdict, b.verdict

    def similarities(run_id: str) -> Arrays | None:
        return (study_a if run_id in ours else study_b).similarities(run_id)

    ours, theirs = _runs(study_a, first), _runs(study_b, second)
    pairs = pair_noise(ours, theirs, first.metric.parts, similarities)
    seeds = [v.noise.sd**2 / v.n for v in (first, second)]
    variance = sum(seeds) + (pairs.between if pairs else 0.0)
    df = variance**2 / (seeds[0] ** 2 / first.noise.df + seeds[1] ** 2 / second.noise.df)
    error = float(np.sqrt(variance))
    difference = first.metric.sign * (first.expected - second.expected)
    reach = float(stdtrit(df, (1 + LEVEL) / 2)) * error
    p_value = 2 * float(stdtr(df, -abs(difference) / error))
    return Duel(a.label, b.label, difference, difference - reach, difference + reach, p_value, False, pairs)


def _runs(study: Study, verdict: Verdict) -> list[str]:
    return list(study.points.loc[study.points["point"] == verdict.best, "run_ids"].iloc[0])


def _holm(duels: Sequence[Duel]) -> list[Duel]:
    """Step-down adjustment of the p-values for the number of duels (Holm 1979)."""
    adjusted: dict[int, float] = {}
    largest = 0.0
    order = sorted(range(len(duels)), key=lambda i: duels[i].p_value)
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, duels[i].p_value * (len(duels) - place)))
        adjusted[i] = largest
    return [
        Duel(d.first, d.second, d.difference, d.low, d.high, adjusted[i], adjusted[i] < 1 - LEVEL, d.pairs)
        for i, d in enumerate(duels)
    ]
