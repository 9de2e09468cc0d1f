"""`analysis export`: a checkpoint as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.options import study_argument, study_of, where


@click.command(short_help="The best checkpoint for SentenceTransformer and AutoModel")
@study_argument
@click.option("--trial", metavar="ID", help="[the seed with the best dev value of the best point]")
@click.option("--out", type=click.Path(path_type=Path), help="new folder [models/STUDY-TRIAL]")
@click.option("--licence", metavar="ID", help="as hubs write it, apache-2.0 [what the encoder's card states]")
@click.option("--push-to-hub", "repository", metavar="REPO", help="upload to that model of the hub, made if not there")
@click.option("--public", is_flag=True, help="seen by all [private]")
@where
def export(
    study: str | None,
    trial: str | None,
    out: Path | None,
    licence: str | None,
    repository: str | None,
    public: bool,
    storage: str,
    tracking_uri: str | None,
) -> None:
    """Write the (confirmed) best checkpoint for SentenceTransformer(path) and AutoModel, with a model card.

    Models of methods with a network of their own come with their own loader; the folder's README.md says how. Of a
    script it is the folder that the script saved at its best evaluation. With --push-to-hub the folder is uploaded as
    well, with the token of `hf auth login` or HF_TOKEN.
    """
    from analysis.checkpoints.choice import exists, exported_trial, read_record, trial_path
    from analysis.checkpoints.export import copy_model
    from analysis.checkpoints.export import export as write
    from analysis.checkpoints.publish import base_licence, check_repository, push
    from analysis.checkpoints.trained import load_trained
    from analysis.errors import InputError
    from analysis.writing.card import About, model_card
    from trainables.contract.config import values
    from trainables.contract.trial import MODEL

    if public and not repository:
        raise InputError("--public: says who sees a model of the hub; expected --push-to-hub beside it")
    if repository:
        check_repository(repository)
    found = study_of(storage, tracking_uri, study, None)
    row = exported_trial(found, trial)
    path = trial_path(found, str(row["folder"]))
    folder = out or Path("models") / f"{found.name}-{row['trial']}"
    if (record := read_record(path)) and exists(f"{path}/{MODEL}"):  # a script wrote it
        spec, loads = record["spec"], exists(f"{path}/{MODEL}/modules.json")
        about = About(licence=licence or base_licence(spec["encoder"], ask=bool(repository)), loads=loads)
        copy_model(f"{path}/{MODEL}", folder, model_card(found, row, spec["params"], record, about))
    else:
        trained = load_trained(path)
        about = About(
            dimensions=trained.embed(["a"]).shape[1],
            longest=getattr(trained.network, "longest", None),
            licence=licence or base_licence(trained.spec.encoder, ask=bool(repository)),
        )
        write(trained, folder, model_card(found, row, values(trained.config), trained.record, about))
    click.echo(str(folder))
    if repository:
        click.echo(push(folder, repository, public=public))
