"""What the verdict and the state of a study are in words: the lines under a table, in a report, in a note."""

from __future__ import annotations

from collections.abc import Callable

from analysis.study import Study
from analysis.verdict import LEVEL, Verdict

PERCENT = f"{LEVEL:.0%}".replace("%", " %")
SOURCES = {
    "repeats": "measured on repeated seeds, {df:.0f} degrees of freedom",
    "neighbours": "estimated from {df:.0f} pairs of near-identical points",
    "prior": "assumed, no seed was repeated: 50 seeds of SimCSE on BERT-base",
}


def state_lines(study: Study) -> list[str]:
    """What the study is, how its trials ended, and whether it is still going on."""
    counts = study.counts()
    ended = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    method = study.run.tags.get("method", "")
    lines = [f"Study {study.name}{f' ({method})' if method else ''}: {len(study.trials)} trials: {ended}."]
    if not study.finished:
        done = sum(n for kind, n in counts.items() if kind != "running")
        of = f" of {study.planned}" if study.planned else ""
        again = f" `search resume {study.name}` goes on." if study.run.status == "KILLED" else ""
        lines.append(f"Not finished: {done}{of} trials have ended; the figures are of those.{again}")
    failed = study.trials.loc[study.trials["stop"].str.startswith("failed"), "stop"].value_counts()
    if len(failed):
        kinds = ", ".join(f"{n} {kind.removeprefix('failed:')}" for kind, n in failed.items() if isinstance(kind, str))
        lines.append(f"Failures by kind: {kinds}.")
    return lines


def verdict_lines(verdict: Verdict, study: str) -> list[str]:
    """The verdict, one statement a line; values times the metric's scale, as in the tables."""
    v = verdict

    def number(value: float, sign: str = "") -> str:
        return f"{value * v.metric.scale:{sign}.2f}"

    seeds = f"mean of {v.n} fresh seeds" if v.confirmed else ("one seed" if v.n == 1 else f"mean of {v.n} seeds")
    lines = [f"Best: {v.trial}, {v.metric.name} {number(v.value)} ({seeds})."]
    over = "seeds and dev pairs" if v.pairs else "seeds"
    lines.append(
        f"Expected value: {number(v.expected)}, {_correction(v, number)}; "
        f"{PERCENT} interval {number(v.low)} to {number(v.high)} over {over}; "
        f"probability of being the best {v.p_best:.2f}."
    )
    lines.append(_gain_line(v, number))
    points = "points" if v.metric.scale == 100 else "units"
    source = SOURCES[v.noise.source].format(df=v.noise.df)
    lines.append(f"Noise: {number(v.noise.sd)} {points} standard deviation by the seed alone ({source}).")
    if v.pairs is None:
        lines.append("The choice of dev pairs is not in these figures: the trials' similarities are not at hand.")
    if not v.confirmed:
        lines.append(f"Not confirmed on fresh seeds; `search confirm {study}` does that.")
    return lines


def _correction(v: Verdict, number: Callable[..., str]) -> str:
    """What was taken off the value measured, and why: the best of many was also lucky."""
    taken = v.metric.sign * (v.value - v.expected)
    measured = f"the {number(v.value)} measured"
    if v.confirmed:
        most = f"the best single mean of the search, of {v.tried}, was {number(v.naive)}"
        if number(v.expected) == number(v.value):
            return f"as measured on the fresh seeds ({most})"
        less = f"{number(abs(taken))} {'below' if taken > 0 else 'above'} {measured}"
        return f"{less}, corrected for the choice among {v.candidates} confirmed on the same dev pairs ({most})"
    if v.tried == 1:
        return "as measured: there was nothing to choose from"
    if number(v.expected) == number(v.value):
        return (
            f"a bootstrap estimate, corrected for picking the best of {v.tried}: it stands so far above the others "
            f"that nothing is to be taken off {measured}"
        )
    return (
        f"a bootstrap estimate, corrected for picking the best of {v.tried}: {number(taken)} of {measured} "
        "are put down to luck"
    )


def _gain_line(v: Verdict, number: Callable[..., str]) -> str:
    if v.gain is None:
        if v.baseline_is_best:
            return "No significant gain: nothing came out above the paper's defaults."
        return "Gain over the paper's defaults: unknown, the study has no completed baseline trial."
    g = v.gain
    figures = (
        f"{number(g.value, '+')} over the paper's defaults ({number(g.baseline_value)}, {g.baseline}), "
        f"{PERCENT} interval {number(g.low, '+')} to {number(g.high, '+')}, p = {g.p_value:.2g}"
    )
    return f"Significant gain: {figures}." if g.significant else f"No significant gain: {figures}."
