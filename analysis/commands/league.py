"""`analysis league`: methods against each other at equal budget."""

from __future__ import annotations

from typing import Any

import click

from analysis.commands.options import FORMAT, METRIC, opened, studies_argument, where


@click.command(short_help="Methods against each other at equal budget")
@studies_argument("all of the newest one's language")
@METRIC
@FORMAT
@where
def league(metric: str | None, studies: tuple[str, ...], style: str, storage: str, tracking_uri: str | None) -> None:
    """Compare methods at equal budget: the corrected best of each first n configurations, and who differs."""
    from dataclasses import asdict

    from analysis.errors import InputError, NoTrialsError
    from analysis.reading.store import find_study, study_name
    from analysis.reading.store import studies as all_studies
    from analysis.statistics import league as core
    from analysis.tables.study import Study, read_study
    from analysis.writing.output import as_csv, as_document, text_table

    store = opened(storage, tracking_uri)
    runs = [find_study(store, name) for name in studies] if studies else all_studies(store)
    chosen: list[Study] = []
    left_out = []
    refused: InputError | None = None
    for run in runs:
        first = chosen[0] if chosen else None
        language = run.params.get("data.language")
        same_language = first is None or language == first.stored.params.get("data.language")
        try:
            if not same_language:
                raise InputError("another language")
            read = read_study(store, run, metric or (first.selecting if first else None))
            if first and not core.same_data(first, read):
                raise InputError(f"measured on other dev data than {first.name}")
            chosen.append(read)
        except NoTrialsError as reason:
            if studies:
                raise
            left_out.append(str(reason))
        except InputError as reason:
            if studies and same_language:
                raise
            refused = refused or reason
            left_out.append(f"{study_name(run)}: {str(reason).split(';')[0]}")
    if refused and not chosen:  # as of a metric that no study has
        raise refused
    found = core.league(chosen)
    early = [study.name for study in chosen if not (study.trials["stop"] == "completed").any()]
    left_out += [f"{name}: no trial has been completed" for name in early]
    entries: list[dict[str, Any]] = [{**asdict(entry), "verdict": entry.verdict.to_dict()} for entry in found.entries]
    if style == "csv":
        click.echo(as_csv(entries))
        return
    if style != "table":
        duels = [asdict(duel) for duel in found.duels]
        content = {"metric": found.metric.name, "budget": found.budget, "entries": entries, "duels": duels}
        click.echo(as_document({**content, "left_out": left_out}, style))
        return

    def number(value: float, sign: str = "") -> str:
        return f"{value * found.metric.scale:{sign}.2f}"

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
    click.echo(f"{found.metric.name}, methods at an equal budget of {found.budget} trials.\n")
    click.echo(f"{text_table(rows)}\n\n{text_table(duels)}")
    kinds = {duel.of for duel in found.duels}
    if core.CONFIRMED in kinds:
        click.echo(
            "\nConfirmed bests: the two configurations found, over fresh seeds and dev pairs; not other searches."
        )
    if core.SEARCHED in kinds:
        click.echo(
            "\nBests of the search: corrected for selection, not tested; `search confirm` both studies for that."
        )
    for line in left_out:
        click.echo(f"Left out: {line}")
