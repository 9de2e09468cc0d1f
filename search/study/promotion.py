"""Pausing at rungs and promoting: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, Algorithm 2).

A trial that reaches a rung goes on when it is among the best 1 in `reduction` of all that have reached it, and pauses
otherwise; when others push it up into that share, it is taken up again. Who stands where is in the ledger
(`rung` events). One that had to make way at the end of a budget (`budget_end`) waits at the rung that it has passed, or
at level -1 when it had reached none; nobody has judged those, and all of them go on.

Rungs are `reduction` times each other from the first on, as in the paper, but none lies past half of a whole trial:
what would lie there lies at the half, for at its own place it may judge those whose training is nearly paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from search.store.ledger import Ledger, TrialRecord


def rungs(first: int, whole: int, reduction: int) -> Iterator[int]:
    """Examples of the rungs, rising without end: up to half of a whole trial multiples of the first, then, for trials
    that are longer, a whole trial's and `reduction` times each other.

    >>> list(takewhile(lambda rung: rung < 3000, rungs(80, 960, 3)))
    [80, 240, 480, 960, 2880]
    """
    half = max(first, whole // 2 // first * first)
    below = takewhile(lambda rung: rung < whole, (first * reduction**level for level in count()))
    yield from dict.fromkeys(min(rung, half) for rung in below)
    yield from (max(first, whole) * reduction**level for level in count())


class Promotion:
    """The rungs of a study. Only points' first seeds stand on those from level 0 on, and not the baseline's.

    Args:
        reduction: 1 in this many goes on, at least 2.
        first: examples of the lowest rung; whole: of a whole trial (`rungs`).
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
        # nobody judges the baseline: on a rung a poor one would have others go on that lead nobody
        records = (r for r in self._ledger.on_rungs.values() if not (r.trial.baseline and level >= 0))
        return [r for r in records if level in r.rungs and not r.failed]
