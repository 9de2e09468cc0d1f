"""Methods compared at equal budget: the best of each one's first n configurations, and whether two of them differ.

More trials alone give a method a better score (Dodge et al. 2019), so every search is cut at the number of
configurations that the least searched method has tried. Only two bests that were confirmed are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from analysis.errors import AnalysisError
from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.pairs import pair_noise
from analysis.statistics.selection import CONFIDENCE, NORMAL
from analysis.statistics.verdict import Verdict, study_verdict
from analysis.tables.comparable import evaluated, first_points, groups, same_data, shares
from analysis.tables.metric import Metric
from analysis.tables.study import Study

CONFIRMED, SEARCHED = "confirmed bests", "bests of the search"
LONGEST = 2  # times the budget: the confirmations of a still longer search are not about its first points


@dataclass(frozen=True)
class Entry:
    """One method. trials: configurations of all its studies. verdict: on the best of its first `League.budget`, found
    in `study`. seconds: median training time of a trial."""

    label: str
    study: str
    trials: int
    verdict: Verdict
    seconds: float


@dataclass(frozen=True)
class Duel:
    """`first` minus `second`, larger is better, by their corrected values; 95 % interval. of: CONFIRMED or SEARCHED.
    p_value: two-sided, after Holm; None for bests that were not confirmed."""

    first: str
    second: str
    of: str
    difference: float
    low: float
    high: float
    p_value: float | None
    significant: bool = False


@dataclass(frozen=True)
class League:
    """metric; budget: configurations per method; entries best first; duels: every pair of entries."""

    metric: Metric
    budget: int
    entries: list[Entry]
    duels: list[Duel]


def league(studies: Sequence[Study]) -> League:
    """The league of the methods in these studies. Those without a completed trial are left out; those of one method and
    encoder count together, unless they differ in `comparable.TRAINING`.

    Raises: AnalysisError if fewer than two methods are left, or if the studies' metrics differ.
    """
    if len({study.metric for study in studies}) > 1:
        names = ", ".join(sorted({study.metric.name for study in studies}))
        raise AnalysisError(f"a league needs one metric for all studies, got {names}; give --metric")
    by_label = groups([study for study in studies if (study.trials["stop"] == "completed").any()])
    if len(by_label) < 2:
        raise AnalysisError(f"a league needs two methods at least, got {', '.join(by_label) or 'none'}")
    metric = studies[0].metric
    counts = {label: sum(map(evaluated, group)) for label, group in by_label.items()}
    budget = min(counts.values())
    cut, chosen, entries = max(counts.values()) > budget, {}, []
    for label, group in by_label.items():
        chosen[label] = _best([first_points(study, n, first_seeds=cut) for study, n in shares(group, budget)])
        seconds = pd.concat([s.trials.loc[s.trials["stop"] == "completed", "seconds"] for s in group]).median()
        entries.append(Entry(label, chosen[label][0].name, counts[label], chosen[label][1], float(seconds)))
    entries.sort(key=lambda entry: -metric.sign * entry.verdict.expected)
    bottom, top = studies[0].limits
    duels = []
    for a, b in combinations([entry.label for entry in entries], 2):
        tested = all(chosen[x][1].confirmed and counts[x] <= LONGEST * budget for x in (a, b))
        pairs = further_pairs(*chosen[a], *chosen[b]) if tested else None
        one = compared(a, chosen[a][1], b, chosen[b][1], pairs)
        duels.append(replace(one, low=max(one.low, bottom - top), high=min(one.high, top - bottom)))
    return League(metric, budget, entries, holm(duels))


def compared(first: str, ours: Verdict, second: str, theirs: Verdict, pairs: float | None) -> Duel:
    """The corrected values of two bests; before Holm.

    The interval is put together of the arms of two (Zou and Donner 2008). The test is that interval made to end at 0,
    as Student's t of the side with fewer seeds would have it.

    Args: pairs: variance of the difference over dev pairs that the two verdicts' arms lack. None if one of the bests
        was not confirmed: no test, and the arms of the verdicts' own intervals.
    """
    a, b = (
        (v.below, v.above) if pairs is not None else (v.expected - v.low, v.high - v.expected)[:: int(v.metric.sign)]
        for v in (ours, theirs)
    )
    difference = ours.metric.sign * (ours.expected - theirs.expected)
    lower, upper = (
        max(float(np.sqrt(x**2 + y**2 + NORMAL**2 * (pairs or 0.0))), np.finfo(float).tiny)
        for x, y in ((a[0], b[1]), (a[1], b[0]))
    )
    p_value = None
    if pairs is not None:
        df = PRIOR_DF + min(ours.n, theirs.n) - 1
        reach = abs(difference) * float(stdtrit(df, (1 + CONFIDENCE) / 2)) / (lower if difference > 0 else upper)
        p_value = 2 * float(stdtr(df, -reach))
    of = SEARCHED if pairs is None else CONFIRMED
    return Duel(first, second, of, difference, difference - lower, difference + upper, p_value)


def holm(duels: Sequence[Duel]) -> list[Duel]:
    """Step-down adjustment of the p-values for the number of tested duels (Holm 1979)."""
    tested = sorted((p, i) for i, duel in enumerate(duels) if (p := duel.p_value) is not None)
    adjusted, largest = list(duels), 0.0
    for place, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - place)))
        adjusted[i] = replace(duels[i], p_value=largest, significant=largest < 1 - CONFIDENCE)
    return adjusted


def further_pairs(first: Study, ours: Verdict, second: Study, theirs: Verdict) -> float:
    """Variance over dev pairs of the difference of two studies' bests, beyond the part in their verdicts' arms; 0 where
    it is not known. What the same pairs do to both alike cancels."""
    if ours.pairs is None or theirs.pairs is None:
        return 0.0
    noise = None
    if same_data(first, second):
        sides = [(s, s.points.loc[s.points["point"] == v.best, "run_ids"].iloc[0]) for s, v in
                 ((first, ours), (second, theirs))]  # fmt: skip
        stored = {run: study.similarities(run) for study, runs in sides for run in runs}
        noise = pair_noise(sides[0][1], sides[1][1], first.metric.parts, stored.__getitem__)
    apart = ours.pairs.own + theirs.pairs.own if noise is None else noise.between
    return max(apart - (ours.pairs.between + theirs.pairs.between) / 2, 0.0)


def _best(group: Sequence[Study]) -> tuple[Study, Verdict]:
    """The group's study with the best corrected value; confirmed ones go first."""
    judged = [(s, study_verdict(s)) for s in group if (s.trials["stop"] == "completed").any()]
    if not judged:
        names = ", ".join(study.name for study in group)
        raise AnalysisError(f"{names}: none of the configurations up to the common budget was completed")
    return max(judged, key=lambda sv: (sv[1].confirmed, sv[0].metric.sign * sv[1].expected))
