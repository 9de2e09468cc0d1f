"""A study's evaluated points and its trials' values as plain arrays, larger values better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.empirical_bayes import within

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Objects = NDArray[np.object_]


@dataclass(frozen=True)
class Evaluated:
    """(n,) points that were completed or pruned, in the table's order.

    value, n: mean and number of the counted trials; search_value, search_n: of the search alone (NaN and 0 if none was
    completed there). The rest as in `points_table`.
    """

    point: Objects
    trial: Objects
    run_ids: Objects
    value: Floats
    n: Floats
    search_value: Floats
    search_n: Floats
    completed: Flags
    confirmed: Flags
    baseline: Flags

    @staticmethod
    def of(points: pd.DataFrame, sign: float) -> Evaluated:
        stop = points["stop"].to_numpy(dtype=object)
        value = sign * points["value"].to_numpy(dtype=float)
        completed = stop == "completed"
        keep = (completed | (stop == "pruned")) & ~np.isnan(value)

        def column(name: str, kind: Any = object) -> NDArray[Any]:
            return np.asarray(points[name].to_numpy(dtype=kind)[keep])

        return Evaluated(
            point=column("point"),
            trial=column("trial"),
            run_ids=column("run_ids"),
            value=value[keep],
            n=column("n", float),
            search_value=sign * column("search_value", float),
            search_n=column("search_n", float),
            completed=completed[keep],
            confirmed=column("confirmed", bool),
            baseline=column("baseline", bool),
        )

    def nameable(self) -> Flags:
        """Points that may be named best: the confirmed ones if there are any beside the baseline, else all that are
        complete.

        Those with fewer than half the seeds of the best covered are out: racing or the rule for hopeless points ended
        them. The baseline, which has seeds in any case, covers nobody.
        """
        confirmed = self.completed & self.confirmed
        eligible = confirmed if (confirmed & ~self.baseline).any() else self.completed
        rivals = eligible & ~self.baseline
        most = self.n[rivals if rivals.any() else eligible].max()
        return np.asarray(eligible & (self.n >= most / 2))

    def best(self, among: Flags) -> int:
        """The one with the largest value; the first of equals."""
        return int(np.where(among, self.value, -np.inf).argmax())

    def reference(self) -> int | None:
        """The baseline, if it was completed."""
        found = np.flatnonzero(self.baseline & self.completed)
        return int(found[0]) if len(found) else None

    def best_of_search(self) -> float:
        """The largest mean of the search; NaN if nothing was completed there."""
        found = self.search_value[self.search_n > 0]
        return float(found.max()) if len(found) else float("nan")


@dataclass(frozen=True)
class SeedValues:
    """(trials,) values of completed trials, with point, stage and seed."""

    point: Objects
    confirm: Flags
    seed: Objects
    value: Floats

    @staticmethod
    def of(trials: pd.DataFrame, sign: float) -> SeedValues:
        value = sign * trials["value"].to_numpy(dtype=float)
        keep = (trials["stop"].to_numpy(dtype=object) == "completed") & ~np.isnan(value)
        stage = trials["stage"].to_numpy(dtype=object)[keep]
        point, seed = (trials[name].to_numpy(dtype=object)[keep] for name in ("point", "seed"))
        return SeedValues(point, stage == "confirm", seed, value[keep])

    def of_point(self, point: str, confirm: bool) -> dict[Any, float]:
        """seed -> value of a point's trials of one stage."""
        rows = np.flatnonzero((self.point == point) & (self.confirm == confirm))
        return {self.seed[row]: float(self.value[row]) for row in rows}

    def search_repeats(self) -> bool:
        """Whether the search itself gave some point a second seed."""
        points = self.point[~self.confirm].tolist()
        return len(set(points)) < len(points)

    def within(self) -> tuple[float, int]:
        """Sum of squares and degrees of freedom within (point, stage): the error of a one-way layout."""
        groups: dict[tuple[Any, Any], int] = {}
        keys = zip(self.point.tolist(), self.confirm.tolist(), strict=True)
        code = np.fromiter((groups.setdefault(key, len(groups)) for key in keys), dtype=np.intp)
        return within(self.value, code)

    def firsts(self) -> Floats:
        """The first value of each point."""
        seen: dict[Any, float] = {}
        for point, value in zip(self.point.tolist(), self.value.tolist(), strict=True):
            seen.setdefault(point, value)
        return np.array(list(seen.values()))
