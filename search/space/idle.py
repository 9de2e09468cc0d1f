"""Hyperparameters that nothing reads: points that differ in them alone would be one run."""

from __future__ import annotations

from typing import Any

from search.space.conditions import combinations
from search.space.nodes import Node
from search.space.problems import Problems, Where
from search.space.space import Space
from trainables.contract.declaration import Declaration
from trainables.contract.registry import declared, method_object


def check_idle(space: Space, root: Node, problems: Problems) -> None:
    """Report what is searched where nothing reads it, and constants of the file that nothing reads in any point."""
    method = declared(space.method)
    if method.scripted or _unsaid(method):
        return
    ordinary = method.values(space.preset)
    set_here = {name for name, value in space.constants.items() if value != ordinary[name]}
    points = [({**space.base, **point}, point) for point in combinations(space)]
    idle = [(method.config.unused(values), values, point) for values, point in points]
    found: dict[str, tuple[str, Any]] = {}
    for name in set_here:
        if idle and all(name in without for without, *_ in idle):
            found[name] = idle[0][0][name]
    for without, values, point in idle:
        for name in without.keys() & point.keys():
            other = space.params.get(without[name][0])
            drawn = other is None or other.count() is not None  # the end of a range without steps never is
            if drawn and (not space.params[name].listed or values[name] != ordinary[name]):
                found.setdefault(name, without[name])
    for name, (decides, value) in found.items():
        message = f"has no meaning with {decides} {str(value).lower() if isinstance(value, bool) else value}"
        message += f"; give it `when: {{{decides}: [...]}}`" if decides in space.params else ""
        where, section = _place(root, name)
        problems.add(where, f"{section}.{name}", message)


def _unsaid(method: Declaration) -> bool:
    """Whether a method from outside has its own network and no own `unused`: what it inherits is about our network."""
    owner = next(base for base in method.config.__mro__ if "unused" in vars(base))
    if _ours(method.config) or not _ours(owner):
        return False
    return not _ours(getattr(method_object(method.name), "network", None))


def _ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("trainables.")


def _place(root: Node, name: str) -> tuple[Where, str]:
    for section in ("params", "train"):
        node = root.value.get(section)
        if node is not None and isinstance(node.value, dict) and name in node.value:
            return node.value[name].where, section
    return root.value["points"].where, "points"
