"""`analysis test`: open the sealed test sets, on record."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.common import FORMAT, study_of, where
from analysis.commands.named import named


@click.command()
@named
@click.option("--reason", required=True, metavar="TEXT", help="why; is kept with the study")
@click.option("--trial", "trials", multiple=True, metavar="ID", help="may be repeated [all seeds of the best point]")
@click.option("--set", "sets", multiple=True, metavar="NAME", help="may be repeated [the suite of the language]")
@click.option("--transfer", type=click.Path(path_type=Path, exists=True, file_okay=False), help="SentEval's downstream")
@FORMAT
@where
def test(
    study: str | None,
    reason: str,
    trials: tuple[str, ...],
    sets: tuple[str, ...],
    transfer: Path | None,
    style: str,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Score the (confirmed) best on the test sets: STS12-16, STS-B, SICK-R; the Chinese five; transfer tasks.

    Every opening is written to MLflow with time and reason before anything is scored. Selecting anything by what it
    says would spoil the test sets.
    """
    import numpy as np

    from analysis.output import as_csv, as_document, text_table
    from analysis.testing import chosen_trials, open_tests, printed, summary, with_checkpoint

    found = study_of(storage, tracking_uri, study, None)
    chosen, without = with_checkpoint(found, chosen_trials(found, trials, np.random.default_rng(0)))
    opened = open_tests(found, chosen, reason, sets, transfer)
    records = summary(opened.results).reset_index().to_dict("records")
    table = [{str(name): value for name, value in row.items()} for row in records]
    warnings = [str(overlap) for overlap in opened.overlaps]
    for line in opened.earlier:
        click.echo(f"Not the first look: the test sets of {found.name} were opened at {line}", err=True)
    if style == "csv":
        click.echo(as_csv(table))
        return
    if style != "table":
        trial_rows = [{"trial": r.trial, "seed": r.seed, **r.metrics} for r in opened.results]
        click.echo(
            as_document(
                {
                    "study": found.name, "metrics": table, "trials": trial_rows, "overlaps": warnings,
                    "earlier": list(opened.earlier), "missing": dict(opened.missing), "without_weights": without,
                },
                style,
            )
        )  # fmt: skip
        return
    names = ", ".join(r.trial for r in opened.results)
    click.echo(f"{found.name}: {names}. Spearman correlations and accuracies x 100.\n")
    rows = []
    for row in table:
        one = opened.results[0].scores.get(row["metric"].removesuffix("_test"))
        between = f"{printed(one.low)} to {printed(one.high)}" if one and len(opened.results) == 1 else ""
        spread = printed(row["sd"]) if row["n"] > 1 else ""
        cells = {"metric": row["metric"], "mean": printed(row["mean"]), "sd": spread, "n": str(row["n"])}
        rows.append({**cells, "95 % over pairs": between})
    click.echo(text_table(rows))
    if without:
        click.echo(f"\nLeft out, their weights were not kept: {', '.join(without)}")
    for name, why in opened.missing.items():
        click.echo(f"\nNot scored: {name}: {why}")
    for line in warnings:
        click.echo(f"\nWarning: {line}")
