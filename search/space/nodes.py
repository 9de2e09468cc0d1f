"""YAML as a tree with the line and the key of every value, and the mistakes found in it.

Nothing in a file is ever executed or constructed. Scalars follow YAML 1.2's core rules rather than PyYAML's 1.1: `1e-5`
is a number, `no` and `on` are text. Duplicate keys, unknown tags and over-large documents are mistakes; anchors,
aliases and merge keys (`<<`) work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from trainables.contract.config import GROUPS
from trainables.contract.errors import did_you_mean

Schema = dict[str, Any]  # a JSON schema, or a part of one

MOST_VALUES = 20_000  # values in a file once its aliases are expanded; guards against alias bombs
LONGEST = 300  # characters of a key or a message; a mistaken value may be a whole document
_TAG = "tag:yaml.org,2002:"
_DOT = re.compile(
    "".join(rf"(?<!\.{group})" for group in GROUPS) + r"\."
)  # in an override's path: lora.rank is one key
_KNOWN_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "merge")


@dataclass(frozen=True, order=True)
class Where:
    """The place of a value: a line of a file (1-based; 0 = the file as a whole) or an override, and its key."""

    file: str
    line: int = 0
    override: bool = False
    key: str = ""

    def named(self, key: str) -> Where:
        """The same line for another key."""
        return replace(self, key=key)

    def to(self, *keys: str) -> Where:
        """The same line for a key inside this one."""
        return replace(self, key=".".join([self.key, *keys] if self.key else keys))

    def __str__(self) -> str:
        key = self.key if len(self.key) <= LONGEST else self.key[:LONGEST] + "..."
        if self.override:
            return f"--set {key}"
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {key}" if key else place


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake. `str` gives `file:line: key: message`, always a single printable line."""

    where: Where
    message: str

    def __str__(self) -> str:
        text = self.message if len(self.message) <= LONGEST else self.message[:LONGEST] + "..."
        line = f"{self.where}: {text}"
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class SpaceError(ValueError):
    """A space file cannot be used; `problems` lists everything wrong with it, by file and line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass
class Problems:
    """Collects mistakes while a file is read, so that all are reported at once."""

    found: list[Problem] = field(default_factory=list)
    unreadable: bool = False  # part of a file is lost: what is left must not be judged

    def add(self, where: Where, message: str) -> None:
        self.found.append(Problem(where, message))

    def lost(self, where: Where, message: str) -> Node | None:
        """A mistake that hides what was meant: None stands for the value."""
        self.add(where, message)
        self.unreadable = True
        return None

    def raise_if_any(self) -> None:
        if self.found:
            raise SpaceError(self.found)


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

    def get(self, *keys: str) -> Node | None:
        """The value under these keys, None if there is none."""
        node: Node | None = self
        for key in keys:
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return node

    def entries(self, *keys: str) -> dict[str, Node]:
        """What the mapping under these keys holds; nothing if there is no mapping."""
        node = self.get(*keys)
        return node.value if node is not None and isinstance(node.value, dict) else {}

    def place(self, *keys: str) -> Where:
        """Where the value under these keys is written, or the line of the deepest on the way to it that there is."""
        found = next(node for n in range(len(keys), -1, -1) if (node := self.get(*keys[:n])) is not None)
        return found.where.named(self.where.to(*keys).key) if keys else self.where

    def kind(self) -> str:
        """What YAML calls it, for messages."""
        return {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(
            type(self.value), "a number"
        )


def entries(node: Node | None, known: tuple[str, ...], problems: Problems) -> dict[str, Node]:
    """The entries of a section that have known names; everything else is reported."""
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node.where, f"expected a mapping with {', '.join(known)}, got {node.kind()}")
        return {}
    for name in node.value.keys() - known:
        problems.add(node.place(name), "unknown" + did_you_mean(name, known))
    return {name: item for name, item in node.value.items() if name in known}


def text(node: Node, problems: Problems, expected: str = "text") -> str | None:
    """A printable text that is not empty, or None with the reason in `problems`."""
    if isinstance(node.value, str) and node.value.strip() and node.value.isprintable():
        return node.value
    got = repr(node.value) if isinstance(node.value, (str, int, float)) else node.kind()
    problems.add(node.where, f"expected {expected}, got {got}")
    return None


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


_READ: dict[tuple[str, str], Node] = {}  # correct files by path and text: a hundred spaces build on the same ten


class _TooLarge(Exception):
    """More than MOST_VALUES values."""


def read_file(path: str, problems: Problems) -> Node | None:
    """The top mapping of a YAML file, or None with the reasons in `problems`."""
    try:
        content = Path(path).read_bytes()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return problems.lost(Where(path, line), f"not UTF-8 (byte 0x{content[error.start]:02x})")
    except (OSError, ValueError) as error:  # a folder, no permission, a NUL in the name
        return problems.lost(Where(path), f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if (path, text) in _READ:
        return _READ[path, text]
    before = len(problems.found)
    node = read_text(text, Where(path, 1), problems)
    if node is not None and not isinstance(node.value, dict):
        got = "an empty file" if node.value is None else node.kind()
        return problems.lost(Where(path, 1), f"expected a mapping with name, method, data, ..., got {got}")
    if node is not None and len(problems.found) == before:
        _READ[path, text] = node
    return node


def read_text(text: str, start: Where, problems: Problems) -> Node | None:
    """The tree of a YAML text; an override (`start.override`) is on no line."""
    line, message = 1, "nested too deeply"
    try:
        root = yaml.compose(text, Loader=_Loader)
        return Node(None, start) if root is None else _Converter(start, problems).convert(root, start)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = error.problem or error.context or "mistake in the notation"
        if what.startswith("but ") and error.context:
            what = f"{error.context}, {what}"
        message = "not valid YAML: " + ("a tab; YAML is indented with blanks" if "'\\t'" in what else what)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"not valid YAML: character U+{error.character:04X} is not allowed"
    except RecursionError:
        pass
    except _TooLarge:
        message = f"more than {MOST_VALUES} values once aliases are expanded"
    except (ValueError, OverflowError):  # PyYAML on escapes such as "\UFFFFFFFF"
        message = "not valid YAML: an escape in a quoted text stands for no character"
    return problems.lost(start if start.override else replace(start, line=line), message)


class _Converter:
    """Composed PyYAML nodes to `Node`; counts what it makes, notices recursive aliases."""

    def __init__(self, start: Where, problems: Problems) -> None:
        self.start, self.problems = start, problems
        self.made = 0
        self.open: set[int] = set()  # nodes being converted: meeting one again is a recursive alias

    def where(self, node: yaml.Node, key: str) -> Where:
        return (
            self.start.named(key) if self.start.override else Where(self.start.file, node.start_mark.line + 1, key=key)
        )

    def convert(self, node: yaml.Node, where: Where) -> Node:
        self.made += 1
        if self.made > MOST_VALUES:
            raise _TooLarge
        return Node(self.value(node, where), where)

    def value(self, node: yaml.Node, where: Where) -> Any:
        if id(node) in self.open:
            return self.problems.lost(where, "an alias inside its own anchor")
        if not node.tag.startswith(_TAG) or node.tag.removeprefix(_TAG) not in _KNOWN_TAGS:
            name = node.tag.replace(_TAG, "!!")
            return self.problems.lost(where, f"unknown tag {name}; space files hold plain values only")
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, where)
            if isinstance(node, yaml.SequenceNode):
                return [self.convert(item, self.where(item, f"{where.key}[{i}]")) for i, item in enumerate(node.value)]
            return self.scalar(node, where)
        finally:
            self.open.discard(id(node))

    def scalar(self, node: yaml.Node, where: Where) -> Any:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int" and len(text) <= 18:
                return int(text)
            if kind in ("int", "float"):  # a longer integer is no setting: as a float it is reported as out of range
                return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            return self.problems.lost(where, f"{text!r} is not a !!{kind}")
        if any("\ud800" <= c <= "\udfff" for c in text):
            return self.problems.lost(where, "text with half a surrogate pair")
        return text

    def mapping(self, node: yaml.MappingNode, at: Where) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            where = self.where(key_node, at.key)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.lost(where, "a key must be plain text")
            elif key_node.tag == _TAG + "merge":
                for name, value in self.merge(value_node, where).items():
                    merged.setdefault(name, value)
            elif (first := own.get(key := str(key_node.value))) is not None:
                line = f" (first in line {first.where.line})" if first.where.line else ""
                self.problems.add(where.to(key), "given twice" + line)
            else:
                own[key] = self.convert(value_node, where.to(key))
        return own | {key: value for key, value in merged.items() if key not in own}

    def merge(self, node: yaml.Node, where: Where) -> dict[str, Node]:
        """What `<<` brings: a mapping, or several of which the first wins."""
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        parts = [self.convert(item, where).value for item in items]
        if not all(isinstance(part, dict) for part in parts):
            self.problems.lost(where, "<< takes a mapping or a list of mappings")
            return {}
        return {key: item for part in reversed(parts) for key, item in part.items()}


def from_plain(value: Any, where: Where) -> Node:
    """A tree of ordinary Python data, all of it at one line."""
    if isinstance(value, Mapping):
        return Node({str(key): from_plain(item, where.to(str(key))) for key, item in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return Node([from_plain(item, where.named(f"{where.key}[{i}]")) for i, item in enumerate(value)], where)
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


def override(root: Node, assignments: Sequence[str], problems: Problems) -> Node:
    """`root` with every `key.path=value` applied in turn; list items are addressed by number."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        where = Where("--set", override=True, key=path.strip())
        if not equals or not all(where.key.split(".")):
            problems.add(where, f"expected key.path=value, got {assignment!r}")
        elif (value := read_text(text, where, problems)) is not None:
            root = _replaced(root, root.where.named(""), _DOT.split(where.key), value, problems)
    return root


def _replaced(node: Node | None, where: Where, keys: list[str], value: Node, problems: Problems) -> Node:
    """The node with a value put under the keys. where: its place, also if nothing is there yet."""
    if not keys:
        return value
    key, rest, inner = keys[0], keys[1:], value.where.named(where.to(keys[0]).key)
    if node is not None and isinstance(node.value, list):
        if not key.isdecimal() or int(key[:18]) >= len(node.value):
            last = len(node.value) - 1
            problems.add(value.where, f"expected a number from 0 to {last} for a list, got {key!r}")
            return node
        items = list(node.value)
        items[int(key)] = _replaced(items[int(key)], inner, rest, value, problems)
        return Node(items, node.where)
    if node is None or not isinstance(node.value, dict):
        return Node({key: _replaced(None, inner, rest, value, problems)}, where)
    return Node({**node.value, key: _replaced(node.value.get(key), inner, rest, value, problems)}, node.where)
