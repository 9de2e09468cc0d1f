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
    """Which trials have the rest of `search.budget`, `examples`, `time` or `device_hours` to themselves.

    With four trials at once, the training of ten full-length trials lasts as long as two and a half of them: points
    found in the last third would never be trained to their end. So when no more is left than the leader needs, the
    others make way.
    """

    def __init__(self, space: Space, ledger: Ledger) -> None:
        self._space, self._search, self._ledger = space, space.search, ledger

    def reserved(self, judged: str = "") -> list[str]:
        """Ids of the open baseline and of the leader, once the remaining budget is at most what they need to finish and
        one evaluation of every other running trial and of one new trial; none before.

        Args: judged: a trial that has evaluated just now, and can make way at once.
        """
        if self._space.pruner.kind != "asha" or not math.isfinite(self._spare([], set())):
            return []
        trials = [r for r in self._ledger.open_trials.values() if r.trial.stage == "search"]
        running = {r.trial.id for r in trials if r.state == "running" and r.waiting is None} - {judged}
        reserved = [r for r in trials if r.trial.baseline and not r.trial.repeat]
        if leader := self._leader(trials, reserved, running):
            reserved.append(leader)
        return [r.trial.id for r in reserved] if self._spare(reserved, running) <= self._ledger.longest_step else []

    def _leader(self, trials: list[TrialRecord], reserved: list[TrialRecord], running: set[str]) -> TrialRecord | None:
        """Among first seeds whose best value already exceeds every completed trial and which the budget can finish,
        the one with the best latest value. A trial's value is the best of its evaluations, in part noise: one that has
        since fallen far below the completed ones (`MAX_DROP`) does not count.

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
            if not (r.trial.repeat or r in reserved or r.value is None or r.best is None)
            and sign * r.best > best
            and sign * r.value >= fallen
            and self._spare([*reserved, r], running) >= 0
        ]
        return max(found)[2] if found else None

    def _spare(self, reserved: list[TrialRecord], running: set[str]) -> float:
        """Examples that could be trained and yet leave these as much as they need to their ends, while other trials
        make way; infinite without a budget, or until a trial has reported its length or its pace."""
        search, ledger = self._search, self._ledger
        needs = [(r.planned or ledger.full_length) - r.examples for r in reserved]
        making_way = len(running - {r.trial.id for r in reserved})
        left = math.inf
        if search.budget is not None and ledger.full_length:
            left = search.budget * ledger.full_length - ledger.examples
        if search.examples is not None:
            left = min(left, search.examples - ledger.examples)
        seconds = ledger.trial_seconds() if search.time or search.device_hours else 0
        pace = ledger.examples / seconds if seconds else 0  # examples a second of a trial
        if search.device_hours is not None and pace:
            resources = self._space.resources.numbers()
            gpus = ledger.share["gpus"] if ledger.share else resources.gpus
            whole = 3600 * search.device_hours / resources.workers / (gpus or 1.0)
            left = min(left, pace * (whole - seconds))
        spare = left - sum(needs) - making_way * ledger.longest_step
        if search.time is not None and pace:  # trials make way side by side, while the reserved ones train
            until_end = pace * (search.time - ledger.elapsed(stage="search"))
            together = max(needs, default=0) if running else sum(needs)
            spare = min(spare, until_end - together - bool(making_way) * ledger.longest_step)
        return spare
