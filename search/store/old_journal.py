"""The journal of a study in a bucket as versions before segments wrote it."""

from __future__ import annotations

import re
from typing import Any


def old_files(filesystem: Any, root: str) -> list[str]:
    """`tracking.jsonl` and its parts `.<first byte>`, in order."""
    try:
        names = [entry.rstrip("/") for entry in filesystem.ls(root, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(n for n in names if re.fullmatch(r"tracking\.jsonl(\.\d{15})?", n.rsplit("/", 1)[-1]))


def old_journal(filesystem: Any, root: str) -> bytes | None:
    """None where there is none. Parts may overlap where their driver crashed; the overlaps are equal."""
    names, journal = old_files(filesystem, root), b""
    for name in names:
        first = int(name.partition(".jsonl.")[2] or 0)
        if first > len(journal):
            break
        journal += filesystem.cat_file(name)[len(journal) - first :]
    return journal if names else None
