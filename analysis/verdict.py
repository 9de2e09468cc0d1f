"""Which configuration is best, what it is worth, and whether it beats the paper's defaults: with the luck taken out.

The best of many trials looks better than it is. Three things stand against that here, all on one noise model: a point's
mean over n seeds is its true value plus seed noise N(0, s^2 / n) plus, by the choice of dev pairs, N(0, t^2) that fresh
seeds do not remove (Bouthillier et al. 2021 name these as the two sources that matter; s from `noise`, t from `pairs`).

- The expected value of the best is its posterior mean under a prior learned from all points, less what optimism a
  parametric bootstrap of search, choice and confirmation finds left in it (`shrink`). Without a confirmation on fresh
  seeds it is an estimate that leans on the noise model, and is called so.
- The gain over the baseline is tested against the distribution that the whole procedure would give if every point
  were as good as the baseline: the best of N against one (Dunnett 1955), or the best of K confirmed, themselves the
  best K of N in the search (parametric bootstrap of the selection: Efron and Tibshirani 1993, ch. 16). All equal is the
  least favourable case, so a gain is claimed without any point being better in at most 2.5 % of studies.
- Intervals are the inversions of that test: below, they allow for selection, above, they need not.

tests/analysis/test_simulation.py measures all of this on simulated studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from analysis.errors import AnalysisError
from analysis.noise import SeedNoise, seed_noise
from analysis.pairs import Lookup, PairNoise, pair_noise
from analysis.rank import Metric
from analysis.shrink import Floats, posterior, selection_bias

LEVEL = 0.95  # of the intervals of the expected value and of the gain
COMPARABLE = ("completed", "pruned")
DRAWS = 10_000  # a p-value near 0.025 is then known to 0.0016


@dataclass(frozen=True)
class Gain:
    """Best minus baseline, larger is better; units of the metric.

    value: corrected for selection; low, high: LEVEL interval, `low` allowing for the selection; p_value two-sided;
    significant: low > 0. observed: plain difference of the means. baseline: its trial id.
    """

    value: float
    low: float
    high: float
    p_value: float
    significant: bool
    observed: float
    baseline: str
    baseline_value: float
    baseline_n: int


@dataclass(frozen=True)
class Verdict:
    """What a study says. Units of the metric.

    best: point id; trial: its (first) trial. value, n: its mean over n seeds, fresh ones if `confirmed`.
    expected: corrected for having been picked; low, high: its LEVEL interval over seeds and dev pairs.
    naive: the best mean of the search, as one would report it. tried: points evaluated, candidates: those that could be
    named. p_best: probability of being the best candidate. gain: None without a baseline, or if that is the best.
    """

    metric: Metric
    best: str
    trial: str
    confirmed: bool
    value: float
    n: int
    expected: float
    low: float
    high: float
    naive: float
    tried: int
    candidates: int
    p_best: float
    gain: Gain | None
    baseline_is_best: bool
    noise: SeedNoise
    pairs: PairNoise | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the metric by its name."""
        return {**asdict(self), "metric": self.metric.name}


def judge(
    trials: pd.DataFrame,
    points: pd.DataFrame,
    metric: Metric,
    searched: Sequence[str],
    similarities: Lookup,
    rng: np.random.Generator,
) -> Verdict:
    """The verdict over a study's trials and points (`analysis.tables`).

    Raises: AnalysisError if no trial has been completed.
    """
    noise = seed_noise(trials, searched, metric.sign)
    tried = int(points["stop"].isin(COMPARABLE).sum())
    done = points[(points["stop"] == "completed") & points["value"].notna()].reset_index(drop=True)
    if done.empty:
        raise AnalysisError("no trial has been completed, so none can be named best")
    observed = metric.sign * done["value"].to_numpy(dtype=float)
    among = _candidates(done)
    best = int(np.where(among, observed, -np.inf).argmax())
    row = done.iloc[best]
    confirmed = bool(row["confirmed"])
    reference = _reference(done, observed, among, best)
    other = done["run_ids"].iloc[reference if reference is not None else best]
    pairs = pair_noise(row["run_ids"], other, metric.parts, similarities)
    between = pairs.between if pairs else 0.0

    # Every point counts here: what the search saw of the others says how much of the best value was luck.
    pool = points[points["stop"].isin(COMPARABLE) & points["value"].notna()].reset_index(drop=True)
    means = metric.sign * pool["value"].to_numpy(dtype=float)
    seeds = pool["n"].to_numpy(dtype=float)
    # Repeats of one point tell the pairs' share from the seeds'. Without them the seed noise holds an unknown part of
    # it, between none and all: half is added.
    shared = between / 2 if noise.source == "repeats" else between / 4
    sds = np.sqrt(noise.sd**2 / seeds + shared)
    pruned = (pool["stop"] == "pruned").to_numpy(dtype=bool)
    nameable = pool["point"].isin(done.loc[among, "point"]).to_numpy(dtype=bool)
    believed = posterior(means, sds, pruned)
    chosen = int(np.flatnonzero(pool["point"] == row["point"])[0])
    again = _Again(noise.sd, shared, seeds, pool["confirmed"].to_numpy(dtype=bool), pruned, nameable, rng)
    expected = float(believed.mean[chosen]) - selection_bias(means, sds, pruned, again)
    if not confirmed:  # the bootstrap's own noise must not add luck to a value that was picked for being high
        expected = min(expected, observed[best])

    luck = _luck(tried, int(among.sum()), int(row["n"]), done, confirmed, noise, between, rng)
    low, high = _value_interval(observed[best], luck, pairs.own - between / 2 if pairs else 0.0, rng)
    baseline = _baseline(done)
    gain = None
    if baseline is not None and baseline != best:
        gain = _gain(done.iloc[baseline], metric.sign, observed[best], expected, luck, rng)
    sign = metric.sign
    search = sign * done["search_value"].to_numpy(dtype=float)
    ends = sorted((sign * min(low, expected), sign * max(high, expected)))
    return Verdict(
        metric=metric,
        best=str(row["point"]),
        trial=str(row["trial"]),
        confirmed=confirmed,
        value=float(row["value"]),
        n=int(row["n"]),
        expected=sign * expected,
        low=ends[0],
        high=ends[1],
        naive=sign * float(np.nanmax(search)) if np.isfinite(search).any() else float(row["value"]),
        tried=tried,
        candidates=int(among.sum()),
        p_best=float(believed.probability_best(nameable)[chosen]),
        gain=gain,
        baseline_is_best=baseline == best,
        noise=noise,
        pairs=pairs,
    )


@dataclass(frozen=True)
class _Luck:
    """Draws of what chance alone adds, (DRAWS,) each: the error of the picked point, and the scale of its estimated sd.

    seed_sd: of one trial; n: seeds of the picked point; between: variance over dev pairs between two points.
    """

    picked: Floats
    scale: Floats
    seed_sd: float
    n: int
    between: float


@dataclass(frozen=True)
class _Again:
    """Redraws a study: search, choice, and confirmation where there was one. See `shrink.selection_bias`.

    shared: variance that a point's trials share through the dev pairs. seeds: counted trials of each point.
    """

    seed_sd: float
    shared: float
    seeds: Floats
    confirmed: NDArray[np.bool_]
    pruned: NDArray[np.bool_]
    nameable: NDArray[np.bool_]
    rng: np.random.Generator

    def __call__(self, truth: Floats, draws: int) -> tuple[Floats, Floats, NDArray[np.bool_], NDArray[np.intp]]:
        shape = (draws, len(truth))
        there = truth + np.sqrt(self.shared) * self.rng.normal(size=shape)
        if not self.confirmed.any():
            sds = np.broadcast_to(self._sd(self.seeds), shape)
            means = there + self.seed_sd / np.sqrt(self.seeds) * self.rng.normal(size=shape)
            if not self.pruned.any():
                return means, sds, np.zeros(shape, dtype=bool), np.where(self.nameable, means, -np.inf).argmax(axis=1)
            # The pruner stops the worst; the best are then named without regard to who was nameable in truth.
            pruned = _ranks(-means) < self.pruned.sum()
            return means, sds, pruned, means.argmax(axis=1)
        # The best of the redrawn search get the fresh seeds of those that had them in truth; the choice is among these.
        in_search = float(np.median(self.seeds[~self.confirmed])) if not self.confirmed.all() else 1.0
        search = there + self.seed_sd / np.sqrt(in_search) * self.rng.normal(size=shape)
        rank = _ranks(search)
        confirmed = rank < self.confirmed.sum()
        ordered = np.concatenate(
            [np.sort(self.seeds[self.confirmed])[::-1], np.sort(self.seeds[~self.confirmed])[::-1]]
        )
        seeds = ordered[rank]
        fresh = there + self.seed_sd / np.sqrt(seeds) * self.rng.normal(size=shape)
        means = np.where(confirmed, fresh, search)
        pruned = rank >= len(truth) - self.pruned.sum()
        return means, self._sd(seeds), pruned, np.where(rank < self.nameable.sum(), means, -np.inf).argmax(axis=1)

    def _sd(self, seeds: Floats) -> Floats:
        return np.asarray(np.sqrt(self.seed_sd**2 / seeds + self.shared))


def _ranks(values: Floats) -> NDArray[np.intp]:
    """(studies, n) place of each value in its row, the largest first."""
    return np.argsort(np.argsort(-values, axis=1), axis=1)


def _candidates(done: pd.DataFrame) -> NDArray[np.bool_]:
    """Points that may be named best: the confirmed ones if there are any, else all.

    Those with fewer than half the seeds of the best covered are out: racing or the rule for hopeless points ended them.
    """
    confirmed = done["confirmed"].to_numpy(dtype=bool)
    eligible = confirmed if confirmed.any() else np.ones(len(done), dtype=bool)
    n = done["n"].to_numpy()
    return np.asarray(eligible & (n >= n[eligible].max() / 2))


def _baseline(done: pd.DataFrame) -> int | None:
    rows = np.flatnonzero(done["baseline"].to_numpy(dtype=bool))
    return int(rows[0]) if len(rows) else None


def _reference(done: pd.DataFrame, observed: Floats, among: NDArray[np.bool_], best: int) -> int | None:
    """Whom the best is compared with: the baseline, else the runner-up."""
    baseline = _baseline(done)
    if baseline is not None and baseline != best:
        return baseline
    others = among.copy()
    others[best] = False
    return int(np.where(others, observed, -np.inf).argmax()) if others.any() else None


def _luck(
    tried: int,
    candidates: int,
    n: int,
    done: pd.DataFrame,
    confirmed: bool,
    noise: SeedNoise,
    between: float,
    rng: np.random.Generator,
) -> _Luck:
    """Redraw the selection with all points equal.

    Of `tried` search means only the top ones matter; their order statistics come from uniform spacings (Renyi 1953), so
    the cost does not grow with the number of trials.
    """
    top = _top_normals(tried, candidates if confirmed else 1, rng)
    if not confirmed:
        picked = np.sqrt(noise.sd**2 / n + between / 2) * top[:, 0]
    else:
        searched = done.loc[done["search_n"] > 0, "search_n"]
        in_search = noise.sd**2 / (float(searched.median()) if len(searched) else 1.0)
        total = in_search + between / 2
        # The part of a search mean that was the dev pairs' stays with the point; the seeds' is drawn afresh.
        kept = between / 2 / total * np.sqrt(total) * top
        rest = np.sqrt(between / 2 * in_search / total) * rng.normal(size=top.shape)
        picked = (kept + rest + noise.sd / np.sqrt(n) * rng.normal(size=top.shape)).max(axis=1)
    scale = np.sqrt(rng.chisquare(noise.df, DRAWS) / noise.df)
    return _Luck(picked, scale, noise.sd, n, between)


def _top_normals(total: int, top: int, rng: np.random.Generator) -> Floats:
    """(DRAWS, top) largest of `total` standard normal values, descending."""
    top = min(top, total)
    shares = rng.random((DRAWS, top)) ** (1 / (total - np.arange(top)))
    return np.asarray(ndtri(np.clip(np.cumprod(shares, axis=1), 1e-300, 1 - 1e-16)))


def _value_interval(observed: float, luck: _Luck, common: float, rng: np.random.Generator) -> tuple[float, float]:
    """LEVEL interval of the picked point's true value; `common` is the dev set's variance that all points share."""
    common = max(common, 0.0)
    shared = np.sqrt(common) * rng.normal(size=DRAWS)
    seeds = luck.seed_sd**2 / luck.n
    plain = np.sqrt(seeds + luck.between / 2) * rng.normal(size=DRAWS)
    error = np.sqrt(seeds * luck.scale**2 + luck.between / 2 + common)
    now = float(np.sqrt(seeds + luck.between / 2 + common))
    tail = (1 - LEVEL) / 2
    low = observed - now * float(np.quantile((luck.picked + shared) / error, 1 - tail))
    high = observed + now * float(np.quantile((plain + shared) / error, 1 - tail))
    return low, high


def _gain(
    baseline: pd.Series[Any],
    sign: float,
    observed: float,
    expected: float,
    luck: _Luck,
    rng: np.random.Generator,
) -> Gain:
    """Test and interval of best minus baseline; the baseline was not picked, so its mean needs no correction."""
    n = int(baseline["n"])
    value = sign * float(baseline["value"])
    difference = observed - value
    seeds = luck.seed_sd**2 * (1 / luck.n + 1 / n)
    own = np.sqrt(luck.seed_sd**2 / n + luck.between / 2) * rng.normal(size=DRAWS)
    error = np.sqrt(seeds * luck.scale**2 + luck.between)
    now = float(np.sqrt(seeds + luck.between))
    chance = (luck.picked - own) / error
    plain = np.sqrt(seeds + luck.between) * rng.normal(size=DRAWS) / error
    low = difference - now * float(np.quantile(chance, (1 + LEVEL) / 2))
    high = difference + now * float(np.quantile(plain, (1 + LEVEL) / 2))
    p_value = min(1.0, 2 * (1 + int((chance >= difference / now).sum())) / (1 + DRAWS))
    corrected = expected - value
    return Gain(
        value=corrected,
        low=min(low, corrected),
        high=max(high, corrected),
        p_value=p_value,
        significant=min(low, corrected) > 0,
        observed=difference,
        baseline=str(baseline["trial"]),
        baseline_value=sign * value,
        baseline_n=n,
    )
