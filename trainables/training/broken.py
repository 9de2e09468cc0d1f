"""What ends a trial whose numbers are of no use any more."""

from __future__ import annotations


class Broken(RuntimeError):
    """Training cannot go on; `kind` is the failure's kind in the tracking schema ("nan" or "collapse")."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
