"""Confirming where it matters: fresh seeds one at a time to the leader or its best challenger, and to the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from search.schema import SEED_SD
from search.space import Space
from search.store.ledger import Ledger, Trial, TrialRecord
from search.study.belief import Belief
from search.study.confirm_plan import confirming_trial, confirming_values, first_trials
from search.study.plan import point_means, seed_values
from search.study.seeds import about_means
from trainables.contract.trial import Evaluation, Verdict

PRIOR_DF = 3  # of the prior of the seeds' variance, as in the analysis
LEAST = 3  # common seeds of leader and baseline before a gain can settle
TAIL = 0.025  # one-sided level, shared out over the looks at the gain and over the rivals that had a chance
WORTH = 0.0005  # 0.05 points of Spearman: an expected improvement or a gain below is not worth a seed
SMALLEST = 1e-6  # of a value: seeds that do not move it at all are frozen
WORTH_SDS = WORTH / SEED_SD  # the same of a metric of which nothing is known


class AdaptiveConfirm:
    """At most `trials` fresh seeds where they decide most (a `Plan`).

    Of all completed points the one with the largest posterior mean leads; the challenger is the one with the largest
    expected improvement over it (Frazier et al. 2008; Qin et al. 2017). The next seed goes to the one of the two that
    has had fewer. The baseline gets as many as any point, and all get the same seeds, so differences are paired. It
    ends when no challenger promises an improvement of `WORTH` and the leader's gain over the baseline has settled: its
    interval lies above 0, or holds no gain of `WORTH`. Everything is worked out from the ledger.

    Args: trials: confirming trials in all, those of earlier confirmations included.
    Raises: ValueError when the study has no completed point.
    """

    def __init__(self, space: Space, ledger: Ledger, *, trials: int) -> None:
        self._space, self._ledger, self._trials = space, ledger, trials
        self._sign = space.metric.sign
        self._means = point_means(ledger)
        if not self._means:
            raise ValueError("no point of this study is complete: nothing to confirm")
        self._first = first_trials(ledger)
        self._baseline = next((number for number, trial in self._first.items() if trial.baseline), None)

    def next(self) -> Trial | None:
        if self._spent() >= self._trials or (number := self._choice()) is None:
            return None
        return confirming_trial(self._space, self._first[number], len(self._records(number)))

    def exhausted(self) -> bool:
        return self._spent() >= self._trials or (not self._running() and self._choice() is None)

    def evaluated(self, trial: Trial, evaluation: Evaluation) -> Verdict:  # noqa: ARG002  # the plan's interface
        return "go"  # a confirmed value is the value of a whole trial

    def ended(self, record: TrialRecord) -> None:
        """Nothing: the ledger knows."""

    def _choice(self) -> int | None:
        """The point that gets the next fresh seed; None when all is settled, or waits for what runs."""
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
        belief = Belief.of(means, np.array([sd / math.sqrt(len(values)) for values in seeds]))
        leader = int(belief.mean.argmax())
        improvement = belief.improvement(leader)
        challenger = int(improvement.argmax())
        open_choice = improvement[challenger] > worth
        if not open_choice and self._settled(numbers[leader], sum(self._fresh(n) > 0 for n in numbers), worth):
            return None
        if open_choice and self._fresh(numbers[challenger]) < self._fresh(numbers[leader]):
            return numbers[challenger]
        return numbers[leader]

    def _settled(self, leader: int, rivals: int, worth: float) -> bool:
        """Whether the leader's gain over the baseline is known well enough; without a baseline its value is, after as
        many seeds. Looked at after every common seed: look j has the level TAIL / (j (j + 1))."""
        mine = confirming_values(self._ledger, leader)
        if self._baseline is None or self._failed(self._baseline):
            return len(mine) >= LEAST
        theirs = confirming_values(self._ledger, self._baseline)
        gaps = [self._sign * (mine[seed] - theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
        return gain_settled(gaps, self._seed_sd(), rivals, worth)

    def _seed_sd(self) -> float:
        """Over seeds, pooled over all points of the study and the published figure (`SEED_SD`). Of a metric of which
        nothing is known: over seeds alone, and before any is repeated what the points differ by, which holds it."""
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

    def _failed(self, number: int) -> bool:
        return any(record.failed for record in self._records(number))

    def _spent(self) -> int:
        return sum(len(records) for (stage, _), records in self._ledger.by_point.items() if stage == "confirm")

    def _running(self) -> bool:
        return any(record.trial.stage == "confirm" for record in self._ledger.open_trials.values())


def gain_settled(gaps: Sequence[float], seed_sd: float, rivals: int, worth: float = WORTH) -> bool:
    """Whether the mean of these paired differences is known to be above 0, or known to be less than `worth`.

    Student's interval with a prior of `PRIOR_DF` at twice the variance over seeds; its lower end allows for the rivals
    (Bonferroni) and for the looks, one after every common seed from `LEAST` on.

    Args: rivals: points that had a chance to be the leader, itself one.
    """
    if len(gaps) < LEAST:
        return False
    from scipy.stats import t as student  # 40 MiB that a search has no use for

    look = len(gaps) - LEAST + 1
    freedom = PRIOR_DF + len(gaps) - 1
    squares = 2 * PRIOR_DF * seed_sd**2 + float(np.var(gaps)) * len(gaps)
    error = math.sqrt(squares / freedom / len(gaps))
    gain = float(np.mean(gaps))
    low = gain - error * float(student.isf(TAIL / rivals / (look * (look + 1)), freedom))
    return low > 0 or gain + error * float(student.isf(TAIL, freedom)) < worth
