"""`analysis best`: the ranking, and whether the best is more than luck."""

from __future__ import annotations

import click

from analysis.commands.common import FORMAT, METRIC, STUDY, study_of, where


@click.command()
@METRIC
@STUDY
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="rows shown")
@click.option("--trials", is_flag=True, help="rank single trials instead of configurations over their seeds")
@FORMAT
@where
def best(
    metric: str | None,
    study: str | None,
    top: int,
    trials: bool,
    style: str,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Rank a study's configurations and say whether the best beats the paper's defaults."""
    found = study_of(storage, tracking_uri, study, metric)

    import numpy as np

    from analysis.errors import AnalysisError
    from analysis.output import as_csv, as_document, text_table
    from analysis.rank import rank_points, rank_trials
    from analysis.rows import printed, records
    from analysis.verdict import judge
    from analysis.words import state_lines, verdict_lines

    state = state_lines(found)
    if not (found.trials["stop"] == "completed").any():
        raise AnalysisError(" ".join(state) + " No trial has been completed, so nothing can be ranked yet.")
    ranked = rank_trials(found.trials, found.metric) if trials else rank_points(found.points, found.metric)
    rows = records(ranked.head(top), found.searched)
    if style == "csv":
        click.echo(as_csv(rows))
        return
    verdict = judge(
        found.trials, found.points, found.metric, found.searched, found.similarities, np.random.default_rng(0)
    )
    export = f"analysis export {found.name}"
    if style != "table":
        content = {
            "study": found.name, "metric": found.metric.name, "finished": found.finished, "trials": found.counts(),
            "rows": rows, "verdict": verdict.to_dict(), "export": export,
        }  # fmt: skip
        click.echo(as_document(content, style))
        return
    unit = " Values are Spearman correlations x 100." if found.metric.scale == 100 else ""
    lines = [*state, unit.strip(), "", text_table(printed(rows, found.metric)), ""]
    lines += [*verdict_lines(verdict, found.name), f"Checkpoint of the best: {export}"]
    click.echo("\n".join(lines))
