"""The point that is named best: from what it was picked, and how far its figures may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from analysis.statistics.empirical_bayes import Chosen, Flags, Floats, moderate
from analysis.statistics.pairs import PairNoise
from analysis.statistics.seed_noise import SeedNoise
from analysis.statistics.selection import NORMAL, TAIL, WEIGHTS, EstimateError, bound_of_largest, largest, split

SEARCH_NOISE = 1.3  # factor on the noise of search values: a prior learned from noisy values retains some of it
MAX_UNLIKE = 1 / 4  # prior probability at most that the picked point is unlike other points (`Chosen`)


@dataclass(frozen=True)
class EvaluatedPoints:
    """(n,) points that were completed or pruned, with the columns of `points_table`; larger values are better."""

    point: NDArray[np.object_]
    trial: NDArray[np.object_]
    run_ids: NDArray[np.object_]
    value: Floats
    n: Floats
    search_value: Floats
    search_n: Floats
    completed: Flags
    confirmed: Flags
    baseline: Flags

    @staticmethod
    def of(points: pd.DataFrame, sign: float) -> EvaluatedPoints:
        kept = points[points["stop"].isin(["completed", "pruned"]) & points["value"].notna()]

        def column(name: str, kind: type = float) -> NDArray[Any]:
            return kept[name].to_numpy(dtype=kind)

        return EvaluatedPoints(
            column("point", object), column("trial", object), column("run_ids", object), sign * column("value"),
            column("n"), sign * column("search_value"), column("search_n"),
            (kept["stop"] == "completed").to_numpy(dtype=bool), column("confirmed", bool), column("baseline", bool),
        )  # fmt: skip

    def nameable(self) -> Flags:
        """Points that may be named best: the confirmed ones if there are any beside the baseline, else the complete
        ones; not those with fewer than half the seeds of the best covered: a confirmation gave up on them."""
        confirmed = self.completed & self.confirmed
        eligible = confirmed if (confirmed & ~self.baseline).any() else self.completed
        rivals = eligible & ~self.baseline
        most = self.n[rivals if rivals.any() else eligible].max()
        return np.asarray(eligible & (self.n >= most / 2))

    def best(self, among: Flags) -> int:
        """The one with the largest value; the first of equals."""
        return int(np.where(among, self.value, -np.inf).argmax())

    def runner_up(self, among: Flags, best: int) -> int:
        """The second of those that could be named; the best itself if it is alone."""
        others = among & (np.arange(len(among)) != best)
        return self.best(others) if others.any() else best

    def reference(self) -> int | None:
        """The baseline, if it was completed."""
        found = np.flatnonzero(self.baseline & self.completed)
        return int(found[0]) if len(found) else None

    def best_of_search(self) -> float:
        """The largest mean of the search; NaN if nothing was completed there."""
        found = self.search_value[self.search_n > 0]
        return float(found.max()) if len(found) else float("nan")

    def in_search(self) -> float:
        """Seeds behind a mean of the search, typically."""
        searched = self.search_n[self.search_n > 0]
        return float(np.median(searched)) if len(searched) else 1.0


@dataclass(frozen=True)
class SelectedPoint:
    """The named point, and from what it was picked.

    n: its seeds. candidates: points that could be named; rivals: those that were to beat the baseline. in_search: seeds
    behind a search mean. own, between: as in `PairNoise`, 0 where they are not known.
    """

    noise: SeedNoise
    n: int
    confirmed: bool
    tried: int
    candidates: int
    rivals: int
    in_search: float
    own: float
    between: float

    @staticmethod
    def of(pool: EvaluatedPoints, among: Flags, best: int, noise: SeedNoise, pairs: PairNoise | None) -> SelectedPoint:
        confirmed, tried = bool(pool.confirmed[best]), len(pool.value)
        rivals = max(int((pool.confirmed & ~pool.baseline).sum()) if confirmed else tried - 1, 1)
        own, between = (pairs.own, pairs.between) if pairs else (0.0, 0.0)
        n, candidates = int(pool.n[best]), int(among.sum())
        return SelectedPoint(noise, n, confirmed, tried, candidates, rivals, pool.in_search(), own, between)

    def sds(self, seeds: Floats) -> Floats:
        """(n,) standard deviations of means over so many seeds. Without repeats, which separate the pairs' share from
        the seeds', the largest seed noise that is plausible counts, and half of the pairs' share is in it already."""
        sd, pairs = (self.noise.sd, self.between / 2) if self.noise.repeats else (self.noise.most, self.between / 4)
        return np.asarray(np.sqrt(sd**2 / seeds + pairs))

    def chosen(self, best: int, sds: Floats) -> Chosen:
        """The named point as one that was picked, where the points' means have these standard deviations.

        If it was confirmed, and is like other points, the search has picked of the dev pairs' effect the scores of the
        `rivals` largest of `tried` normals (Blom 1958).
        """
        sd = float(sds[best])
        if not self.confirmed:
            return Chosen(best, 1 / self.tried, 0.0, sd)
        kept, rest = self._kept()
        places = np.arange(1, min(self.rivals, self.tried) + 1)
        scores = -ndtri((places - 0.375) / (self.tried + 0.25))
        spread = float(np.sqrt(sd**2 - self.between / 2 + rest + kept**2 * scores.var()))
        return Chosen(best, min(self.candidates / self.tried, MAX_UNLIKE), kept * float(scores.mean()), spread)

    def interval(self, values: Sequence[float]) -> tuple[float, float]:
        """How far the true value may lie below and above the mean of these values."""
        common = max(self.own - self.between / 2, 0.0)
        below = self.arms(values, common, self.candidates)[0] if self.confirmed else self.below(NORMAL * common**0.5)
        return below, self.arms(values, common)[1]

    def arms(self, values: Sequence[float], common: float = 0.0, candidates: int = 1) -> tuple[float, float]:
        """The same for a comparison with another point scored on the same pairs: without their effect on both alike.

        common: variance over dev pairs besides; candidates: of which the largest mean is taken as it is.
        """
        variance, df = moderate(values, self.noise.sd**2)
        kept, rest = self._kept()
        below = EstimateError(variance / self.n, df, rest + common, kept, self.tried, candidates).bound(TAIL)
        return below, EstimateError(variance / self.n, df, self.between / 2 + common).bound(TAIL)

    def below(self, reach: float) -> float:
        """Bound of the error of a mean that was picked as the largest in the search, along with an error independent of
        that, of mean 0, whose own bound is `reach`: the largest errs by its mean, and both spread about theirs."""
        error = EstimateError(self.noise.sd**2 / self.n, self.noise.df, self.between / 2)
        mean = error.sd * float(WEIGHTS @ largest(self.tried))
        return mean + float(np.hypot(bound_of_largest(TAIL, error.sd, error.freedom, self.tried) - mean, reach))

    def against(
        self, values: Mapping[Any, float], theirs: Mapping[Any, float], baseline: float, n: int
    ) -> tuple[float, EstimateError, int]:
        """Difference to the baseline, its error, and over how many common seeds it was taken (0 = not paired).

        Args: values, theirs: seed -> value of the named point and of the baseline; baseline, n: its mean and seeds.
        """
        kept, rest = self._kept()
        common = sorted(values.keys() & theirs.keys())
        if len(common) > 1:
            gaps = [values[seed] - theirs[seed] for seed in common]
            variance, df = moderate(gaps, 2 * self.noise.sd**2)
            difference, variance = float(np.mean(gaps)), variance / len(gaps)
        else:
            difference = float(np.mean(list(values.values()))) - baseline
            variance, df = self.noise.sd**2 * (1 / self.n + 1 / n), self.noise.df
        error = EstimateError(variance, df, rest + self.between / 2, kept, self.tried, self.rivals)
        return difference, error, len(common) if len(common) > 1 else 0

    def _kept(self) -> tuple[float, float]:
        """What the search picked by of the dev pairs' effect on one point, and the rest (`selection.split`)."""
        part = self.between / 2
        return split(part, self.noise.sd**2 / self.in_search) if self.confirmed else (0.0, part)
