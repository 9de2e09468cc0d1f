"""Methods compared at equal budget: the best of each one's first n configurations, and whether two of them differ.

A method tuned with more trials looks better for that alone (Dodge et al. 2019), so every search is cut at the number of
configurations that the least searched method has tried. Only two bests that were confirmed are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from analysis.errors import AnalysisError
from analysis.reading.store import StoredRun
from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.pairs import pair_noise
from analysis.statistics.selection import LEVEL, NORMAL
from analysis.statistics.verdict import Verdict, study_verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from search import schema
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.trial import HELD, RETRIEVAL_MEASURES
from trainables.data.catalogue import set_name

CONFIRMED, SEARCHED = "confirmed bests", "bests of the search"
COMPARABLE = ("completed", "pruned")
# What decides the training of a full-length trial beside the method's own parameters.
TRAINING = ("script", "data.train", "train.max_examples", "train.epochs")
_MEASURED = ("", HELD, *(f"_{measure}" for measure in RETRIEVAL_MEASURES))  # behind a set's name in its metrics
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
    """`first` minus `second`, larger is better, by their corrected values; LEVEL interval. of: CONFIRMED or SEARCHED.
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
    encoder count together, unless they differ in TRAINING.

    Raises: AnalysisError if fewer than two methods are left, or if the studies' metrics differ.
    """
    if len({study.metric for study in studies}) > 1:
        names = ", ".join(sorted({study.metric.name for study in studies}))
        raise AnalysisError(f"a league needs one metric for all studies, got {names}; give --metric")
    groups = _groups([study for study in studies if (study.trials["stop"] == "completed").any()])
    if len(groups) < 2:
        raise AnalysisError(f"a league needs two methods at least, got {', '.join(groups) or 'none'}")
    metric = studies[0].metric
    counts = {label: sum(map(_evaluated, group)) for label, group in groups.items()}
    budget = min(counts.values())
    cut, chosen, entries = max(counts.values()) > budget, {}, []
    for label, group in groups.items():
        chosen[label] = _best([first_points(study, n, first_seeds=cut) for study, n in _shares(group, budget)])
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
    a, b = ((v.below, v.above) if pairs is not None else _arms(v) for v in (ours, theirs))
    difference = ours.metric.sign * (ours.expected - theirs.expected)
    lower, upper = (
        max(float(np.sqrt(x**2 + y**2 + NORMAL**2 * (pairs or 0.0))), np.finfo(float).tiny)
        for x, y in ((a[0], b[1]), (a[1], b[0]))
    )
    p_value = None
    if pairs is not None:
        df = PRIOR_DF + min(ours.n, theirs.n) - 1
        reach = abs(difference) * float(stdtrit(df, (1 + LEVEL) / 2)) / (lower if difference > 0 else upper)
        p_value = 2 * float(stdtr(df, -reach))
    of = SEARCHED if pairs is None else CONFIRMED
    return Duel(first, second, of, difference, difference - lower, difference + upper, p_value)


def _arms(v: Verdict) -> tuple[float, float]:
    ends = v.expected - v.low, v.high - v.expected
    return ends if v.metric.sign > 0 else ends[::-1]


def holm(duels: Sequence[Duel]) -> list[Duel]:
    """Step-down adjustment of the p-values for the number of tested duels (Holm 1979)."""
    tested = sorted((p, i) for i, duel in enumerate(duels) if (p := duel.p_value) is not None)
    adjusted, largest = list(duels), 0.0
    for place, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - place)))
        adjusted[i] = replace(duels[i], p_value=largest, significant=largest < 1 - LEVEL)
    return adjusted


def label_of(run: StoredRun) -> str:
    """What is compared: the method with its encoder."""
    encoder = run.params.get("encoder", "")
    return f"{run.tags.get(schema.METHOD, run.experiment)}{f' ({encoder})' if encoder else ''}"


def _groups(studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Label, such as `simcse (bert-base-uncased), train.max_examples 1000`, -> the studies that count together."""
    alike: dict[str, list[Study]] = {}
    for study in studies:
        alike.setdefault(label_of(study.stored), []).append(study)
    groups: dict[str, list[Study]] = {}
    for label, group in alike.items():
        differ = [name for name in TRAINING if len({_training(study, name) for study in group}) > 1]
        for study in group:
            full = ", ".join([label, *(f"{name} {_training(study, name)}" for name in differ)])
            groups.setdefault(full, []).append(study)
    return groups


def _training(study: Study, name: str) -> str:
    """A setting of TRAINING as a space file has it."""
    if name.removeprefix("train.") in study.searched:
        return "searched"
    value = study.stored.params.get(name)
    return "null" if value in (None, "None") else value


def same_data(first: Study, second: Study) -> bool:
    """Whether two studies' metric was measured on the same dev sets and the same share of them, as far as is known: by
    the gold scores that trials have stored; where there are none, by the sets' paths."""
    for part in first.metric.parts:
        for known in (_gold, _path):
            one, other = known(first, part), known(second, part)
            if one is not None and other is not None:
                if not np.array_equal(one, other):
                    return False
                break
    held = [(study.space["metric"] or {}).get("holdout") or 0.0 for study in (first, second) if "metric" in study.space]
    return len({*held}) < 2


def _gold(study: Study, part: str) -> NDArray[np.generic] | None:
    """Gold scores of a dev metric's pairs as a trial has stored them, None if none has."""
    for run_id in study.trials.loc[study.trials["stop"] == "completed", "run_id"]:
        if (arrays := study.similarities(str(run_id))) is not None:
            return arrays.get(part.removesuffix(DEV_SUFFIX) + GOLD_SUFFIX)
    return None


def _path(study: Study, part: str) -> str | None:
    """The dev set behind a dev metric as the space has it, None if that is not known."""
    ends = {f"{end}{DEV_SUFFIX}" for end in _MEASURED}
    return next((name for name in study.data.get("dev") or () if part.removeprefix(set_name(name)) in ends), None)


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


def first_points(study: Study, count: int, *, first_seeds: bool = False) -> Study:
    """The study as if its search had ended after so many evaluated points. Its confirmations stay if the best of these
    points is among what was confirmed: others are of a longer search.

    Args: first_seeds: without further seeds of the search, which a longer one gives to points that come later.
    """

    def of(trials: pd.DataFrame) -> Study:
        return replace(study, trials=trials.reset_index(drop=True))

    trials = study.trials
    value = trials["value"].notna() & trials["stop"].isin(COMPARABLE)
    points = trials.loc[value, "point"].drop_duplicates()
    if first_seeds:
        again = trials[value & (trials["stage"] != "confirm")].duplicated("point")
        trials = trials.drop(index=again.index[again])
    cut = of(trials[trials["point"].isin(points[:count])])
    searched = cut.points.dropna(subset="search_value")
    if len(points) > count and len(searched):
        best = int((study.metric.sign * searched["search_value"]).argmax())
        if not searched["confirmed"].iloc[best]:
            return of(cut.trials[cut.trials["stage"] != "confirm"])
    return cut


def _shares(group: Sequence[Study], budget: int) -> list[tuple[Study, int]]:
    """How many of a method's first `budget` configurations each study has, oldest study first."""
    shares: list[tuple[Study, int]] = []
    for study in sorted(group, key=lambda study: study.stored.start):
        n = min(budget, _evaluated(study))
        if n:
            shares.append((study, n))
            budget -= n
    return shares


def _evaluated(study: Study) -> int:
    """Configurations with a value of the search, pruned ones too."""
    points = study.points
    return int((points["search_value"].notna() | ((points["stop"] == "pruned") & points["value"].notna())).sum())


def _best(group: Sequence[Study]) -> tuple[Study, Verdict]:
    """The group's study with the best corrected value; confirmed ones go first."""
    judged = [(s, study_verdict(s)) for s in group if (s.trials["stop"] == "completed").any()]
    if not judged:
        names = ", ".join(study.name for study in group)
        raise AnalysisError(f"{names}: none of the configurations up to the common budget was completed")
    return max(judged, key=lambda sv: (sv[1].confirmed, sv[0].metric.sign * sv[1].expected))
