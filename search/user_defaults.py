"""A user's defaults of both commands: where studies, the tracking store and the cluster file are."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Final

SETTINGS: Final = ("storage", "tracking_uri", "cluster")  # keys of the file, all texts
SETTINGS_VARIABLE: Final = "SEARCH_CONFIG"


class SettingsError(ValueError):
    """The file of defaults is wrong: one line naming file and key."""


def settings_file(environ: Mapping[str, str] = os.environ) -> str:
    """File of a user's defaults: SEARCH_CONFIG, else `contrastive-search/config.toml` in the configuration folder."""
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return environ.get(SETTINGS_VARIABLE) or os.path.join(folder, "contrastive-search", "config.toml")


def settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A user's defaults, key of SETTINGS -> value; empty without a file.

    Raises: SettingsError for a file that cannot be read, an unknown key, or a value that is no text.
    """
    path = settings_file(environ)
    if not os.path.exists(path):
        return {}
    import tomllib

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    for key, value in found.items():
        if key not in SETTINGS:
            raise SettingsError(f"{path}: {key}: unknown; expected {', '.join(SETTINGS)}")
        if not isinstance(value, str) or not value:
            raise SettingsError(f"{path}: {key}: expected a text, got {value!r}")
    return found


def use_settings(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """The user's defaults of options of both commands, parameter -> value.

    The tracking store is exported to every process of a study, unless MLFLOW_TRACKING_URI is set already.

    Raises: SettingsError as `settings`.
    """
    found = settings(environ)
    if uri := found.pop("tracking_uri", None):
        environ.setdefault("MLFLOW_TRACKING_URI", uri)
    return found
