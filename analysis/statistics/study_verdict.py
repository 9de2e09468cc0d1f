"""The verdict on a study as it is stored, and which gain a confirmation of it could detect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from analysis.errors import AnalysisError, InputError
from analysis.statistics.pairs import PairNoise, pair_noise
from analysis.statistics.picked import Evaluated
from analysis.statistics.seed_noise import Prior, SeedNoise, SeedValues, learned, seed_noise, unknown_metric
from analysis.statistics.selection import Power, planned, spent
from analysis.statistics.verdict import Verdict, judged
from analysis.tables.study import Study, read_study
from search import schema

RELATED = 5  # studies of the store that the prior of the seed noise is learned from


def study_verdict(study: Study) -> Verdict:
    """The verdict over a study of a store, whose other studies of the method and encoder give the prior of the noise.

    Its intervals end where the metric and differences of it do.

    Raises: AnalysisError if no trial has been completed.
    """

    def pairs(first: Sequence[str], second: Sequence[str]) -> PairNoise | None:
        return pair_noise(first, second, study.metric.parts, study.similarities)

    pool, seeds = Evaluated.of(study.points, study.metric.sign), SeedValues.of(study.trials, study.metric.sign)
    verdict = judged(pool, seeds, study.metric, pairs, looks=study.confirmations, prior=study_prior(study))
    bottom, top = study.limits
    gain = verdict.gain
    if gain is not None:
        gain = replace(gain, low=max(gain.low, bottom - top), high=min(gain.high, top - bottom))
    return replace(verdict, low=max(verdict.low, bottom), high=min(verdict.high, top), gain=gain)


def study_prior(study: Study) -> Prior:
    """The prior of the seed noise that the store's other studies of the method, encoder and metric give, pooled with
    what was published of correlations; of a loss or a script's own metric nothing was."""
    if study.known_metric:
        return learned(_related(study))
    return learned(_related(study), unknown_metric(SeedValues.of(study.trials, study.metric.sign).firsts()))


def _related(study: Study) -> Iterator[SeedValues]:
    """The newest RELATED studies of the same method, encoder and metric that have repeated seeds."""
    alike = (schema.METHOD, schema.METRIC, schema.MODE)
    found = 0
    for run in study.store.studies():
        same = all(run.tags.get(tag) == study.stored.tags.get(tag) for tag in alike)
        same &= all(run.params.get(key) == study.stored.params.get(key) for key in ("encoder", "script"))
        repeated = run.params.get("search.repeats", "1") != "1" or any(
            t.startswith(schema.CONFIRMATION) for t in run.tags
        )
        if not same or not repeated or run.run_id == study.stored.run_id:
            continue
        if runs := study.store.trials(run):
            try:
                other = read_study(study.store, run, study.metric, runs)
            except InputError:  # it selected by the same metric, but never measured the one that is asked for
                continue
            yield SeedValues.of(other.trials, study.metric.sign)
            found += 1
        if found == RELATED:
            return


@dataclass(frozen=True)
class ConfirmForecast:
    """points: to be run on `seeds` fresh seeds each, the baseline included. trials: those that are not there yet.

    seconds: median training time of a completed trial. look: which interim analysis that allows a claim it would be.
    power: None without a completed baseline, over which a gain could be claimed.
    """

    points: int
    seeds: int
    trials: int
    seconds: float
    look: int
    noise: SeedNoise
    pairs: PairNoise | None
    power: Power | None


def confirm_forecast(study: Study, top: int, seeds: int) -> ConfirmForecast:
    """Which gain confirming the `top` best points and the baseline on `seeds` fresh seeds could detect.

    The points are those that the search would confirm: the best by what the search alone measured.

    Raises: AnalysisError if no trial of the search has been completed.
    """
    pool, values = Evaluated.of(study.points, study.metric.sign), SeedValues.of(study.trials, study.metric.sign)
    searched = [i for i in range(len(pool.value)) if pool.completed[i] and pool.search_n[i] > 0]
    if not searched:
        raise AnalysisError("no trial of the search has been completed, so there is nothing to confirm")
    best = sorted(searched, key=lambda i: -pool.search_value[i])[:top]
    baseline = pool.reference()
    chosen = best if baseline is None else [*dict.fromkeys([*best, baseline])]
    rivals = [i for i in chosen if i != baseline]
    done = [min(len(values.of_point(pool.point[i], confirm=True)), seeds) for i in chosen]
    noise = seed_noise(values, int((~pool.completed).sum()), study_prior(study))
    pairs = power = None
    look = (study.confirmations or 0) + 1 + values.search_repeats()
    if baseline is not None and rivals:
        pairs = pair_noise(pool.run_ids[rivals[0]], pool.run_ids[baseline], study.metric.parts, study.similarities)
        error = planned(
            sd=noise.sd,
            between=pairs.between if pairs else 0.0,
            tried=len(pool.value),
            in_search=pool.in_search(),
            rivals=len(rivals),
            seeds=seeds,
        )
        power = Power.of(error, seeds, spent(look))
    seconds = float(study.trials.loc[study.trials["stop"] == "completed", "seconds"].median())
    return ConfirmForecast(len(chosen), seeds, len(chosen) * seeds - sum(done), seconds, look, noise, pairs, power)
