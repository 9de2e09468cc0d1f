"""Which gain a confirmation could see, with its seeds and its dev pairs: after it, and before it is paid for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scipy.special import ndtri

from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.selection import Error, split

POWER = 0.8  # chance of a claim at which a gain counts as visible
NEARLY = 1.1  # a floor within this factor of what is visible now: more seeds will not help


@dataclass(frozen=True)
class Power:
    """True gains over the baseline that would be claimed in four of five confirmations. Units of the metric.

    seeds, visible: now; more, visible_more: with this many seeds, twice as many; floor: with ever more seeds, as far as
    the dev pairs allow.
    """

    seeds: int
    visible: float
    more: int
    visible_more: float
    floor: float

    @property
    def seeds_help(self) -> bool:
        """Whether more seeds would make clearly smaller gains visible."""
        return self.visible > NEARLY * self.floor


def power(error: Error, seeds: int, level: float) -> Power:
    """Args: error: of the difference to the baseline as measured over `seeds` seeds; level: one-sided, of the claim."""
    return Power(
        seeds=seeds,
        visible=visible(error, level),
        more=2 * seeds,
        visible_more=visible(_with(error, seeds, 2 * seeds), level),
        floor=visible(replace(error, variance=0.0), level),
    )


def forecast(
    *, sd: float, between: float, tried: int, in_search: float, rivals: int, seeds: int, level: float
) -> Power:
    """The power of a confirmation that is yet to be run.

    Args:
        sd: of a trial over seeds. between: variance of the dev pairs between two points (`PairNoise`).
        tried: points of the search; in_search: seeds behind each of its means; rivals, seeds: to be confirmed, besides
            the baseline, which gets as many. level: one-sided, of the claim (`verdict.spent`).
    """
    kept, rest = split(between / 2, sd**2 / in_search)
    df = PRIOR_DF + seeds - 1
    return power(Error(2 * sd**2 / seeds, df, rest + between / 2, kept, tried, rivals), seeds, level)


def visible(error: Error, level: float) -> float:
    """The true gain that is claimed with chance POWER: the bound of chance, and the luck against it."""
    return error.bound(level) + float(ndtri(POWER)) * error.sd


def _with(error: Error, seeds: int, more: int) -> Error:
    return replace(error, variance=error.variance * seeds / more, df=error.df + more - seeds)
