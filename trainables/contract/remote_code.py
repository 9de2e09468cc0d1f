"""Encoders whose code comes with their files and runs where a space allows it. Standard library only.

A space names one as `encoder: {name: ..., revision: ..., trust_remote_code: true}`. Everywhere else it is one text, as
trials, journals and MLflow hold it: `id@commit?trust_remote_code`, behind which `=commit` is the revision of code that
lies in another repository.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from pathlib import Path

from trainables.contract.errors import EncoderError

MARK = "?trust_remote_code"
ALLOWED_VARIABLE = "SEARCH_TRUST_REMOTE_CODE"  # encoders of other users' studies whose code may run, after commas
USER_VARIABLE = "SEARCH_USER"  # who begins studies, where that is not the user of the process
COMMIT = re.compile("[0-9a-f]{40}")


def runs_code(encoder: str | None) -> bool:
    """Whether the code of this encoder runs; None and "" are no encoder."""
    return MARK in (encoder or "")


def without_code(encoder: str | None) -> str:
    """The hub id or folder alone, with its revision."""
    return (encoder or "").partition(MARK)[0]


def mark_of(encoder: str) -> str:
    """What stands behind hub id or folder where code runs, else ""."""
    return encoder[len(without_code(encoder)) :]


def code_revision(encoder: str) -> str | None:
    """The commit of code in another repository than the encoder's."""
    return encoder.partition(f"{MARK}=")[2] or None


def check_pinned(encoder: str, folder: Path) -> None:
    """Check that the code which would run is one that was named: of a commit, or in a local folder.

    Args: encoder: whose code runs; folder: its files.
    Raises: EncoderError.
    """
    name, _, revision = without_code(encoder).partition("@")
    if not os.path.isdir(os.path.expanduser(name)) and not COMMIT.fullmatch(revision):
        raise EncoderError(f"encoder {encoder!r}: expected a commit of 40 hexadecimal digits, got {revision!r}")
    elsewhere = sorted({one.partition("--")[0] for one in code_references(folder) if "--" in one})
    if elsewhere and not COMMIT.fullmatch(code_revision(encoder) or ""):
        raise EncoderError(
            f"encoder {name!r}: its code is in {' and '.join(elsewhere)}; name the commit there as code_revision"
        )


def code_references(folder: Path) -> list[str]:
    """What `auto_map` of an encoder's files names: `module.Class`, in another repository `id--module.Class`."""
    found: list[str] = []
    for name in ("config.json", "tokenizer_config.json"):
        try:
            references = json.loads((folder / name).read_text(encoding="utf-8")).get("auto_map") or {}
        except (OSError, ValueError, AttributeError):
            continue
        values = references.values() if isinstance(references, dict) else [references]
        listed = [one for value in values for one in (value if isinstance(value, list) else [value])]
        found += [one for one in listed if isinstance(one, str)]
    return found


def lacks_code(folder: Path) -> bool:
    """Whether a module that `auto_map` names is not in the folder."""
    own = (one.partition(".")[0] for one in code_references(folder) if "--" not in one)
    return any(not (folder / f"{module}.py").is_file() for module in own)


def this_user() -> str:
    """The name of the user whose studies this process begins: USER_VARIABLE, which a job on a cluster has from the
    machine that sent it, or the system's; "" where that has none (a container's bare number)."""
    try:
        return os.environ.get(USER_VARIABLE) or getpass.getuser()
    except (KeyError, OSError):
        return ""


def check_owner(journal: str, encoder: str) -> None:
    """Check that code may run: it is of a study that this user began, or of an encoder that this user allows.

    Args: journal: file of the study; encoder: of its trials.
    Raises: EncoderError.
    """
    allowed = [one.strip() for one in os.environ.get(ALLOWED_VARIABLE, "").split(",")]
    if not runs_code(encoder) or without_code(encoder) in allowed:
        return
    try:
        with open(journal, "rb") as file:
            user, mine = json.loads(file.readline()).get("user"), os.fstat(file.fileno()).st_uid == os.getuid()
    except (OSError, ValueError, AttributeError):  # behind a URI, or no study
        user, mine = None, False
    if not mine or user != this_user():
        raise EncoderError(
            f"encoder {without_code(encoder)!r}: runs code of its own (trust_remote_code), in a study that "
            f"{user or 'somebody else'} began; to allow it, set {ALLOWED_VARIABLE}={without_code(encoder)}"
        )
