"""YAML as a tree that knows the line of every value. Nothing in a file is ever executed or constructed.

Scalars follow YAML 1.2's core rules rather than PyYAML's 1.1: `1e-5` is a number, `no` and `on` are text. Duplicate
keys, unknown tags and over-large documents are mistakes; anchors, aliases and merge keys (`<<`) work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from search.space.problems import Problems, Where
from search.space.ready import meant

MOST_VALUES = 20_000  # values in a file once its aliases are expanded; guards against alias bombs
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Node:
    """A value and its place. `value` is None, bool, int, float, str, a list of nodes, or a dict of nodes by key."""

    value: Any
    where: Where

    def plain(self) -> Any:
        """The value without places, as ordinary Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def place(self, *keys: str) -> Where:
        """Where the value under these keys is written, or the deepest on the way to it that there is."""
        node = self
        for key in keys:
            if not isinstance(node.value, dict) or key not in node.value:
                break
            node = node.value[key]
        return node.where

    def kind(self) -> str:
        """What YAML calls it, for messages."""
        return {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(
            type(self.value), "a number"
        )


class _Loader(yaml.SafeLoader):
    """Tags plain scalars by YAML 1.2 rules; used for composing only."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute, replaced on purpose)


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+(_[0-9]+)*", "-+0123456789"),
    ("float", r"[-+]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


_READ: dict[tuple[str, str], Node] = {}  # faultless files by path and text: a hundred spaces build on the same ten


class _TooLarge(Exception):
    """More than MOST_VALUES values."""


def read_file(path: str, problems: Problems) -> Node | None:
    """The top mapping of a YAML file, or None with the reasons in `problems`."""
    where = Where(path)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        problems.lost(where, "", "no such file" + meant(path))
        return None
    except (OSError, ValueError) as error:  # a folder, no permission, a NUL in the name
        problems.lost(where, "", f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problems.lost(Where(path, line), "", f"not UTF-8 (byte 0x{content[error.start]:02x})")
        return None
    if (path, text) in _READ:
        return _READ[path, text]
    before = len(problems.found)
    node = read_text(text, Where(path, 1), "", problems)
    if node is not None and isinstance(node.value, dict) and len(problems.found) == before:
        _READ[path, text] = node
    if node is None or isinstance(node.value, dict):
        return node
    got = "an empty file" if node.value is None else node.kind()
    problems.lost(Where(path, 1), "", f"expected a mapping with name, method, data, ..., got {got}")
    return None


def read_text(text: str, start: Where, key: str, problems: Problems) -> Node | None:
    """The tree of a YAML text; an override (`start.override`) is on no line."""

    def fail(line: int, message: str) -> None:
        problems.lost(start if start.override else Where(start.file, line), key, message)

    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = error.problem or error.context or "mistake in the notation"
        if message.startswith("but ") and error.context:
            message = f"{error.context}, {message}"
        if "'\\t'" in message:
            message = "a tab; YAML is indented with blanks"
        fail(mark.line + 1 if mark else 1, f"not valid YAML: {message}")
        return None
    except yaml.reader.ReaderError as error:
        fail(
            text[: error.position].count("\n") + 1, f"not valid YAML: character U+{error.character:04X} is not allowed"
        )
        return None
    except RecursionError:
        fail(1, "nested too deeply")
        return None
    except (ValueError, OverflowError):  # PyYAML on escapes such as "\UFFFFFFFF"
        fail(1, "not valid YAML: an escape in a quoted text stands for no character")
        return None
    if root is None:
        return Node(None, start)
    try:
        return _Converter(start, problems).convert(root, start, key)
    except RecursionError:
        fail(1, "nested too deeply")
    except _TooLarge:
        fail(1, f"more than {MOST_VALUES} values once aliases are expanded")
    return None


class _Converter:
    """Composed PyYAML nodes to `Node`; counts what it makes, notices recursive aliases."""

    def __init__(self, start: Where, problems: Problems) -> None:
        self.start, self.problems = start, problems
        self.made = 0
        self.open: set[int] = set()  # nodes being converted: meeting one again is a recursive alias

    def where(self, node: yaml.Node) -> Where:
        return self.start if self.start.override else Where(self.start.file, node.start_mark.line + 1)

    def convert(self, node: yaml.Node, where: Where, key: str) -> Node:
        self.made += 1
        if self.made > MOST_VALUES:
            raise _TooLarge
        if id(node) in self.open:
            self.problems.lost(where, key, "an alias inside its own anchor")
            return Node(None, where)
        if not node.tag.startswith(_TAG) or node.tag.removeprefix(_TAG) not in _KNOWN_TAGS:
            name = node.tag.replace(_TAG, "!!")
            self.problems.lost(where, key, f"unknown tag {name}; space files hold plain values only")
            return Node(None, where)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(self.mapping(node, key), where)
            if isinstance(node, yaml.SequenceNode):
                items = [self.convert(item, self.where(item), f"{key}[{i}]") for i, item in enumerate(node.value)]
                return Node(items, where)
            assert isinstance(node, yaml.ScalarNode)
            return Node(self.scalar(node, where, key), where)
        finally:
            self.open.discard(id(node))

    def scalar(self, node: yaml.ScalarNode, where: Where, key: str) -> Any:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int" and len(text) <= 18:
                return int(text)
            if kind in ("int", "float"):  # a longer integer is no setting: as a float it is told to be out of range
                return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            self.problems.lost(where, key, f"{text!r} is not a !!{kind}")
            return None
        if any("\ud800" <= c <= "\udfff" for c in text):
            self.problems.lost(where, key, "text with half a surrogate pair")
            return None
        return text

    def mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            where = self.where(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.lost(where, path, "a key must be plain text")
                continue
            key = str(key_node.value)
            full = f"{path}.{key}" if path else key
            if key_node.tag == _TAG + "merge":
                for name, value in self.merge(value_node, where, path).items():
                    merged.setdefault(name, value)
            elif key in own:
                first = own[key].where
                self.problems.add(where, full, "given twice" + (f" (first in line {first.line})" if first.line else ""))
            else:
                own[key] = self.convert(value_node, where, full)
        return own | {key: value for key, value in merged.items() if key not in own}

    def merge(self, node: yaml.Node, where: Where, path: str) -> dict[str, Node]:
        """What `<<` brings: a mapping, or several of which the first wins."""
        value = self.convert(node, where, path).value
        parts = [part.value for part in value] if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            self.problems.lost(where, path, "<< takes a mapping or a list of mappings")
            return {}
        return {key: item for part in reversed(parts) for key, item in part.items()}


_KNOWN_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "merge")


def from_plain(value: Any, where: Where) -> Node:
    """A tree of ordinary Python data, all of it at one place."""
    if isinstance(value, Mapping):
        return Node({str(key): from_plain(item, where) for key, item in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return Node([from_plain(item, where) for item in value], where)
    return Node(value, where)


def merge(base: Node, changes: Node) -> Node:
    """`changes` over `base`: sections key by key, everything inside a key (a parameter, a list) as a whole."""
    merged = dict(base.value)
    for key, node in changes.value.items():
        old = merged.get(key)
        if old is not None and isinstance(old.value, dict) and isinstance(node.value, dict):
            node = Node({**old.value, **node.value}, node.where)
        merged[key] = node
    return Node(merged, changes.where)


def override(
    root: Node, assignments: Sequence[str], problems: Problems, joined: Callable[[list[str]], list[str]] = list
) -> Node:
    """`root` with every `key.path=value` applied in turn; list items are addressed by number.

    joined: the parts of a path as the tree has them.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        where = Where("--set", override=True)
        if not equals or not all(path.split(".")):
            problems.add(where, path, f"expected key.path=value, got {assignment!r}")
        elif (value := read_text(text, where, path, problems)) is not None:
            root = _replaced(root, joined(path.split(".")), value, path, problems)
    return root


def _replaced(node: Node, keys: list[str], value: Node, path: str, problems: Problems) -> Node:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(node.value, list):
        if not key.isdecimal() or int(key[:18]) >= len(node.value):
            problems.add(
                value.where, path, f"expected a number from 0 to {len(node.value) - 1} for a list, got {key!r}"
            )
            return node
        items = list(node.value)
        items[int(key)] = _replaced(items[int(key)], rest, value, path, problems)
        return Node(items, node.where)
    entries = dict(node.value) if isinstance(node.value, dict) else {}
    entries[key] = _replaced(entries.get(key, Node(None, value.where)), rest, value, path, problems)
    return Node(entries, node.where if isinstance(node.value, dict) else value.where)
