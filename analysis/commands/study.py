"""The commands about one study: best, importance, plot, report, optuna."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analysis.commands.options import FORMAT, METRIC, TRACKING, on_study, show, storage_option, where
from analysis.errors import AnalysisError, unknown
from search.command_help import Command, examples

if TYPE_CHECKING:
    from analysis.tables.study import Study

ROOMY = 100  # characters of a terminal that takes the headings in full


@click.command(cls=Command, epilog=examples("analysis best", "analysis best questions-1 --metric stsb_dev"))
@on_study
@METRIC
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="rows shown")
@click.option("--trials", is_flag=True, help="rank single trials instead of configurations")
@click.option("--explain", is_flag=True, help="also print seed noise, corrections and power")
@FORMAT
@where
def best(study: Study, top: int, trials: bool, explain: bool, style: str) -> None:
    """Rank configurations and test the best against the defaults.

    STUDY defaults to your newest one.
    """
    from analysis.checkpoints.choice import way_to_export
    from analysis.statistics.verdict import study_verdict
    from analysis.tables.trials import rank_points, rank_trials
    from analysis.writing.answer import (
        answer,
        block,
        explain_lines,
        held_out_values,
        state_lines,
        unit_lines,
        untrained_values,
    )
    from analysis.writing.output import least_important, paragraphs, printed, records, terminal_width, text_table

    state = state_lines(study)
    if not (study.trials["stop"] == "completed").any():
        raise AnalysisError(" ".join(state) + " No trial has been completed, so nothing can be ranked yet.")
    ranked = rank_trials(study.trials, study.metric) if trials else rank_points(study.points, study.metric)
    rows = records(ranked.head(top), study.searched)
    verdict = study_verdict(study)
    export, _ = way_to_export(study, verdict.best)
    held_out, held_out_gain = held_out_values(study, verdict)
    before, training_gain = untrained_values(study, verdict)
    content = {
        "study": study.name, "metric": study.metric.name, "finished": study.finished, "trials": study.counts(),
        "rows": rows, "verdict": verdict.to_dict(), "held_out": {"value": held_out, "gain": held_out_gain},
        "untrained": {"value": before, "gain": training_gain},
        "answer": dict(answer(study, verdict)), "export": export,
    }  # fmt: skip

    def text() -> str:
        width = terminal_width()
        ranking = text_table(printed(rows, study.metric), width, least_important(study.searched))
        if hidden := len(ranked) - len(rows):
            ranking += f"\n({hidden} more row{'s' if hidden > 1 else ''}: --top {len(ranked)})"
        parts = [paragraphs([*state, *unit_lines(study)], width), ranking, block(answer(study, verdict), width)]
        if explain:
            parts.append(paragraphs(explain_lines(study, verdict), width))
        return "\n\n".join(parts)

    show(style, text, rows, lambda: content)


@click.command(cls=Command, epilog=examples("analysis importance"))
@on_study
@METRIC
@click.option(
    "--draws", default=20, show_default=True, type=click.IntRange(2), help="number of bootstrap draws for the intervals"
)
@FORMAT
@where
def importance(study: Study, draws: int, style: str) -> None:
    """Measure which hyperparameters moved the score.

    Prints fANOVA and PED-ANOVA of the searched hyperparameters, and the share of the seed.
    """
    import numpy as np

    from analysis.statistics.importance import importance as measure
    from analysis.writing.output import paragraphs, terminal_width, text_table
    from analysis.writing.report import importance_rows

    measured = measure(study, np.random.default_rng(0), draws)

    def text() -> str:
        width = terminal_width()
        ped = "PED-ANOVA" if width is not None and width < ROOMY else "among the best (PED-ANOVA)"
        table = text_table(importance_rows(measured, ped), width, ["points", "PED-ANOVA"])
        return f"{table}\n\n{paragraphs([measured.note], width)}"

    content = {"study": study.name, "metric": study.metric.name, **asdict(measured), "note": measured.note}
    show(style, text, [asdict(p) for p in measured.params], lambda: content)


@click.command(cls=Command, epilog=examples("analysis plot", "analysis plot --only history --out figures"))
@on_study
@METRIC
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="output folder [plots/STUDY]")
@click.option(
    "--only", "names", multiple=True, metavar="NAME", help="draw only this figure, `html` for the page; repeatable"
)
@where
def plot(study: Study, out: Path | None, names: tuple[str, ...]) -> None:
    """Draw figures as PNG and SVG, and an interactive page.

    Draws what the study has data for: history, learning curves, hyperparameters, importance, cost, similarities.
    """
    import numpy as np

    from analysis.plots.gallery import NAMES, gallery
    from analysis.plots.style import save
    from analysis.statistics.importance import importance as measure

    for name in names:
        if name not in (*NAMES, "html"):
            raise unknown("figure", name, (*NAMES, "html"), shown=len(NAMES) + 1)
    folder = out or Path("plots") / study.name
    folder.mkdir(parents=True, exist_ok=True)  # fails before the work if it cannot be written
    measured = None
    if not names or {"importance", "contour"} & set(names):
        try:
            measured = measure(study, np.random.default_rng(0))
        except AnalysisError as reason:
            click.echo(f"importance: not drawn, {reason}", err=True)
    drawn = set(names) - {"html"}
    for picture in gallery(study, measured, tuple(drawn)) if drawn or not names else []:
        for path in save(picture.figure, folder, picture.name):
            click.echo(str(path))
        drawn.discard(picture.name)
    if not names or "html" in names:
        try:
            from analysis.plots.page import page
        except ModuleNotFoundError as missing:
            if missing.name != "plotly":
                raise
            lacks = 'needs plotly: pip install "contrastive-search[interactive]"'
            if names:
                raise AnalysisError(f"interactive.html {lacks}") from None
            click.echo(f"interactive.html: not drawn, it {lacks}", err=True)
        else:
            path = folder / "interactive.html"
            path.write_text(page(study), encoding="utf-8")
            click.echo(str(path))
    if drawn:
        raise AnalysisError(f"the study has no data for: {', '.join(sorted(drawn))}")


@click.command(cls=Command, epilog=examples("analysis report --out report.html"))
@on_study
@METRIC
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="output file [STUDY.html]")
@where
def report(study: Study, out: Path | None) -> None:
    """Write a report of a study as one HTML file.

    Contains verdict, table, figures, importance, failures, cost, and the commands that repeat it.
    """
    import numpy as np

    from analysis.writing.report import report as make

    path = out or Path(f"{study.name}.html")
    path.parent.mkdir(parents=True, exist_ok=True)  # fails before the work if it cannot be written
    path.write_text(make(study, np.random.default_rng(0)), encoding="utf-8")
    click.echo(str(path))


@click.command(cls=Command, epilog=examples("analysis optuna --storage sqlite:///optuna.db"))
@on_study
@METRIC
@click.option("--storage", "target", required=True, metavar="URL", help="the Optuna storage")
@storage_option("--from", ": --storage of the other commands")
@TRACKING
def optuna(study: Study, target: str) -> None:
    """Copy a study into an Optuna storage.

    `optuna.visualization` and optuna-dashboard read it there under the study's name.
    """
    from analysis.tables.optuna_study import optuna_study

    written = optuna_study(study, target)
    click.echo(f"{study.name}: {len(written.trials)} trials written; optuna-dashboard {target} shows them")
