"""Which methods and evaluations there are: an explicit table of the methods shipped here, and what comes from outside.

Outside are distributions with entry points of the groups `contrastive_search.methods` and
`contrastive_search.evaluations`, and the plugin files of a space. Nothing is imported before it is asked for, and
`declared` never imports torch for a method shipped here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError, did_you_mean, first_line
from trainables.contract.evaluation import DevEvaluation
from trainables.contract.plugins import Brought, Plugin, brought, check_evaluation, declaration_of

METHODS_GROUP, EVALUATIONS_GROUP = "contrastive_search.methods", "contrastive_search.evaluations"
SHIPPED = {  # name -> where its Declaration lies
    "simcse": "trainables.methods.simcse.config:SIMCSE",
    "simcse_sup": "trainables.methods.simcse.config:SIMCSE_SUP",
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
OTHERS = {  # words of `method:` whose trials are no `Method`'s: their Declaration names what runs them
    "script": "trainables.scripts.config:SCRIPT",
}
_methods: dict[str, Brought] = {}  # of plugin files, by the method's name
_evaluations: dict[str, Brought] = {}


def method_names() -> tuple[str, ...]:
    """Every method's name, those shipped here first."""
    return tuple(dict.fromkeys((*SHIPPED, *_methods, *_installed(METHODS_GROUP))))


def trial_kinds() -> tuple[str, ...]:
    """Every word that `method:` of a space may be."""
    return (*method_names(), *OTHERS)


def declared(name: str) -> Declaration:
    """What the method of this name says of itself.

    Raises: PluginError for an unknown name, or one from outside that cannot be used.
    """
    if name in _methods:
        declaration = _methods[name].declaration
        assert declaration is not None
        return declaration
    if (shipped := {**SHIPPED, **OTHERS}.get(name)) and name not in _installed(METHODS_GROUP):
        declaration = resolved(shipped)
        assert isinstance(declaration, Declaration)
        return declaration
    return declaration_of(*_from_distribution(METHODS_GROUP, name, "method", (*SHIPPED, *OTHERS)))


def method_object(name: str) -> Any:
    """The `trainables.methods.method.Method` of this name, its code imported.

    Raises: PluginError as `declared`.
    """
    declaration = declared(name)
    if declaration.code:
        return resolved(declaration.code)
    return _methods[name].method if name in _methods else _from_distribution(METHODS_GROUP, name, "method", SHIPPED)[0]


def evaluation_names() -> tuple[str, ...]:
    """Every evaluation from outside."""
    return tuple(dict.fromkeys((*_evaluations, *_installed(EVALUATIONS_GROUP))))


def evaluation_named(name: str) -> DevEvaluation:
    """The evaluation of this name.

    Raises: PluginError for an unknown name, or one that cannot be used.
    """
    if name in _evaluations:
        evaluation = _evaluations[name].evaluation
        assert evaluation is not None
        return evaluation
    found, place = _from_distribution(EVALUATIONS_GROUP, name, "evaluation", ())
    check_evaluation(found, place)
    assert isinstance(found, DevEvaluation)
    return found


def use_plugins(plugins: Iterable[Plugin]) -> None:
    """Make the methods and evaluations of these files known to this process.

    They take the place of what other files brought under their names before; among themselves, and with what is
    shipped or installed, names must differ.

    Raises: PluginError naming file and line.
    """
    methods: dict[str, Brought] = {}
    evaluations: dict[str, Brought] = {}
    for plugin in plugins:
        own = brought(plugin)
        for kind, table, thing, taken in (
            ("method", methods, own.declaration, (*SHIPPED, *OTHERS, *_installed(METHODS_GROUP))),
            ("evaluation", evaluations, own.evaluation, tuple(_installed(EVALUATIONS_GROUP))),
        ):
            if thing is None:
                continue
            place = own.places[kind.upper()]
            if thing.name in taken:
                whose = "is shipped here" if kind == "method" and thing.name in (*SHIPPED, *OTHERS) else "is installed"
                raise PluginError(f"{place}: a {kind} {thing.name!r} {whose} already; choose another name")
            if thing.name in table:
                other = table[thing.name].places[kind.upper()]
                raise PluginError(f"{place}: {kind} {thing.name!r} is also brought by {other}; rename one")
            table[thing.name] = own
    _methods.update(methods)
    _evaluations.update(evaluations)


def resolved(where: str) -> Any:
    """The object at `module:NAME`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


def _from_distribution(group: str, name: str, kind: str, shipped: Iterable[str]) -> tuple[Any, str]:
    """What an entry point gives, and its place for messages."""
    points = _installed(group).get(name)
    if points is None:
        known = method_names() if group == METHODS_GROUP else evaluation_names()
        raise PluginError(f"unknown {kind} {name!r}" + (did_you_mean(name, known) if known else "; none is installed"))
    places = [f"distribution {p.dist.name if p.dist else '?'}, entry point {p.name} = {p.value}" for p in points]
    if name in shipped:
        raise PluginError(f"{places[0]}: a {kind} {name!r} is shipped here already")
    if len(points) > 1:
        raise PluginError(f"{kind} {name!r} comes from several distributions: {'; '.join(places)}")
    try:
        found = points[0].load()
    except Exception as error:  # whatever its import raises
        raise PluginError(f"{places[0]}: {type(error).__name__}: {first_line(error)}") from error
    own = getattr(found, "declaration", found)
    if getattr(own, "name", name) != name:
        raise PluginError(f"{places[0]}: its {kind} is called {own.name!r}, the entry point must be called so too")
    return found, places[0]
