"""The state of a study in words: how its trials ended, and whether it is still going on."""

from __future__ import annotations

from analysis.tables.study import Study
from search.schema import DEV_SUFFIX
from trainables.contract.trial import retrieval_measure
from trainables.data.catalogue import set_name


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
    sets = study.space.get("data", {}).get("dev", ())
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
