"""A user's own training code: a file that travels as text, as plugins do, or a function of an installed module.

Whoever reads a space looks at the code without running it: it may import libraries that take seconds. Only a trial runs
it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainables.contract.errors import PluginError, first_line
from trainables.contract.plugins import Plugin, imported, read_plugin

FUNCTION = "train"  # what a script file defines
ARGUMENTS = 2  # (config, report)
_INSTALLED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Keys of the function's `config` beside the hyperparameters, which therefore have other names.
SEED, ENCODER, DATA, DEVICE, CHECKPOINTS, RESUME = "seed", "encoder", "data", "device", "checkpoints", "resume"
RESERVED = (SEED, ENCODER, DATA, DEVICE, CHECKPOINTS, RESUME, "method")


def is_installed(given: str) -> bool:
    """Whether it is written as `module:function`, not as a file's path."""
    return bool(_INSTALLED.fullmatch(given))


def read_script(given: str) -> Plugin:
    """The script at this path, or `module:function` (its `text` stays empty: it does not travel).

    Raises: PluginError naming file and line of what is no function of (config, report).
    """
    if not is_installed(given):
        script = read_plugin(given)
        _check_function(script.text, script.file, FUNCTION)
        return script
    module, function = given.split(":")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise PluginError(f"{given}: {type(error).__name__}: {first_line(error)}") from error
    if found is None:
        raise PluginError(f"{given}: no module {module!r} is installed (a file of yours is named by its path)")
    if found.origin and found.origin.endswith(".py"):
        _check_function(Path(found.origin).read_text(encoding="utf-8"), found.origin, function)
    return Plugin(given, "")


def script_function(script: Plugin) -> Callable[[dict[str, Any], Any], object]:
    """The script's function, its code imported.

    Raises: PluginError naming file and line.
    """
    if script.text:
        function = getattr(imported(script), FUNCTION, None)
        place = f"{script.file}: {FUNCTION}"
    else:
        module, name = script.file.split(":")
        try:
            function = getattr(importlib.import_module(module), name, None)
        except Exception as error:  # whatever its import raises
            raise PluginError(f"{script.file}: {type(error).__name__}: {first_line(error)}") from error
        place = script.file
    if not callable(function):
        raise PluginError(f"{place}: expected a function of (config, report), got {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # its signature was looked at when the space was read


def _check_function(text: str, file: str, name: str) -> None:
    """Raises: PluginError where the text is no Python, or surely defines no such function of two arguments."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise PluginError(f"{file}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            given = statement.args
            positional = len(given.posonlyargs) + len(given.args)
            least = positional - len(given.defaults)
            needed = [a.arg for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
            if least > ARGUMENTS or (positional < ARGUMENTS and given.vararg is None) or needed:
                raise PluginError(f"{file}:{statement.lineno}: {name}: expected a function of (config, report)")
            return
    bound = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    bound |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.asname or n.name for n in ast.walk(tree) if isinstance(n, ast.alias)}
    if name not in bound:  # else it comes by an import, a decorator or a condition: a trial will tell
        raise PluginError(f"{file}:1: defines no function {name}(config, report)")
