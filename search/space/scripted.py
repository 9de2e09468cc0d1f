"""A space whose trials a script trains: the script, its hyperparameters as the space declares them, its own setting."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from search.space.nodes import Node
from search.space.params import KINDS, Param
from search.space.problems import Problems, Where
from search.space.sections import Resources, Search, mistake
from trainables.contract.config import Hyperparameter
from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError, close_to
from trainables.contract.registry import RESERVED, Plugin, is_installed, read_script

WHAT = "a Python file beside the space, or module:function"


def read_scripted(node: Node | None, method: Declaration | None, top: Where, problems: Problems) -> Plugin | None:
    """The `script` key: a path relative to the file that it is written in, module:function, or (in a stored space)
    {file: where it came from, text: what was in it}.
    """
    if method is None:
        return None
    if not method.scripted:
        if node is not None and node.value is not None:
            problems.add(node.where, "script", f"method {method.name} has none; write method: script")
        return None
    if node is None or node.value is None:
        problems.add(top, "script", f"missing; expected {WHAT}")
        return None
    value = node.plain()
    if isinstance(value, dict) and value.keys() == {"file", "text"} and all(isinstance(v, str) for v in value.values()):
        return Plugin(value["file"], value["text"])
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        got = repr(value) if isinstance(value, str) else node.kind()
        problems.add(node.where, "script", f"expected {WHAT}, got {got}")
        return None
    base = "" if node.where.override else os.path.dirname(node.where.file)
    try:
        return read_script(value if is_installed(value) else os.path.join(base, os.path.expanduser(value)))
    except PluginError as error:
        problems.add(node.where, "script", str(error))
    return None


def written_script(script: Plugin) -> str | dict[str, str]:
    """The `script` key of a resolved space: it needs the file no more."""
    return {"file": script.file, "text": script.text} if script.text else script.file


def declared_knobs(root: Node, problems: Problems) -> dict[str, Hyperparameter]:
    """Hyperparameters with the types that their ranges, values and constants in a space show.

    Names that a script's `config` has for something else are reported.
    """
    given: dict[str, list[tuple[Node, str]]] = {}
    for key, node in _sections(root):
        for name, item in node.value.items():
            given.setdefault(name, []).append((item, f"{key}.{name}"))
    knobs = {}
    for name, items in given.items():
        if name in RESERVED:
            problems.add(items[0][0].where, items[0][1], "the trial's own, as the script gets it; choose another name")
        elif not all(part.isidentifier() for part in name.split(".")):
            problems.add(items[0][0].where, items[0][1], "expected a name of letters, digits and '_'")
        knobs[name] = _knob(name, [item for item, _ in items])
    return knobs


def read_own_preset(
    node: Node | None, known: Mapping[str, Hyperparameter], searched: Iterable[str], problems: Problems
) -> dict[str, Any] | None:
    """The setting that a script's author has: a value of every searched hyperparameter; None without one."""
    if node is None or node.value in (None, "none"):
        return None
    if not isinstance(node.value, dict):
        problems.add(node.where, "preset", f"expected a mapping of hyperparameters, as a script has, got {node.kind()}")
        return None
    searched = list(searched)
    preset: dict[str, Any] = {}
    for name, item in node.value.items():
        if name not in searched:
            problems.add(item.where, f"preset.{name}", "not searched by this space" + close_to(name, searched))
        elif message := mistake(known[name], item.plain()):
            problems.add(item.where, f"preset.{name}", message)
        else:
            preset[name] = known[name].coerce(item.plain())
    if missing := [name for name in searched if name not in node.value]:
        problems.add(node.where, "preset", f"expected every searched hyperparameter, {', '.join(missing)} lack")
    return preset


def check_own_preset(preset: Mapping[str, Any], params: Mapping[str, Param], node: Node, problems: Problems) -> None:
    """That the setting lies in the space, whose baseline it is."""
    for name, value in preset.items():
        if name in params and not params[name].listed and not params[name].legal(value):
            message = f"{value!r} is not in the space, whose baseline the preset is"
            problems.add(node.value[name].where, f"preset.{name}", message)


def check_scripted(root: Node, search: Search, resources: Resources, problems: Problems) -> None:
    """What a script does without: our training's settings, a baseline that nobody gave, several workers."""
    part = root.value.get
    if (train := part("train")) is not None and train.value:
        problems.add(train.where, "train", "has no meaning for a script; what it reads stands under params")
    given = part("search")
    baseline = given.value.get("baseline") if given is not None and isinstance(given.value, dict) else None
    if baseline is not None and search.baseline != "none" and (part("preset") is None or not part("preset").value):
        problems.add(baseline.where, "search.baseline", "a script has no published setting; give one as preset")
    if resources.workers > 1:
        message = f"a script trains in one process, got {resources.workers}"
        problems.add(part("resources").value["workers"].where, "resources.workers", message)


def searched_names(root: Node) -> Iterator[str]:
    """Names of the hyperparameters that have a range or a list of values, or stand in listed points."""
    params, points = root.value.get("params"), root.value.get("points")
    found = params.value if params is not None and isinstance(params.value, dict) else {}
    yield from (name for name, node in found.items() if isinstance(node.value, dict))
    rows = points.value if points is not None and isinstance(points.value, list) else []
    yield from dict.fromkeys(name for row in rows if isinstance(row.value, dict) for name in row.value)


def _sections(root: Node) -> Iterator[tuple[str, Node]]:
    """The mappings that declare hyperparameters."""
    params, points = root.value.get("params"), root.value.get("points")
    if params is not None and isinstance(params.value, dict):
        yield "params", params
    for i, row in enumerate(points.value if points is not None and isinstance(points.value, list) else ()):
        if isinstance(row.value, dict):
            yield f"points[{i}]", row


def _knob(name: str, given: list[Node]) -> Hyperparameter:
    """The kind of hyperparameter that these constants, ranges and lists are of: what stands first says it."""
    values: list[Any] = []
    for item in given:
        plain = item.plain()
        if not isinstance(plain, dict):
            values.append(plain)
        elif kind := next((kind for kind in ("float", "int") if kind in plain), None):
            return Hyperparameter(name, kind, None)
        else:
            listed = next((plain[kind] for kind in KINDS if kind in plain), None)
            values += listed if isinstance(listed, list) else []
    kinds = [_kind(value) for value in values if value is not None]
    first = "float" if {*kinds[:1]} <= {"int", "float"} and "float" in kinds else next(iter(kinds), "str")
    return Hyperparameter(name, first, None, optional=None in values)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = {_kind(one) for one in value}
        return {"int": "ints", "str": "words"}.get(inner.pop(), "str") if len(inner) == 1 else "str"
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "str")
