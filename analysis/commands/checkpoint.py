"""The commands that open trained weights: test, export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands.options import FORMAT, on_study, show, where
from analysis.errors import InputError
from search.command_help import Command, examples

if TYPE_CHECKING:
    from analysis.tables.study import Study


@click.command(
    cls=Command,
    epilog=examples('analysis test --reason "final result"', 'analysis test --set my_test.csv --reason "own domain"'),
)
@on_study
@click.option("--reason", required=True, metavar="TEXT", help="why the test sets are opened; stored in the study")
@click.option(
    "--trial", "trials", multiple=True, metavar="ID", help="trial to score; repeatable [all seeds of the best point]"
)
@click.option("--set", "sets", multiple=True, metavar="NAME", help="test set; repeatable [the suite of the language]")
@click.option(
    "--transfer",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="folder `downstream` of SentEval: also score its transfer tasks",
)
@click.option(
    "--mteb", multiple=True, metavar="TASK", help="task or benchmark of MTEB, or a .py file of tasks; repeatable"
)
@click.option("--precision", metavar="LIST", default="", help="also score quantised embeddings: int8, binary or both")
@click.option("--untrained", is_flag=True, help="score the encoder before training, pooled as in the trial")
@FORMAT
@where
def test(
    study: Study,
    reason: str,
    trials: tuple[str, ...],
    sets: tuple[str, ...],
    transfer: Path | None,
    mteb: tuple[str, ...],
    precision: str,
    untrained: bool,
    style: str,
) -> None:
    """Score the best and the baseline on test sets, on record.

    The sets are STS12-16, STS-B and SICK-R, or the Chinese five, or each --set: a file of scored pairs or a retrieval
    set with qrels/test.tsv. Time and reason are stored in MLflow before anything is scored. Do not select by these
    scores: that would spoil the test sets.

    With --mteb the checkpoint that `analysis export` writes (or each --trial) is scored on those tasks instead, by MTEB
    itself: the extra `mteb`.
    """
    if mteb:
        if sets or transfer or untrained or precision:
            others = "--set, --transfer, --precision or --untrained"
            raise InputError(f"--mteb: scores its own tasks; expected no {others} beside it")
        _mteb(study, mteb, trials, reason, style)
        return
    import pandas as pd

    from analysis.checkpoints.choice import baseline_trials, chosen_trials, have_weights, with_checkpoint
    from analysis.checkpoints.quantised import PRECISIONS
    from analysis.checkpoints.testing import gains, open_tests, printed, summary
    from analysis.checkpoints.training_gain import training_gains
    from analysis.writing.comparisons import gain_text, training_text
    from analysis.writing.output import text_table

    precisions = tuple(dict.fromkeys(part.strip() for part in precision.split(","))) if precision else ()
    if wrong := [part for part in precisions if part not in PRECISIONS]:
        raise InputError(f"--precision: expected {', '.join(PRECISIONS)} or both, got {wrong[0]!r}")
    chosen, without = with_checkpoint(study, chosen_trials(study, trials))
    baseline = baseline_trials(study, chosen) if not (trials or untrained) else study.trials.iloc[:0]
    there = have_weights(study, baseline)
    without += list(baseline.loc[[not t for t in there], "trial"])
    opened = open_tests(
        study, pd.concat([chosen, baseline[there]]), reason, sets, transfer, untrained=untrained, precisions=precisions
    )
    gained = gains(opened.results)
    trained = training_gains(study, chosen, opened.results[0]) if untrained else []
    table = [{str(n): value for n, value in row.items()} for row in summary(opened.results).to_dict("records")]
    if not untrained:
        _earlier(study, opened.earlier)

    def text() -> str:
        rows = []
        for row in table:
            mine = [r for r in opened.results if r.trial in row["trials"].split(", ")]
            one = mine[0].scores.get(row["metric"].removesuffix("_test")) if len(mine) == 1 else None
            rows.append(
                {
                    "trials": row["trials"] + (" (baseline)" if row["baseline"] else ""), "metric": row["metric"],
                    "mean": printed(row["mean"]), "sd": printed(row["sd"]) if row["n"] > 1 else "", "n": str(row["n"]),
                    "95 % interval": f"{printed(one.low)} to {printed(one.high)}" if one else "",
                }
            )  # fmt: skip
        if all(row["baseline"] for row in table):
            gain = f"No gain to test: the tested point is {study.baseline_name}."
        else:
            gain = gain_text(gained, study.baseline_name)
        unchecked = "Not checked for overlap with what selected"
        return "\n\n".join(
            [
                f"{study.name}. Scores x 100 (Spearman, accuracy, nDCG@10 and so on); sd over seeds.",
                text_table(rows),
                *([training_text(trained)] if trained else [] if untrained else [gain]),
                *([f"Left out, their weights are not stored: {', '.join(without)}"] if without else []),
                *(f"Not scored: {name}: {why}" for name, why in opened.missing.items()),
                *(f"{unchecked}: {name}: {why}" for name, why in opened.unread.items()),
                *(f"Warning: {overlap}" for overlap in opened.overlaps),
            ]
        )

    def document() -> dict[str, Any]:
        return {
            "study": study.name,
            "metrics": table,
            "trials": [{"trial": r.trial, "seed": r.seed, **r.metrics} for r in opened.results],
            "overlaps": list(opened.overlaps),
            "gains": [asdict(gain) for gain in gained],
            "training_gains": [asdict(gain) for gain in trained],
            "earlier": list(opened.earlier),
            "missing": dict(opened.missing),
            "unread": dict(opened.unread),
            "without_weights": without,
        }

    show(style, text, table, document)


def _mteb(study: Study, tasks: tuple[str, ...], named: tuple[str, ...], reason: str, style: str) -> None:
    from analysis.checkpoints.choice import chosen_trials, exported_trial, with_checkpoint
    from analysis.checkpoints.mteb import open_mteb
    from analysis.checkpoints.testing import printed
    from analysis.writing.output import text_table

    chosen = with_checkpoint(study, chosen_trials(study, named))[0] if named else exported_trial(study).to_frame().T
    opened = open_mteb(study, chosen, reason, tasks)
    _earlier(study, opened.earlier)
    rows = [asdict(score) for score in opened.scores]
    about = {"warnings": list(opened.warnings), "earlier": list(opened.earlier), "folder": opened.folder}
    shown = [{"trial": s.trial, "task": s.task, "measure": s.measure, "score": printed(s.value)} for s in opened.scores]
    parts = [
        f"{study.name}. MTEB's main scores x 100.",
        text_table(shown),
        *(f"Warning: {line}" for line in opened.warnings),
        f"MTEB's result files: {opened.folder}",
    ]
    show(style, lambda: "\n\n".join(parts), rows, lambda: {"study": study.name, "scores": rows, **about})


def _earlier(study: Study, lines: Sequence[str]) -> None:
    from analysis.tables.record import of_untrained

    for line in lines:
        if not of_untrained(line):  # which selects nothing
            click.echo(f"Not the first opening: the test sets of {study.name} were opened at {line}", err=True)


@click.command(
    cls=Command, epilog=examples("analysis export", "analysis export --out my-model --push-to-hub me/my-model")
)
@on_study
@click.option("--trial", metavar="ID", help="trial to export [of the best point, the seed with the best dev value]")
@click.option("--out", type=click.Path(path_type=Path), help="output folder [models/STUDY-TRIAL]")
@click.option(
    "--truncate-dim",
    "width",
    type=click.IntRange(1),
    help="dimensions of the embeddings [the width that the metric names, else all]",
)
@click.option("--licence", metavar="ID", help="such as apache-2.0 [as on the encoder's card]")
@click.option(
    "--push-to-hub", "repository", metavar="REPO", help="also upload to this model repository; created if missing"
)
@click.option("--public", is_flag=True, help="make the repository public [private]")
@where
def export(
    study: Study, trial: str | None, out: Path | None, width: int | None, licence: str | None, repository: str | None,
    public: bool,
) -> None:  # fmt: skip
    """Export the best model for sentence-transformers and AutoModel.

    A method with a network of its own exports its own loader; the model's README.md describes it. A script's model is
    the folder that the script saved at its best evaluation. If the metric names a width (`stsb_dev@128`), it becomes
    `truncate_dim`. --push-to-hub uses the token of `hf auth login` or HF_TOKEN.
    """
    from analysis.checkpoints.choice import exists, exported_trial, read_record, selected_width, trial_path
    from analysis.checkpoints.export import base_licence, check_repository, copy_model, push
    from analysis.checkpoints.export import export as write
    from analysis.checkpoints.trained import load_trained
    from analysis.writing.card import About, model_card
    from trainables.contract.config import values
    from trainables.contract.trial import MODEL

    if public and not repository:
        raise InputError("--public: sets the visibility on the hub; expected --push-to-hub as well")
    if repository:
        check_repository(repository)
    row = exported_trial(study, trial)
    path = trial_path(study, str(row["folder"]))
    folder = out or Path("models") / f"{study.name}-{row['trial']}"
    if (record := read_record(path)) and exists(f"{path}/{MODEL}"):  # a script wrote it
        if width:
            raise InputError("--truncate-dim: a script wrote this model; expected one of a method")
        spec, loads = record["spec"], exists(f"{path}/{MODEL}/modules.json")
        about = About(licence=licence or base_licence(spec["encoder"], ask=bool(repository)), loads=loads)
        copy_model(f"{path}/{MODEL}", folder, model_card(study, row, spec["params"], record, about))
    else:
        trained = load_trained(path)
        whole = trained.embed(["a"]).shape[1]
        if (width or 0) > whole:
            raise InputError(f"--truncate-dim: expected at most {whole}, the width of the vectors, got {width}")
        width = width or (None if trained.method.export else selected_width(study))
        about = About(
            dimensions=width or whole,
            longest=getattr(trained.network, "longest", None),
            licence=licence or base_licence(trained.spec.encoder, ask=bool(repository)),
        )
        write(trained, folder, model_card(study, row, values(trained.config), trained.record, about), width)
    click.echo(str(folder))
    if repository:
        click.echo(push(folder, repository, public=public))
