"""The roles of a table's columns, which `data.columns` of a space maps to the file's names. Standard library only."""

from __future__ import annotations

import re

ROLES: dict[str, tuple[str, ...]] = {  # role -> column names understood without being told
    "sentence": ("sentence", "text"),
    "anchor": ("anchor", "sent0"),
    "positive": ("positive", "sent1"),
    "negative": ("negative", "hard_neg"),
    "first": ("sentence1",),
    "second": ("sentence2",),
    "score": ("score",),
    "subset": ("subset",),
}
NUMBERED = re.compile(r"negative_([1-9]\d?)")  # of several hard negatives


def is_role(name: str) -> bool:
    """Whether `data.columns` may name it."""
    return name in ROLES or NUMBERED.fullmatch(name) is not None
