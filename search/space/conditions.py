"""Checks across parameters: conditions can hold, grids can be listed, values are read and go together."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from search.space.nodes import Node, Problems, Where
from search.space.params import Param, stored
from search.space.sections import Search, mistake
from search.space.space import Space
from trainables.contract.config import Hyperparameter
from trainables.contract.declaration import Declaration
from trainables.contract.errors import did_you_mean
from trainables.contract.registry import declared, method_object

MOST_POINTS = 100_000  # of a grid: more is a slip of the pen, and nothing could run it
_MOST_CHECKED = 400  # combinations tried for settings that do not go together
_NUMBER = re.compile(r"\d[\d.e-]*")


def written_at(root: Node, name: str) -> Where | None:
    """Where a document gives a hyperparameter, None if it does not."""
    for section in ("params", "train"):
        if (node := root.get(section, name)) is not None:
            return node.where
    points = root.get("points")
    rows = points.value if points is not None and isinstance(points.value, list) else ()
    return root.place("points", name) if any(row.get(name) for row in rows) else None


def check_conditions(
    params: Mapping[str, Param], base: Mapping[str, Any], known: Mapping[str, Hyperparameter], unsure: Collection[str],
    root: Node, problems: Problems,
) -> dict[str, Param]:  # fmt: skip
    """The parameters with checked conditions, each after those it depends on (otherwise in the order given).

    A condition is dead when the parameter it names never takes one of its values, and is reported; those on parameters
    that are themselves mistaken (`unsure`) are not judged.
    """
    checked = {}
    for name, param in params.items():
        when = {}
        for other, values in param.when.items():
            where = root.place("params", name, "when", other)
            if other not in known:
                problems.add(where, "unknown" + did_you_mean(other, known))
            elif message := next((m for v in values if (m := mistake(known[other], v))), None):
                problems.add(where, message)
            else:
                when[other] = tuple(stored(known[other], v) for v in values)
                if other not in unsure and (message := _never_true(params.get(other), base.get(other), when[other])):
                    problems.add(where, message)
        checked[name] = replace(param, when=when)
    return _ordered(checked, root, problems)


def _never_true(other: Param | None, fixed: Any, values: tuple[Any, ...]) -> str | None:
    if not values:
        return "never true: it names no value"
    if other is None:
        return None if fixed in values else f"never true: its value is fixed at {fixed!r}"
    if unreachable := [v for v in values if not other.legal(v)]:
        return f"never takes {', '.join(map(repr, unreachable))} in this space"
    if other.count() is None:
        return "never true: of a range without steps no value is drawn twice; give it a `step`"
    return None


def _ordered(params: dict[str, Param], root: Node, problems: Problems) -> dict[str, Param]:
    ordered: dict[str, Param] = {}
    left = dict(params)
    while left:
        ready = [n for n, p in left.items() if not any(o in left for o in p.when)]
        if not ready:
            for name in left:
                problems.add(root.place("params", name, "when"), f"conditions in a circle: {', '.join(left)}")
            return ordered | left
        # One at a time: a parameter moves back only as far as its conditions need.
        ordered[ready[0]] = left.pop(ready[0])
    return ordered


def check_search(search: Search, params: Mapping[str, Param], root: Node, problems: Problems) -> None:
    """That the sampler fits what is searched."""
    if search.sampler == "grid":
        if search.start:
            problems.add(root.place("search", "start"), "a grid runs its own points only")
        for name in (name for name, param in params.items() if param.count() is None):
            problems.add(root.place("params", name), "sampler grid needs grid, choice, or a range with step")
        return
    if not params:
        message = f"nothing is searched; sampler {search.sampler} needs a parameter with values"
        problems.add(root.place("params"), message)
    if any(param.listed for param in params.values()):
        problems.add(root.place("points"), f"listed points need sampler grid, got {search.sampler}")


def check_size(space: Space, root: Node, problems: Problems) -> None:
    """That a grid is not too large, nor cut short."""
    count = space.cardinality() if space.is_grid else None
    if count is None:
        return
    if count > MOST_POINTS:
        problems.add(root.place("params"), f"a grid of {count:,} points; at most {MOST_POINTS:,} can be run")
    elif space.search.trials is not None and space.search.trials < count:
        message = f"a grid runs its exact product of {count} points, got {space.search.trials}"
        problems.add(root.place("search", "trials"), message)


def check_combinations(space: Space, root: Node, problems: Problems, draws: bool) -> None:
    """That no combination of values is forbidden by the method (a head that the pooling lacks, ...).

    draws: also of points drawn of the whole space. A stored study does without: what it has begun it may go on with.
    """
    conflicts, base = declared(space.method).config.conflicts, space.base
    seen = set()
    for point in itertools.chain(combinations(space), _draws(space) if draws else ()):
        for name, message in conflicts({**base, **point}):
            # Each value of a list is reported; a range has too many, whose messages differ in their numbers only.
            listed = name in space.params and space.params[name].values is not None
            fault = (name, repr(point.get(name)) if listed else "", _NUMBER.sub("", message))
            if fault not in seen:
                seen.add(fault)
                problems.add(written_at(root, name) or root.where.to("params", name), message)


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """All points over typical values when they are few, else every pair of parameters varied around a first point."""
    small = replace(space, params={n: p if p.listed else replace(p, values=p.typical) for n, p in space.params.items()})
    count = small.cardinality()
    if count is not None and count <= _MOST_CHECKED:
        yield from small.points()
        return
    lone = {name: p if p.listed else replace(p, values=p.typical[:1]) for name, p in small.params.items()}
    for pair in itertools.combinations([n for n, p in lone.items() if not p.listed], 2):
        varied = replace(small, params=lone | {name: small.params[name] for name in pair})
        yield from itertools.islice(varied.points(), _MOST_CHECKED)


def _draws(space: Space) -> Iterator[dict[str, Any]]:
    """Points drawn evenly, the same ones every time; half the values that conditions name are drawn for their sake."""
    draw = random.Random(0)
    named: dict[str, list[Any]] = {}
    for param in space.params.values():
        for other, values in param.when.items():
            named.setdefault(other, []).extend(values)
    for _ in range(_MOST_CHECKED):
        point = dict(draw.choice(space.rows or ({},)))
        for name, param in space.params.items():
            if not param.listed and space.active(name, point):
                at_named = name in named and draw.random() < 0.5
                point[name] = draw.choice(named[name]) if at_named else param.drawn(draw)
        yield point


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """The first of all equal values (lists do not hash)."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)


def check_unused(space: Space, root: Node, problems: Problems) -> None:
    """Report what is searched where nothing reads it, and constants of the file that nothing reads in any point."""
    method = declared(space.method)
    if method.scripted or _unknown(method):
        return
    ordinary = method.values(space.preset)
    set_here = {name for name, value in space.constants.items() if value != ordinary[name]}
    points = [(space.values(point), point) for point in combinations(space)]
    unused = [(method.config.unused(values), values, point) for values, point in points]
    found: dict[str, tuple[str, Any]] = {}
    for name in set_here:
        if unused and all(name in without for without, *_ in unused):
            found[name] = unused[0][0][name]
    for without, values, point in unused:
        for name in without.keys() & point.keys():
            other = space.params.get(without[name][0])
            drawn = other is None or other.count() is not None  # the end of a range without steps never is
            if drawn and (not space.params[name].listed or values[name] != ordinary[name]):
                found.setdefault(name, without[name])
    for name, (decides, value) in found.items():
        message = f"has no meaning with {decides} {str(value).lower() if isinstance(value, bool) else value}"
        message += f"; give it `when: {{{decides}: [...]}}`" if decides in space.params else ""
        problems.add(written_at(root, name) or root.where, message)


def _unknown(method: Declaration) -> bool:
    """Whether a method from outside has a network and no `unused` of its own: the inherited one is about ours."""
    owner = next(base for base in method.config.__mro__ if "unused" in vars(base))
    if _ours(method.config) or not _ours(owner):
        return False
    return not _ours(getattr(method_object(method.name), "network", None))


def _ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("trainables.")
