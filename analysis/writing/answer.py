"""The answer in words: a study's state, its verdict and forecasts.

Values are times the metric's scale (correlations x 100), one statement a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis.checkpoints.choice import TEST_SET, way_to_export, way_to_test
from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.seed_noise import SeedNoise
from analysis.statistics.selection import CONFIDENCE, POWER, Power
from analysis.statistics.verdict import ConfirmForecast, Gain, Verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study, held, untrained
from analysis.tables.trials import PARAM
from analysis.writing.output import missing_value, paragraphs, short
from search.schema import CONFIRMATION_TRIALS, DEV_SUFFIX
from trainables.contract.trial import at_width, retrieval_measure
from trainables.data.catalogue import set_name

Number = Callable[..., str]  # of a value, and of the sign to show: "" or "+"
SMALLEST_P = 1e-4  # below it the tails of the noise model are not known
PERCENT = f"{CONFIDENCE:.0%}".replace("%", " %")


def two_decimals(scale: float) -> Number:
    return lambda value, sign="": f"{value * scale:{sign}.2f}"


def state_lines(study: Study) -> list[str]:
    """What the study is, how its trials ended, and whether it is still going on."""
    counts = study.counts()
    ended = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    method = study.stored.tags.get("method", "")
    lines = [f"Study {study.name}{f' ({method})' if method else ''}: {len(study.trials)} trials: {ended}."]
    given = {
        "sampler": study.stored.params.get("search.sampler.class"),
        "pruner": study.stored.params.get("pruner.class"),
    }
    if own := [f"{kind} {name.rpartition('/')[2]}" for kind, name in given.items() if name]:  # not one that is shipped
        lines[0] += f" Searched with {' and '.join(own)}."
    if not study.finished:
        done = sum(n for kind, n in counts.items() if kind != "running")
        seeds = len(study.trials) > study.trials["point"].nunique()  # planned are points, and these are trials
        of = f" of {study.planned}" if study.planned and not seeds else ""
        again = f" `{study.command('search resume')}` goes on." if study.stored.status == "KILLED" else ""
        lines.append(f"Not finished: {done}{of} trials have ended; the figures are of those.{again}")
    failed = study.trials.loc[study.trials["stop"].str.startswith("failed"), "stop"].value_counts()
    if len(failed):
        kinds = ", ".join(f"{n} {kind.removeprefix('failed:')}" for kind, n in failed.items() if isinstance(kind, str))
        lines.append(f"Failures by kind: {kinds}.")
    return lines


def value_unit(study: Study) -> str:
    """What the values of the metric are, in a sentence; "" of one that is printed as it is."""
    if study.metric.scale != 100:
        return ""
    if study.space.get("script"):  # only the script defines what it measures
        return f"Values are {study.metric.name} as the script reports it, x 100."
    sets = (study.space.get("data") or {}).get("dev") or ()
    pairs = {set_name(name) + DEV_SUFFIX for name in sets}
    kinds = dict.fromkeys(
        retrieval_measure(part) or ("Spearman correlations" if at_width(part)[0] in pairs or not sets else part)
        for part in study.metric.parts
    )
    return f"Values are {'means of ' if len(kinds) > 1 else ''}{' and '.join(kinds)} x 100."


def unit_lines(study: Study) -> list[str]:
    """What the numbers of a ranking are; its gain is measured, that of the verdict corrected for the choice."""
    unit = [text] if (text := value_unit(study)) else []
    if study.metric.name != study.selecting:
        unit.append(
            f"Ranked by {study.metric.name}; {study.selecting} selected, and by that `search confirm`, "
            "`analysis export` and `analysis test` choose."
        )
    gain = f"The column gain is the measured difference to {study.baseline_name}; the line Gain corrects for selection."
    return [*unit, gain] if study.trials["baseline"].any() else unit


Line = tuple[str, str]  # label and text


def answer(study: Study, verdict: Verdict) -> list[Line]:
    """The answer, one statement a line; values times the metric's scale."""
    v, number = verdict, _rounded(verdict.metric)
    before, _ = untrained_values(study, v)
    held_best, held_gain = held_out_values(study, v)
    command, missing = way_to_export(study, v.best)
    lines = [
        ("Best", f"{_point(v.trial)}: {_params(study, v.best)}"),
        ("Dev", _dev(v, number, study.selecting)),
        ("Untrained", _untrained(v, before, number) if before is not None else ""),
        ("Held out", f"{number(held_best)}, not used for selection" if held_best is not None else ""),
        ("Gain", _gain(v, number, study, held_gain)),
        ("Runner-up", _runner_up(v, number) if v.confirmed and _compared(study) else ""),
        ("Limits", _limits(v.power, number) if v.power else ""),
        ("Next", _next(study, v, command)),
        ("Weights", missing),
    ]
    return [(label, text) for label, text in lines if text]


def block(lines: Sequence[Line], width: int | None = None) -> str:
    """Labels in a column; `width`: of the terminal, at which texts continue below themselves."""
    indent = max(len(label) for label, _ in lines) + 2
    wrapped = [
        paragraphs([text], width and max(width - indent, 20)).replace("\n", "\n" + " " * indent) for _, text in lines
    ]
    return "\n".join(f"{label:<{indent}}{text}" for (label, _), text in zip(lines, wrapped, strict=True))


def _rounded(metric: Metric) -> Number:
    """One decimal of what is shown x 100, else three digits that count."""
    if metric.scale == 100:
        return lambda value, sign="": f"{value * metric.scale:{sign}.1f}"
    return lambda value, sign="": f"{value * metric.scale:{sign}.3g}"


def _point(trial: str) -> str:
    """A trial's name without the number of its seed."""
    return trial.partition(".")[0]


def _params(study: Study, point: str) -> str:
    (row,) = study.points[study.points["point"] == point].to_dict("records")
    found = {name: row.get(PARAM + name) for name in study.searched}
    return (
        ", ".join(f"{name} {short(value)}" for name, value in found.items() if not missing_value(value))
        or "no parameters"
    )


def _dev(v: Verdict, number: Number, selecting: str) -> str:
    fresh = "fresh " if v.confirmed else ""
    sd = f", sd {number(v.sd)}" if v.sd is not None else ""
    seeds = f"one {fresh}seed" if v.n == 1 else f"mean of {v.n} {fresh}seeds"
    name = f"{v.metric.name} " if v.metric.name != selecting else ""
    chosen = f"; {selecting} selected" if name else ""
    corrected = f"; {number(v.expected)} corrected for selection" if number(v.expected) != number(v.value) else ""
    over = "" if v.pairs else " over seeds alone"
    interval = f"{PERCENT} CI {number(v.low)} to {number(v.high)}{over}"
    return f"{name}{number(v.value)} ({seeds}{sd}{chosen}){corrected}, {interval}"


def _untrained(v: Verdict, before: float, number: Number) -> str:
    """The value before training, and whether the best is not above it, or may not be on other seeds."""
    sign = v.metric.sign
    not_above, unclear = sign * v.value <= sign * before, sign * v.expected - v.below <= sign * before
    note = "; the best is not above it" if not_above else "; the best may not be above it" if unclear else ""
    return f"{number(before)} on the same dev set{note}"


def _next(study: Study, v: Verdict, export: str | None) -> str:
    """The confirmation while the gain is not tested; then the export, after the test where none was made. A point that
    is best by another metric is no result to confirm or test."""
    untested = v.gain.p_value is None if v.gain is not None else v.baseline_is_best
    if untested and not v.confirmed and study.metric.name == study.selecting:
        return study.command("search confirm")
    if not export:
        return ""
    test = way_to_test(study) if study.metric.name == study.selecting else None
    if test and test.endswith(TEST_SET):
        return f"{export} (with a test set, before that: {test})"
    return f"{test} && {export}" if test else export


def _gain(v: Verdict, number: Number, study: Study, held: float | None) -> str:
    baseline, g = study.baseline_name, v.gain
    if g is None and v.baseline_is_best:
        return f"none: no configuration came out above {baseline}{'' if v.confirmed else '; not confirmed'}"
    if g is None:
        return f"unknown: no trial of {baseline} was completed"
    outside = f" (held out: {number(held, '+')})" if held is not None else ""
    if g.p_value is None:
        seeds = "one seed" if min(v.n, g.baseline_n) == 1 else f"the search's {v.n} seeds"
        if v.confirmed:
            return f"{number(g.value, '+')} over {baseline}, estimated from {seeds}{outside}: not tested"
        cost = _cost(CONFIRMATION_TRIALS * _trial_seconds(study))
        does = f"a confirmation takes at most {cost} of training, summed over trials"
        if v.metric.name != study.selecting:
            does = f"{study.command('search confirm')} confirms what {study.selecting} selected"
        return f"{number(g.value, '+')} over {baseline}, estimated from {seeds}{outside}: not tested; {does}"
    figures = f"{number(g.value, '+')} over {baseline}, {PERCENT} CI {number(g.low, '+')} to {number(g.high, '+')}"
    return f"{figures}: significant{outside}" if g.significant else f"Inconclusive: {figures}{outside}"


def _runner_up(v: Verdict, number: Number) -> str:
    if v.runner_up is None or v.runner_up_value is None:
        return ""
    second = f"{_point(v.runner_up)} ({number(v.runner_up_value)})"
    if v.p_best >= CONFIDENCE:
        return second
    if v.p_best < 1 / v.candidates:  # less than by chance
        return f"{second} may be as good"
    return f"{second} may be as good; best of the {v.candidates} confirmed with probability {v.p_best:.2f}"


def _limits(power: Power, number: Number) -> str:
    if not power.seeds_help:
        return f"gains below {number(power.floor)} cannot be detected with this dev set; more seeds will not help"
    now = f"gains below {number(power.visible)} cannot be detected with this dev set and {power.seeds} seeds"
    return f"{now}; {power.more} seeds would detect {number(power.visible_more)}"


def _trial_seconds(study: Study) -> float:
    """Median training time of the completed trials."""
    return float(study.trials.loc[study.trials["stop"] == "completed", "seconds"].median())


def _cost(seconds: float) -> str:
    """`about 2 minutes` of training."""
    if seconds >= 3600:
        return f"about {seconds / 3600:.1f} hours"
    return f"about {seconds / 60:.0f} minutes" if seconds >= 90 else "about a minute"


def explain_lines(study: Study, verdict: Verdict) -> list[str]:
    """What the answer rests on, one statement a line; values times the metric's scale, with two decimals."""
    v, number = verdict, two_decimals(verdict.metric.scale)
    lines = [f"Value: {number(v.value)} measured; {number(v.expected)} {_correction(study, v, number)}."]
    before, gained = untrained_values(study, v)
    if before is not None and gained is not None:
        corrected = gained - v.metric.sign * (v.value - v.expected)
        improvement = f"improvement from training {number(gained, '+')}, corrected {number(corrected, '+')}"
        lines.append(f"Untrained: {number(before)} on the same dev set; {improvement}.")
    of = f"{v.candidates} {'confirmed' if v.confirmed and _compared(study) else 'completed'}"
    lines.append(f"Probability that {_point(v.trial)} is the best of the {of}: {v.p_best:.2f}.")
    if v.gain is not None:
        lines.append(_gain_details(v.gain, v.analyses, number, study.baseline_name))
    if v.power:
        lines.append(f"Power: {_power_text(v.power, number)}.")
    lines.append(_noise_line(v.noise, v.metric, number))
    over = f"seeds and {v.pairs.what}" if v.pairs else "seeds alone: values per pair or query are not stored"
    lines.append(f"Intervals: {PERCENT}, over {over}.")
    return lines


def _gain_details(g: Gain, analyses: int, number: Number, baseline: str) -> str:
    figures = (
        f"Gain: {number(g.observed, '+')} measured over {baseline} ({number(g.baseline_value)}, {_point(g.baseline)}); "
        f"corrected {number(g.value, '+')}, {PERCENT} CI {number(g.low, '+')} to {number(g.high, '+')}"
    )
    if g.p_value is None:
        return f"{figures}; not tested before a confirmation on fresh seeds of both."
    p = f"p = {g.p_value:.2g}" if g.p_value >= SMALLEST_P else f"p < {SMALLEST_P:g}"
    paired = f", paired over {g.paired} seeds" if g.paired else ""
    return f"{figures}; {p}{paired}, interim analysis {analyses}."


def held_out_values(study: Study, verdict: Verdict) -> tuple[float | None, float | None]:
    """Of the best on the held-out dev pairs, and its difference to the baseline there, larger is better."""
    if (best := held(study, verdict.best)) is None:
        return None, None
    base = study.points.loc[study.points["baseline"], "point"]
    other = held(study, str(base.iloc[0])) if len(base) and base.iloc[0] != verdict.best else None
    return best.held, None if other is None else verdict.metric.sign * (best.held - other.held)


def untrained_values(study: Study, verdict: Verdict) -> tuple[float | None, float | None]:
    """Of the best's encoder before training, and the best's difference to it as measured, larger is better."""
    before = untrained(study, verdict.best)
    return before, None if before is None else verdict.metric.sign * (verdict.value - before)


def _compared(study: Study) -> bool:
    """Whether a point beside the baseline is confirmed: else the best was named among all completed ones."""
    points = study.points
    return bool((points["confirmed"] & (points["stop"] == "completed") & ~points["baseline"]).any())


def _source(noise: SeedNoise) -> str:
    """What the seed noise rests on: the study's own repeats, other studies, or a published figure."""
    prior = noise.prior
    others = f"{prior.studies} other stud{'ies' if prior.studies > 1 else 'y'} of this method and encoder"
    assumed = f"{others} with repeated seeds" if prior.studies else "50 seeds of SimCSE on BERT-base"
    if prior.points == 1:
        assumed = "as large as the only value"
    elif prior.points:
        assumed = f"the spread of the {prior.points} points, an upper bound"
    if not noise.repeats:
        return f"assumed, since no seed was repeated: {assumed}"
    freedom = f"{noise.repeats} degree{'s' if noise.repeats > 1 else ''} of freedom"
    if not prior.weight(noise.repeats):
        return f"from repeated seeds, {freedom}"
    return f"from repeated seeds, {freedom}, and {PRIOR_DF:.0f} more from the prior: {assumed}"


def _noise_line(noise: SeedNoise, metric: Metric, number: Number) -> str:
    """How much the seed alone moves a value, and how that is known."""
    points = "percentage points" if metric.scale == 100 else "units"
    return f"Seed noise: standard deviation of {number(noise.sd)} {points} ({_source(noise)})."


def _power_text(power: Power, number: Number) -> str:
    """Which gain a confirmation detects, and what would lower it."""
    seen = f"{POWER:.0%} of confirmations".replace("%", " %")
    now = f"with this dev set and {power.seeds} seeds, {seen} detect a gain of {number(power.visible)}"
    if not power.seeds_help:
        return f"{now}; no number of seeds detects gains below {number(power.floor)}"
    more = f"{now}; {power.more} seeds would detect {number(power.visible_more)}"
    return f"{more}, no number of seeds gains below {number(power.floor)}" if power.floor > 0 else more


def _correction(study: Study, v: Verdict, number: Number) -> str:
    """For what the measured value is corrected."""
    if v.tried == 1:
        return "with no correction: one configuration was tried"
    if v.confirmed:
        among = "confirmed" if _compared(study) else "completed, of which only the baseline was confirmed,"
        return (
            f"corrected for the choice among {v.candidates} {among} on the same dev data; the best single mean of "
            f"the search, of {v.tried}, was {number(v.naive)}"
        )
    basis = "" if v.noise.repeats else ", with the largest seed noise that is plausible"
    return f"corrected for picking the best of {v.tried}{basis}"


def forecast_lines(found: ConfirmForecast, study: Study) -> list[str]:
    """One statement a line; values times the metric's scale."""
    number = two_decimals(study.metric.scale)
    cost = _cost(found.trials * found.seconds)
    lines = [
        f"{study.name}: {found.points} points on {found.seeds} fresh seeds, {found.trials} trials, {cost} of training "
        f"at {found.seconds:.0f} s a trial."
    ]
    if found.power is None:
        lines.append("No gain can be tested: the baseline has no completed trial, or is the only point to confirm.")
    else:
        lines.append(_power(found, number))
        if found.analysis > 1:
            which = found.analysis
            lines.append(f"This is interim analysis {which} of the study: it is tested at the level that is left.")
    lines.append(_noise_line(found.noise, study.metric, number))
    if found.power and found.pairs is None:
        lines.append("The power ignores the choice of dev pairs: values per pair are not stored.")
    return lines


def _power(found: ConfirmForecast, number: Number) -> str:
    """Without repeated seeds all that two models differ by counts as the dev pairs' doing: an upper bound."""
    assert found.power is not None
    bound = " Until seeds are repeated, these are upper bounds." if found.pairs and not found.noise.repeats else ""
    return f"Power: {_power_text(found.power, number)}.{bound}"
