"""The verdict on a study as it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from analysis.errors import InputError
from analysis.statistics.evaluated import SeedValues
from analysis.statistics.seed_noise import Prior, learned, unknown_metric
from analysis.statistics.verdict import Verdict, judge
from analysis.tables.study import Study, read_study
from search import schema

RELATED = 5  # studies of the store that the prior of the seed noise is learned from


def study_verdict(study: Study) -> Verdict:
    """The verdict over a study of a store, whose other studies of the method and encoder give the prior of the noise.

    Its intervals end where the metric and differences of it do.

    Raises: AnalysisError if no trial has been completed.
    """
    verdict = judge(
        study.trials,
        study.points,
        study.metric,
        study.similarities,
        looks=study.confirmations,
        prior=study_prior(study),
    )
    bottom, top = study.limits
    gain = verdict.gain
    if gain is not None:
        gain = replace(gain, low=max(gain.low, bottom - top), high=min(gain.high, top - bottom))
    return replace(verdict, low=max(verdict.low, bottom), high=min(verdict.high, top), gain=gain)


def study_prior(study: Study) -> Prior:
    """The prior of the seed noise that the store's other studies of the method, encoder and metric give, beside what
    was published of correlations; of a loss or a script's own metric nothing was."""
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
