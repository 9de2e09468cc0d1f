"""Pausing at rungs and promoting: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, Algorithm 2).

A trial that reaches a rung goes on when it is among the best 1 in `reduction` of all that have reached it, and pauses
otherwise; when later ones lift it into that share, it is resumed. The ledger has every trial's rungs (`rung` events).
A trial that makes way at the end of a budget (`BudgetEnd`) waits at the rung that it has passed, or at level -1 when it
had reached none; those were not judged, so all of them go on.

Rungs are `reduction` times each other from the first on, as in the paper, but none lies past half of a full-length
trial: one that would is moved to the half, since later it would stop trials whose training is nearly paid for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, takewhile

import numpy as np

from search.space import Space
from search.store.ledger import Ledger, TrialRecord
from search.study.plan import seed_values

MAX_DROP = 2  # standard deviations, over the better half of the points
NAMED_ALONE = 2  # seeds of another point beside which one with a single seed can be named best


def rungs(first: int, whole: int, reduction: int) -> Iterator[int]:
    """Examples of the rungs, rising without end: multiples of the first up to half of a full-length trial; for longer
    trials its length and `reduction` times each other.

    >>> list(takewhile(lambda rung: rung < 3000, rungs(80, 960, 3)))
    [80, 240, 480, 960, 2880]
    """
    half = max(first, whole // 2 // first * first)
    below = takewhile(lambda rung: rung < whole, (first * reduction**level for level in count()))
    yield from dict.fromkeys(min(rung, half) for rung in below)
    yield from (max(first, whole) * reduction**level for level in count())


class Promotion:
    """The rungs of a study. Only first seeds of non-baseline points count from level 0 on.

    Args:
        reduction: 1 in this many goes on, at least 2.
        first: examples of the lowest rung; whole: of a full-length trial (`rungs`).
    """

    def __init__(self, ledger: Ledger, reduction: int, first: int, whole: int) -> None:
        self._ledger, self._reduction, self._first, self._whole = ledger, reduction, first, whole
        self._sign = ledger.sign

    def level(self, examples: int) -> int:
        """The highest rung at or below so many examples, from 0; -1 below all."""
        reached = takewhile(lambda rung: rung <= examples, rungs(self._first, self._whole, self._reduction))
        return len(list(reached)) - 1

    def goes_on(self, record: TrialRecord, level: int, value: float) -> bool:
        """Whether a trial that reaches a rung with this value is among the best of all that reached it, itself one."""
        others = [r for r in self._on(level) if r is not record]
        better = sum(self._sign * r.rungs[level] >= self._sign * value for r in others)
        return better < (len(others) + 1) // self._reduction

    def next(self) -> TrialRecord | None:
        """The paused trial to take up: the best that may leave its rung, of the highest rung that has one."""
        waiting = [r for r in self._ledger.waiting() if r.waits]
        for level in sorted({r.waiting for r in waiting if r.waiting is not None}, reverse=True):
            reached = self._on(level)
            ranked = sorted(reached, key=lambda r: (-self._sign * r.rungs[level], r.trial.number))
            for record in ranked[: len(reached) // self._reduction if level >= 0 else None]:
                if record.waiting == level and record.waits:
                    return record
        return None

    def leader(self) -> TrialRecord | None:
        """The best paused trial of the highest rung, where no completed trial is as good: a search whose rungs hold too
        few to promote any would otherwise end with nothing trained to its end."""
        waiting = [r for r in self._ledger.waiting() if r.waits]
        if not waiting:
            return None
        top = max(r.waiting for r in waiting if r.waiting is not None)
        best = max((r for r in waiting if r.waiting == top), key=lambda r: (self._sign * r.rungs[top], -r.trial.number))
        done = self._ledger.best
        if done is not None and done.best is not None and self._sign * done.best >= self._sign * best.rungs[top]:
            return None
        return best

    def _on(self, level: int) -> list[TrialRecord]:
        # the baseline is not judged: on a rung a poor baseline would let poor trials be promoted
        records = (r for r in self._ledger.on_rungs.values() if not (r.trial.baseline and level >= 0))
        return [r for r in records if level in r.rungs and not r.failed]


class BudgetEnd:
    """Which trials have the rest of `search.budget` or `search.examples` to themselves.

    With four trials at once, the training of ten full-length trials lasts as long as two and a half of them: points
    found in the last third would never be trained to their end. So when no more is left than the leader needs, the
    others make way.
    """

    def __init__(self, space: Space, ledger: Ledger) -> None:
        self._search, self._ledger, self._pauses = space.search, ledger, space.pruner.kind == "asha"

    def kept(self, judged: str = "") -> list[str]:
        """Ids of the baseline, if it is open, and of the leader; none while more is left than they take, with one more
        evaluation of each running trial, after which it makes way, and of one that might be started.

        Args: judged: a trial that has evaluated just now, and can make way at once.
        """
        left = self._left()
        if not self._pauses or not math.isfinite(left):
            return []
        trials = [r for r in self._ledger.open_trials.values() if r.trial.stage == "search"]
        running = {r.trial.id for r in trials if r.state == "running" and r.waiting is None} - {judged}
        kept = [r for r in trials if r.trial.baseline and not r.trial.repeat]
        if leader := self._leader(trials, kept, running, left):
            kept.append(leader)
        near = left <= self._take(kept, running) + self._ledger.longest_step
        return [r.trial.id for r in kept] if near else []

    def _leader(
        self, trials: list[TrialRecord], kept: list[TrialRecord], running: set[str], left: float
    ) -> TrialRecord | None:
        """Of the first seeds that are better already than every completed trial and can be finished, the one that shows
        most now. A trial's value is the best of its evaluations, in part noise: one that has since fallen far below the
        completed ones (`MAX_DROP`) does not count.

        None where the analysis would not name a point with one seed, since others have three.
        """
        sign, ledger = self._ledger.sign, self._ledger
        if max((len(seed_values(records)) for records in ledger.by_point.values()), default=0) > NAMED_ALONE:
            return None
        best = -math.inf if ledger.best is None or ledger.best.best is None else sign * ledger.best.best
        shown = sorted(sign * r.best for r in ledger.on_rungs.values() if r.best is not None and not r.failed)
        fallen = best - MAX_DROP * float(np.std(shown[len(shown) // 2 :] or [0.0]))
        found = [
            (sign * r.value, -r.trial.number, r)
            for r in trials
            if not (r.trial.repeat or r in kept or r.value is None or r.best is None)
            and sign * r.best > best
            and sign * r.value >= fallen
            and self._take([*kept, r], running) <= left
        ]
        return max(found)[2] if found else None

    def _take(self, kept: list[TrialRecord], running: set[str]) -> int:
        """Examples that these take to their ends, while other trials make way."""
        needs = sum((r.planned or self._ledger.full_length) - r.examples for r in kept)
        return needs + len(running - {r.trial.id for r in kept}) * self._ledger.longest_step

    def _left(self) -> float:
        """Examples; infinite without a budget in training, or until a trial has reported its length."""
        search, ledger = self._search, self._ledger
        whole = math.inf if search.budget is None or not ledger.full_length else search.budget * ledger.full_length
        return min(whole, math.inf if search.examples is None else search.examples) - ledger.examples
