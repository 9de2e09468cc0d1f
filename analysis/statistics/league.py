"""Methods compared at equal budget: what n trials of each buy, and whether the difference outlives the noise.

A method tuned with more trials looks better for that alone (Dodge et al. 2019), so every method is valued at the number
of configurations that the least searched one has tried: its best as if the search had ended there, and the expected
best of that many of all its configurations. Duels compare the former where both were confirmed on fresh seeds, else the
latter (`duels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.reading.store import StoredRun
from analysis.statistics.correlation import MIN_VALUES, Floats, expected_best, expected_best_interval
from analysis.statistics.duels import CONFIRMED, EXPECTED, Duel, confirmed_duel, expected_duel, holm
from analysis.statistics.pair_noise import pair_noise
from analysis.statistics.picked import LEVEL
from analysis.statistics.study_verdict import study_verdict
from analysis.statistics.verdict import Verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from search import schema
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.metric_names import HELD, RETRIEVAL_MEASURES
from trainables.data.catalogue import set_name

__all__ = ["CONFIRMED", "EXPECTED", "Duel", "Entry", "League", "league"]
COMPARABLE = ("completed", "pruned")
# What decides the training of a whole trial beside the method's own parameters.
TRAINING = ("script", "data.train", "train.max_examples", "train.epochs")
_MEASURED = ("", HELD, *(f"_{measure}" for measure in RETRIEVAL_MEASURES))  # behind a set's name in its metrics
LONGEST = 2  # times the budget: what a still longer search confirmed says nothing of its first points


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

    Studies without a completed trial are left out; several studies of one method and encoder count together,
    unless they differ in TRAINING: then their labels say so.

    Raises: AnalysisError if fewer than two methods are left, or if the studies' metrics differ.
    """
    if len({study.metric for study in studies}) > 1:
        names = ", ".join(sorted({study.metric.name for study in studies}))
        raise AnalysisError(f"a league needs one metric for all studies, got {names}; give --metric")
    groups = _groups([study for study in studies if (study.trials["stop"] == "completed").any()])
    if len(groups) < 2:
        raise AnalysisError(f"a league needs two methods at least, got {', '.join(groups) or 'none'}")
    sign = studies[0].metric.sign
    values = {label: sign * _values(group) for label, group in groups.items()}
    budget = min(len(v) for v in values.values())
    bottom, top = studies[0].limits
    entries, chosen = [], {}
    for label, group in groups.items():
        middle = float(expected_best(values[label], [budget])[0])
        low, high = (float(end[0]) for end in _interval(values[label], budget))
        low, high = np.clip(sorted((sign * low, sign * high)), bottom, top)
        study, verdict = chosen[label] = _best([first_points(study, n) for study, n in _shares(group, budget)])
        seconds = pd.concat([s.trials.loc[s.trials["stop"] == "completed", "seconds"] for s in group]).median()
        entries.append(Entry(label, study.name, len(values[label]), sign * middle, low, high, verdict, float(seconds)))
    entries.sort(key=lambda entry: -sign * entry.expected_best)
    found = []
    for a, b in combinations([entry.label for entry in entries], 2):
        if all(chosen[x][1].confirmed and len(values[x]) <= LONGEST * budget for x in (a, b)):
            one = confirmed_duel(a, chosen[a][1], b, chosen[b][1], further_pairs(*chosen[a], *chosen[b]))
        else:
            one = expected_duel(a, values[a], b, values[b], budget)
        found.append(replace(one, low=max(one.low, bottom - top), high=min(one.high, top - bottom)))
    return League(studies[0].metric, budget, entries, holm(found))


def _groups(studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Label -> the studies that count together. `simcse (bert-base-uncased), train.max_examples 1000` is the label of
    one that was not trained as the others of its method and encoder."""
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
    """Whether two studies' metric was measured on the same dev sets and the same share of them, as far as is known.

    By the gold scores that trials have stored, wherever their files lay; where there are none, by the sets' paths.
    """
    ours, theirs = _measured_on(first), _measured_on(second)
    if ours is None or theirs is None:
        return True
    if ours.keys() != theirs.keys() or _holdout(first) != _holdout(second):
        return False
    return all(_same_set(first, second, name, ours[name] == theirs[name]) for name in ours)


def _same_set(first: Study, second: Study, name: str, same_path: bool) -> bool:
    one, other = (_gold(study, name) for study in (first, second))
    return same_path if one is None or other is None else np.array_equal(one, other)


def _measured_on(study: Study) -> dict[str, str] | None:
    """The dev sets behind the metric, name -> as the space has it; None if the space is out of reach."""
    if not study.space:
        return None
    dev = {set_name(name): name for name in (study.space.get("data") or {}).get("dev") or []}
    parts = {*study.metric.parts}
    return {name: path for name, path in dev.items() if parts & {f"{name}{end}{DEV_SUFFIX}" for end in _MEASURED}}


def _holdout(study: Study) -> float:
    return float((study.space.get("metric") or {}).get("holdout") or 0.0)


def _gold(study: Study, name: str) -> NDArray[np.float32] | None:
    """Gold scores of a set's pairs as a trial has stored them, None if none has."""
    for run_id in study.trials.loc[study.trials["stop"] == "completed", "run_id"]:
        if (arrays := study.similarities(str(run_id))) is not None:
            return arrays.get(f"{name}{GOLD_SUFFIX}")
    return None


def further_pairs(first: Study, ours: Verdict, second: Study, theirs: Verdict) -> float:
    """Variance over dev pairs of the difference of two studies' bests, beyond the part in their verdicts' arms.

    Scored on the same pairs, what those do to both alike cancels. Otherwise all of both adds; 0 where it is not known.
    """
    if ours.pairs is None or theirs.pairs is None:
        return 0.0
    inside = (ours.pairs.between + theirs.pairs.between) / 2
    between = _between(first, ours, second, theirs)
    return max((ours.pairs.own + theirs.pairs.own if between is None else between) - inside, 0.0)


def _between(first: Study, ours: Verdict, second: Study, theirs: Verdict) -> float | None:
    """`PairNoise.between` of two studies' bests; None if they were not scored on the same pairs."""
    if first.space.get("data", {}).get("dev") != second.space.get("data", {}).get("dev"):
        return None
    sides = [(study, _run_ids(study, verdict)) for study, verdict in ((first, ours), (second, theirs))]
    stored = {run_id: study.similarities(run_id) for study, runs in sides for run_id in runs}
    for part in first.metric.parts:
        gold = part.removesuffix(DEV_SUFFIX) + GOLD_SUFFIX
        one, other = ((stored[runs[0]] or {}).get(gold) for _, runs in sides)
        if one is not None and (other is None or not np.array_equal(one, other)):
            return None
    noise = pair_noise(sides[0][1], sides[1][1], first.metric.parts, stored.__getitem__)
    return None if noise is None else noise.between


def _run_ids(study: Study, verdict: Verdict) -> list[str]:
    (ids,) = study.points.loc[study.points["point"] == verdict.best, "run_ids"]
    return list(ids)


def first_points(study: Study, count: int) -> Study:
    """The study as if its search had ended after so many evaluated points.

    Its confirmations stay if the best of these points is among what was confirmed: others tell of a longer search.
    """
    value = study.trials["value"].notna() & study.trials["stop"].isin(COMPARABLE)
    points = study.trials.loc[value, "point"].drop_duplicates()
    cut = replace(study, trials=study.trials[study.trials["point"].isin(points[:count])].reset_index(drop=True))
    searched = cut.points.dropna(subset="search_value")
    if len(points) > count and len(searched):
        best = int((study.metric.sign * searched["search_value"]).argmax())
        if not searched["confirmed"].iloc[best]:
            return replace(cut, trials=cut.trials[cut.trials["stage"] != "confirm"].reset_index(drop=True))
    return cut


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
