"""Hyperparameter search for contrastive sentence representations: a space in, a study of trials out (docs/api.md).

space = search.load_space("quickstart")
result = search.run(space, "runs")
search.status(result.study).points
search.confirm(result.study)
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.api import confirm, resume, run, status
    from search.console.status import StudyStatus
    from search.running.result import StudyResult
    from search.space import Space, SpaceError, smoke
    from search.store.layout import UserError

__all__ = [
    "Space", "SpaceError", "StudyResult", "StudyStatus", "UserError", "confirm", "load_space", "resume", "run", "smoke",
    "status",
]  # fmt: skip

# Imported at first use, so that `search --help` stays fast.
_HOME = dict.fromkeys(("Space", "SpaceError", "smoke"), "search.space") | {
    "StudyResult": "search.running.result",
    "StudyStatus": "search.console.status",
    "UserError": "search.store.layout",
}


def load_space(
    given: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    find_data: bool = True,
    run_code: bool = True,
) -> Space:
    """Read and check a space as `search run` does.

    Args:
        given: a YAML file (`extends: other.yaml` in it is relative to it), the name of a ready space, or what such a
            file holds as plain data.
        overrides: `key.path=value` strings, applied in turn after `extends`.
        find_data: also report hyperparameters without effect, points that the method would refuse, data sets that this
            machine would not find, and what an encoder on this machine would ignore. False for a space that is only
            read, whose data is elsewhere, or that `smoke` scales down.
        run_code: import its plugins and find its script. Without it, a stored space is read as it stands, without the
            checks of `find_data`.
    Raises: SpaceError listing every mistake as `file:line: key: message` or `--set key: message`.
    """
    from search.space import load_space as load

    return load(given, overrides, find_data=find_data and run_code, run_code=run_code)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'search' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME.get(name, "search.api")), name)


def __dir__() -> list[str]:
    return __all__
