"""The verdict in words: the lines under a table, in a report, in a note."""

from __future__ import annotations

from collections.abc import Callable

from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.seed_noise import SeedNoise
from analysis.statistics.selection import LEVEL, Power
from analysis.statistics.verdict import Verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study, held

SMALLEST_P = 1e-4  # below it the tails of the noise model are not known
PERCENT = f"{LEVEL:.0%}".replace("%", " %")


def verdict_lines(
    verdict: Verdict, study: str, baseline: str = "the paper's setting", selecting: str | None = None
) -> list[str]:
    """The verdict, one statement a line; values times the metric's scale, as in the tables.

    Args: baseline: what the baseline point is (`Study.baseline_name`); selecting: the metric that selected
        (`Study.selecting`), where it may be another one.
    """
    v = verdict

    def number(value: float, sign: str = "") -> str:
        return f"{value * v.metric.scale:{sign}.2f}"

    fresh = "fresh " if v.confirmed else ""
    seeds = f"one {fresh}seed" if v.n == 1 else f"mean of {v.n} {fresh}seeds"
    lines = [f"Best: {v.trial}, {v.metric.name} {number(v.value)} ({seeds})."]
    over = f"seeds and {v.pairs.what}" if v.pairs else "seeds"
    lines.append(
        f"Expected value: {number(v.expected)}, {_correction(v, number)}; "
        f"{PERCENT} interval {number(v.low)} to {number(v.high)} over {over}."
    )
    lines.append(_probability(v))
    lines.append(_gain_line(v, number, study, baseline))
    if v.power:
        lines.append(f"{power_text(v.power, number)}.")
    lines.append(noise_line(v.noise, v.metric, number))
    if v.pairs is None:
        lines.append(
            "The choice of dev data is not in these figures, that of seeds is: no values per pair or query are at hand."
        )
    if not v.confirmed:
        other = selecting is not None and selecting != v.metric.name
        does = f"confirms what {selecting} chose" if other else "does that"
        lines.append(f"Not confirmed on fresh seeds; `search confirm {study}` {does}.")
    return lines


def held_lines(study: Study, verdict: Verdict) -> list[str]:
    """What the held-out dev pairs say of the best and of the baseline, where the space holds some out."""
    if (best := held(study, verdict.best)) is None:
        return []
    scale = verdict.metric.scale
    lines = f"On the dev pairs held out, by which nothing was chosen: {scale * best.held:.2f} for the best"
    base = study.points.loc[study.points["baseline"], "point"]
    other = held(study, str(base.iloc[0])) if len(base) and base.iloc[0] != verdict.best else None
    if other is None:
        return [f"{lines} ({scale * best.selecting:.2f} on those that selected)."]
    sign = verdict.metric.sign
    return [
        f"{lines}, {scale * other.held:.2f} for {study.baseline_name}: "
        f"{scale * sign * (best.held - other.held):+.2f}, and {scale * sign * (best.selecting - other.selecting):+.2f} "
        f"as measured on those that selected ({scale * best.selecting:.2f}, {scale * other.selecting:.2f})."
    ]


def _probability(v: Verdict) -> str:
    of = f"{v.candidates} {'confirmed' if v.confirmed else 'completed'}"
    return f"Probability of being the best of the {of}: {v.p_best:.2f}."


def _source(noise: SeedNoise) -> str:
    """What the seed noise rests on: the study's own repeats, other studies, or a published figure."""
    prior = noise.prior
    others = f"{prior.studies} other stud{'ies' if prior.studies > 1 else 'y'} of this method and encoder"
    believed = f"{others} with repeated seeds" if prior.studies else "50 seeds of SimCSE on BERT-base"
    if prior.points == 1:
        believed = "as large as the one value that there is"
    elif prior.points:
        believed = f"as much as the {prior.points} points differ by, since nothing is known of this metric"
    if not noise.repeats:
        return f"assumed, no seed was repeated: {believed}"
    freedom = f"{noise.repeats} degree{'s' if noise.repeats > 1 else ''} of freedom"
    if not prior.weight(noise.repeats):
        return f"from repeated seeds, {freedom}"
    return f"from repeated seeds, {freedom}, and {PRIOR_DF:.0f} more for what was believed before: {believed}"


def noise_line(noise: SeedNoise, metric: Metric, number: Callable[..., str]) -> str:
    """How much the seed alone moves a value, and how that is known."""
    points = "points" if metric.scale == 100 else "units"
    return f"Noise: {number(noise.sd)} {points} standard deviation by the seed alone ({_source(noise)})."


def power_text(power: Power, number: Callable[..., str]) -> str:
    """What can be seen, and what would make more visible."""
    now = f"With this dev data and {power.seeds} seeds a gain below {number(power.visible)} is likely to stay unseen"
    if not power.seeds_help:
        return f"{now}; more seeds will not help, the dev set is too small for less than {number(power.floor)}"
    more = f"{power.more - power.seeds} more seeds would make it {number(power.visible_more)}"
    limit = f", no number of seeds less than {number(power.floor)}" if power.floor > 0 else ""
    return f"{now}; {more}{limit}"


def _correction(v: Verdict, number: Callable[..., str]) -> str:
    """What was taken off the value measured, and why: the best of many was also lucky."""
    taken = v.metric.sign * (v.value - v.expected)
    measured = f"the {number(v.value)} measured"
    if v.confirmed:
        most = f"the best single mean of the search, of {v.tried}, was {number(v.naive)}"
        if number(v.expected) == number(v.value):
            return f"as measured on the fresh seeds ({most})"
        less = f"{number(taken)} {'below' if v.metric.sign > 0 else 'above'} {measured}"
        return f"{less}, corrected for the choice among {v.candidates} confirmed on the same dev data ({most})"
    if v.tried == 1:
        return "as measured: there was nothing to choose from"
    basis = "" if v.noise.repeats else ", for the largest seed noise that is plausible"
    return (
        f"an estimate, corrected for picking the best of {v.tried}{basis}: {number(taken)} of {measured} are put down "
        "to luck"
    )


def _gain_line(v: Verdict, number: Callable[..., str], study: str, baseline: str) -> str:
    if v.gain is None:
        if v.baseline_is_best:
            passed_over = v.candidates < v.tried and v.metric.sign * (v.naive - v.value) > 0
            what = "of those that have the seeds to be named none" if passed_over else "nothing"
            return f"No significant gain: {what} came out above {baseline}."
        return f"Gain over {baseline}: unknown, the study has no completed baseline trial."
    g = v.gain
    figures = (
        f"{number(g.value, '+')} over {baseline} ({number(g.baseline_value)}, {g.baseline}), "
        f"{PERCENT} interval {number(g.low, '+')} to {number(g.high, '+')}"
    )
    if g.p_value is None:
        return (
            f"No claim of a gain can rest on one seed: an estimate of {figures}; repeated seeds decide, "
            f"`search confirm {study}` runs them."
        )
    looks = f", allowing for {v.looks} looks" if v.looks > 1 else ""
    paired = f", paired over {g.paired} seeds" if g.paired else ""
    p = f"p = {g.p_value:.2g}" if g.p_value >= SMALLEST_P else f"p < {SMALLEST_P:g}"
    return f"{'Significant' if g.significant else 'No significant'} gain: {figures}, {p}{looks}{paired}."
