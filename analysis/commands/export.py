"""`analysis export`: a checkpoint as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.options import study_argument, study_of, where


@click.command(short_help="The best checkpoint for SentenceTransformer and AutoModel")
@study_argument
@click.option("--trial", metavar="ID", help="[the seed with the best dev value of the best point]")
@click.option("--out", type=click.Path(path_type=Path), help="new folder [models/STUDY-TRIAL]")
@where
def export(study: str | None, trial: str | None, out: Path | None, storage: str, tracking_uri: str | None) -> None:
    """Write the (confirmed) best checkpoint for SentenceTransformer(path) and AutoModel, with a model card.

    Models of methods with a network of their own come with their own loader; the folder's README.md says how.
    """
    from analysis.checkpoints.choice import exported_trial, trial_path
    from analysis.checkpoints.export import export as write
    from analysis.checkpoints.trained import load_trained
    from analysis.writing.card import model_card

    found = study_of(storage, tracking_uri, study, None)
    row = exported_trial(found, trial)
    trained = load_trained(trial_path(found, str(row["folder"])))
    folder = out or Path("models") / f"{found.name}-{row['trial']}"
    write(trained, folder, model_card(found, row, trained.config, trained.record))
    click.echo(str(folder))
