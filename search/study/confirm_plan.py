"""Confirmation: fresh seeds for the best points and the baseline, where they are most likely to change the answer, or a
fixed number each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.statistics.empirical_bayes import PRIOR_DF, about_means, moderate, posterior_of_means
from search.schema import SEED_SD
from search.space import Space
from search.store.ledger import Ledger, Trial, TrialRecord
from search.study.plan import make_trial, point_means, seed_values
from trainables.contract.trial import Decision, Evaluation

LEAST = 3  # common seeds of leader and baseline before a gain can be decided
WORTH = 0.0005  # 0.05 points of Spearman: an expected improvement or a gain below is not worth a seed
SMALLEST = 1e-6  # of a value: seeds that do not move it at all are frozen
WORTH_SDS = WORTH / SEED_SD  # the same of a metric of which nothing is known


class ConfirmPlan:
    """Fresh seeds of completed points and of the baseline (a `Plan`); the same seeds for all, so that differences are
    paired, and none that the search has used.

    With `trials`, at most so many in all, adaptively. Of all completed points the one with the largest posterior mean
    leads; the challenger is the one with the largest expected improvement over it (Frazier et al. 2008; Qin et al.
    2017). The next seed goes to the one of the two that has had fewer. The baseline gets as many as any point. It ends
    when no challenger's expected improvement reaches `WORTH` and the leader's gain over the baseline is decided: its
    interval lies above 0, or holds no gain of `WORTH`. Until a seed has ended a point gets no further one, beyond the
    first `LEAST`, so that many slots do not spend seeds that the results would have saved.

    With `top` and `seeds`, the fixed case: the `top` best other points and the baseline on `seeds` seeds each, seed by
    seed.

    Everything follows from the ledger. A point of which a fresh seed has failed gets no more.

    Args: trials: confirming trials in all, those of earlier confirmations included.
    Raises: ValueError when the study has no completed point.
    """

    def __init__(
        self, space: Space, ledger: Ledger, *, trials: int | None = None, top: int = 0, seeds: int = 0
    ) -> None:
        self._space, self._ledger, self._trials, self._seeds = space, ledger, trials, seeds
        self._sign = space.metric.sign
        self._means = point_means(ledger)
        if not self._means:
            raise ValueError("no point of this study is complete: nothing to confirm")
        self._first = {n: records[0].trial for (stage, n), records in ledger.by_point.items() if stage == "search"}
        self._baseline = next((number for number, trial in self._first.items() if trial.baseline), None)
        rivals = [number for number in self._means if number != self._baseline]
        self._chosen = sorted(rivals, key=lambda number: -self._sign * self._means[number])[:top]
        if self._baseline is not None:
            self._chosen.append(self._baseline)

    def close(self) -> None:
        """Nothing runs."""

    def next(self, slots: int = 1) -> Trial | None:  # noqa: ARG002  # the plan's interface
        if (number := self._choice()) is None:
            return None
        return confirming_trial(self._space, self._first[number], self._fresh(number))

    def exhausted(self) -> bool:
        running = any(record.trial.stage == "confirm" for record in self._ledger.open_trials.values())
        return not running and self._choice() is None

    def on_evaluation(self, trial: Trial, evaluation: Evaluation) -> Decision:  # noqa: ARG002  # the plan's interface
        return "go"  # a confirmed value is the value of a full-length trial

    def on_trial_end(self, record: TrialRecord) -> None:
        """Do nothing: the ledger records it."""

    def _choice(self) -> int | None:
        """The point that gets the next fresh seed; None when there is none, or it depends on running trials."""
        if self._trials is None:
            behind = [n for n in self._chosen if self._fresh(n) < self._seeds and not self._failed(n)]
            return min(behind, key=self._fresh, default=None)
        spent = sum(len(records) for (stage, _), records in self._ledger.by_point.items() if stage == "confirm")
        number = self._deciding() if spent < self._trials else None
        return None if number is None or self._fresh(number) >= max(LEAST, self._ended(number) + 1) else number

    def _deciding(self) -> int | None:
        """The point whose next fresh seed decides most; None when all is decided."""
        numbers = [n for n in self._means if n != self._baseline and not self._failed(n)]
        if not numbers:
            return None
        most = max(map(self._fresh, numbers))
        if self._baseline is not None and not self._failed(self._baseline) and self._fresh(self._baseline) < most:
            return self._baseline
        sd = self._seed_sd()
        seeds = [self._all_values(n) for n in numbers]
        means = np.array([self._sign * float(np.mean(values)) for values in seeds])
        worth = WORTH if self._space.known_metric else WORTH_SDS * sd
        posterior = posterior_of_means(means, np.array([sd / math.sqrt(len(values)) for values in seeds]))
        leader = int(posterior.mean.argmax())
        improvement = posterior.improvement(leader)
        challenger = int(improvement.argmax())
        open_choice = improvement[challenger] > worth
        if not open_choice and self._settled(numbers[leader], sum(self._fresh(n) > 0 for n in numbers), worth):
            return None
        if open_choice and self._fresh(numbers[challenger]) < self._fresh(numbers[leader]):
            return numbers[challenger]
        return numbers[leader]

    def _settled(self, leader: int, rivals: int, worth: float) -> bool:
        """Whether the leader's gain over the baseline is known well enough; without a baseline its value is, after as
        many seeds."""
        mine = confirming_values(self._ledger, leader)
        if self._baseline is None or self._failed(self._baseline):
            return len(mine) >= LEAST
        theirs = confirming_values(self._ledger, self._baseline)
        gaps = [self._sign * (mine[seed] - theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
        return gain_settled(gaps, self._seed_sd(), rivals, worth)

    def _seed_sd(self) -> float:
        """Over seeds, pooled over all points of the study and the published figure (`SEED_SD`). Of a metric of which
        nothing is known: over seeds alone, and before any is repeated what the points differ by, which is larger."""
        squares, freedom = about_means(map(seed_values, self._ledger.by_point.values()))
        if self._space.known_metric:
            return math.sqrt((PRIOR_DF * SEED_SD**2 + squares) / (PRIOR_DF + freedom))
        size = max(map(abs, self._means.values()))
        spread = float(np.std(list(self._means.values()), ddof=1)) if len(self._means) > 1 else size
        return max(math.sqrt(squares / freedom) if freedom else spread, SMALLEST * size, SMALLEST)

    def _all_values(self, number: int) -> list[float]:
        searched = seed_values(self._ledger.by_point["search", number])
        return searched + list(confirming_values(self._ledger, number).values())

    def _records(self, number: int) -> list[TrialRecord]:
        return self._ledger.by_point.get(("confirm", number), [])

    def _fresh(self, number: int) -> int:
        return len(self._records(number))

    def _ended(self, number: int) -> int:
        return sum(not record.open for record in self._records(number))

    def _failed(self, number: int) -> bool:
        return any(record.failed for record in self._records(number))


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


def gain_settled(gaps: Sequence[float], seed_sd: float, rivals: int, worth: float = WORTH) -> bool:
    """Whether the mean of these paired differences is known to be above 0, or known to be less than `worth`.

    Student's interval with a prior of `PRIOR_DF` at twice the variance over seeds; its lower end allows for the rivals
    (Bonferroni) and for the analyses j = 1, 2, ... after every common seed from `LEAST` on, each at 1 / (j (j + 1)) of
    the level that the claim at the end leaves: to end with a lead is a chance of a false claim, too.

    Args: rivals: points that had a chance to be the leader, itself one.
    """
    if len(gaps) < LEAST:
        return False
    from analysis.statistics.selection import TAIL, EstimateError, spent  # scipy: 40 MiB that a search has no use for

    variance, df = moderate(gaps, 2 * seed_sd**2, 0.0)
    gain, n = float(np.mean(gaps)), len(gaps)
    analysis = n - LEAST + 1
    low = gain - EstimateError(variance / n, df, candidates=rivals).bound(
        (TAIL - spent(1)) / (analysis * (analysis + 1))
    )
    return low > 0 or gain + EstimateError(variance / n, df).bound(TAIL) < worth
