"""What a job carries to the cluster: this project, the user's space, and the local files that the space names.

Ray unpacks the folder on every node and starts the driver and all trials in it, so a file is found under the same
relative name everywhere. A file below the current folder keeps its name; any other goes to `carried/`, which is also
the job's SEARCH_DATA_DIR.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.space import Space
from search.store.layout import UserError

PACKAGES = ("search", "trainables", "analysis")
CARRIED = "carried"
LIMIT_MIB = 100  # Ray refuses larger job folders (HTTP 413)
RESERVED = [(name,) for name in (*PACKAGES, "space.yaml")] + [()]
SECRET = (".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "auth_token", ".ssh", ".aws", ".netrc")
WITHOUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", *SECRET)


def make_bundle(target: Path, space: Space | None, carry: Sequence[str] = ()) -> dict[str, str]:
    """Fill `target` (an empty folder) and return environment variables that the job needs for it.

    Args:
        space: goes to `target/space.yaml`, resolved, its local files named as they are in the bundle.
        carry: further files or folders, such as data that a resumed study needs.
    Raises: UserError when a file is missing, two files would get one name, or all is larger than Ray takes.
    """
    for package in PACKAGES:
        shutil.copytree(Path(__file__).parents[2] / package, target / package, ignore=WITHOUT)
    paths = [Path(given).expanduser() for given in carry]
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"--carry {missing[0]}: no such file or folder (looked in {missing[0].absolute().parent})")
    if secret := [path for path in paths if any(fnmatch.fnmatch(path.name, pattern) for pattern in SECRET)]:
        raise UserError(f"--carry {secret[0]}: looks like a key or a password; such files do not travel to nodes")
    if space is not None:
        (target / "space.yaml").write_text(_renamed(space).to_yaml(), encoding="utf-8")
        paths += local_files(space)
    wanted = [(path, bundled_name(path)) for path in paths]
    if space is not None:
        wanted += [(path, f"{CARRIED}/{path.name}") for path in named_sets(space)]
    names: dict[str, Path] = {}
    for path, name in wanted:
        if names.setdefault(name, path).absolute() != path.absolute():
            raise UserError(f"{path} and {names[name]} would both be {name} on the cluster; rename one")
    for name, path in names.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path, target / name, ignore=WITHOUT) if path.is_dir() else shutil.copyfile(path, target / name)
    _check_size(target, names)
    return {"SEARCH_DATA_DIR": CARRIED} if (target / CARRIED).is_dir() else {}


def bundled_name(path: Path) -> str:
    """What a local file is called in the bundle. A placeholder such as `{split}` in its name stays."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    if absolute.is_relative_to(here) and (name := absolute.relative_to(here)).parts[:1] not in RESERVED:
        return name.as_posix()
    return f"{CARRIED}/{absolute.name}"


def local_files(space: Space) -> list[Path]:
    """The files and folders of this machine that a space names.

    What is missing here may lie on the cluster's nodes; the driver there looks before it starts anything.
    """
    data = [path for name in (space.data.train, *space.data.dev) if name for path in _data_files(name)]
    others = [Path(name).expanduser() for name in (space.encoder, space.data.parser) if name and _is_local(name)]
    data += [Path(f).expanduser() for f in (space.data.evaluations or {}).values() if f and _is_local(f)]
    return data + others


def named_sets(space: Space) -> list[Path]:
    """Files of this machine's SEARCH_DATA_DIR that the space's named sets are read from."""
    from trainables.data.catalogue import find_local, is_path

    wanted = [(space.data.train, "train"), *((dev, split) for dev in space.data.dev for split in ("dev", "test"))]
    found = [find_local(name, space.data.language, split) for name, split in wanted if name and not is_path(name)]
    return list(dict.fromkeys(source.path for source in found if source is not None))


def _renamed(space: Space) -> Space:
    """The space with its local files under the names that they have in the bundle."""
    from trainables.data.catalogue import is_path

    def data(name: str) -> str:
        if not name or not _data_files(name):
            return name
        moved = bundled_name(Path(name).expanduser())
        return moved if is_path(moved) else f"./{moved}"  # a folder without a slash would be a set's name

    def other(name: str | None) -> Any:
        return bundled_name(Path(name).expanduser()) if name and _is_local(name) else name

    moved = replace(
        space.data,
        train=data(space.data.train),
        dev=tuple(data(name) for name in space.data.dev),
        parser=other(space.data.parser),
        evaluations={k: other(f) for k, f in space.data.evaluations.items()} if space.data.evaluations else None,
    )
    return replace(space, data=moved, encoder=other(space.encoder))


def _data_files(name: str) -> list[Path]:
    """The files (or the folder) that an entry of `data:` means here; `{split}` in it stands for several."""
    from trainables.data.catalogue import is_path
    from trainables.data.files import matching
    from trainables.data.retrieval import is_retrieval

    if is_retrieval(name) and Path(name).expanduser().is_dir():
        return [Path(name).expanduser()]
    paths = [Path(name.replace("{split}", split)).expanduser() for split in ("train", "dev", "test")]
    return [file for path in dict.fromkeys(paths) if is_path(name) for file in matching(path)]


def _is_local(name: str) -> bool:
    return not name.startswith("builtin") and Path(name).expanduser().exists()


def _check_size(target: Path, names: Mapping[str, Path]) -> None:
    sizes = {name: sum(p.stat().st_size for p in _files(target / name)) for name in names}
    total = sum(p.stat().st_size for p in _files(target))
    if total > LIMIT_MIB * 2**20:
        largest = max(sizes, key=lambda name: sizes[name])  # there is one: the project alone is small
        raise UserError(
            f"a job carries at most {LIMIT_MIB} MiB, got {total / 2**20:.0f} MiB; the largest: {largest} "
            f"({sizes[largest] / 2**20:.0f} MiB). Put it on every node with file_mounts in the cluster file "
            "and name it by its absolute path there"
        )


def _files(path: Path) -> list[Path]:
    return [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
