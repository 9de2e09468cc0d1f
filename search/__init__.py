"""Hyperparameter search for contrastive sentence representations: a space in, a study of trials out (docs/api.md).

space = search.load_space("quickstart")
result = search.run(space, "runs")
search.status(result.study).points
search.confirm(result.study)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.api import confirm, load_space, resume, run, smoke, status
    from search.console.status import StudyStatus
    from search.running.result import StudyResult
    from search.space import Space, SpaceError
    from search.store.layout import UserError

__all__ = [
    "Space", "SpaceError", "StudyResult", "StudyStatus", "UserError", "confirm", "load_space", "resume", "run", "smoke",
    "status",
]  # fmt: skip

# Imported when first asked for: `search --help` waits for none of it.
_HOME = {
    "Space": "search.space",
    "SpaceError": "search.space",
    "StudyResult": "search.running.result",
    "StudyStatus": "search.console.status",
    "UserError": "search.store.layout",
    "confirm": "search.api",
    "load_space": "search.api",
    "resume": "search.api",
    "run": "search.api",
    "smoke": "search.api",
    "status": "search.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'search' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
