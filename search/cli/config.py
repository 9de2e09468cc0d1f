"""`search config`: a user's defaults, and where each value comes from."""

from __future__ import annotations

import os
import sys

import click

from search.schema import DEFAULT_STORAGE, tracking_uri
from search.user_defaults import SETTINGS, SettingsError, settings, settings_file, use_settings

VARIABLES = {"storage": "SEARCH_STORAGE", "tracking_uri": "MLFLOW_TRACKING_URI"}


def defaults() -> dict[str, str]:
    """The user's defaults of options; a wrong file is one line and exit code 2."""
    try:
        return use_settings()
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


@click.command()
def config() -> None:
    """Your defaults of --storage, --cluster and of where MLflow is, and where each value comes from.

    They are texts in one file (TOML): storage = "FOLDER|URI", tracking_uri = "URI", cluster = "FILE". An option wins
    over an environment variable, and that over the file; `--cluster ""` is no cluster.
    """
    path = settings_file()
    try:
        found = settings()
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    values = {key: _value(key, found) for key in SETTINGS}
    if values["tracking_uri"][1] == "default":
        values["tracking_uri"] = (tracking_uri(storage=values["storage"][0]), "in the storage")
    click.echo(f"{path}{'' if os.path.exists(path) else ' (not there)'}")
    for key, (value, origin) in values.items():
        click.echo(f"{key:<14}{value or 'none'}  ({origin})")


def _value(key: str, found: dict[str, str]) -> tuple[str, str]:
    variable = VARIABLES.get(key, "")
    if value := os.environ.get(variable):
        return value, variable
    if key in found:
        return found[key], "the file"
    return DEFAULT_STORAGE if key == "storage" else "", "default"
