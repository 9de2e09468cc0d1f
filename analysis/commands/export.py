"""`analysis export`: a checkpoint as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.common import study_of, where
from analysis.commands.named import named


@click.command()
@named
@click.option("--trial", metavar="ID", help="[the seed with the best dev value of the best point]")
@click.option("--out", type=click.Path(path_type=Path), help="new folder [models/STUDY-TRIAL]")
@where
def export(
    study: str | None, trial: str | None, out: Path | None, storage: str | None, tracking_uri: str | None
) -> None:
    """Write the (confirmed) best checkpoint for SentenceTransformer(path) and AutoModel, with a model card.

    GCLSR models come with their own loader instead: gclsr_loader.py in the folder.
    """
    import numpy as np

    from analysis.card import model_card
    from analysis.export import export as write
    from analysis.testing import chosen_trials, trial_path, with_checkpoint
    from analysis.trained import load_trained

    found = study_of(storage, tracking_uri, study, None)
    named_trials = (trial,) if trial else ()
    chosen, _ = with_checkpoint(found, chosen_trials(found, named_trials, np.random.default_rng(0)))
    row = chosen.sort_values("value", ascending=found.metric.sign < 0).iloc[0]
    trained = load_trained(trial_path(found, str(row["folder"])))
    folder = out or Path("models") / f"{found.name}-{row['trial']}"
    write(trained, folder, model_card(found, row, trained.config, trained.record))
    click.echo(str(folder))
