"""Statistics of dev scores: Spearman and its sampling error over pairs, and the expected best of n trials.

Correlations are in [-1, 1]; multiply by 100 for the "points" that papers print.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, stdtrit

Floats = NDArray[np.float64]
NORMAL = 1.959964  # of a two-sided 95 % interval of a normal value
MIN_VALUES, TOP_LEAST, TOP_SHARE = 3, 5, 0.2  # of `expected_best_error`


def spearman_influence(x: ArrayLike, y: ArrayLike) -> tuple[float, Floats]:
    """Spearman's rho and how much each pair moves it.

    The empirical influence function (infinitesimal jackknife: Jaeckel 1972; Efron 1982, ch. 6) of the tie-corrected
    rho. `sum(w * psi) / n` is to first order the change of rho when pair i gets weight 1 + w[i], so psi stands in for a
    bootstrap over pairs at a thousandth of its cost: var(psi) / n is the sampling variance of rho, and
    var(psi_a - psi_b) / n that of the difference of two models scored on the same pairs, which is what makes the
    comparison a paired one.

    Args: x, y: (n,) model similarities and gold scores; ties allowed.
    Returns: rho in [-1, 1], psi (n,) with mean 0 (up to rounding).
    Raises: ValueError if the lengths differ or one side is constant.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"expected two vectors of one length, got shapes {x.shape} and {y.shape}")
    a, group_a = _levels(x)
    b, group_b = _levels(y)
    product, var_a, var_b = float(np.mean(a * b)), float(np.var(a)), float(np.var(b))
    if not (var_a > 0 and var_b > 0):
        raise ValueError("Spearman's correlation needs two values at least on each side, got a constant one")
    rho = (product - 0.25) / np.sqrt(var_a * var_b)  # midranks have mean 1/2 exactly
    # Adding mass at x0 moves the product by its own term and by shifting the rank of everything above x0.
    moved_product = (a * b - product) + (_mass_above(group_a, b) - product) + (_mass_above(group_b, a) - product)
    square_a, square_b = var_a + 0.25, var_b + 0.25
    moved_a = (a**2 - square_a) + 2 * (_mass_above(group_a, a) - square_a)
    moved_b = (b**2 - square_b) + 2 * (_mass_above(group_b, b) - square_b)
    psi = moved_product / np.sqrt(var_a * var_b) - rho / 2 * (moved_a / var_a + moved_b / var_b)
    return float(rho), psi


def expected_best(values: ArrayLike, budgets: ArrayLike) -> Floats:
    """Expected maximum of n of these trials, for each n in `budgets` (1 <= n <= N): (B,) values to (k,) expectations.

    Draws are without replacement: sum_i C(i-1, n-1) / C(N, n) * v_(i) over the sorted values, the unbiased U-statistic
    (Tang et al. 2020) of Dodge et al. 2019 ("Show Your Work", Eq. 1, whose draws with replacement are biased low).
    It takes the trials as exchangeable: exact for random search, and for an adaptive sampler the answer to "had the
    same proposals come in any order".
    """
    v = np.sort(np.asarray(values, dtype=float))
    return np.asarray(_order_weights(len(v), budgets) @ v)


def expected_best_interval(values: ArrayLike, budgets: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Interval of `expected_best`, lower and upper (k,), over other searches of as many trials; needs 3 trials.

    `expected_best` plus and minus Student's t times `expected_best_error`. (A bootstrap of a maximum does not work: a
    resample has the largest value itself in it with chance 0.63, Bickel and Freedman 1981.)
    """
    middle = expected_best(values, budgets)
    error, df = expected_best_error(values, budgets)
    reach = float(stdtrit(df, (1 + level) / 2)) * error
    return middle - reach, middle + reach


def expected_best_error(values: ArrayLike, budgets: ArrayLike) -> tuple[Floats, float]:
    """Standard error of `expected_best` (k,), and its degrees of freedom.

    The upper tail is taken for exponential with the mean excess of the best fifth (five at least) over the next one,
    which is exact for that tail and too much for a lighter one, such as a normal or a bounded one. There the j-th
    largest value stands above the next by an independent exponential of mean excess / j (Renyi 1953), of which
    `expected_best` takes the chance W_j that the best of n is among the j largest: its variance is excess^2 sum_j
    (W_j / j)^2. The excess is a mean of k exponential values, known to 1 / sqrt(k) of itself, as a standard deviation
    with k / 2 degrees of freedom is; Student's t with so many allows for that.

    Raises: ValueError with fewer than 3 values.
    """
    v = np.sort(np.asarray(values, dtype=float))
    excess, df = _excess(v)
    return _spacings_error(excess, _order_weights(len(v), budgets)), df


def expected_gain(values: ArrayLike, fewer: int, more: int, level: float = 0.95) -> tuple[float, float, float]:
    """What `more` trials buy over `fewer` of them: difference of their expected bests, and its interval, never below 0.

    The error is that of `expected_best_error`, of the difference of both chances in place of W_j.

    Raises: ValueError with fewer than 3 values.
    """
    v = np.sort(np.asarray(values, dtype=float))
    excess, df = _excess(v)
    weights = np.subtract(*_order_weights(len(v), [more, fewer]))
    gain, error = float(weights @ v), float(_spacings_error(excess, weights[None])[0])
    reach = float(stdtrit(df, (1 + level) / 2)) * error
    return gain, max(gain - reach, 0.0), gain + reach


def _excess(v: Floats) -> tuple[float, float]:
    """Of sorted values the mean excess of the best k over the next one, and its degrees of freedom, k / 2."""
    if len(v) < MIN_VALUES:
        raise ValueError(f"expected {MIN_VALUES} values at least, got {len(v)}")
    k = min(max(TOP_LEAST, round(TOP_SHARE * len(v))), len(v) - 1)
    return float(np.mean(v[-k:]) - v[-k - 1]), k / 2


def _spacings_error(excess: float, weights: Floats) -> Floats:
    """(k,) standard errors of sums of sorted values with these weights (k, N), by the errors of their spacings."""
    among = np.cumsum(weights[:, ::-1], axis=1)
    return np.asarray(excess * np.sqrt(((among / np.arange(1, weights.shape[1] + 1)) ** 2).sum(axis=1)))


def _order_weights(total: int, budgets: ArrayLike) -> Floats:
    """(k, N) probability that the i-th smallest of N values is the largest of n drawn ones."""
    n = np.atleast_1d(np.asarray(budgets))[:, None]
    if n.min() < 1 or n.max() > total:
        raise ValueError(f"budgets: expected 1..{total} trials, got {n.min()}..{n.max()}")
    below = np.arange(total)  # values smaller than the i-th

    def log_choose(pool: ArrayLike, size: ArrayLike) -> Floats:
        pool, size = np.asarray(pool, dtype=float), np.asarray(size, dtype=float)
        return np.asarray(gammaln(pool + 1) - gammaln(size + 1) - gammaln(np.maximum(pool - size, 0) + 1))

    return np.where(below >= n - 1, np.exp(log_choose(below, n - 1) - log_choose(total, n)), 0.0)


def _levels(x: NDArray[np.generic]) -> tuple[Floats, NDArray[np.intp]]:
    """Midranks scaled to (0, 1), mean exactly 1/2, and the tie group of each value in ascending order."""
    _, group, count = np.unique(x, return_inverse=True, return_counts=True)
    level = (np.cumsum(count) - count / 2) / len(x)
    return level[group], group


def _mass_above(group: NDArray[np.intp], values: Floats) -> Floats:
    """(n,) mean over j of values[j] * (1 if j's group is above i's, 1/2 if equal, else 0)."""
    mass = np.bincount(group, weights=values)
    above = np.cumsum(mass[::-1])[::-1] - mass / 2
    return above[group] / len(values)
