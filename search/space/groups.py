"""Hyperparameters that are written together: `lora: {rank: 8, alpha: 16}` stands for `lora.rank` and `lora.alpha`."""

from __future__ import annotations

from search.space.nodes import Node
from search.space.problems import Problems
from trainables.contract.config import GROUPS


def spread(root: Node, problems: Problems) -> Node:
    """The document with the groups of `params`, `smoke.params` and every point taken apart, each value at its line.

    A value given in both ways is a mistake; one of an override wins.
    """
    entries = dict(root.value)
    if "params" in entries:
        entries["params"] = _apart(entries["params"], "params", problems)
    if "smoke" in entries and isinstance(entries["smoke"].value, dict) and "params" in entries["smoke"].value:
        smoke = entries["smoke"]
        params = _apart(smoke.value["params"], "smoke.params", problems)
        entries["smoke"] = Node({**smoke.value, "params": params}, smoke.where)
    if "points" in entries and isinstance(entries["points"].value, list):
        rows = [_apart(row, f"points[{i}]", problems) for i, row in enumerate(entries["points"].value)]
        entries["points"] = Node(rows, entries["points"].where)
    return Node(entries, root.where)


def _apart(section: Node, key: str, problems: Problems) -> Node:
    if not isinstance(section.value, dict):
        return section
    found: dict[str, Node] = {}
    for name, node in section.value.items():
        grouped = name in GROUPS and isinstance(node.value, dict)
        for own, value in (
            {f"{name}.{part}": v for part, v in node.value.items()} if grouped else {name: node}
        ).items():
            if own in found and not (value.where.override or found[own].where.override):
                problems.add(value.where, f"{key}.{own}", f"given twice (first in line {found[own].where.line})")
            elif own not in found or value.where.override:
                found[own] = value
    return Node(found, section.where)


def joined(keys: list[str]) -> list[str]:
    """The keys of an override's path, a group and what is in it as one."""
    found: list[str] = []
    for key in keys:
        if found and found[-1] in GROUPS and len(found) > 1:
            found[-1] += f".{key}"
        else:
            found.append(key)
    return found
