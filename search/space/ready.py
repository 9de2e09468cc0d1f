"""The spaces that come with the package: found by name from any folder."""

from __future__ import annotations

import os
from pathlib import Path

from trainables.contract.errors import close_to

_PACKAGE = Path(__file__).parents[1]


def ready_folder() -> Path:
    """Where they lie: installed as `search/ready_spaces`, in a source tree in `spaces` beside `search`."""
    installed = _PACKAGE / "ready_spaces"
    return installed if installed.is_dir() else _PACKAGE.parent / "spaces"


def ready_spaces() -> list[str]:
    """Their names, such as `edacse` and `papers/edacse_table05_bert`."""
    folder = ready_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def find_space(given: str | os.PathLike[str]) -> str:
    """The file that is meant: the one of that path, else the ready space of that name, else the path as it is."""
    path = os.fspath(given)
    if not os.path.isfile(path) and (name := path.removesuffix(".yaml")) in ready_spaces():
        return str(ready_folder() / f"{name}.yaml")
    return path


def meant(path: str) -> str:
    """`; did you mean 'edacse'?` for a path that no file has, when a ready space has a name like it."""
    return close_to(path.removeprefix("spaces/").removesuffix(".yaml"), ready_spaces())
