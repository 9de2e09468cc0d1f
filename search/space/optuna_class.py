"""Optuna samplers and pruners from outside: `{class: "module:Name", args: {...}}` in a space file.

A class is named as `module:Name` of an installed module or `file.py:Name` of a file beside the space, whose text the
study stores and runs from then on, as a plugin's.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.space.nodes import Node, Problems
from trainables.contract.errors import PluginError, did_you_mean, first_line
from trainables.contract.registry import Plugin, code_module, is_installed, read_plugin

SAMPLER, PRUNER = "sampler", "pruner"
WITH_ARGS = {"tpe": "TPESampler", "gp": "GPSampler"}  # named samplers that take `args`
BESIDE = ("warmup", "min_rung")  # keys of a pruner that hold for a class, too: when a trial is judged first
SEED = "seed"  # an argument that the study gives
_module = functools.lru_cache(maxsize=64)(code_module)  # a file is run once per process and content
EXPECTED = "module:Name of an installed module, or file.py:Name of a file beside the space"


@dataclass(frozen=True)
class OptunaClass:
    """A sampler or pruner with its arguments.

    Attributes:
        name: `tpe`, `module:Name` or `file.py:Name`.
        code: the module (no text: it does not travel) or the file; None for a named sampler.
    """

    name: str
    args: Mapping[str, Any]
    code: Plugin | None = None

    def written(self) -> dict[str, Any]:
        """As plain YAML data, which need the file no more."""
        if self.code is None:
            return {"name": self.name, "args": dict(self.args)}
        where = os.path.join(os.path.dirname(self.code.file), self.name)
        text = {"text": self.code.text} if self.code.text else {}
        return {"class": where, "args": dict(self.args), **text}

    def loaded(self, kind: str) -> type[Any]:
        """The class, its code imported. kind: SAMPLER or PRUNER. Raises: PluginError when it is none of Optuna's."""
        import optuna

        if self.code is None:
            return getattr(optuna.samplers, WITH_ARGS[self.name])  # type: ignore[no-any-return]
        base = optuna.samplers.BaseSampler if kind == SAMPLER else optuna.pruners.BasePruner
        found = getattr(_module(self.code), self.name.rpartition(":")[2], None)
        if not (isinstance(found, type) and issubclass(found, base)):
            got = "nothing of that name" if found is None else getattr(found, "__name__", type(found).__name__)
            raise PluginError(f"{self.name}: expected a subclass of optuna's {base.__name__}, got {got}")
        return found

    def made(self, kind: str, seed: int = 0, **defaults: Any) -> Any:
        """A fresh instance. seed: for one that takes a seed; defaults: arguments that are not given.

        Raises: PluginError.
        """
        cls = self.loaded(kind)
        given = {**defaults, **self.args}
        if SEED in inspect.signature(cls).parameters:
            given[SEED] = seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental" ones
            try:
                return cls(**given)
            except Exception as error:  # whatever its constructor raises
                raise PluginError(f"{self.name}: {type(error).__name__}: {first_line(error)}") from error


def read_classes(
    root: Node, problems: Problems, run_code: bool
) -> tuple[dict[str, OptunaClass], dict[str, Node | None]]:
    """The classes that a document names, by SAMPLER and PRUNER, and its `search` and `pruner` without them.

    An instance of each is made. Args: run_code: see `load_space`; without, no class is imported.
    """
    rest: dict[str, Node | None] = {section: root.get(section) for section in ("search", PRUNER)}
    classes = {}
    for kind, section, node in ((SAMPLER, "search", root.get("search", SAMPLER)), (PRUNER, PRUNER, rest[PRUNER])):
        if node is None or not isinstance(node.value, dict) or (kind == PRUNER and "class" not in node.value):
            continue
        if (own := _read_class(node, kind, problems, run_code)) is not None:
            classes[kind] = own
        whole, taken = rest[section], (SAMPLER,) if kind == SAMPLER else ("class", "args", "text")
        assert whole is not None
        rest[section] = Node({k: v for k, v in whole.value.items() if k not in taken}, whole.where)
    return classes, rest


def _read_class(node: Node, kind: str, problems: Problems, run_code: bool) -> OptunaClass | None:
    other = "name" if kind == SAMPLER else "kind"
    given = [key for key in ("class", other) if (item := node.get(key)) is not None and item.value is not None]
    if len(given) != 1:
        message = "class is given too; give one of them" if given else "expected a mapping with class or name, and args"
        problems.add(node.place(*given[1:]), message)
        return None
    (key,) = given
    keys = ("class", other, "args", "text", *(BESIDE if kind == PRUNER else ()))
    for name in node.value.keys() - keys:
        problems.add(node.place(name), f"unknown beside {key}" + did_you_mean(name, keys))
    before, args = len(problems.found), _args(node.get("args"), problems)
    own = _named(node.value[key], args, problems) if key == "name" else _class(node, args, problems, run_code)
    if own is None or len(problems.found) > before:
        return None
    if run_code:
        _check(own, kind, node, key, problems)
    return own


def _args(node: Node | None, problems: Problems) -> dict[str, Any]:
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node.where, f"expected a mapping of arguments, got {node.kind()}")
        return {}
    if SEED in node.value:
        problems.add(node.place(SEED), "the study gives it (search.seed)")
    return dict(node.plain())


def _named(node: Node, args: Mapping[str, Any], problems: Problems) -> OptunaClass | None:
    if node.value in WITH_ARGS:
        return OptunaClass(str(node.value), args)
    problems.add(node.where, f"expected one of {', '.join(WITH_ARGS)}, got {node.plain()!r}")
    return None


def _class(node: Node, args: Mapping[str, Any], problems: Problems, run_code: bool) -> OptunaClass | None:
    item, text = node.value["class"], node.get("text")
    path, _, name = item.value.rpartition(":") if isinstance(item.value, str) else ("", "", "")
    file = path.endswith(".py") and name.isidentifier()
    if not file and not (isinstance(item.value, str) and is_installed(item.value)):
        problems.add(item.where, f"expected {EXPECTED}, got {item.plain()!r}")
        return None
    if not file:
        return OptunaClass(item.value, args, Plugin(item.value, ""))
    label = f"{os.path.basename(path)}:{name}"
    if text is not None:
        return OptunaClass(label, args, Plugin(path, str(text.value)))
    folder = "" if item.where.override else os.path.dirname(item.where.file)
    try:
        plugin = read_plugin(os.path.join(folder, os.path.expanduser(path))) if run_code else Plugin(path, "")
    except PluginError as error:
        problems.add(item.where, str(error))
        return None
    if run_code and not plugin.text.strip():
        problems.add(item.where, f"{plugin.file}: is empty")
        return None
    return OptunaClass(label, args, plugin)


def _check(own: OptunaClass, kind: str, node: Node, key: str, problems: Problems) -> None:
    try:
        parameters = inspect.signature(own.loaded(kind)).parameters
    except PluginError as error:
        hint = "" if own.code is None or own.code.text else "; a file of yours is named file.py:Name"
        problems.add(node.place(key), f"{error}{hint}")
        return
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for arg in () if takes_any else own.args.keys() - parameters.keys():
        problems.add(node.place("args", arg), f"unknown for {own.name}" + did_you_mean(arg, list(parameters)))
        return
    try:
        own.made(kind)
    except PluginError as error:
        problems.add(node.place("args"), str(error))
