"""`analysis test`: open the sealed test sets, on record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analysis.commands.options import FORMAT, study_argument, study_of, where
from analysis.errors import InputError

if TYPE_CHECKING:
    from analysis.tables.study import Study


@click.command(short_help="Open the sealed test sets, on record")
@study_argument
@click.option("--reason", required=True, metavar="TEXT", help="why; is kept with the study")
@click.option("--trial", "trials", multiple=True, metavar="ID", help="may be repeated [all seeds of the best point]")
@click.option("--set", "sets", multiple=True, metavar="NAME", help="may be repeated [the suite of the language]")
@click.option("--transfer", type=click.Path(path_type=Path, exists=True, file_okay=False), help="SentEval's downstream")
@click.option(
    "--mteb", multiple=True, metavar="TASK", help="MTEB's task or benchmark, or a .py file of tasks; repeatable"
)
@click.option("--untrained", is_flag=True, help="the encoder before training, as the trial pools it")
@FORMAT
@where
def test(
    study: str | None,
    reason: str,
    trials: tuple[str, ...],
    sets: tuple[str, ...],
    transfer: Path | None,
    mteb: tuple[str, ...],
    untrained: bool,
    style: str,
    storage: str,
    tracking_uri: str | None,
) -> None:
    """Score the (confirmed) best and the baseline on the test sets: STS12-16, STS-B, SICK-R; the Chinese five.

    Every opening is written to MLflow with time and reason before anything is scored. Selecting anything by what it
    says would spoil the test sets.

    With --mteb the checkpoint that `analysis export` writes (or each --trial) is scored on those tasks instead, by MTEB
    itself: the extra `mteb`.
    """
    if mteb:
        if sets or transfer or untrained:
            raise InputError("--mteb: scores its own tasks; expected no --set, --transfer or --untrained beside it")
        _mteb(study_of(storage, tracking_uri, study, None), mteb, trials, reason, style)
        return
    from dataclasses import asdict

    import numpy as np
    import pandas as pd

    from analysis.checkpoints.choice import baseline_trials, chosen_trials, kept, with_checkpoint
    from analysis.checkpoints.testing import gains, open_tests, printed, summary
    from analysis.writing.gain_text import gain_text
    from analysis.writing.output import as_csv, as_document, text_table

    found = study_of(storage, tracking_uri, study, None)
    chosen, without = with_checkpoint(found, chosen_trials(found, trials))
    baseline = baseline_trials(found, chosen) if not (trials or untrained) else found.trials.iloc[:0]
    there = kept(found, baseline)
    without += list(baseline.loc[[not kept for kept in there], "trial"])
    opened = open_tests(found, pd.concat([chosen, baseline[there]]), reason, sets, transfer, untrained=untrained)
    gained = gains(opened.results, np.random.default_rng(0))
    records = summary(opened.results).to_dict("records")
    table = [{str(name): value for name, value in row.items()} for row in records]
    warnings = [str(overlap) for overlap in opened.overlaps]
    _earlier(found, opened.earlier)
    if style == "csv":
        click.echo(as_csv(table))
        return
    if style != "table":
        trial_rows = [{"trial": r.trial, "seed": r.seed, **r.metrics} for r in opened.results]
        click.echo(
            as_document(
                {
                    "study": found.name, "metrics": table, "trials": trial_rows, "overlaps": warnings,
                    "gains": [asdict(gain) for gain in gained],
                    "earlier": list(opened.earlier), "missing": dict(opened.missing), "unread": dict(opened.unread),
                    "without_weights": without,
                },
                style,
            )
        )  # fmt: skip
        return
    click.echo(f"{found.name}. Spearman correlations and accuracies x 100; sd over seeds.\n")
    rows = []
    for row in table:
        mine = [r for r in opened.results if r.trial in row["trials"].split(", ")]
        one = mine[0].scores.get(row["metric"].removesuffix("_test")) if len(mine) == 1 else None
        between = f"{printed(one.low)} to {printed(one.high)}" if one else ""
        spread = printed(row["sd"]) if row["n"] > 1 else ""
        rows.append(
            {
                "trials": row["trials"] + (" (baseline)" if row["baseline"] else ""), "metric": row["metric"],
                "mean": printed(row["mean"]), "sd": spread, "n": str(row["n"]), "95 % over pairs": between,
            }
        )  # fmt: skip
    click.echo(text_table(rows))
    click.echo("\n" + gain_text(gained, found.baseline_name))
    if without:
        click.echo(f"\nLeft out, their weights were not kept: {', '.join(without)}")
    for name, why in opened.missing.items():
        click.echo(f"\nNot scored: {name}: {why}")
    for name, why in opened.unread.items():
        click.echo(f"\nNot checked for overlap with what selected: {name}: {why}")
    for line in warnings:
        click.echo(f"\nWarning: {line}")


def _mteb(study: Study, tasks: tuple[str, ...], named: tuple[str, ...], reason: str, style: str) -> None:
    from dataclasses import asdict

    from analysis.checkpoints.choice import chosen_trials, exported_trial, with_checkpoint
    from analysis.checkpoints.mteb_run import open_mteb
    from analysis.checkpoints.testing import printed
    from analysis.writing.output import as_csv, as_document, text_table

    chosen = with_checkpoint(study, chosen_trials(study, named))[0] if named else exported_trial(study).to_frame().T
    opened = open_mteb(study, chosen, reason, tasks)
    _earlier(study, opened.earlier)
    rows = [asdict(score) for score in opened.scores]
    if style == "csv":
        click.echo(as_csv(rows))
        return
    if style != "table":
        about = {"warnings": list(opened.warnings), "earlier": list(opened.earlier), "folder": opened.folder}
        click.echo(as_document({"study": study.name, "scores": rows, **about}, style))
        return
    click.echo(f"{study.name}. MTEB's main scores x 100.\n")
    shown = [{"trial": s.trial, "task": s.task, "measure": s.measure, "score": printed(s.value)} for s in opened.scores]
    click.echo(text_table(shown))
    for line in opened.warnings:
        click.echo(f"\nWarning: {line}")
    click.echo(f"\nMTEB's result files: {opened.folder}")


def _earlier(study: Study, lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"Not the first look: the test sets of {study.name} were opened at {line}", err=True)
