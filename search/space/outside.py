"""What a space brings from outside: plugin files with methods and evaluations, and the script that trains its trials.

Of a script the space declares the hyperparameters; their kinds follow from the values and ranges that it gives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from search.space.nodes import Node, Problems
from search.space.params import KINDS, Param
from search.space.sections import Resources, Search, mistake, text
from trainables.contract.config import Hyperparameter
from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError, close_to
from trainables.contract.registry import RESERVED, Plugin, is_installed, read_plugin, read_script, use_plugins

SCRIPT = "a Python file beside the space, or module:function"


def read_plugins(node: Node | None, problems: Problems) -> tuple[Plugin, ...]:
    """The `plugins` section, its methods and evaluations known from here on."""
    if node is None or node.value is None:
        return ()
    before, plugins = len(problems.found), list[Plugin]()
    if not isinstance(node.value, list):
        problems.add(node.where, f"expected a list of Python files, got {node.kind()}")
    for item in node.value if isinstance(node.value, list) else ():
        item = Node(item.value, item.where.named(node.where.key))
        if plugin := _read_code(item, "the path of a Python file", read_plugin, problems):
            plugins.append(plugin)
            try:
                use_plugins(plugins)
            except PluginError as error:
                problems.add(item.where, str(error))
    problems.unreadable |= len(problems.found) > before
    return tuple(plugins)


def read_script_key(root: Node, method: Declaration | None, problems: Problems) -> Plugin | None:
    """The `script` key of a document."""
    node = root.get("script")
    given = node is not None and node.value is not None
    if method is not None and given and not method.scripted:
        problems.add(root.place("script"), f"method {method.name} has none; write method: script")
    elif method is not None and method.scripted and not given:
        problems.add(root.where.to("script"), f"missing; expected {SCRIPT}")
    elif method is not None and node is not None and given:
        return _read_code(node, SCRIPT, read_script, problems)
    return None


def _read_code(node: Node, expected: str, read: Callable[[str], Plugin], problems: Problems) -> Plugin | None:
    """A path relative to the file that it is written in, module:function of a script, or (in a stored space)
    {file: where it came from, text: what was in it}.
    """
    value = node.plain()
    if isinstance(value, dict) and value.keys() == {"file", "text"} and all(isinstance(v, str) for v in value.values()):
        return Plugin(value["file"], value["text"])
    if (given := text(node, problems, expected)) is None:
        return None
    base = "" if node.where.override else os.path.dirname(node.where.file)
    try:
        if read is read_script and is_installed(given):
            return read(given)
        return read(os.path.join(base, os.path.expanduser(given)))
    except PluginError as error:
        problems.add(node.where, str(error))
    return None


def written(code: Plugin) -> str | dict[str, str]:
    """A plugin or a script in a resolved space, which needs the file no more."""
    return {"file": code.file, "text": code.text} if code.text else code.file


def changed(files: Iterable[Plugin]) -> list[str]:
    """One line for each plugin or script whose file is there and has another content than the study keeps."""
    lines = []
    for plugin in files:
        try:
            same = Path(plugin.file).read_text(encoding="utf-8") == plugin.text
        except (OSError, ValueError):
            continue  # gone: the study has its own copy
        if not same:
            lines.append(f"{plugin.file} has changed since the study began, which goes on with its own copy")
    return lines


def declared_fields(root: Node, problems: Problems) -> dict[str, Hyperparameter]:
    """Hyperparameter fields with the types that their ranges, values and constants in a space show.

    Names that a script's `config` has for something else are reported.
    """
    given: dict[str, list[Node]] = {}
    for section in (root.entries("params"), *_points(root)):
        for name, node in section.items():
            given.setdefault(name, []).append(node)
    for name, nodes in given.items():
        if name in RESERVED:
            problems.add(nodes[0].where, "the trial's own, as the script gets it; choose another name")
        elif not all(part.isidentifier() for part in name.split(".")):
            problems.add(nodes[0].where, "expected a name of letters, digits and '_'")
    return {name: _field(name, nodes) for name, nodes in given.items()}


def read_own_preset(root: Node, known: Mapping[str, Hyperparameter], problems: Problems) -> dict[str, Any] | None:
    """The setting that a script's author has: a value of every searched hyperparameter; None without one."""
    node = root.get("preset")
    if node is None or node.value in (None, "none"):
        return None
    if not isinstance(node.value, dict):
        problems.add(node.where, f"expected a mapping of hyperparameters, as a script has, got {node.kind()}")
        return None
    searched = [name for name, item in root.entries("params").items() if isinstance(item.value, dict)]
    searched += [name for row in _points(root) for name in row]
    preset: dict[str, Any] = {}
    for name, item in node.value.items():
        if name not in searched:
            problems.add(item.where, "not searched by this space" + close_to(name, searched))
        elif message := mistake(known[name], item.plain()):
            problems.add(item.where, message)
        else:
            preset[name] = known[name].coerce(item.plain())
    if missing := [name for name in dict.fromkeys(searched) if name not in node.value]:
        problems.add(node.where, f"expected every searched hyperparameter, {', '.join(missing)} lack")
    return preset


def check_scripted(
    root: Node, search: Search, resources: Resources, preset: Mapping[str, Any], params: Mapping[str, Param],
    problems: Problems,
) -> None:  # fmt: skip
    """What a script does without: our training's settings, a baseline that is not in the space, several workers."""
    if (train := root.get("train")) is not None and train.value:
        problems.add(train.where, "has no meaning for a script; what it reads stands under params")
    own = root.get("preset")
    if root.get("search", "baseline") and search.baseline != "none" and (own is None or not own.value):
        problems.add(root.place("search", "baseline"), "a script has no published setting; give one as preset")
    if resources.workers > 1:
        message = f"a script trains in one process, got {resources.workers}"
        problems.add(root.place("resources", "workers"), message)
    for name, value in preset.items():
        if name in params and not params[name].listed and not params[name].legal(value):
            message = f"{value!r} is not in the space, whose baseline the preset is"
            problems.add(root.place("preset", name), message)


def _points(root: Node) -> Iterator[dict[str, Node]]:
    points = root.get("points")
    yield from (row.entries() for row in points.value) if points and isinstance(points.value, list) else ()


def _field(name: str, given: list[Node]) -> Hyperparameter:
    """The kind of hyperparameter that these constants, ranges and lists are of; the first one decides."""
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
