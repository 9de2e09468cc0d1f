"""Hyperparameters that have no effect: with the values beside them, or in their method at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from search.space.checks import combinations, written_at
from search.space.nodes import Node, Problems
from search.space.space import Space
from trainables.contract.config import hyperparameters
from trainables.contract.declaration import Declaration
from trainables.contract.errors import first_line
from trainables.contract.registry import declared, method_object


def check_unused(space: Space, root: Node, problems: Problems) -> None:
    """Report what is searched where nothing reads it, and constants of the file that nothing reads in any point."""
    method = declared(space.method)
    if method.scripted or _unused_undeclared(method):
        return
    ordinary, known = method.values(space.preset), hyperparameters(method.config)
    set_here = {name for name, value in space.constants.items() if value != ordinary[name]}
    points = [(space.values(point), point) for point in combinations(space)]
    try:
        unused = [(method.config.unused(values), values, point) for values, point in points]
    except Exception as error:  # of a plugin
        got = f"{type(error).__name__}: {first_line(error)}"
        problems.add(root.place("method"), f"{method.config.__name__}.unused: {got}")
        return
    for without, *_ in unused:
        if fault := _fault(without, known):
            problems.add(root.place("method"), f"{method.config.__name__}.unused: {fault}")
            return
    found: dict[str, tuple[str, Any] | None] = {}
    for name in set_here:
        if unused and all(name in without for without, *_ in unused):
            found[name] = unused[0][0][name]
    for without, values, point in unused:
        for name in without.keys() & point.keys():
            why = without[name]
            other = space.params.get(why[0]) if why else None
            drawn = other is None or other.count() is not None  # the end of a range without steps never is
            if drawn and (not space.params[name].listed or values[name] != ordinary[name]):
                found.setdefault(name, why)
    for name, why in found.items():
        if why is None:
            message = f"has no effect in method {space.method}"
        else:
            decides, value = why
            message = f"has no effect with {decides} {str(value).lower() if isinstance(value, bool) else value}"
            message += f"; give it `when: {{{decides}: [...]}}`" if decides in space.params else ""
        problems.add(written_at(root, name) or root.where, message)


def _fault(unused: Any, known: Collection[str]) -> str | None:
    """What a plugin returned that `Settings.unused` may not; None if all is well."""
    if not isinstance(unused, Mapping):
        return f"expected a mapping, got {unused!r}"
    for name, why in unused.items():
        if name not in known:
            return f"{name!r} is no hyperparameter of the method"
        pair = isinstance(why, tuple) and len(why) == 2
        if why is not None and not (pair and why[0] in known):
            return f"{name}: expected (another hyperparameter, its value) or None, got {why!r}"
    return None


def _unused_undeclared(method: Declaration) -> bool:
    """Whether a plugin has a network of its own but inherits `unused`, which describes our networks only."""
    owner = next(base for base in method.config.__mro__ if "unused" in vars(base))
    if _ours(method.config) or not _ours(owner):
        return False
    return not _ours(getattr(method_object(method.name), "network", None))


def _ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("trainables.")
