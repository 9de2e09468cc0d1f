"""The end of a budget in training: the rest of it finishes the leader, not whatever happens to run.

With four trials at once ten whole trials' training last as long as two and a half of them: what is found in the last
third would never be trained to its end. So when no more is left than the leader needs, the others make way.
"""

from __future__ import annotations

import math

import numpy as np

from search.space import Space
from search.store.ledger import Ledger, TrialRecord
from search.study.plan import seed_values

FALLEN = 2  # standard deviations of what the better half of the points have shown
NAMED_ALONE = 2  # seeds of another point beside which one with a single seed can be named best


class BudgetEnd:
    """Which trials have the rest of `search.budget` or `search.examples` to themselves."""

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
        most now. A trial's value is the best of its evaluations, which can only rise, but which is luck in part: one
        that has fallen far below the completed ones since (`FALLEN`) has had its luck, and training gives it no more.

        None where the analysis would not name a point with one seed, since others have three.
        """
        sign, ledger = self._ledger.sign, self._ledger
        if max((len(seed_values(records)) for records in ledger.by_point.values()), default=0) > NAMED_ALONE:
            return None
        best = -math.inf if ledger.best is None or ledger.best.best is None else sign * ledger.best.best
        shown = sorted(sign * r.best for r in ledger.on_rungs.values() if r.best is not None and not r.failed)
        fallen = best - FALLEN * float(np.std(shown[len(shown) // 2 :] or [0.0]))
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
        """Examples that these take to their ends, while the others make way."""
        needs = sum((r.planned or self._ledger.whole_trial) - r.examples for r in kept)
        return needs + len(running - {r.trial.id for r in kept}) * self._ledger.longest_step

    def _left(self) -> float:
        """Examples; infinite without a budget in training, or until a trial has said how long it is."""
        search, ledger = self._search, self._ledger
        whole = math.inf if search.budget is None or not ledger.whole_trial else search.budget * ledger.whole_trial
        return min(whole, math.inf if search.examples is None else search.examples) - ledger.examples
