"""What a space brings from outside: plugin files, and evaluations that select beside the dev sets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from search.space.nodes import Node
from search.space.problems import Problems
from trainables.contract.errors import PluginError
from trainables.contract.registry import Plugin, evaluation_named, read_plugin, use_plugins
from trainables.contract.trial import DEV_SUFFIX


def read_plugins(node: Node | None, problems: Problems) -> tuple[Plugin, ...]:
    """The `plugins` section, its methods and evaluations known from here on.

    An entry is a path, relative to the file that it is written in, or (in a stored space) {file: where it came from,
    text: what was in it}.
    """
    if node is None or node.value is None:
        return ()
    if not isinstance(node.value, list):
        problems.lost(node.where, "plugins", f"expected a list of Python files, got {node.kind()}")
        return ()
    plugins: list[Plugin] = []
    for item in node.value:
        value = item.plain()
        try:
            if isinstance(value, dict) and value.keys() == {"file", "text"} and _texts(value.values()):
                plugins.append(Plugin(value["file"], value["text"]))
            elif isinstance(value, str) and value.strip() and value.isprintable():
                base = "" if item.where.override else os.path.dirname(item.where.file)
                plugins.append(read_plugin(os.path.join(base, os.path.expanduser(value))))
            else:
                problems.lost(item.where, "plugins", f"expected the path of a Python file, got {item.kind()}")
                continue
            use_plugins(plugins)
        except PluginError as error:
            problems.lost(item.where, "plugins", str(error))
    return tuple(plugins)


def written(plugins: Iterable[Plugin]) -> list[dict[str, str]]:
    """The `plugins` section of a resolved space: it needs the files no more."""
    return [{"file": plugin.file, "text": plugin.text} for plugin in plugins]


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


def read_evaluations(node: Node, problems: Problems) -> dict[str, str | None] | None:
    """`data.evaluations`: a list of names, or a mapping of name to the folder of its data (null = none)."""
    given = node.plain()
    if isinstance(given, list):
        given = dict.fromkeys(given) if all(isinstance(name, str) for name in given) else None
    if not isinstance(given, dict) or not all(f is None or (isinstance(f, str) and f.strip()) for f in given.values()):
        problems.add(node.where, "data.evaluations", "expected names, or a mapping of name to a folder or null")
        return None
    for name in given:
        try:
            evaluation_named(name)
        except PluginError as error:
            problems.add(node.where, "data.evaluations", str(error))
    return given or None


def evaluation_metrics(names: Iterable[str]) -> list[str]:
    """The dev metrics that these evaluations give."""
    return [metric + DEV_SUFFIX for name in names for metric in evaluation_named(name).metrics]


def _texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
