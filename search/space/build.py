"""From a document to a checked `Space`, or to everything that is wrong with it; plugins and scripts included.

Of a script the space declares the hyperparameters; their kinds follow from the values and ranges that it gives them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.space.checks import check_combinations, check_conditions, check_search, check_size
from search.space.encoder_key import read_encoder
from search.space.nodes import Node, Problems, entries, text
from search.space.optuna_class import PRUNER, SAMPLER, read_classes
from search.space.params import PARAM_KINDS, Param, distinct, read_param, stored
from search.space.sections import (
    ELSEWHERE,
    Pruner,
    Resources,
    Search,
    check_settings,
    mistake,
    read_data,
    read_metric,
    seconds,
    settings,
)
from search.space.space import NO_PRESET, TRAIN_KEYS, Space, unloaded_method
from trainables.contract.config import Hyperparameter, hyperparameters
from trainables.contract.declaration import OWN_ENCODER, TRANSFORMER, Declaration
from trainables.contract.errors import PluginError, close_to, did_you_mean
from trainables.contract.registry import (
    RESERVED,
    Plugin,
    declared,
    is_installed,
    method_names,
    read_plugin,
    read_script,
    trial_kinds,
    use_plugins,
)
from trainables.data.catalogue import BUILTIN_LANGUAGES

TOP_KEYS = (
    "name", "method", "script", "encoder", "preset", "extends", "data", "metric", "params", "points", "search",
    "pruner", "resources", "train", "smoke", "plugins",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def build(root: Node, source: str, problems: Problems, draws: bool = False, run_code: bool = True) -> Space | None:
    """The space of a document; None only when problems were added.

    Args: draws: see `check_combinations`; run_code: see `load_space`.
    """
    before = len(problems.found)
    for key in root.value.keys() - TOP_KEYS:
        problems.add(root.place(key), "unknown" + did_you_mean(key, TOP_KEYS))
    if "extends" in root.value:  # only an override or a resolved space can still have it here
        problems.add(root.place("extends"), "belongs in a file")
    plugins = read_plugins(root.get("plugins"), problems, run_code)
    if problems.unreadable:
        return None
    name = _read_name(root.get("name"), source, problems)
    unloaded = None if run_code else unloaded_method(root)
    method = unloaded or _read_method(root, problems)
    script = read_script_key(root, method, problems, run_code)
    encoder = _read_encoder(root, method, problems)
    data = read_data(root, method, problems, run_code)
    if data is not None and encoder == TRANSFORMER.builtin and data.language not in BUILTIN_LANGUAGES:
        message = f"{encoder} has words of {', '.join(BUILTIN_LANGUAGES)} only, data.language is {data.language}"
        problems.add(root.place("encoder"), message)
    metric = read_metric(root, data, method, problems, run_code)
    classes, rest = read_classes(root, problems, run_code)
    search = settings(Search, rest["search"], problems, {"time": seconds})
    pruner = settings(Pruner, rest["pruner"], problems, {"warmup": lambda word: None if word == "auto" else word})
    search = replace(search, sampler=classes[SAMPLER].name) if SAMPLER in classes else search
    pruner = replace(pruner, kind=classes[PRUNER].name) if PRUNER in classes else pruner
    resources = settings(Resources, root.get("resources"), problems)
    check_settings(search, pruner, resources, root, problems)
    smoke = root.get("smoke")
    if smoke is not None and not isinstance(smoke.value, dict):
        problems.add(smoke.where, f"expected a mapping of changes, got {smoke.kind()}")
    if method is None:
        return None  # without it no parameter can be checked
    preset: str | Mapping[str, Any] | None
    if method.scripted:
        known = declared_fields(root, problems)
        preset = read_own_preset(root, known, problems)
    else:
        known = hyperparameters(method.config) | (declared_fields(root, problems) if unloaded else {})
        preset = _read_preset(root.get("preset"), method, encoder, problems)
    params, constants, rows = _read_params(root, method, known, preset, problems)
    if method.scripted:
        check_scripted(root, search, resources, preset if isinstance(preset, Mapping) else {}, params, problems)
        search = search if preset else replace(search, baseline="none")
    check_search(search, params, root, problems)
    if len(problems.found) > before or name is None or encoder is None or data is None or metric is None:
        return None
    if search.sampler == "auto":  # on recorded curves it ends nearer the best for the same training
        search = replace(search, sampler="gp")
    space = Space(
        name=name, method=method.name, encoder=encoder, preset=preset, data=data, metric=metric, params=params,
        constants=constants, rows=rows, search=search, pruner=pruner, resources=resources,
        smoke=smoke.plain() if smoke else {}, plugins=plugins, script=script, classes=classes, unloaded=unloaded,
        source=source,
    )  # fmt: skip
    check_size(space, root, problems)
    if len(problems.found) == before:
        check_combinations(space, root, problems, draws)
    return space if len(problems.found) == before else None


def _read_name(node: Node | None, source: str, problems: Problems) -> str | None:
    if node is None:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).strip("-.")[:100] or "space"
    if isinstance(node.value, str) and _NAME.fullmatch(node.value):
        return node.value
    expected = "expected up to 100 letters, digits, '.', '_' or '-' (it names a folder)"
    problems.add(node.where, f"{expected}, got {node.plain()!r}")
    return None


def _read_method(root: Node, problems: Problems) -> Declaration | None:
    """The declaration of the `method`."""
    node, known = root.get("method"), trial_kinds()
    if node is None:
        problems.add(root.place("method"), f"missing; one of {', '.join(known)}")
    elif not isinstance(node.value, str):
        problems.add(node.where, f"expected one of {', '.join(known)}, got {node.kind()}")
    elif node.value not in known:
        problems.add(node.where, f"unknown {node.value!r}" + did_you_mean(node.value, known))
    else:
        try:
            return declared(node.value)
        except PluginError as error:
            problems.add(node.where, str(error))
    return None


def _read_encoder(root: Node, method: Declaration | None, problems: Problems) -> str | None:
    """The `encoder`; "" where a script goes without."""
    node, family = root.get("encoder"), method.encoders if method else TRANSFORMER
    builtin = family.builtin
    expected = f"{family.what}, or {builtin}" if builtin else family.what
    if (node is None or node.value is None) and family == OWN_ENCODER:
        return ""
    if node is None:
        problems.add(root.place("encoder"), f"missing; expected {expected}")
        return None
    given = read_encoder(node, family, expected, problems)
    if given and method and given.startswith("builtin:") and given != builtin:
        has = f"has {builtin}" if builtin else "has no builtin encoder"
        problems.add(node.where, f"method {method.name} {has}, got {given!r}")
    return given


def _read_preset(node: Node | None, method: Declaration, encoder: str | None, problems: Problems) -> str | None:
    """The name of the `preset`, by default the one that belongs to the encoder."""
    if node is None or node.value is None:
        return method.preset_for(encoder) if encoder else None
    known = (*method.presets, NO_PRESET)
    if not isinstance(node.value, str):
        problems.add(node.where, f"expected one of {', '.join(known)}, got {node.plain()!r}")
    elif node.value not in known:
        owners = [name for name in method_names() if node.value in declared(name).presets]
        owner = f" (of method {owners[0]})" if owners else ""
        problems.add(node.where, f"unknown {node.value!r} for {method.name}{owner}" + did_you_mean(node.value, known))
    elif node.value != NO_PRESET:
        return node.value
    return None


def _read_params(
    root: Node, method: Declaration, known: Mapping[str, Hyperparameter], preset: str | Mapping[str, Any] | None,
    problems: Problems,
) -> tuple[dict[str, Param], dict[str, Any], tuple[dict[str, Any], ...]]:  # fmt: skip
    """Searched parameters, constants, listed rows."""
    params: dict[str, Param] = {}
    constants: dict[str, Any] = {}
    searched = _named(root.get("params"), method, known, problems)
    train = {} if method.scripted else entries(root.get("train"), TRAIN_KEYS, problems)
    for name, node in (*searched.items(), *train.items()):
        if name in searched and isinstance(searched[name].value, dict):
            params[name] = read_param(known[name], searched[name], problems)
        elif message := mistake(known[name], value := node.plain()):
            if isinstance(value, list) and known[name].kind != "ints":
                message = f"a list is no constant; to search it write {{choice: {value!r}}}"
            problems.add(node.where, message)
        else:
            constants[name] = stored(known[name], value)
    for name in train.keys() & searched.keys():
        problems.add(train[name].where, "also in params; give it once")
    rows = _read_rows(root.get("points"), method, known, {*searched, *train}, problems)
    for name in dict.fromkeys(name for row in rows for name in row):
        values = distinct(row[name] for row in rows if name in row)
        params[name] = Param(name=name, kind="grid", values=values, listed=True)
    base = method.values(preset) | constants
    unsure = {name for name, param in params.items() if not param.values and param.low is None}
    unsure |= {name for name in (*searched, *train) if name not in params and name not in constants}
    return check_conditions(params, base, known, unsure, root, problems), constants, rows


def _named(
    node: Node | None, method: Declaration, known: Mapping[str, Hyperparameter], problems: Problems
) -> dict[str, Node]:
    """The entries of `params` or of a point that are hyperparameters; everything else is reported."""
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node.where, f"expected a mapping of hyperparameters, got {node.kind()}")
        return {}
    for name in node.value.keys() - known.keys():
        parts = ", ".join(own.partition(".")[2] for own in known if own.startswith(f"{name}."))
        unknown = ELSEWHERE.get(name) or f"unknown for {method.name!r}" + close_to(name, known)
        message = f"expected a mapping with {parts}, got {node.value[name].kind()}" if parts else unknown
        problems.add(node.place(name), message)
    return {name: item for name, item in node.value.items() if name in known}


def _read_rows(
    node: Node | None, method: Declaration, known: Mapping[str, Hyperparameter], elsewhere: set[str], problems: Problems
) -> tuple[dict[str, Any], ...]:
    """The `points` section: a list of mappings, each one point of an exact list."""
    if node is None:
        return ()
    if not isinstance(node.value, list) or not node.value:
        got = "an empty list" if node.value == [] else node.kind()
        problems.add(node.where, f"expected a list of points, got {got}")
        return ()
    rows: dict[str, dict[str, Any]] = {}
    for item in node.value:
        if not isinstance(item.value, dict) or not item.value:
            problems.add(item.where, f"expected a mapping of hyperparameters, got {item.kind()}")
            continue
        row = {}
        before = len(problems.found)
        for name, value in _named(item, method, known, problems).items():
            if name in elsewhere:
                problems.add(value.where, "also given outside the points; give it once")
            elif message := mistake(known[name], value.plain()):
                problems.add(value.where, message)
            else:
                row[name] = stored(known[name], value.plain())
        if same := next((other for other, earlier in rows.items() if earlier == row), None):
            problems.add(item.where, f"the same as {same}")
        if len(problems.found) == before:
            rows[item.where.key] = row
    return tuple(rows.values())


SCRIPT = "a Python file beside the space, or module:function"


def read_plugins(node: Node | None, problems: Problems, run_code: bool) -> tuple[Plugin, ...]:
    """The `plugins` section, its methods and evaluations known from here on if their code is run."""
    if node is None or node.value is None:
        return ()
    before, plugins = len(problems.found), list[Plugin]()
    if not isinstance(node.value, list):
        problems.add(node.where, f"expected a list of Python files, got {node.kind()}")
    for item in node.value if isinstance(node.value, list) else ():
        item = Node(item.value, item.where.named(node.where.key))
        if plugin := _read_code(item, "the path of a Python file", read_plugin, problems, run_code):
            plugins.append(plugin)
            try:
                use_plugins(plugins if run_code else ())
            except PluginError as error:
                problems.add(item.where, str(error))
    problems.unreadable |= len(problems.found) > before
    return tuple(plugins)


def read_script_key(root: Node, method: Declaration | None, problems: Problems, run_code: bool) -> Plugin | None:
    """The `script` key of a document."""
    node = root.get("script")
    given = node is not None and node.value is not None
    if method is not None and given and not method.scripted:
        problems.add(root.place("script"), f"method {method.name} has none; write method: script")
    elif method is not None and method.scripted and not given:
        problems.add(root.where.to("script"), f"missing; expected {SCRIPT}")
    elif method is not None and node is not None and given:
        return _read_code(node, SCRIPT, read_script, problems, run_code)
    return None


def _read_code(
    node: Node, expected: str, read: Callable[[str], Plugin], problems: Problems, run_code: bool
) -> Plugin | None:
    """A path relative to the file that it is written in, module:function of a script, or (in a stored space)
    {file: where it came from, text: what was in it}.
    """
    value = node.plain()
    if isinstance(value, dict) and value.keys() == {"file", "text"} and all(isinstance(v, str) for v in value.values()):
        return Plugin(value["file"], value["text"])
    if (given := text(node, problems, expected)) is None:
        return None
    if not run_code:  # to find an installed module runs the packages around it
        return Plugin(given, "")
    base = "" if node.where.override else os.path.dirname(node.where.file)
    try:
        if read is read_script and is_installed(given):
            return read(given)
        return read(os.path.join(base, os.path.expanduser(given)))
    except PluginError as error:
        problems.add(node.where, str(error))
    return None


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
        problems.add(train.where, "has no effect for a script; what it reads stands under params")
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
            listed = next((plain[kind] for kind in PARAM_KINDS if kind in plain), None)
            values += listed if isinstance(listed, list) else []
    kinds = [_kind(value) for value in values if value is not None]
    first = "float" if {*kinds[:1]} <= {"int", "float"} and "float" in kinds else next(iter(kinds), "str")
    return Hyperparameter(name, first, None, optional=None in values)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = {_kind(one) for one in value}
        return {"int": "ints", "str": "words"}.get(inner.pop(), "str") if len(inner) == 1 else "str"
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "str")
