"""The state of a study in words: how its trials ended, and whether it is still going on."""

from __future__ import annotations

from analysis.tables.study import Study


def state_lines(study: Study) -> list[str]:
    """What the study is, how its trials ended, and whether it is still going on."""
    counts = study.counts()
    ended = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    method = study.stored.tags.get("method", "")
    lines = [f"Study {study.name}{f' ({method})' if method else ''}: {len(study.trials)} trials: {ended}."]
    if not study.finished:
        done = sum(n for kind, n in counts.items() if kind != "running")
        of = f" of {study.planned}" if study.planned else ""
        again = f" `search resume {study.name}` goes on." if study.stored.status == "KILLED" else ""
        lines.append(f"Not finished: {done}{of} trials have ended; the figures are of those.{again}")
    failed = study.trials.loc[study.trials["stop"].str.startswith("failed"), "stop"].value_counts()
    if len(failed):
        kinds = ", ".join(f"{n} {kind.removeprefix('failed:')}" for kind, n in failed.items() if isinstance(kind, str))
        lines.append(f"Failures by kind: {kinds}.")
    return lines


def unit_lines(study: Study) -> list[str]:
    """What the numbers of a ranking are; its gain is measured, that of the verdict corrected for the choice."""
    unit = ["Values are Spearman correlations x 100."] if study.metric.scale == 100 else []
    gain = f"The column gain is the difference to {study.baseline_name} as measured; the verdict's is corrected."
    return [*unit, gain] if study.trials["baseline"].any() else unit
