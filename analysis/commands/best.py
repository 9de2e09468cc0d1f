"""`analysis best`: the ranking, and whether the best is more than luck."""

from __future__ import annotations

import click

from analysis.commands.options import FORMAT, METRIC, study_argument, study_of, where


@click.command(short_help="The ranking, and whether the best beats the paper's defaults")
@study_argument
@METRIC
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
    storage: str,
    tracking_uri: str | None,
) -> None:
    """Rank a study's configurations and say whether the best beats the paper's defaults."""
    found = study_of(storage, tracking_uri, study, metric)

    from analysis.checkpoints.choice import way_to_export
    from analysis.errors import AnalysisError
    from analysis.statistics.study_verdict import study_verdict
    from analysis.tables.trials import rank_points, rank_trials
    from analysis.writing.output import as_csv, as_document, paragraphs, terminal_width, text_table
    from analysis.writing.ranking_rows import least_important, printed, records
    from analysis.writing.state_text import state_lines, unit_lines
    from analysis.writing.verdict_text import held_lines, verdict_lines

    state = state_lines(found)
    if not (found.trials["stop"] == "completed").any():
        raise AnalysisError(" ".join(state) + " No trial has been completed, so nothing can be ranked yet.")
    ranked = rank_trials(found.trials, found.metric) if trials else rank_points(found.points, found.metric)
    rows = records(ranked.head(top), found.searched)
    if style == "csv":
        click.echo(as_csv(rows))
        return
    verdict = study_verdict(found)
    checkpoint, export = way_to_export(found, verdict.best)
    if style != "table":
        content = {
            "study": found.name, "metric": found.metric.name, "finished": found.finished, "trials": found.counts(),
            "rows": rows, "verdict": verdict.to_dict(), "export": export,
        }  # fmt: skip
        click.echo(as_document(content, style))
        return
    width = terminal_width()
    ranking = text_table(printed(rows, found.metric), width, least_important(found.searched))
    sentences = verdict_lines(verdict, found.name, found.baseline_name, found.selecting)
    lines = [*sentences, *held_lines(found, verdict), checkpoint]
    click.echo(paragraphs([*state, *unit_lines(found)], width))
    click.echo(f"\n{ranking}\n\n{paragraphs(lines, width)}")
