"""What relative names of encoders and data mean: files of the folder where the study began.

That folder is stored as it lies to the study's storage, so that a project that is moved or mounted elsewhere, with its
`runs`, finds its files again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainables.contract.remote_code import check_owner, without_code

JOURNAL = "tracking.jsonl"  # in a study's folder
TRACKED = "tracked.json"  # there, too: how much of the journal is in which tracking store
ORIGIN = "origin"  # in the first event of a study's journal: the folder where it began, seen from its storage


def origin(storage: str) -> dict[str, str]:
    """The field of a study's first event with the folder where it began; none if its storage is behind a URI."""
    return {} if "://" in storage else {ORIGIN: os.path.relpath(os.getcwd(), storage)}


@contextlib.contextmanager
def at_origin(journal: str, encoder: str, data: Mapping[str, Any], guides: Iterable[str] = ()) -> Iterator[None]:
    """The current folder is the one where the study began, if that has one of its files that are named relatively.

    Args:
        journal: file of the study in its folder in the storage; encoder, data: as in a trial's specification;
            guides: further encoders that its trials read.
    Raises: EncoderError for an encoder with code that may not run, see `remote_code.check_owner`.
    """
    check_owner(journal, encoder)
    names = [without_code(encoder), *(data.get("train") or "").split("+"), *(data.get("dev") or ()), data.get("parser")]
    names += [*(data.get("evaluations") or {}).values(), (data.get("mine") or {}).get("encoder"), *guides]
    relative = [name.strip() for name in names if name and not os.path.isabs(os.path.expanduser(name))]
    try:
        with open(journal, "rb") as file:
            folder = os.path.normpath(os.path.join(os.path.dirname(journal), "..", json.loads(file.readline())[ORIGIN]))
    except (OSError, ValueError, KeyError, TypeError):  # of an older version, or behind a URI
        folder = ""
    if not folder or not any(os.path.exists(os.path.join(folder, name.partition("*")[0])) for name in relative):
        yield
        return
    with contextlib.chdir(folder):
        yield
