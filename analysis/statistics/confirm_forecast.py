"""Which gain a confirmation that is yet to be paid for could see."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.errors import AnalysisError
from analysis.statistics.evaluated import Evaluated, SeedValues
from analysis.statistics.pair_noise import PairNoise, pair_noise
from analysis.statistics.picked import Picked
from analysis.statistics.power import Power, forecast
from analysis.statistics.seed_noise import SeedNoise, seed_noise
from analysis.statistics.selection import spent
from analysis.statistics.study_verdict import study_prior
from analysis.tables.study import Study


@dataclass(frozen=True)
class ConfirmForecast:
    """points: to be run on `seeds` fresh seeds each, the baseline included. trials: those that are not there yet.

    seconds: median training time of a completed trial. look: the how-manieth look at figures that allow a claim it
    would be. power: None without a completed baseline, over which a gain could be claimed.
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
    """What confirming the `top` best points and the baseline on `seeds` fresh seeds could show.

    The points are those that the search would confirm: the best by what the search alone measured.

    Raises: AnalysisError if no trial of the search has been completed.
    """
    sign = study.metric.sign
    pool, values = Evaluated.of(study.points, sign), SeedValues.of(study.trials, sign)
    searched = [i for i in range(len(pool.value)) if pool.completed[i] and pool.search_n[i] > 0]
    if not searched:
        raise AnalysisError("no trial of the search has been completed, so there is nothing to confirm")
    best = sorted(searched, key=lambda i: -pool.search_value[i])
    baseline = pool.reference()
    chosen = best[:top] if baseline is None else [*dict.fromkeys([*best[:top], baseline])]
    rivals = [i for i in chosen if i != baseline]
    done = [min(len(values.of_point(pool.point[i], confirm=True)), seeds) for i in chosen]
    noise = seed_noise(values, int((~pool.completed).sum()), study_prior(study))
    pairs = power = None
    look = (study.confirmations or 0) + 1 + values.search_repeats()
    if baseline is not None and rivals:
        pairs = pair_noise(pool.run_ids[rivals[0]], pool.run_ids[baseline], study.metric.parts, study.similarities)
        in_search = Picked.of(pool, pool.nameable(), best[0], noise, pairs).in_search
        power = forecast(
            sd=noise.sd,
            between=pairs.between if pairs else 0.0,
            tried=len(pool.value),
            in_search=in_search,
            rivals=len(rivals),
            seeds=seeds,
            level=spent(look),
        )
    seconds = study.trials.loc[study.trials["stop"] == "completed", "seconds"].median()
    return ConfirmForecast(
        len(chosen), seeds, len(chosen) * seeds - sum(done), float(seconds), look, noise, pairs, power
    )
