"""What `data.train` and `data.dev` of a space list, and the columns of their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search.space.nodes import Node, Problems, Schema, entries, text
from trainables.contract.errors import did_you_mean
from trainables.data.catalogue import set_name, train_parts
from trainables.data.columns import ROLES, Columns, is_role
from trainables.data.retrieval import dev_metrics, folder_entry

TEXT: Schema = {"type": "string", "minLength": 1}
OWN_COLUMNS: Schema = {
    "type": "object",
    "properties": {"file": TEXT, "columns": {"type": "object"}},
    "required": ["file", "columns"],
    "additionalProperties": False,
}
SETS: list[Schema] = [TEXT, OWN_COLUMNS, {"type": "array", "items": {"anyOf": [TEXT, OWN_COLUMNS]}}]


def set_nodes(node: Node | None) -> list[tuple[Node, Node | None]]:
    """(name, its own columns) of every entry in data.train or data.dev: a text, or a mapping with file and columns."""
    items = [] if node is None else node.value if isinstance(node.value, list) else [node]
    key = node.where.key if node is not None else ""
    named = [Node(item.value, item.where.named(key)) for item in items]
    return [(item.get("file") or item, item.get("columns")) for item in named]


def train_sets(node: Node, problems: Problems) -> str | None:
    names = [text(item, problems) for item, _ in set_nodes(node)]
    if not names:
        problems.add(node.where, "expected at least one corpus, got an empty list")
    for name in names if isinstance(node.value, list) else ():
        if name and "+" in name:
            problems.add(node.where, f"expected names without +, which joins corpora, got {name!r}")
    return "+".join(name for name in names if name) or None


def own_columns(given: Mapping[str, Node], problems: Problems) -> Columns | None:
    """`data.columns`, and under the names of their files those of entries that have columns of their own."""
    listed = [given[key] for key in ("train", "dev") if key in given]
    for item in (item for node in listed for item in (node.value if isinstance(node.value, list) else [node])):
        if isinstance(item.value, dict) and len(entries(item, ("file", "columns"), problems)) < 2:
            problems.add(item.where, "expected a name, or a mapping with file and columns")
    sets = [(item.value, own) for node in listed for item, own in set_nodes(node) if isinstance(item.value, str)]
    names = {part for name, _ in sets for part in (name, *train_parts(name))}
    found: dict[str, Any] = {}
    for name, node in [("", given.get("columns")), *sets]:
        if node is None:
            continue
        columns = node.plain()
        if not isinstance(columns, dict):
            problems.add(node.where, "expected a mapping of our column name to the file's")
            continue
        # a stored study has those of entries here
        common = {r: c for r, c in columns.items() if name or r not in names or isinstance(c, str)}
        for role, column in common.items():
            if not is_role(role):
                problems.add(node.place(role), "unknown role" + did_you_mean(role, [*ROLES, "negative_1"]))
            elif not isinstance(column, str):
                problems.add(node.place(role), "expected the name of a column")
        found |= {name: columns} if name else columns
    return found or None


def dev_sets(node: Node, problems: Problems) -> tuple[str, ...]:
    items = [item for item, _ in set_nodes(node)]
    if not items:
        problems.add(node.where, "expected at least one set, got an empty list")
    names = [folder_entry(name) if (name := text(item, problems)) else None for item in items]
    keys: dict[str, str] = {}
    for name, item in zip(names, items, strict=True):
        if name and (other := keys.setdefault(set_name(name), name)) is not None and names.count(name) > 1:
            problems.add(item.where, f"{name!r} is given twice")
        elif name and other != name:
            problems.add(item.where, f"{name!r} and {other!r} would both be called {dev_metrics(name)[0]}")
    return tuple(name for name in names if name)
