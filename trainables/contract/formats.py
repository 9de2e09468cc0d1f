"""Format versions of what is stored. Readers take older formats, and refuse newer ones in one line.

Raise a number when a reader of the version before would misread, or lose, what is written from now on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

JOURNAL: Final = 3  # 2: sessions; 3: the study's uuid
SPACE: Final = 1  # of a study: `written_by` in its space.yaml
CHECKPOINT: Final = 1  # state.pt and trial.json
TRACKING: Final = 2  # tags, metrics and artifacts in MLflow; 2: the study's uuid
FORMAT, VERSION = "format", "version"  # keys of a stamp
PRODUCT = "contrastive-search"


class NewerFormatError(ValueError):
    """A newer version of this program wrote what is read."""


def stamp(written: int) -> dict[str, Any]:
    """The fields of a stored file that give its format and the version that writes it."""
    return {FORMAT: written, VERSION: version(PRODUCT)}


def check_format(found: Mapping[str, Any], known: int) -> None:
    """Raises: NewerFormatError where the stamp in `found` is of a newer format than `known`; without a stamp the thing
    is older than stamps."""
    try:
        written = int(found.get(FORMAT, 1))
    except (TypeError, ValueError):
        return  # damaged: not ours to judge
    if written > known:
        raise NewerFormatError(
            f"written by {PRODUCT} {found.get(VERSION, 'of an unknown version')}, format {written}; {reads(known)}"
        )


def reads(known: int) -> str:
    """What this version reads, in words."""
    return f"this is {version(PRODUCT)}, which reads formats up to {known}"
