"""Which point gets a further seed: every point has a first one, what is promising gets more.

Where points never end, or a sampler learns from them, seeds are rungs as evaluations are (successive halving, as in
`rungs`): of all points with so many seeds the best 1 in `PROMISING` gets the next one, once the search has trained
`START` full-length trials and `LATE` of its budget. So a value that owes its rank to seed noise is measured again, and
what a search has to find good points with is not spent on seeds. Where a second seed has shown the same value to the
last digit, there is no noise to measure. Everything follows from the ledger.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence

from analysis.statistics.empirical_bayes import about_means
from search.schema import SEED_SD
from search.space import Space
from search.store.ledger import Ledger, TrialRecord
from search.study.plan import mean_so_far, seed_values

DOMINATED_Z = 1.64  # one-sided 5 %
PROMISING = 3  # 1 in this many points gets a second seed, 1 in this many of those a third, ...
START = 10  # full-length trials that are trained before any point gets a further seed, which costs one
LATE = 0.75  # of `search.budget` or `search.examples` that is trained before
BLIND = ("grid", "random", "qmc")  # samplers that learn nothing from what has ended
BY_ENDED = ("median", "percentile", "wilcoxon")  # pruners that compare with points that have ended
ENDLESS = sys.maxsize  # points of a space without an end


class Seeds:
    """The seeds of a study's points.

    Args: most: points that the study can have; complete_point: called with a point that is to have no further seed.
    """

    def __init__(self, space: Space, ledger: Ledger, most: int, complete_point: Callable[[int], None]) -> None:
        self._space, self._ledger, self._complete_point = space, ledger, complete_point
        self._sign = space.metric.sign
        self._known = space.known_metric
        self._in_turn = space.pruner.kind in BY_ENDED or "pruner" in space.classes  # which may compare so, too
        self._points_first = not self._in_turn and space.search.sampler in BLIND and most < ENDLESS

    def due(self, points: Iterable[int]) -> int | None:
        """Which of the points that are not complete gets its next seed before a new point is proposed.

        In a grid none, so that seeds go to the best of all points. Under a pruner that compares with points that have
        ended all seeds of a point follow each other.
        """
        if self._points_first or self._space.search.repeats == 1:
            return None
        return self.last(list(points), ahead=False) if self._in_turn else self._promising(set(points))

    def last(self, points: Iterable[int], ahead: bool) -> int | None:
        """The most promising of these points that is to have a further seed; ahead: while its earlier ones run, too.

        Points that are dominated by now are complete.
        """
        found: list[tuple[float, int]] = []
        for number in points:
            records = self._records(number)
            if self._may_go_on(records, ahead):
                values = seed_values(records)
                found.append((-self._sign * statistics.fmean(values) if values else math.inf, number))
        for _, number in sorted(found):
            records = self._records(number)
            if self._space.pruner.kind == "wilcoxon" or records[0].trial.baseline or not self._dominated(number):
                return number
            if not any(record.open for record in records):
                self._complete_point(number)
        return None

    def mean(self, number: int) -> float | None:
        """A point's value so far: `mean_so_far`."""
        return mean_so_far(self._records(number))

    def _promising(self, unsettled: set[int]) -> int | None:
        """The best of those that may have a next seed, of the highest number of seeds that has one. The baseline,
        which is not judged, does not count among them; its seeds follow when a point has all of its own, since only
        then is there something to compare."""
        search, trials = self._space.search, self._ledger.full_length_trials
        budget = min(search.budget or math.inf, trials(search.examples) if search.examples else math.inf)
        late, trained = max(START, LATE * budget if budget < math.inf else 0), trials(self._ledger.examples)
        if not late <= trained <= budget - 1 or self._noiseless():  # a seed begun later could not end
            return None
        ranked: list[tuple[float, int, int]] = []  # value (smaller is better), number, seeds
        baseline = None
        for stage, number in self._ledger.by_point:
            if stage != "search" or (mean := self.mean(number)) is None:
                continue
            if self._records(number)[0].trial.baseline:
                baseline = number
            else:
                ranked.append((-self._sign * mean, number, len(seed_values(self._records(number)))))
        ranked.sort()
        repeats = self._space.search.repeats
        ready = {n for n in unsettled if self._may_go_on(self._records(n), ahead=False)}
        if baseline in ready and any(seeds == repeats for _, _, seeds in ranked):
            return baseline
        for level in sorted({seeds for _, _, seeds in ranked}, reverse=True):
            reached = [(number, seeds) for _, number, seeds in ranked if seeds >= level]
            for number, seeds in reached[: len(reached) // PROMISING]:
                if seeds == level and number in ready:
                    return number
        return None

    def _may_go_on(self, records: list[TrialRecord], ahead: bool) -> bool:
        """Whether a point that has had these seeds can have a further one now."""
        kind = self._space.pruner.kind
        sound = all(record.open or record.state == "completed" for record in records)
        if not records or not sound or len(records) >= self._space.search.repeats:
            return False
        if not any(record.open for record in records):
            return True
        judged = kind == "none" or records[0].state == "completed"  # a pruner may still stop the first seed
        return ahead and judged and kind != "wilcoxon"  # which decides after every seed

    def _dominated(self, number: int) -> bool:
        """Whether more seeds of a point are not worth their cost: its mean lies below the best point's by more than
        seeds explain, `DOMINATED_Z` standard errors of the difference, with the seeds' standard deviation pooled over
        all points that have several, else the prior `SEED_SD`. An unknown metric has no prior, so no point is
        dominated until seeds repeat.
        """
        rivals = [
            event
            for event in self._ledger.points.values()
            if event["state"] == "complete" and event["number"] != number
        ]
        values = seed_values(self._records(number))
        sd = self._seed_sd()
        if not rivals or not values or sd is None:
            return False
        best = max(rivals, key=lambda event: self._sign * event["value"])
        gap: float = self._sign * (best["value"] - statistics.fmean(values))
        return beyond_seeds(gap, sd, len(values), best["seeds"])

    def _seed_sd(self) -> float | None:
        return pooled_sd(self._searched(), SEED_SD if self._known else None)

    def _noiseless(self) -> bool:
        """Whether further seeds have shown what the first ones did, to the last digit."""
        repeated = [values for values in self._searched() if len(values) > 1]
        return bool(repeated) and all(min(values) == max(values) for values in repeated)

    def _searched(self) -> list[list[float]]:
        """The seeds' values of each point of the search."""
        return [seed_values(r) for (stage, _), r in self._ledger.by_point.items() if stage == "search"]

    def _records(self, number: int) -> list[TrialRecord]:
        return self._ledger.by_point.get(("search", number), [])


def beyond_seeds(gap: float, sd: float, mine: int, theirs: int) -> bool:
    """Whether two means over so many seeds differ by more than seeds explain, one-sided."""
    return gap > DOMINATED_Z * sd * math.sqrt(1 / mine + 1 / theirs)


def pooled_sd(points: Iterable[Sequence[float]], prior: float | None = SEED_SD) -> float | None:
    """The standard deviation over seeds, pooled over points; `prior` below 4 degrees of freedom."""
    squares, freedom = about_means(points)
    return math.sqrt(squares / freedom) if freedom >= 4 and squares > 0 else prior
