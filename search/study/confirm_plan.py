"""Confirming: the best points and the baseline again on fresh seeds, the hopeless ones given up early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from search.space import Space
from search.store.ledger import Ledger, Trial, TrialRecord
from search.study.plan import make_trial, point_means
from trainables.contract.trial import Evaluation, Verdict

RACE_LEVEL = 0.05  # of one look, shared out over the rivals; what a race comes to is in `ConfirmPlan`
RACE_SEEDS = 3  # common seeds before two points are compared


class ConfirmPlan:
    """The `top` best points and the baseline on `seeds` fresh seeds (a `Plan`), seed by seed.

    Seeds start after those of the search, so that a value that won by the luck of its seed does not keep its luck.
    All points get the same seeds: a seed's draw of data and initialisation is common to them, and differences over
    seeds are paired. A point that a one-sided paired t-test finds worse than the leader (level `RACE_LEVEL` divided by
    the number of rivals) gets no further seeds; the baseline always gets all. The leader is the luckiest so far and is
    looked at again after every seed: of 4 equal points one is given up in 27 % of races over 5 seeds, 55 % over 20; of
    11 in 40 and 78 % (`python -m benchmarks confirming`).

    Raises: ValueError when the study has no completed point.
    """

    def __init__(self, space: Space, ledger: Ledger, *, top: int, seeds: int) -> None:
        self._space, self._ledger = space, ledger
        self._sign = space.metric.sign
        means = point_means(ledger)
        if not means:
            raise ValueError("no point of this study is complete: nothing to confirm")
        chosen = sorted(means, key=lambda number: -self._sign * means[number])[:top]
        first = first_trials(ledger)
        self._baseline = next((number for number, trial in first.items() if trial.baseline), None)
        if self._baseline is not None and self._baseline not in chosen:
            chosen.append(self._baseline)
        self._points = {number: first[number] for number in chosen}
        self._todo = [(seed, number) for seed in range(seeds) for number in chosen]
        self._todo = [(s, n) for s, n in self._todo if self._id(n, s) not in ledger.trials]

    def next(self) -> Trial | None:
        while self._todo:
            seed, number = self._todo.pop(0)
            if not self.given_up(number):
                return self._trial(number, seed)
        return None

    def exhausted(self) -> bool:
        return not self._todo

    def evaluated(self, trial: Trial, evaluation: Evaluation) -> Verdict:  # noqa: ARG002  # the plan's interface
        return "go"  # a confirmed value is the value of a whole trial

    def ended(self, record: TrialRecord) -> None:
        """Nothing: the ledger knows."""

    def given_up(self, number: int) -> bool:
        """Whether a point lost the race to the leader."""
        if number == self._baseline:
            return False
        values = {n: self._values(n) for n in self._points}
        means = {n: self._sign * sum(v.values()) / len(v) for n, v in values.items() if v}
        if number not in means:
            return self._failed(number)
        leader = max(means, key=lambda n: means[n])
        if number == leader:
            return False
        return worse(values[number], values[leader], self._sign, RACE_LEVEL / (len(self._points) - 1))

    def _failed(self, number: int) -> bool:
        records = self._ledger.by_point.get(("confirm", number), [])
        return any(record.failed for record in records)

    def _values(self, number: int) -> dict[int, float]:
        return confirming_values(self._ledger, number)

    def _id(self, number: int, repeat: int) -> str:
        return self._trial(number, repeat).id

    def _trial(self, number: int, repeat: int) -> Trial:
        return confirming_trial(self._space, self._points[number], repeat)


def first_trials(ledger: Ledger) -> dict[int, Trial]:
    """Number -> a point's first trial in the search."""
    return {number: records[0].trial for (stage, number), records in ledger.by_point.items() if stage == "search"}


def confirming_trial(space: Space, first: Trial, repeat: int) -> Trial:
    """A point's trial on a fresh seed: those start after the search's, the same for all points.

    Args: first: the point's first trial in the search; repeat: which of its fresh seeds, from 0.
    """
    return make_trial(
        space,
        first.point,
        number=first.number,
        repeat=repeat,
        seed=space.search.seed + space.search.repeats + repeat,
        stage="confirm",
        baseline=first.baseline,
        origin=first.origin,
    )


def confirming_values(ledger: Ledger, number: int) -> dict[int, float]:
    """seed -> value of a point's completed confirming trials."""
    records = ledger.by_point.get(("confirm", number), [])
    return {r.trial.seed: r.best for r in records if r.state == "completed" and r.best is not None}


def worse(values: Mapping[int, float], leader: Mapping[int, float], sign: float, level: float) -> bool:
    """Whether `values` are worse than the leader's over their common seeds: one-sided paired t-test at `level`."""
    common: Sequence[int] = sorted(values.keys() & leader.keys())
    if len(common) < RACE_SEEDS:
        return False
    gaps = [sign * (leader[seed] - values[seed]) for seed in common]
    if math.isclose(min(gaps), max(gaps)):  # no spread: the t statistic is undefined, the order is plain
        return min(gaps) > 0
    from scipy import stats  # 40 MiB that a search has no use for

    return bool(stats.ttest_1samp(gaps, 0.0, alternative="greater").pvalue < level)
