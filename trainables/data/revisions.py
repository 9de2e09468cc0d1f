"""What the files of a run hold, so that a study notices when they change under it. No torch, no download."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainables.contract.errors import DataError
from trainables.data.catalogue import BUILTIN, EDACSE, EDACSE_PARTS, find_local, is_path
from trainables.data.files import matching
from trainables.data.hub import is_hub
from trainables.data.retrieval import PATTERNS, is_retrieval
from trainables.data.sets import find_source


def data_revisions(data: Mapping[str, Any]) -> dict[str, str]:
    """`data.dev pairs.tsv` -> `sha256:<12 digits>`, of every file or folder of a run that is on this machine.

    What cannot change is left out (builtin sets, what the hub pins by a commit), and so is what is not there: whoever
    reads it says so.

    Args: data: as in a trial's specification.
    """
    train = data.get("train") or ""
    parts = [train] if Path(train).expanduser().is_file() else [part.strip() for part in train.split("+")]
    named = [("train", name) for part in parts for name in (EDACSE_PARTS if part == EDACSE else (part,))]
    named += [("dev", name) for name in data.get("dev") or ()]
    language = str(data.get("language", "en"))
    found = {f"data.{split} {name}": _revision(name, language, split) for split, name in named if name}
    return {name: revision for name, revision in found.items() if revision is not None}


def _revision(name: str, language: str, split: str) -> str | None:
    if name == BUILTIN or is_hub(name):
        return None
    if split == "dev" and is_retrieval(name):
        return _of_folder(Path(name).expanduser()) if is_path(name) else None
    try:
        find = partial(find_source, download=False) if is_path(name) else find_local
        source = find(name, language, split)
    except DataError:
        return None
    return source.revision if source is not None and matching(source.path) else None


def _of_folder(folder: Path) -> str | None:
    digest, files = hashlib.sha256(), sorted({file for pattern in PATTERNS for file in folder.glob(pattern)})
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()[:12]}" if files else None
