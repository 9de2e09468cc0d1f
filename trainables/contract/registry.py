"""The methods, evaluations and scripts there are: shipped, installed, or in a user's file.

Distributions offer methods and evaluations by entry points of the groups `contrastive_search.methods` and
`contrastive_search.evaluations`; a space names files under `plugins`. A plugin file or script travels as text: whoever
has a trial's spec has its code. Nothing is imported before it is needed, and `declared` never imports torch for a
method shipped here.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import linecache
import re
import symtable
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from trainables.contract.config import RunConfig, inherited
from trainables.contract.declaration import Declaration, DevEvaluation
from trainables.contract.errors import PluginError, did_you_mean, first_line, line_in

METHODS_GROUP, EVALUATIONS_GROUP = "contrastive_search.methods", "contrastive_search.evaluations"
METHOD, EVALUATION = "METHOD", "EVALUATION"  # the names that a plugin file defines, one or both
FUNCTION, ARGUMENTS = "train", 2  # what a script defines: train(config, report)
SHIPPED = {  # name -> where its Declaration is
    "simcse": "trainables.methods.simcse.config:SIMCSE",
    "simcse_sup": "trainables.methods.simcse.config:SIMCSE_SUP",
    "pairs": "trainables.methods.pairs.config:PAIRS",
    "scored_pairs": "trainables.methods.scored_pairs.config:SCORED_PAIRS",
    "edacse": "trainables.methods.edacse.config:EDACSE",
    "sda": "trainables.methods.sda.config:SDA",
    "selfccl": "trainables.methods.selfccl.config:SELFCCL",
    "gclsr": "trainables.methods.gclsr.config:GCLSR",
    "whitening": "trainables.methods.baselines.config:WHITENING",
    "consert": "trainables.methods.baselines.config:CONSERT",
    "esimcse": "trainables.methods.baselines.config:ESIMCSE",
    "mirror_bert": "trainables.methods.baselines.config:MIRROR_BERT",
    "arccse": "trainables.methods.baselines.config:ARCCSE",
    "sncse": "trainables.methods.baselines.config:SNCSE",
    "diffcse": "trainables.methods.baselines.config:DIFFCSE",
}
OTHERS = {
    "script": "trainables.scripts.config:SCRIPT"
}  # further words of `method:`, run by something else than a Method
# Keys of a script's `config` beside the hyperparameters, which therefore have other names.
SEED, ENCODER, DATA, DEVICE, CHECKPOINTS, RESUME = "seed", "encoder", "data", "device", "checkpoints", "resume"
RESERVED = (SEED, ENCODER, DATA, DEVICE, CHECKPOINTS, RESUME, "method")


@dataclass(frozen=True)
class Plugin:
    """A plugin file or script: where it came from (for messages; it may be gone) and its text."""

    file: str
    text: str


@dataclass(frozen=True)
class Contribution:
    """What a plugin file defines. method: a `trainables.methods.method.Method`; places: `file:line` of each."""

    declaration: Declaration | None
    method: Any
    evaluation: DevEvaluation | None
    places: dict[str, str]


_methods: dict[str, Contribution] = {}  # of plugin files, by the method's name
_evaluations: dict[str, Contribution] = {}


def method_names() -> tuple[str, ...]:
    """Every method's name, those shipped here first."""
    return tuple(dict.fromkeys((*SHIPPED, *_methods, *_installed(METHODS_GROUP))))


def trial_kinds() -> tuple[str, ...]:
    """Every word that `method:` of a space may be."""
    return (*method_names(), *OTHERS)


def declared(name: str) -> Declaration:
    """The declaration of the method of this name.

    Raises: PluginError for an unknown name, or a method from outside that cannot be used.
    """
    if name in _methods:
        found = _methods[name].declaration
    elif (shipped := {**SHIPPED, **OTHERS}.get(name)) and name not in _installed(METHODS_GROUP):
        found = load_object(shipped)
    else:
        found = _declaration_of(*_from_distribution(METHODS_GROUP, name, "method", (*SHIPPED, *OTHERS)))
    assert isinstance(found, Declaration)
    return found


def method_object(name: str) -> Any:
    """The `trainables.methods.method.Method` of this name, its code imported. Raises: PluginError as `declared`."""
    declaration = declared(name)
    if declaration.code:
        return load_object(declaration.code)
    return _methods[name].method if name in _methods else _from_distribution(METHODS_GROUP, name, "method", SHIPPED)[0]


def evaluation_named(name: str) -> DevEvaluation:
    """The evaluation of this name. Raises: PluginError for an unknown name, or one that cannot be used."""
    if name in _evaluations:
        found = _evaluations[name].evaluation
    else:
        found, place = _from_distribution(EVALUATIONS_GROUP, name, "evaluation", ())
        _check_evaluation(found, place)
    assert isinstance(found, DevEvaluation)
    return found


def load_object(where: str) -> Any:
    """The object at `module:NAME`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def use_plugins(plugins: Iterable[Plugin]) -> None:
    """Register the methods and evaluations of these files in this process.

    They replace what other files registered under their names before; among themselves, and with what is shipped or
    installed, names must differ.

    Raises: PluginError naming file and line.
    """
    methods: dict[str, Contribution] = {}
    evaluations: dict[str, Contribution] = {}
    shipped = (*SHIPPED, *OTHERS)
    for plugin in plugins:
        own = contribution(plugin)
        for kind, table, thing, taken in (
            ("method", methods, own.declaration, (*shipped, *_installed(METHODS_GROUP))),
            ("evaluation", evaluations, own.evaluation, tuple(_installed(EVALUATIONS_GROUP))),
        ):
            if thing is None:
                continue
            place = own.places[kind.upper()]
            if thing.name in taken:
                whose = "is shipped here" if kind == "method" and thing.name in shipped else "is installed"
                raise PluginError(f"{place}: a {kind} {thing.name!r} {whose} already; choose another name")
            if thing.name in table:
                other = table[thing.name].places[kind.upper()]
                raise PluginError(f"{place}: {kind} {thing.name!r} is also defined by {other}; rename one")
            table[thing.name] = own
    _methods.update(methods)
    _evaluations.update(evaluations)


# ------------------------------------------------------------ plugin files
def read_plugin(path: str) -> Plugin:
    """The file as it is now. Raises: PluginError when it cannot be read."""
    try:
        return Plugin(str(Path(path).absolute()), Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PluginError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise PluginError(f"{path}: cannot be read: {first_line(error)}") from error


@functools.lru_cache(maxsize=64)
def contribution(plugin: Plugin) -> Contribution:
    """Import a plugin, once per process and content. Raises: PluginError naming file and line."""
    module = _import(plugin)
    found = {name: getattr(module, name) for name in (METHOD, EVALUATION) if hasattr(module, name)}
    if not found:
        raise PluginError(f"{plugin.file}:1: defines neither {METHOD} nor {EVALUATION}")
    places = {name: f"{plugin.file}:{_line_of(plugin.text, name)}" for name in found}
    declaration = None
    if METHOD in found:
        declaration = _declaration_of(found[METHOD], f"{places[METHOD]}: {METHOD}")
    if EVALUATION in found:
        _check_evaluation(found[EVALUATION], f"{places[EVALUATION]}: {EVALUATION}")
    return Contribution(declaration, found.get(METHOD), found.get(EVALUATION), places)


def _import(plugin: Plugin) -> ModuleType:
    """The file's module, under a name of its own that changes with its content. Raises: PluginError as above."""
    name = f"search_plugin_{Path(plugin.file).stem}_{hashlib.sha256(plugin.text.encode()).hexdigest()[:12]}"
    code = _compiled(plugin.text, plugin.file)
    module = ModuleType(name)
    module.__file__ = plugin.file
    # Tracebacks show its lines wherever it runs, also where the file is not.
    linecache.cache[plugin.file] = (len(plugin.text), None, plugin.text.splitlines(keepends=True), plugin.file)
    sys.modules[name] = module  # dataclasses and pickle read it from there
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        raise _import_error(f"{plugin.file}:{line_in(plugin.file, error) or 1}", error) from error
    return module


def _compiled(text: str, file: str, flags: int = 0) -> Any:
    """Code, or with `ast.PyCF_ONLY_AST` the tree. Raises: PluginError naming the line."""
    try:
        return compile(text, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise PluginError(f"{file}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error


def _import_error(place: str, error: BaseException) -> PluginError:
    return PluginError(f"{place}: {type(error).__name__}: {first_line(error)}")


def _line_of(text: str, name: str) -> int:
    """The line that assigns `name` at the top of a module, 1 if none does."""
    for statement in ast.parse(text).body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return statement.lineno
    return 1


def _declaration_of(method: Any, place: str) -> Declaration:
    """What a `Method` (or a `Declaration` with `code`) from outside declares. place: for messages.

    Raises: PluginError when it is neither, or its configuration class lacks `hyperparameter` fields.
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
    if bare := [f.name for f in fields(config) if not inherited(config, f.name)]:
        raise PluginError(f"{place}: config: {config.__name__}.{bare[0]}: expected hyperparameter(default, doc, ...)")
    return declaration


def _check_evaluation(evaluation: Any, place: str) -> None:
    """Raises: PluginError when it is no `DevEvaluation` with a name, metrics and a function."""
    if not isinstance(evaluation, DevEvaluation):
        raise PluginError(f"{place}: expected a DevEvaluation, got {_kind(evaluation)}")
    if not isinstance(evaluation.name, str) or not evaluation.name.strip():
        raise PluginError(f"{place}: name: expected a word, got {evaluation.name!r}")
    function, names = evaluation.evaluate, evaluation.metrics
    if not callable(function):
        raise PluginError(f"{place}: evaluate: expected a function of (embed, folder), got {_kind(function)}")
    if isinstance(names, str) or not names or not all(isinstance(n, str) and n.isidentifier() for n in names):
        raise PluginError(f"{place}: metrics: expected names of letters, digits and '_', got {names!r}")


def _kind(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__


# ------------------------------------------------------------ distributions
@functools.cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


def _from_distribution(group: str, name: str, kind: str, shipped: Iterable[str]) -> tuple[Any, str]:
    """What an entry point loads, and its place for messages."""
    points = _installed(group).get(name)
    if points is None:
        known = method_names() if group == METHODS_GROUP else tuple({**_evaluations, **_installed(group)})
        raise PluginError(f"unknown {kind} {name!r}" + (did_you_mean(name, known) if known else "; none is installed"))
    places = [f"distribution {p.dist.name if p.dist else '?'}, entry point {p.name} = {p.value}" for p in points]
    if name in shipped:
        raise PluginError(f"{places[0]}: a {kind} {name!r} is shipped here already")
    if len(points) > 1:
        raise PluginError(f"{kind} {name!r} comes from several distributions: {'; '.join(places)}")
    try:
        found = points[0].load()
    except Exception as error:  # whatever its import raises
        raise _import_error(places[0], error) from error
    own = getattr(found, "declaration", found)
    if getattr(own, "name", name) != name:
        raise PluginError(f"{places[0]}: its {kind} is called {own.name!r}, the entry point must be called so too")
    return found, places[0]


# ------------------------------------------------------------ scripts
def is_installed(given: str) -> bool:
    """Whether a script is written as `module:function`, not as a file's path."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", given))


def read_script(given: str) -> Plugin:
    """The script at this path, or `module:function` (its `text` stays empty: it does not travel).

    The code is inspected, not run: its imports may take seconds, and only a trial needs them.

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
        raise _import_error(given, error) from error
    if found is None:
        raise PluginError(f"{given}: no module {module!r} is installed (a file of yours is named by its path)")
    if found.origin and found.origin.endswith(".py"):
        _check_function(Path(found.origin).read_text(encoding="utf-8"), found.origin, function)
    return Plugin(given, "")


def script_function(script: Plugin) -> Callable[[dict[str, Any], Any], object]:
    """The script's function, its code imported. Raises: PluginError naming file and line."""
    function = getattr(code_module(script), FUNCTION if script.text else script.file.partition(":")[2], None)
    if not callable(function):
        place = f"{script.file}: {FUNCTION}" if script.text else script.file
        raise PluginError(f"{place}: expected a function of (config, report), got {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # its signature was checked when the space was read


def code_module(code: Plugin) -> ModuleType:
    """The module that a file is, or the one of `module:name` where there is no text; a file is run at every call.

    Raises: PluginError naming file and line.
    """
    if code.text:
        return _import(code)
    try:
        return importlib.import_module(code.file.partition(":")[0])
    except Exception as error:  # whatever its import raises
        raise _import_error(code.file, error) from error


def _check_function(text: str, file: str, name: str) -> None:
    """Raises: PluginError where the text is no Python, or surely defines no such function of two arguments."""
    for statement in _compiled(text, file, ast.PyCF_ONLY_AST).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            given = statement.args
            positional = len(given.posonlyargs) + len(given.args)
            least = positional - len(given.defaults)
            if least > ARGUMENTS or (positional < ARGUMENTS and given.vararg is None) or None in given.kw_defaults:
                raise PluginError(f"{file}:{statement.lineno}: {name}: expected a function of (config, report)")
            return
    # It may still come by an import, a decorator or a condition; a trial finds out.
    top = {symbol.get_name() for symbol in symtable.symtable(text, file, "exec").get_symbols() if symbol.is_local()}
    if name not in top:
        raise PluginError(f"{file}:1: defines no function {name}(config, report)")
