"""Which configuration is best, its value corrected for selection, and whether it beats the baseline.

docs/statistics.md has the noise model and the formulas. A gain is claimed from a confirmation's fresh seeds only, its
level spent over the confirmations (Lan and DeMets 1983).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from analysis.errors import AnalysisError, InputError
from analysis.statistics.empirical_bayes import alike, posterior
from analysis.statistics.pairs import PairNoise, pair_noise
from analysis.statistics.picked import SEARCH_NOISE, EvaluatedPoints, SelectedPoint
from analysis.statistics.seed_noise import Prior, SeedNoise, SeedValues, learned, seed_noise, unknown_metric
from analysis.statistics.selection import CONFIDENCE, TAIL, EstimateError, Power, planned, spent
from analysis.tables.metric import Metric
from analysis.tables.study import Study, read_study
from search import schema
from trainables.contract.trial import retrieval_measure

Pairs = Callable[[Sequence[str], Sequence[str]], PairNoise | None]  # run ids of two points
RELATED = 5  # studies of the store that the prior of the seed noise is learned from


@dataclass(frozen=True)
class Gain:
    """Best minus baseline, larger is better; units of the metric.

    Attributes:
        value: corrected for selection.
        low, high: 95 % interval; `low` and `p_value` allow for selection and interim analyses.
        p_value, significant: two-sided, None where nothing was tested (before a confirmation, or with one seed of
            either); whether the gain is above 0 at this level.
        observed, paired: plain difference, over so many common seeds (0: fewer than two).
        baseline, baseline_value, baseline_n: its trial id, mean over its seeds, their number.
    """

    value: float
    low: float
    high: float
    p_value: float | None
    significant: bool
    observed: float
    paired: int
    baseline: str
    baseline_value: float
    baseline_n: int


@dataclass(frozen=True)
class Verdict:
    """The result of a study. Units of the metric.

    Attributes:
        metric, best, trial: what selects; point id, and its (first) trial.
        confirmed: whether it was tested on fresh seeds.
        value, sd, n: mean over its seeds (fresh ones if `confirmed`), standard deviation (None of one), their number.
        runner_up, runner_up_value: (first) trial of the second that could be named, unless that is the baseline, and
            its mean; None = there is none.
        expected, low, high: the value corrected for selection, its 95 % interval over seeds and dev pairs.
        naive: the best mean of the search.
        tried, candidates, p_best: points evaluated; those that could be named; probability of being the best of these.
        analyses: interim ones so far.
        below, above: how far the true value may lie from `expected`, larger is better, but for what the choice of dev
            pairs does to all points alike.
        gain, baseline_is_best: over the baseline, None without one, or if that is the best; whether it is.
        noise, pairs: of seeds; of the choice of dev pairs, None where it is not known.
        power: None where no gain was tested.
    """

    metric: Metric
    best: str
    trial: str
    confirmed: bool
    value: float
    sd: float | None
    n: int
    runner_up: str | None
    runner_up_value: float | None
    expected: float
    low: float
    high: float
    naive: float
    tried: int
    candidates: int
    p_best: float
    analyses: int
    below: float
    above: float
    gain: Gain | None
    baseline_is_best: bool
    noise: SeedNoise
    pairs: PairNoise | None
    power: Power | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the metric by its name."""
        return {**asdict(self), "metric": self.metric.name}


def judged(
    pool: EvaluatedPoints, seeds: SeedValues, metric: Metric, pairs_of: Pairs, *, analyses: int | None = None,
    prior: Prior | None = None,
) -> Verdict:  # fmt: skip
    """The verdict over points and their trials' values.

    Args: analyses: confirmations so far; None if that is not known: then every fresh seed after the first may have been
        one. prior: of the seed noise, the published one by default.
    Raises: AnalysisError if no trial has been completed.
    """
    sign = metric.sign
    if not pool.completed.any():
        raise AnalysisError("no trial has been completed, so none can be named best")
    pruned = ~pool.completed
    noise = seed_noise(seeds, int(pruned.sum()), prior)
    among = pool.nameable()
    best, baseline = pool.best(among), pool.reference()
    baseline_is_best = baseline == best
    second = pool.runner_up(among, best)
    rival = second not in (best, baseline)  # what the baseline has is the gain
    other = second if baseline is None or baseline_is_best else baseline
    pairs = pairs_of(pool.run_ids[best], pool.run_ids[other])
    picked = SelectedPoint.of(pool, among, best, noise, pairs)
    values = seeds.of_point(pool.point[best], picked.confirmed)
    observed = float(pool.value[best])

    sds = picked.sds(pool.n)
    cautious = sds * np.where(pool.confirmed, 1.0, SEARCH_NOISE)
    corrected = posterior(pool.value, cautious, pruned, picked.chosen(best, cautious))
    expected = min(float(corrected.mean[best]), observed)
    if picked.confirmed:
        ranked = posterior(pool.value, sds, pruned, picked.chosen(best, sds))
    else:
        ranked = alike(pool.value, sds, pruned)
    below, above = picked.interval(list(values.values()))
    low, high = sorted((sign * min(observed - below, expected), sign * (observed + above)))
    below, above = picked.arms(list(values.values()))
    analyses = max(1, picked.n - 1 if analyses is None else analyses) if picked.confirmed else 1
    gain, power = None, None
    if baseline is not None and not baseline_is_best:
        gain, power = _gain(pool, baseline, picked, seeds, values, observed - expected, spent(analyses), sign)
    return Verdict(
        metric=metric, best=str(pool.point[best]), trial=str(pool.trial[best]), confirmed=picked.confirmed,
        value=sign * observed, sd=float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None, n=picked.n,
        runner_up=str(pool.trial[second]) if rival else None,
        runner_up_value=sign * float(pool.value[second]) if rival else None,
        expected=sign * expected, low=low, high=high, naive=sign * pool.best_of_search(), tried=picked.tried,
        candidates=picked.candidates, p_best=float(ranked.probability_best(among)[best]), analyses=analyses,
        below=max(expected - observed + below, 0.0), above=observed - expected + above,
        gain=gain, baseline_is_best=baseline_is_best, noise=noise, pairs=pairs, power=power,
    )  # fmt: skip


def _gain(
    pool: EvaluatedPoints, baseline: int, picked: SelectedPoint, seeds: SeedValues, values: dict[Any, float],
    taken: float, level: float, sign: float,
) -> tuple[Gain, Power | None]:  # fmt: skip
    """Claim and interval of best minus baseline, which was not picked: its mean needs no correction. values: seed ->
    value of the best; taken: its correction for selection, which comes off the difference, too."""
    fresh = pool.confirmed[baseline] == picked.confirmed
    theirs = seeds.of_point(pool.point[baseline], picked.confirmed) if fresh else {}
    value, n = float(pool.value[baseline]), int(pool.n[baseline])
    difference, error, paired = picked.against(values, theirs, value, n)
    tested = picked.confirmed and min(picked.n, n) > 1
    above = EstimateError(error.variance, error.df, picked.between).bound(TAIL)
    below = error.bound(level) if tested else picked.below(above)
    low = min(difference - below, difference - taken)
    gain = Gain(
        value=difference - taken, low=low, high=difference + above,
        p_value=min(1.0, error.tail(difference) * (1 - CONFIDENCE) / level) if tested else None,
        significant=tested and low > 0, observed=difference, paired=paired, baseline=str(pool.trial[baseline]),
        baseline_value=sign * value, baseline_n=n,
    )  # fmt: skip
    return gain, Power.of(error, paired or min(picked.n, n), level) if tested else None


def study_verdict(study: Study) -> Verdict:
    """The verdict over a study of a store, whose other studies of the method and encoder give the prior of the noise.
    Its intervals end where the metric does. Raises: AnalysisError if no trial has been completed."""
    pool, seeds, pairs = _read(study)
    verdict = judged(pool, seeds, study.metric, pairs, analyses=study.confirmations, prior=study_prior(study))
    bottom, top = study.limits
    if (gain := verdict.gain) is not None:
        gain = replace(gain, low=max(gain.low, bottom - top), high=min(gain.high, top - bottom))
    return replace(verdict, low=max(verdict.low, bottom), high=min(verdict.high, top), gain=gain)


def _read(study: Study) -> tuple[EvaluatedPoints, SeedValues, Pairs]:
    def pairs(first: Sequence[str], second: Sequence[str]) -> PairNoise | None:
        return pair_noise(first, second, study.metric.parts, study.similarities)

    return EvaluatedPoints.of(study.points, study.metric.sign), SeedValues.of(study.trials, study.metric.sign), pairs


def study_prior(study: Study) -> Prior:
    """The prior of the seed noise that the store's other studies of the method, encoder and metric give, pooled with
    what was published of correlations; of a retrieval measure, a loss or a script's own metric nothing was."""
    if "prior" not in study.memo:
        published = study.known_metric and not any(map(retrieval_measure, study.metric.parts))
        before = None if published else unknown_metric(SeedValues.of(study.trials, study.metric.sign).firsts())
        study.memo["prior"] = learned(_related(study), before)
    return cast(Prior, study.memo["prior"])


def _related(study: Study) -> Iterator[SeedValues]:
    """The newest RELATED studies of the same method, encoder and metric that have repeated seeds."""
    alike = (schema.METHOD, schema.METRIC, schema.MODE)
    found = 0
    for run in study.store.studies():
        same = all(run.tags.get(tag) == study.stored.tags.get(tag) for tag in alike)
        same &= all(run.params.get(key) == study.stored.params.get(key) for key in ("encoder", "script"))
        repeated = run.params.get("search.repeats", "1") != "1"
        repeated |= any(tag.startswith(schema.CONFIRMATION) for tag in run.tags)
        if same and repeated and run.run_id != study.stored.run_id and (runs := study.store.trials(run)):
            with suppress(InputError):  # it selected by the same metric, but never measured this one
                other = read_study(study.store, run, study.metric, runs)
                found += 1
                yield SeedValues.of(other.trials, study.metric.sign)
        if found == RELATED:
            return


@dataclass(frozen=True)
class ConfirmForecast:
    """points: to be run on `seeds` fresh seeds each, with the baseline. trials: those that are not there yet. seconds:
    median training time of a trial. analysis: its number as an interim analysis. power: None without a baseline."""

    points: int
    seeds: int
    trials: int
    seconds: float
    analysis: int
    noise: SeedNoise
    pairs: PairNoise | None
    power: Power | None


def confirm_forecast(study: Study, top: int, seeds: int) -> ConfirmForecast:
    """Which gain confirming the baseline and the `top` best other points on `seeds` fresh seeds could detect.
    Raises: AnalysisError if no trial of the search has been completed."""
    pool, values, pairs_of = _read(study)
    searched = [i for i in range(len(pool.value)) if pool.completed[i] and pool.search_n[i] > 0]
    if not searched:
        raise AnalysisError("no trial of the search has been completed, so there is nothing to confirm")
    baseline = pool.reference()
    rivals = sorted((i for i in searched if i != baseline), key=lambda i: -pool.search_value[i])[:top]
    chosen = rivals if baseline is None else [*rivals, baseline]
    done = [min(len(values.of_point(pool.point[i], confirm=True)), seeds) for i in chosen]
    noise = seed_noise(values, int((~pool.completed).sum()), study_prior(study))
    pairs = power = None
    analysis = (study.confirmations or 0) + 1
    if baseline is not None and rivals:
        pairs = pairs_of(pool.run_ids[rivals[0]], pool.run_ids[baseline])
        between, tried = pairs.between if pairs else 0.0, len(pool.value)
        error = planned(
            sd=noise.sd, between=between, tried=tried, in_search=pool.in_search(), rivals=len(rivals), seeds=seeds
        )
        power = Power.of(error, seeds, spent(analysis))
    seconds = float(study.trials.loc[study.trials["stop"] == "completed", "seconds"].median())
    return ConfirmForecast(len(chosen), seeds, len(chosen) * seeds - sum(done), seconds, analysis, noise, pairs, power)
