"""The answer in words: a study's state, its verdict, gains on test sets, forecasts, leagues, tables of papers.

Values are times the metric's scale (correlations x 100), one statement a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis.statistics.empirical_bayes import PRIOR_DF
from analysis.statistics.league import CONFIRMED, SEARCHED, League
from analysis.statistics.pairs import PairedGain
from analysis.statistics.seed_noise import SeedNoise
from analysis.statistics.selection import LEVEL, POWER, Power
from analysis.statistics.verdict import ConfirmForecast, Verdict
from analysis.tables.metric import Metric
from analysis.tables.study import Study, held
from analysis.writing.output import text_table
from search.schema import DEV_SUFFIX
from trainables.contract.trial import retrieval_measure
from trainables.data.catalogue import set_name

Number = Callable[..., str]  # of a value, and of the sign to show: "" or "+"
SMALLEST_P = 1e-4  # below it the tails of the noise model are not known
PERCENT = f"{LEVEL:.0%}".replace("%", " %")


def _number(scale: float) -> Number:
    return lambda value, sign="": f"{value * scale:{sign}.2f}"


def state_lines(study: Study) -> list[str]:
    """What the study is, how its trials ended, and whether it is still going on."""
    counts = study.counts()
    ended = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    method = study.stored.tags.get("method", "")
    lines = [f"Study {study.name}{f' ({method})' if method else ''}: {len(study.trials)} trials: {ended}."]
    if not study.finished:
        done = sum(n for kind, n in counts.items() if kind != "running")
        seeds = len(study.trials) > study.trials["point"].nunique()  # planned are points, and these are trials
        of = f" of {study.planned}" if study.planned and not seeds else ""
        again = f" `search resume {study.name}` goes on." if study.stored.status == "KILLED" else ""
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
    if study.space.get("script"):  # which alone knows what it measures
        return f"Values are {study.metric.name} as the script reports it, x 100."
    sets = (study.space.get("data") or {}).get("dev") or ()
    pairs = {set_name(name) + DEV_SUFFIX for name in sets}
    kinds = dict.fromkeys(
        retrieval_measure(part) or ("Spearman correlations" if part in pairs or not sets else part)
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
    gain = f"The column gain is the difference to {study.baseline_name} as measured; the verdict's is corrected."
    return [*unit, gain] if study.trials["baseline"].any() else unit


def verdict_lines(
    verdict: Verdict, study: str, baseline: str = "the paper's setting", selecting: str | None = None
) -> list[str]:
    """The verdict, one statement a line; values times the metric's scale, as in the tables.

    Args: baseline: what the baseline point is (`Study.baseline_name`); selecting: the metric that selected
        (`Study.selecting`), where it may be another one.
    """
    v, number = verdict, _number(verdict.metric.scale)
    fresh = "fresh " if v.confirmed else ""
    seeds = f"one {fresh}seed" if v.n == 1 else f"mean of {v.n} {fresh}seeds"
    lines = [f"Best: {v.trial}, {v.metric.name} {number(v.value)} ({seeds})."]
    over = f"seeds and {v.pairs.what}" if v.pairs else "seeds"
    lines.append(
        f"Expected value: {number(v.expected)}, {_correction(v, number)}; "
        f"{PERCENT} interval {number(v.low)} to {number(v.high)} over {over}."
    )
    of = f"{v.candidates} {'confirmed' if v.confirmed else 'completed'}"
    lines.append(f"Probability of being the best of the {of}: {v.p_best:.2f}.")
    lines.append(_gain_line(v, number, study, baseline))
    if v.power:
        lines.append(f"{_power_text(v.power, number)}.")
    lines.append(_noise_line(v.noise, v.metric, number))
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
    """The best and the baseline on the held-out dev pairs, where the space holds some out."""
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
    return f"from repeated seeds, {freedom}, and {PRIOR_DF:.0f} more from the prior: {believed}"


def _noise_line(noise: SeedNoise, metric: Metric, number: Number) -> str:
    """How much the seed alone moves a value, and how that is known."""
    points = "points" if metric.scale == 100 else "units"
    return f"Noise: {number(noise.sd)} {points} standard deviation by the seed alone ({_source(noise)})."


def _power_text(power: Power, number: Number) -> str:
    """What can be seen, and what would make more visible."""
    now = f"With this dev data and {power.seeds} seeds a gain below {number(power.visible)} is likely to stay unseen"
    if not power.seeds_help:
        return f"{now}; more seeds will not help, the dev set is too small for less than {number(power.floor)}"
    more = f"{power.more - power.seeds} more seeds would make it {number(power.visible_more)}"
    limit = f", no number of seeds less than {number(power.floor)}" if power.floor > 0 else ""
    return f"{now}; {more}{limit}"


def _correction(v: Verdict, number: Number) -> str:
    """What was taken off the value measured, and why: selection bias."""
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
        f"an estimate, corrected for picking the best of {v.tried}{basis}: {number(taken)} of {measured} is "
        "selection bias"
    )


def _gain_line(v: Verdict, number: Number, study: str, baseline: str) -> str:
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


def forecast_lines(found: ConfirmForecast, study: Study) -> list[str]:
    """One statement a line; values times the metric's scale."""
    number = _number(study.metric.scale)
    hours = found.trials * found.seconds / 3600
    cost = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes" if hours > 1 / 30 else "a minute or two"
    lines = [
        f"Confirming {study.name} by a fixed plan: {found.points} points on {found.seeds} fresh seeds, "
        f"{found.trials} trials to run, about {cost} of training at {found.seconds:.0f} s a trial; points that fall "
        "behind end earlier."
    ]
    if found.power is None:
        lines.append("It can claim no gain: the study has no completed baseline trial besides the points to confirm.")
    else:
        lines.append(_power(found, number))
        if found.look > 1:
            lines.append(f"It would be look {found.look} at these figures, and is judged by the level that is left.")
    lines.append(_noise_line(found.noise, study.metric, number))
    if found.power and found.pairs is None:
        lines.append("The choice of dev pairs is not in these figures: the trials' similarities are not at hand.")
    return lines


def _power(found: ConfirmForecast, number: Number) -> str:
    """Without repeated seeds all that two models differ by counts as the dev pairs' doing: an upper bound."""
    assert found.power is not None
    seen = f"(seen: claimed in {POWER:.0%} of cases)".replace("%", " %")
    if found.pairs and not found.noise.repeats:
        return (
            f"With these pairs and {found.seeds} seeds a gain below {number(found.power.visible)} at most is likely to "
            f"stay unseen {seen}; how much of that the dev pairs make is known once seeds are repeated."
        )
    return f"{_power_text(found.power, number)} {seen}."


def gain_text(gains: Sequence[PairedGain], baseline: str) -> str:
    """A table of the gains over the baseline and what their intervals are over; correlations x 100."""
    if not gains:
        return f"Gain over {baseline} on the test sets: unknown, it takes weights of both configurations."
    number = _number(100)
    rows = [
        {
            "test set": gain.name,
            "best": number(gain.first),
            "baseline": number(gain.second),
            "gain": number(gain.gain, "+"),
            "95 % interval": f"{number(gain.low, '+')} to {number(gain.high, '+')}",
            "over pairs alone": f"{number(gain.pairs_low, '+')} to {number(gain.pairs_high, '+')}",
        }
        for gain in gains
    ]
    seeds = gains[0].seeds
    over = (
        f"paired over sentence pairs and the {seeds} seeds that both have"
        if seeds > 1
        else "paired over sentence pairs; of one common seed, so what seeds add is not in it"
        if seeds
        else "paired over sentence pairs; no seed in common, so what seeds add counts for each side"
    )
    return f"{text_table(rows)}\n\nGain over {baseline}, {over}."


def league_text(found: League) -> str:
    """Bests at an equal budget, and each against each."""
    number = _number(found.metric.scale)
    rows = [
        {
            "method": entry.label,
            f"best of the first {found.budget}, corrected": number(entry.verdict.expected),
            "interval": f"{number(entry.verdict.low)} to {number(entry.verdict.high)}",
            "confirmed": "yes" if entry.verdict.confirmed else "no",
            "trials": str(entry.trials),
            "seconds per trial": f"{entry.seconds:.0f}",
            "study": entry.study,
        }
        for entry in found.entries
    ]
    duels = [
        {
            "first": duel.first,
            "second": duel.second,
            "of": duel.of,
            "difference": number(duel.difference, "+"),
            "interval": f"{number(duel.low, '+')} to {number(duel.high, '+')}",
            "p": "" if duel.p_value is None else f"{duel.p_value:.2g}",
            "": "significant" if duel.significant else "not tested" if duel.p_value is None else "not significant",
        }
        for duel in found.duels
    ]
    kinds = {
        CONFIRMED: "Confirmed bests: the two configurations found, over fresh seeds and dev pairs; not other searches.",
        SEARCHED: "Bests of the search: corrected for selection, not tested; `search confirm` both studies for that.",
    }
    head = f"{found.metric.name}, methods at an equal budget of {found.budget} trials."
    of = {duel.of for duel in found.duels}
    return "\n\n".join(
        [head, text_table(rows), text_table(duels), *(text for kind, text in kinds.items() if kind in of)]
    )


def comparison_text(cells: pd.DataFrame) -> str:
    """`compare.compare`'s cells as a table, metrics as columns; * marks printed values that are no target."""
    metrics = list(dict.fromkeys(cells["metric"]))
    lines: list[dict[str, str]] = []
    for (row, kind), rows in cells.groupby(["row", "from"], sort=False):
        published = dict(zip(rows["metric"], rows["published"], strict=True))
        doubtful = {m for m, target in zip(rows["metric"], rows["target"], strict=True) if not target}
        printed = {m: _cell(v, "*" * (m in doubtful)) for m, v in published.items()}
        ran = bool(rows["n"].any())
        who = {"printed": "printed only", "run": "printed" if ran else "printed, not run yet"}.get(
            str(kind), f"run in {kind}"
        )
        lines.append(_cells(str(row), who, printed, metrics))
        for departs, mine in rows.groupby("departs", sort=False):
            if not mine["n"].any():
                continue
            cells_of = [{str(k): v for k, v in cell.items()} for cell in mine.to_dict("records")]
            most = mine["n"].max()
            ours = {
                c["metric"]: _cell(
                    c["ours"],
                    f" ±{c['sd']:.2f}" * bool(np.isfinite(c["sd"])) + f" (n {c['n']})" * bool(0 < c["n"] < most),
                )
                for c in cells_of
            }
            apart = {c["metric"]: f"{c['difference']:+.2f}" for c in cells_of if np.isfinite(c["difference"])}
            lines.append(_cells("", f"ours, n {most}", ours, metrics, str(departs)))
            if apart:
                lines.append(_cells("", "difference", apart, metrics))
    return text_table(lines)


def _cells(row: str, who: str, values: dict[str, str], metrics: list[str], departs: str = "") -> dict[str, str]:
    return {"row": row, "": who, **{_head(m): values.get(m, "") for m in metrics}, "departs in": departs}


def _head(metric: str) -> str:
    return metric.removesuffix("_test").removeprefix("transfer_") if metric.endswith("_test") else metric


def _cell(value: float, mark: str = "") -> str:
    return f"{value:.2f}{mark}" if np.isfinite(value) else ""
