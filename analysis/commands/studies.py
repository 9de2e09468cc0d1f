"""The commands about several studies: table, league, compare."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands.options import (
    FORMAT,
    METRIC,
    on_studies,
    opened,
    runs_of,
    show,
    studies_option,
    studies_with_trials,
    where,
)
from analysis.errors import AnalysisError, InputError, NoTrialsError
from search.command_help import Command, examples

if TYPE_CHECKING:
    from analysis.reading.store import Store
    from analysis.tables.study import Study


@click.command(cls=Command, epilog=examples("analysis table", "analysis table --all --points --format csv"))
@on_studies("newest study")
@METRIC
@click.option("--all", "every", is_flag=True, help="read all studies of the store")
@click.option("--points", is_flag=True, help="list configurations with mean, standard deviation and number of seeds")
@FORMAT
@where
def table(
    store: Store, studies: tuple[str, ...], metric: str | None, every: bool, points: bool, style: str
) -> None:  # fmt: skip
    """List the trials or configurations of studies, best first."""
    from analysis.reading.store import find_study
    from analysis.tables.trials import rank_points, rank_trials
    from analysis.writing.answer import state_lines
    from analysis.writing.output import least_important, printed, records, terminal_width, text_table

    runs = runs_of(store, ()) if every else [find_study(store, name) for name in studies or (None,)]
    read, left_out = studies_with_trials(store, runs, metric, named=not every)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    for study in read:
        ranked = rank_points(study.points, study.metric) if points else rank_trials(study.trials, study.metric)
        found = records(ranked, study.searched)
        rows += [{"study": study.name, **row} for row in found]
        least = least_important(study.searched)
        texts += [*state_lines(study), text_table(printed(found, study.metric), terminal_width(), least), ""]
    texts += [f"Left out: {line}" for line in left_out]
    show(style, lambda: "\n".join(texts).rstrip("\n"), rows, lambda: {"rows": rows, "left_out": left_out})


@click.command(cls=Command, epilog=examples("analysis league simcse-1 edacse-1"))
@on_studies("all of the newest one's language")
@METRIC
@FORMAT
@where
def league(store: Store, studies: tuple[str, ...], metric: str | None, style: str) -> None:
    """Compare methods at equal budget.

    Prints the corrected best of the first n configurations of each, and which differ significantly.
    """
    from analysis.statistics.league import league as measure
    from analysis.writing.comparisons import league_text

    chosen, left_out = _league_studies(store, studies, metric)
    found = measure(chosen)
    early = [study.name for study in chosen if not (study.trials["stop"] == "completed").any()]
    left_out += [f"{name}: no trial has been completed" for name in early]
    entries: list[dict[str, Any]] = [{**asdict(entry), "verdict": entry.verdict.to_dict()} for entry in found.entries]
    duels = [asdict(duel) for duel in found.duels]
    content = {"metric": found.metric.name, "budget": found.budget, "entries": entries, "duels": duels}
    text = "\n".join([league_text(found), *(f"Left out: {line}" for line in left_out)])
    show(style, lambda: text, entries, lambda: {**content, "left_out": left_out})


def _league_studies(store: Store, names: tuple[str, ...], metric: str | None) -> tuple[list[Study], list[str]]:
    """The studies that can be compared with the first, by its metric; of each other one a line with the reason.

    Raises: NoTrialsError and InputError for a study that was named; InputError where no study has the metric.
    """
    from analysis.reading.store import find_study, study_name
    from analysis.tables.comparable import same_data
    from analysis.tables.study import read_study

    chosen: list[Study] = []
    left_out = []
    refused: InputError | None = None
    runs = runs_of(store, names)
    if not names:
        mine = find_study(store)
        runs = [mine, *(run for run in runs if run.run_id != mine.run_id)]
    for run in runs:
        first = chosen[0] if chosen else None
        language = run.params.get("data.language")
        same_language = first is None or language == first.stored.params.get("data.language")
        try:
            if not same_language:
                raise InputError("another language")
            read = read_study(store, run, metric or (first.selecting if first else None))
            if first and not same_data(first, read):
                raise InputError(f"measured on other dev data than {first.name}")
            chosen.append(read)
        except NoTrialsError as reason:
            if names:
                raise
            left_out.append(str(reason))
        except InputError as reason:
            if names and same_language:
                raise
            refused = refused or reason
            left_out.append(f"{study_name(run)}: {str(reason).split(';')[0]}")
    if refused and not chosen:  # as of a metric that no study has
        raise refused
    return chosen, left_out


@click.command(cls=Command, epilog=examples("analysis compare", "analysis compare edacse_table15_bert"))
@click.argument("table", required=False)
@studies_option("every study of the table")
@click.option("--plot", "out", type=click.Path(path_type=Path, file_okay=False), help="draw curves into this folder")
@FORMAT
@where
def compare(
    table: str | None, studies: tuple[str, ...], out: Path | None, style: str, storage: str, tracking_uri: str | None
) -> None:
    """Compare your runs with the printed table of a paper.

    TABLE is such as edacse_table15_bert, or edacse_table15 for all models; without it, the tables are listed. Every
    printed row is shown. Runs that depart from the paper's setting (another encoder, corpus, length, rule set, a smoke
    study) have rows of their own that name the difference. Test scores appear once `analysis test` has opened them.
    """

    from analysis.papers.compare import compare as cells_of
    from analysis.papers.compare import comparisons, paper_table, tables
    from analysis.plots.model_figures import Ablation, ablation
    from analysis.plots.style import save
    from analysis.writing.comparisons import comparison_text
    from analysis.writing.output import text_table
    from search.schema import DEFAULT_STORAGE

    if table is None:
        listed = [paper_table(space) for space in comparisons()]
        entries = [{"table": t.name, "source": f"{t.source} {t.table}", "what": t.what} for t in listed]
        show(style, lambda: text_table(entries), entries, lambda: {"tables": entries})
        return
    chosen = tables(table)
    store: Store | None
    try:
        store = opened(storage, tracking_uri)
        runs = runs_of(store, studies)
    except AnalysisError:
        if studies or tracking_uri or storage != DEFAULT_STORAGE:
            raise
        store, runs = None, []  # nothing was run here yet: the published numbers alone
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    left_out: list[str] = []
    for one in chosen:
        mine = runs if studies else [run for run in runs if run.space == one.space]
        read, without = studies_with_trials(store, mine, None, named=bool(studies)) if store else ([], [])
        left_out += without
        cells = cells_of(one, read)
        rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in cells.to_dict("records")]
        found += [{"table": one.name, **row} for row in rows]
        title = f"{one.name}: {one.source} {one.table.replace('_', ' ')}, {one.what}"
        names = ", ".join(study.name for study in read) or f"none yet; search run spaces/papers/{one.space}.yaml"
        head = [title, f"Ours: {names}.", *(f"Left out: {line}" for line in without)]
        texts.append("\n".join([*head, "", comparison_text(cells), "", *(f"Note {note}" for note in one.notes)]))
        if out:
            data = Ablation.of(one, cells)
            paths = save(ablation(data), out, one.name) if data else ["Not drawn: no printed column is a target."]
            texts.append("\n".join(map(str, paths)))
    notes = {one.name: list(one.notes) for one in chosen}
    content = {"cells": found, "notes": notes, "left_out": list(dict.fromkeys(left_out))}
    show(style, lambda: "\n\n".join(texts), found, lambda: content)
