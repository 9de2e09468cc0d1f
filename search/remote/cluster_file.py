"""The cluster file of `ray up`, and what it still lacks: found here in a second, not by `ray up` after ten minutes."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from search.store.layout import UserError

PLACEHOLDER = re.compile(r"SET-[\w-]*")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # names that both Amazon and Google take
SCHEMES = {"aws": "s3", "gcp": "gs"}
STORAGE = re.compile(r"\bSEARCH_STORAGE=([^\s'\"]*)")
NODES_PYTHON = re.compile(r"\bpython(\d+\.\d+) -m venv\b")
IMAGE = re.compile(r"rayproject/ray[\w-]*:(?P<ray>\d+\.\d+\.\d+)[\w.]*(?:-py(?P<python>3\d+))?")
PINNED_RAY = re.compile(r"\bray(?:\[[\w,-]*\])?==(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class Fault:
    """Something that a cluster file lacks; line is 1-based."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def read_cluster(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A cluster file as plain data.

    Raises: UserError when it cannot be read or is no Ray cluster file.
    """
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--cluster {path}: {' '.join(str(error).split())}") from error
    missing = {"cluster_name", "provider", "auth"} - set(config if isinstance(config, dict) else ())
    if missing:
        lacking = ", ".join(sorted(missing))
        raise UserError(f"--cluster {path}: expected a Ray cluster file such as cluster.yaml; it has no {lacking}")
    return dict(config)


def cluster_faults(path: str | os.PathLike[str]) -> list[Fault]:
    """What keeps a cluster from coming up safely: placeholders, who may do what, where studies lie; by line.

    Raises: UserError as `read_cluster`.
    """
    read_cluster(path)
    file = _File(path)
    found = [*_placeholders(file), *_key(file), *_access(file), *_storage(file)]
    return sorted(found, key=lambda fault: fault.line)


def version_faults(path: str | os.PathLike[str]) -> list[Fault]:
    """Where the file names another Python (minor) or Ray for its nodes than this machine has: no job would start."""
    read_cluster(path)
    file = _File(path)
    python, ray = ".".join(platform.python_version_tuple()[:2]), metadata.version("ray")
    found = []
    for line, text in file.code():
        there = dict.fromkeys(("python", "ray"), "")
        if image := IMAGE.search(text):
            minor = image["python"]
            there = {"ray": image["ray"], "python": f"3.{minor[1:]}" if minor else ""}
        if venv := NODES_PYTHON.search(text):
            there["python"] = venv[1]
        if pinned := PINNED_RAY.search(text):
            there["ray"] = pinned[1]
        for name, here in (("python", python), ("ray", ray)):
            if there[name] and there[name] != here:
                found.append(file.fault(line, f"{name} {there[name]} on the nodes, {here} here: make them the same"))
    return found


def refuse_unfinished(path: str | os.PathLike[str], versions: bool = False) -> None:
    """Raises: UserError with a line for each of `cluster_faults`, and of `version_faults` where a job is to be sent."""
    if faults := cluster_faults(path) + (version_faults(path) if versions else []):
        raise UserError("\n".join(map(str, faults)))


class _File:
    """A cluster file as data, as YAML nodes, which know their lines, and as lines, which have the comments."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        text = Path(path).read_text(encoding="utf-8")
        self.name, self.lines = os.fspath(path), text.splitlines()
        self.data: dict[str, Any] = yaml.safe_load(text)
        self.root = yaml.compose(text, Loader=yaml.SafeLoader)
        self.provider = str(self.data["provider"].get("type")) if isinstance(self.data["provider"], dict) else ""

    def fault(self, line: int, text: str) -> Fault:
        return Fault(self.name, line, text)

    def line(self, *keys: str) -> int:
        """Of the deepest of these nested keys that is there."""
        node, line = self.root, 1
        for key in keys:
            pair = _pair(node, key)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        return line

    def scalars(self) -> Iterator[tuple[str, yaml.ScalarNode]]:
        """(key path, node) of every value, those of an anchor once."""
        yield from _scalars(self.root, "", set())

    def code(self) -> Iterator[tuple[int, str]]:
        """(line, text) without what a comment says."""
        for number, line in enumerate(self.lines, 1):
            yield number, re.split(r"(?:^|\s)#", line, maxsplit=1)[0]


def _pair(node: Any, key: str) -> tuple[Any, Any] | None:
    """A key and its value in a mapping node, its own before those it merges in."""
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if name.value == key:
            return name, value
    merged = (_pair(value, key) for name, value in node.value if name.value == "<<")
    return next((pair for pair in merged if pair is not None), None)


def _scalars(node: Any, path: str, seen: set[int]) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, path, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, f"{path}.{key.value}".lstrip("."), seen)


def _placeholders(file: _File) -> Iterator[Fault]:
    """SET-..., and what the comment of its line says of it."""
    for path, node in file.scalars():
        first, last = node.start_mark.line, node.end_mark.line
        if first == last:
            texts = [(first, node.value)]
        else:  # a block: its lines as they stand, so that each is named
            texts = list(enumerate(file.lines[first:last], first))
        for number, text in texts:
            if found := PLACEHOLDER.search(text):
                comment = re.search(r"\s# SET: (.*)", file.lines[number])
                hint = f" ({comment[1]})" if comment else ""
                yield file.fault(number + 1, f"{path}: {found[0]} is still to be set{hint}")


def _key(file: _File) -> Iterator[Fault]:
    auth = file.data["auth"] if isinstance(file.data["auth"], dict) else {}
    if "ssh_user" not in auth:
        yield file.fault(file.line("auth"), "auth.ssh_user: missing")
    key = auth.get("ssh_private_key")
    if key is not None and not PLACEHOLDER.search(str(key)) and not os.path.exists(os.path.expanduser(str(key))):
        yield file.fault(file.line("auth", "ssh_private_key"), f"auth.ssh_private_key: {key}: no such file here")


def _access(file: _File) -> Iterator[Fault]:
    """Names whose absence makes Ray open or allow more than it should."""
    if file.provider == "aws" and not _group(file.data["provider"].get("security_group")):
        why = "missing GroupName: Ray would make a group that opens port 22 to the world"
        yield file.fault(file.line("provider", "security_group"), f"provider.security_group: {why}")
    wanted = {
        "aws": ("IamInstanceProfile", "a head without one gets AmazonEC2FullAccess, a worker cannot reach the bucket"),
        "gcp": (
            "serviceAccounts",
            "Ray gives the head one that may do all of Compute Engine, a worker cannot reach the bucket",
        ),
    }
    if file.provider not in wanted:
        return
    key, why = wanted[file.provider]
    for name, kind in (file.data.get("available_node_types") or {}).items():
        if not (kind.get("node_config") or {}).get(key):
            line = file.line("available_node_types", str(name), "node_config")
            yield file.fault(line, f"available_node_types.{name}.node_config.{key}: missing: {why}")


def _group(given: Any) -> bool:
    return isinstance(given, Mapping) and bool(given.get("GroupName"))


def _storage(file: _File) -> Iterator[Fault]:
    """SEARCH_STORAGE as the nodes will have it."""
    where = [(line, found[1]) for line, text in file.code() if (found := STORAGE.search(text))]
    scheme = SCHEMES.get(file.provider)
    if not where and (scheme or file.provider == "local"):
        yield file.fault(
            file.line("setup_commands"),
            "setup_commands: no SEARCH_STORAGE: studies would lie on the head's own disk, out of the workers' reach",
        )
    for line, uri in where:
        if PLACEHOLDER.search(uri):
            continue
        given, _, rest = uri.partition("://") if "://" in uri else ("", "", uri)
        if not given and scheme:
            text = f"{uri or 'empty'}: expected a bucket, {scheme}://NAME/FOLDER: nodes share no disk"
            yield file.fault(line, f"SEARCH_STORAGE: {text}")
        elif not given and not rest.startswith(("/", "$", "~")):
            yield file.fault(line, f"SEARCH_STORAGE: {uri or 'empty'}: expected an absolute path or a bucket")
        elif given and not BUCKET.fullmatch(rest.partition("/")[0]):
            yield file.fault(line, f"SEARCH_STORAGE: {uri}: bucket names have 3 to 63 of a-z, 0-9, '.', '-'")
        elif given and scheme and given != scheme:
            yield file.fault(line, f"SEARCH_STORAGE: {uri}: expected {scheme}:// on {file.provider}")
