"""Python files that bring a method or an evaluation. They travel as text: whoever has a trial's spec has its code."""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
import traceback
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trainables.contract.config import RunConfig
from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError, first_line
from trainables.contract.evaluation import DevEvaluation

METHOD, EVALUATION = "METHOD", "EVALUATION"  # the names that a plugin defines, one or both


@dataclass(frozen=True)
class Plugin:
    """A plugin file: where it came from (for messages; it need not be there any more) and what is in it."""

    file: str
    text: str


@dataclass(frozen=True)
class Brought:
    """What a plugin brings. method: a `trainables.methods.method.Method`; places: `file:line` of each."""

    declaration: Declaration | None
    method: Any
    evaluation: DevEvaluation | None
    places: dict[str, str]


def read_plugin(path: str) -> Plugin:
    """The file as it is now.

    Raises: PluginError when it cannot be read.
    """
    try:
        return Plugin(str(Path(path).absolute()), Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PluginError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise PluginError(f"{path}: cannot be read: {first_line(error)}") from error


@lru_cache(maxsize=64)
def brought(plugin: Plugin) -> Brought:
    """Import a plugin, once per process and content.

    Raises: PluginError naming file and line.
    """
    module = imported(plugin)
    found = {name: getattr(module, name) for name in (METHOD, EVALUATION) if hasattr(module, name)}
    if not found:
        raise PluginError(f"{plugin.file}:1: defines neither {METHOD} nor {EVALUATION}")
    places = {name: f"{plugin.file}:{_line_of(plugin.text, name)}" for name in found}
    declaration = None
    if METHOD in found:
        declaration = declaration_of(found[METHOD], f"{places[METHOD]}: {METHOD}")
    if EVALUATION in found:
        check_evaluation(found[EVALUATION], f"{places[EVALUATION]}: {EVALUATION}")
    return Brought(declaration, found.get(METHOD), found.get(EVALUATION), places)


def declaration_of(method: Any, place: str) -> Declaration:
    """What a `Method` (or a `Declaration` that says where its code is) from outside declares.

    Args: place: for messages.
    Raises: PluginError when it is none, or its configuration class is not made of knobs.
    """
    declaration = method if isinstance(method, Declaration) else getattr(method, "declaration", None)
    if not isinstance(declaration, Declaration) or (method is declaration and not declaration.code):
        raise PluginError(f"{place}: expected a trainables.methods.method.Method, got {_kind(method)}")
    if not isinstance(declaration.name, str) or not declaration.name.isidentifier():
        raise PluginError(f"{place}: name: expected letters, digits and '_', got {declaration.name!r}")
    config = declaration.config
    if not (isinstance(config, type) and issubclass(config, RunConfig)):
        raise PluginError(f"{place}: config: expected a subclass of EncoderConfig or RunConfig, got {_kind(config)}")
    if "__dataclass_fields__" not in vars(config):
        raise PluginError(f"{place}: config: {config.__name__} lacks @dataclass(frozen=True, kw_only=True)")
    if bare := [f.name for f in fields(config) if "knob" not in f.metadata]:
        raise PluginError(f"{place}: config: {config.__name__}.{bare[0]}: expected knob(default, doc, ...)")
    return declaration


def check_evaluation(evaluation: Any, place: str) -> None:
    """Raises: PluginError when it is no `DevEvaluation` with a name, metrics and a function."""
    if not isinstance(evaluation, DevEvaluation):
        raise PluginError(f"{place}: expected a DevEvaluation, got {_kind(evaluation)}")
    if not isinstance(evaluation.name, str) or not evaluation.name.strip():
        raise PluginError(f"{place}: name: expected a word, got {evaluation.name!r}")
    if not callable(evaluation.evaluate):
        raise PluginError(
            f"{place}: evaluate: expected a function of (embed, folder), got {_kind(evaluation.evaluate)}"
        )
    names = evaluation.metrics
    if isinstance(names, str) or not names or not all(isinstance(n, str) and n.isidentifier() for n in names):
        raise PluginError(f"{place}: metrics: expected names of letters, digits and '_', got {names!r}")


def imported(plugin: Plugin) -> ModuleType:
    """The file's module, under a name of its own that changes with its content.

    Raises: PluginError naming file and line.
    """
    name = f"search_plugin_{Path(plugin.file).stem}_{hashlib.sha256(plugin.text.encode()).hexdigest()[:12]}"
    try:
        code = compile(plugin.text, plugin.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise PluginError(f"{plugin.file}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error
    module = ModuleType(name)
    module.__file__ = plugin.file
    # Tracebacks show its lines wherever it runs, also where the file is not.
    linecache.cache[plugin.file] = (len(plugin.text), None, plugin.text.splitlines(keepends=True), plugin.file)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == plugin.file]
        raise PluginError(
            f"{plugin.file}:{lines[-1] if lines else 1}: {type(error).__name__}: {first_line(error)}"
        ) from error
    return module


def _line_of(text: str, name: str) -> int:
    """The line that assigns `name` at the top of a module, 1 if none does."""
    for statement in ast.parse(text).body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return statement.lineno
    return 1


def _kind(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__
