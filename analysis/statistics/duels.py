"""Two methods against each other: by the configurations found, where both were confirmed, else by what n trials find.

Both kinds answer a question of their own. Confirmed on fresh seeds, the two configurations that the searches picked are
compared, over seeds and dev pairs: which of the two models to take. Another search might have picked others; what a
method finds in n trials is compared by the expected best, whose error over searches is large at few trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

from analysis.statistics.correlation import MIN_VALUES, NORMAL, Floats, expected_best, expected_best_error
from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.selection import LEVEL
from analysis.statistics.verdict import Verdict

CONFIRMED, EXPECTED = "confirmed bests", "expected best"


@dataclass(frozen=True)
class Duel:
    """`first` minus `second` at the common budget, larger is better: LEVEL interval, two-sided p after Holm.

    of: CONFIRMED (corrected values of the two configurations) or EXPECTED (expected best of `League.budget` trials).
    """

    first: str
    second: str
    of: str
    difference: float
    low: float
    high: float
    p_value: float
    significant: bool = False


def confirmed_duel(first: str, ours: Verdict, second: str, theirs: Verdict, pairs: float) -> Duel:
    """The corrected values of two confirmed bests; before Holm.

    Its interval is put together of the arms of two (Zou and Donner 2008, "MOVER"): the lower one is the root of
    ours.below^2 + theirs.above^2 + NORMAL^2 pairs. The test is that interval made to end at 0, as Student's t of the
    side with fewer seeds would have it.

    Args: pairs: variance of the difference over dev pairs that the two verdicts' arms lack.
    """
    sign = ours.metric.sign
    difference = sign * (ours.expected - theirs.expected)
    lower, upper = (
        max(float(np.sqrt(a**2 + b**2 + NORMAL**2 * pairs)), np.finfo(float).tiny)
        for a, b in ((ours.below, theirs.above), (ours.above, theirs.below))
    )
    df = PRIOR_DF + min(ours.n, theirs.n) - 1
    reach = abs(difference) * float(stdtrit(df, (1 + LEVEL) / 2)) / (lower if difference > 0 else upper)
    p_value = 2 * float(stdtr(df, -reach))
    return Duel(first, second, CONFIRMED, difference, difference - lower, difference + upper, p_value)


def expected_duel(first: str, ours: Floats, second: str, theirs: Floats, budget: int) -> Duel:
    """Welch's t on the expected bests of `budget` configurations; values (n,), larger is better; before Holm.

    p = 1 where one of them has too few values for an error (fewer than three).
    """
    difference = float(expected_best(ours, [budget])[0] - expected_best(theirs, [budget])[0])
    if min(len(ours), len(theirs)) < MIN_VALUES:
        return Duel(first, second, EXPECTED, difference, -np.inf, np.inf, 1.0)
    (a, df_a), (b, df_b) = (expected_best_error(values, [budget]) for values in (ours, theirs))
    variances = np.array([float(a[0]) ** 2, float(b[0]) ** 2])
    variance = max(float(variances.sum()), np.finfo(float).tiny)
    df = max(variance**2 / max(float((variances**2 / (df_a, df_b)).sum()), np.finfo(float).tiny), min(df_a, df_b))
    reach = float(stdtrit(df, (1 + LEVEL) / 2)) * variance**0.5
    p_value = 2 * float(stdtr(df, -abs(difference) / variance**0.5))
    return Duel(first, second, EXPECTED, difference, difference - reach, difference + reach, p_value)


def holm(duels: Sequence[Duel]) -> list[Duel]:
    """Step-down adjustment of the p-values for the number of duels (Holm 1979)."""
    adjusted: dict[int, float] = {}
    largest = 0.0
    order = sorted(range(len(duels)), key=lambda i: duels[i].p_value)
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, duels[i].p_value * (len(duels) - place)))
        adjusted[i] = largest
    return [replace(d, p_value=adjusted[i], significant=adjusted[i] < 1 - LEVEL) for i, d in enumerate(duels)]
