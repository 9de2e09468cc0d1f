"""From a YAML file to a checked `Space`, or to everything that is wrong with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from search.space.conditions import check_combinations, check_conditions, check_search, check_size, distinct, suited
from search.space.datasets import check_data_sets
from search.space.encoder_fit import check_encoder_fit
from search.space.groups import joined, spread
from search.space.idle import check_idle
from search.space.method_keys import read_encoder, read_method, read_preset
from search.space.nodes import Node, from_plain, merge, override, read_file
from search.space.outside import read_plugins
from search.space.params import Param, read_param, stored
from search.space.problems import Problems, SpaceError, Where
from search.space.prompt_fit import check_prompt_fit
from search.space.ready import find_space
from search.space.sample_fit import check_sample_fit
from search.space.scale import scaled_down
from search.space.scripted import (
    check_own_preset,
    check_scripted,
    declared_knobs,
    read_own_preset,
    read_scripted,
    searched_names,
)
from search.space.sections import (
    Pruner,
    Resources,
    Search,
    auto,
    check_end,
    check_pruner,
    check_resources,
    entries,
    mistake,
    read_data,
    seconds,
    settings,
)
from search.space.selecting import check_taken_names, read_metric
from search.space.space import TRAIN_KEYS, Space
from trainables.contract.config import Hyperparameter, hyperparameters
from trainables.contract.declaration import TRANSFORMER, Declaration
from trainables.contract.errors import close_to, did_you_mean
from trainables.data.catalogue import BUILTIN_LANGUAGES

TOP_KEYS = (
    "name", "method", "script", "encoder", "preset", "extends", "data", "metric", "params", "points", "search",
    "pruner", "resources", "train", "smoke", "plugins",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def load_space(
    given: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), *, find_data: bool = False
) -> Space:
    """Read and check a space.

    Args:
        given: a YAML file (`extends: other.yaml` in it is relative to it), the name of a ready space, or what such a
            file holds as plain data.
        overrides: `key.path=value` strings, applied in turn after `extends`.
        find_data: also report named data sets that this machine would not find, what an encoder whose files are on
            this machine does not honour, evaluations of a name that is taken, and points drawn of the space that the
            method would refuse; a space that is only read, or will run elsewhere, does without.
    Raises: SpaceError listing every mistake as `file:line: key: message` or `--set key: message`.
    """
    problems = Problems()
    if isinstance(given, Mapping):
        source = "space"
        root: Node | None = spread(from_plain(given, Where(source)), problems)
    else:
        source = find_space(given)
        root = _read_with_bases(source, (), problems)
    if root is None or problems.unreadable:
        raise SpaceError(problems.found)
    root = spread(override(root, overrides, problems, joined), problems)
    if find_data:
        check_data_sets(root, problems)
    space = _checked(root, source, problems, draws=find_data)
    if find_data:
        check_taken_names(space, root, problems)
        check_idle(space, root, problems)
        check_encoder_fit(space, root, problems)
        check_prompt_fit(space, root, problems)
        check_sample_fit(space, root, problems)
    problems.raise_if_any()
    return space


def space_from(plain: Mapping[str, Any], source: str = "space") -> Space:
    """A space from plain data, such as `Space.resolved()` read back.

    Raises: SpaceError; problems are at `source` without line.
    """
    problems = Problems()
    return _checked(spread(from_plain(plain, Where(source)), problems), source, problems)


def _checked(root: Node, source: str, problems: Problems, draws: bool = False) -> Space:
    space = _build(root, source, problems, draws)
    problems.raise_if_any()
    assert space is not None
    if space.smoke:
        _check_smoke(space, root.value["smoke"], problems)
        problems.raise_if_any()
    return space


def _read_with_bases(path: str, trail: tuple[str, ...], problems: Problems) -> Node | None:
    node = read_file(path, problems)
    node = None if node is None else spread(node, problems)
    if node is None or "extends" not in node.value:
        return node
    given = node.value["extends"]
    own = Node({key: value for key, value in node.value.items() if key != "extends"}, node.where)
    if not isinstance(given.value, str) or not given.value.strip() or "\0" in given.value:
        problems.lost(given.where, "extends", f"expected the path of a space file, got {given.plain()!r}")
        return own
    base_path = os.path.normpath(os.path.join(os.path.dirname(path), given.value))
    trail = (*trail, os.path.normpath(path))
    if base_path in trail:
        problems.lost(given.where, "extends", "in a circle: " + " -> ".join((*trail, base_path)))
        return own
    if not os.path.isfile(base_path):
        problems.lost(given.where, "extends", f"no such file: {base_path}")
        return own
    base = _read_with_bases(base_path, trail, problems)
    if base is None:
        return own
    nameless = {key: value for key, value in base.value.items() if key != "name"}  # a study has its own file's name
    return merge(Node(nameless, base.where), own)


def _build(root: Node, source: str, problems: Problems, draws: bool = False) -> Space | None:
    """The space of a document; None only when problems were added."""
    before = len(problems.found)
    top = root.where
    for key in root.value.keys() - TOP_KEYS:
        problems.add(root.value[key].where, key, "unknown" + did_you_mean(key, TOP_KEYS))
    if "extends" in root.value:  # only an override or a resolved space can still have it here
        problems.add(root.value["extends"].where, "extends", "belongs in a file")
    part = root.value.get

    name = _read_name(part("name"), source, problems)
    plugins = read_plugins(part("plugins"), problems)
    if problems.unreadable:
        return None
    method = read_method(part("method"), top, problems)
    script = read_scripted(part("script"), method, top, problems)
    encoder = read_encoder(part("encoder"), method, top, problems)
    data = read_data(part("data"), method, root, problems)
    if data is not None and encoder == TRANSFORMER.builtin and data.language not in BUILTIN_LANGUAGES:
        message = f"{encoder} knows words of {', '.join(BUILTIN_LANGUAGES)} only, data.language is {data.language}"
        problems.add(root.value["encoder"].where, "encoder", message)
    metric = read_metric(part("metric"), data, method, root, problems)
    search = settings(Search, part("search"), "search", problems, {"time": seconds})
    pruner = settings(Pruner, part("pruner"), "pruner", problems, {"warmup": auto})
    resources = settings(Resources, part("resources"), "resources", problems)
    check_end(search, root, problems)
    check_pruner(pruner, search, root, problems)
    check_resources(resources, root, problems)
    smoke = part("smoke")
    if smoke is not None and not isinstance(smoke.value, dict):
        problems.add(smoke.where, "smoke", f"expected a mapping of changes, got {smoke.kind()}")
    if method is None:
        return None  # without it no parameter can be checked
    if method.scripted:
        check_scripted(root, search, resources, problems)
        known = declared_knobs(root, problems)
        preset: Any = read_own_preset(part("preset"), known, searched_names(root), problems)
        search = search if preset else replace(search, baseline="none")
    else:
        known = hyperparameters(method.config)
        preset = read_preset(part("preset"), method, encoder, problems)
    params, constants, rows, places = _read_params(root, method, known, preset, problems)
    if method.scripted and preset:
        check_own_preset(preset, params, root.value["preset"], problems)

    def where(*keys: str) -> Where:
        return places.get(keys[0]) or root.place(*keys)

    check_search(search, params, rows, where, problems)
    if len(problems.found) > before:
        return None
    assert name is not None
    assert encoder is not None
    assert data is not None
    assert metric is not None
    space = Space(
        name=name, method=method.name, encoder=encoder, preset=preset, data=data, metric=metric, params=params,
        constants=constants, rows=rows, search=suited(search), pruner=pruner, resources=resources,
        smoke=smoke.plain() if smoke else {}, plugins=plugins, script=script, source=source,
    )  # fmt: skip
    check_size(space, where, problems)
    if len(problems.found) == before:
        check_combinations(space, where, problems, draws)
    return space if len(problems.found) == before else None


def _read_name(node: Node | None, source: str, problems: Problems) -> str | None:
    if node is None:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).strip("-.")[:100] or "space"
    if isinstance(node.value, str) and _NAME.fullmatch(node.value):
        return node.value
    problems.add(
        node.where,
        "name",
        f"expected up to 100 letters, digits, '.', '_' or '-' (it names a folder), got {node.plain()!r}",
    )
    return None


def _read_params(
    root: Node,
    method: Declaration,
    known: Mapping[str, Hyperparameter],
    preset: str | Mapping[str, Any] | None,
    problems: Problems,
) -> tuple[dict[str, Param], dict[str, Any], tuple[dict[str, Any], ...], dict[str, Where]]:
    """Searched parameters, constants, listed rows, and the place of each for later messages."""
    params: dict[str, Param] = {}
    constants: dict[str, Any] = {}
    places: dict[str, Where] = {}
    searched = _named(root.value.get("params"), "params", method.name, known, problems)
    train = {} if method.scripted else entries(root.value.get("train"), "train", TRAIN_KEYS, problems)
    for name, node in searched.items():
        places[name] = node.where
        if isinstance(node.value, dict):
            params[name] = read_param(known[name], node, f"params.{name}", problems)
        else:
            _read_constant(known[name], node, f"params.{name}", constants, problems)
    for name, node in train.items():
        if name in searched:
            problems.add(node.where, f"train.{name}", "also in params; give it once")
        places[name] = node.where
        _read_constant(known[name], node, f"train.{name}", constants, problems)
    rows = _read_rows(root.value.get("points"), method.name, known, {**searched, **train}, problems)
    for name in dict.fromkeys(name for row in rows for name in row):
        values = distinct(row[name] for row in rows if name in row)
        params[name] = Param(name=name, kind="grid", values=values, listed=True)
        places[name] = root.value["points"].where
    base = method.values(preset) | constants
    unsure = {name for name, param in params.items() if not param.values and param.low is None}
    unsure |= {name for name in (*searched, *train) if name not in params and name not in constants}
    return check_conditions(params, base, known, unsure, searched, problems), constants, rows, places


def _named(
    node: Node | None, key: str, method: str, known: Mapping[str, Hyperparameter], problems: Problems
) -> dict[str, Node]:
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node.where, key, f"expected a mapping of hyperparameters, got {node.kind()}")
        return {}
    for name in node.value.keys() - known.keys():
        parts = ", ".join(own.partition(".")[2] for own in known if own.startswith(f"{name}."))
        unknown = f"unknown for {method!r}" + close_to(name, known)
        message = f"expected a mapping with {parts}, got {node.value[name].kind()}" if parts else unknown
        problems.add(node.value[name].where, f"{key}.{name}", message)
    return {name: item for name, item in node.value.items() if name in known}


def _read_constant(knob: Hyperparameter, node: Node, key: str, constants: dict[str, Any], problems: Problems) -> None:
    value = node.plain()
    if message := mistake(knob, value):
        if isinstance(value, list) and knob.kind != "ints":
            message = f"a list is no constant; to search it write {{choice: {value!r}}}"
        problems.add(node.where, key, message)
    else:
        constants[knob.name] = stored(knob, value)


def _read_rows(
    node: Node | None,
    method: str,
    known: Mapping[str, Hyperparameter],
    elsewhere: Mapping[str, Node],
    problems: Problems,
) -> tuple[dict[str, Any], ...]:
    """The `points` section: a list of mappings, each one point of an exact list."""
    if node is None:
        return ()
    if not isinstance(node.value, list) or not node.value:
        got = "an empty list" if node.value == [] else node.kind()
        problems.add(node.where, "points", f"expected a list of points, got {got}")
        return ()
    rows: dict[str, dict[str, Any]] = {}
    for i, item in enumerate(node.value):
        key = f"points[{i}]"
        if not isinstance(item.value, dict) or not item.value:
            problems.add(item.where, key, f"expected a mapping of hyperparameters, got {item.kind()}")
            continue
        row = {}
        before = len(problems.found)
        for name, value in _named(item, key, method, known, problems).items():
            if name in elsewhere:
                problems.add(value.where, f"{key}.{name}", "also given outside the points; give it once")
            elif message := mistake(known[name], value.plain()):
                problems.add(value.where, f"{key}.{name}", message)
            else:
                row[name] = stored(known[name], value.plain())
        if same := next((other for other, earlier in rows.items() if earlier == row), None):
            problems.add(item.where, key, f"the same as {same}")
        if len(problems.found) == before:
            rows[key] = row
    return tuple(rows.values())


def _check_smoke(space: Space, node: Node, problems: Problems) -> None:
    """The smoke section's own mistakes, at its own lines."""
    found = Problems()
    _build_smoke(space, node, found)
    for problem in found.found:
        problems.add(problem.where, f"smoke.{problem.key}", problem.message)


def smoke(space: Space) -> Space:
    """The space scaled to a minute or two on two CPU cores, on the builtin encoder and corpus.

    Same method, parameters and sampler; `scale.py` says what shrinks, the file's `smoke` section has the last word.
    Its numbers show that things run, and nothing about the papers.
    """
    problems, changes = Problems(), from_plain(space.smoke, Where(space.source))
    built = _build_smoke(space, changes, problems)
    problems.raise_if_any()
    assert built is not None
    check_taken_names(built, changes, problems)  # it has other dev sets
    problems.raise_if_any()
    return built


def _build_smoke(space: Space, changes: Node, problems: Problems) -> Space | None:
    scaled = from_plain(scaled_down(space), changes.where)
    return _build(merge(scaled, changes), space.source, problems)


__all__ = ["load_space", "smoke", "space_from"]
