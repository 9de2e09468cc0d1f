"""The point that is named best, from what it was picked, and how far its figures may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from analysis.statistics.correlation import NORMAL
from analysis.statistics.empirical_bayes import Chosen, moderate
from analysis.statistics.evaluated import Evaluated, Flags, Floats
from analysis.statistics.pair_noise import PairNoise
from analysis.statistics.seed_noise import SeedNoise
from analysis.statistics.selection import TAIL, WEIGHTS, Error, bound_of_largest, largest, split

CAUTION = 1.3
MOST_UNLIKE = 1 / 4


@dataclass(frozen=True)
class Picked:
    """The named point, and from what it was picked.

    n: its seeds. candidates: points that could be named; rivals: those that were to beat the baseline. in_search: seeds
    behind a search mean. own, between: variances over dev pairs (`PairNoise`), 0 where they are not known.
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
    def of(points: Evaluated, among: Flags, best: int, noise: SeedNoise, pairs: PairNoise | None) -> Picked:
        confirmed = bool(points.confirmed[best])
        searched = points.search_n[points.search_n > 0]
        rivals = int((points.confirmed & ~points.baseline).sum()) if confirmed else len(points.value) - 1
        return Picked(
            noise=noise,
            n=int(points.n[best]),
            confirmed=confirmed,
            tried=len(points.value),
            candidates=int(among.sum()),
            rivals=max(rivals, 1),
            in_search=float(np.median(searched)) if len(searched) else 1.0,
            own=pairs.own if pairs else 0.0,
            between=pairs.between if pairs else 0.0,
        )

    def sds(self, seeds: Floats) -> Floats:
        """Standard deviations of the points' means over so many seeds, (n,).

        Repeats tell the pairs' share from the seeds'. Without them the seed noise is a guess, and a value is corrected
        as for the largest that is plausible; half of the pairs' share is in it already.
        """
        repeats = self.noise.repeats > 0
        sd, pairs = (self.noise.sd, self.between / 2) if repeats else (self.noise.most, self.between / 4)
        return np.asarray(np.sqrt(sd**2 / seeds + pairs))

    @staticmethod
    def cautious(sds: Floats, confirmed: Flags) -> Floats:
        """What the search alone measured is taken for noisier than it is, for what the named point is worth: a prior
        learned from noisy values keeps some of their noise."""
        return np.asarray(sds * np.where(confirmed, 1.0, CAUTION))

    def chosen(self, best: int, sds: Floats) -> Chosen:
        """The named point as one that was picked, where the points' means have these standard deviations."""
        return Chosen(best, self.unlike, *self.luck(float(sds[best])))

    @property
    def unlike(self) -> float:
        """Prior probability that the named point is unlike the others: one of all tried; one of the candidates, and a
        quarter at most, if those were picked to be measured afresh, since a better point is likely to be among them."""
        return min(self.candidates / self.tried, MOST_UNLIKE) if self.confirmed else 1 / self.tried

    def luck(self, sd: float) -> tuple[float, float]:
        """What the search has picked of the dev pairs' luck with a point that is like the others, and the standard
        deviation about that of its mean, which is `sd` for a point that was not picked.

        Scores of the `rivals` largest of `tried` normals: Blom 1958.
        """
        if not self.confirmed:
            return 0.0, sd
        kept, rest = self._kept()
        places = np.arange(1, min(self.rivals, self.tried) + 1)
        scores = -ndtri((places - 0.375) / (self.tried + 0.25))
        return kept * float(scores.mean()), float(np.sqrt(sd**2 - self.between / 2 + rest + kept**2 * scores.var()))

    def interval(self, values: Sequence[float]) -> tuple[float, float]:
        """How far the true value may lie below and above the mean of these values."""
        common = max(self.own - self.between / 2, 0.0)
        above = self.arms(values, common)[1]
        if not self.confirmed:
            return self.below(NORMAL * float(np.sqrt(common))), above
        return self.arms(values, common, self.candidates)[0], above

    def arms(self, values: Sequence[float], common: float = 0.0, candidates: int = 1) -> tuple[float, float]:
        """The same for a comparison with another point scored on the same pairs: without what those do to both alike.

        common: variance over dev pairs besides; candidates: of which the largest mean is taken as it is.
        """
        variance, df = moderate(values, self.noise.sd**2)
        kept, rest = self._kept()
        below = Error(variance / self.n, df, rest + common, kept, self.tried, candidates).bound(TAIL)
        return below, Error(variance / self.n, df, self.between / 2 + common).bound(TAIL)

    def below(self, reach: float) -> float:
        """Bound of the error of a mean that was picked as the largest in the search, along with an error independent of
        that, of mean 0, whose own bound is `reach`: the largest errs by its mean, and both spread about theirs."""
        error = Error(self.noise.sd**2 / self.n, self.noise.df, self.between / 2)
        mean = error.sd * float(WEIGHTS @ largest(self.tried))
        return mean + float(np.hypot(bound_of_largest(TAIL, error.sd, error.freedom, self.tried) - mean, reach))

    def against(
        self, values: Mapping[Any, float], theirs: Mapping[Any, float], baseline: float, n: int
    ) -> tuple[float, Error, int]:
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
        error = Error(variance, df, rest + self.between / 2, kept, self.tried, self.rivals)
        return difference, error, len(common) if len(common) > 1 else 0

    def _kept(self) -> tuple[float, float]:
        """Of a point's own part of the dev pairs' luck, what the search picked by and the rest (`selection.split`)."""
        part = self.between / 2
        return split(part, self.noise.sd**2 / self.in_search) if self.confirmed else (0.0, part)
