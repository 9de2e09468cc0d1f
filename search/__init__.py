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
    from search.api import confirm, resume, run, status
    from search.console.status import StudyStatus
    from search.running.result import StudyResult
    from search.space import Space, SpaceError, load_space, smoke
    from search.store.layout import UserError

__all__ = [
    "Space", "SpaceError", "StudyResult", "StudyStatus", "UserError", "confirm", "load_space", "resume", "run", "smoke",
    "status",
]  # fmt: skip

# Imported at first use, so that `search --help` stays fast.
_HOME = dict.fromkeys(("Space", "SpaceError", "load_space", "smoke"), "search.space") | {
    "StudyResult": "search.running.result",
    "StudyStatus": "search.console.status",
    "UserError": "search.store.layout",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'search' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME.get(name, "search.api")), name)


def __dir__() -> list[str]:
    return __all__
