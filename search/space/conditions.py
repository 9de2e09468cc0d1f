"""Checks across parameters: conditions that can hold, grids that can be listed, settings that go together."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from search.space.nodes import Node
from search.space.params import Param, stored
from search.space.problems import Problems, Where
from search.space.sections import Search, mistake
from search.space.space import Space
from trainables.contract.config import Hyperparameter
from trainables.contract.errors import did_you_mean
from trainables.contract.registry import declared

MOST_POINTS = 100_000  # of a grid: more is a slip of the pen, and nothing could run it
_MOST_CHECKED = 400  # combinations tried for settings that do not go together
_NUMBER = re.compile(r"\d[\d.e-]*")


def check_conditions(
    params: Mapping[str, Param],
    base: Mapping[str, Any],
    known: Mapping[str, Hyperparameter],
    unsure: Collection[str],
    written: Mapping[str, Node],
    problems: Problems,
) -> dict[str, Param]:
    """The parameters with checked conditions, each after those it depends on (otherwise in the order given).

    A condition is dead when the parameter it names never takes one of its values, and is reported; on parameters that
    are themselves mistaken (`unsure`) nothing is said.
    """
    checked = {}
    for name, param in params.items():
        when = {}
        for other, values in param.when.items():
            key, where = f"params.{name}.when.{other}", written[name].place("when", other)
            if other not in known:
                problems.add(where, key, "unknown" + did_you_mean(other, known))
            elif message := next((m for v in values if (m := mistake(known[other], v))), None):
                problems.add(where, key, message)
            else:
                when[other] = tuple(stored(known[other], v) for v in values)
                if other in unsure:
                    continue
                _check_reachable(params.get(other), base.get(other), when[other], where, key, problems)
        checked[name] = replace(param, when=when)
    return _ordered(checked, written, problems)


def _check_reachable(
    other: Param | None, fixed: Any, values: tuple[Any, ...], where: Where, key: str, problems: Problems
) -> None:
    if not values:
        problems.add(where, key, "never true: it names no value")
    elif other is None:
        if fixed not in values:
            problems.add(where, key, f"never true: its value is fixed at {fixed!r}")
    elif unreachable := [v for v in values if not other.legal(v)]:
        problems.add(where, key, f"never takes {', '.join(map(repr, unreachable))} in this space")
    elif other.count() is None:
        problems.add(where, key, "never true: of a range without steps no value is drawn twice; give it a `step`")


def _ordered(params: dict[str, Param], written: Mapping[str, Node], problems: Problems) -> dict[str, Param]:
    ordered: dict[str, Param] = {}
    left = dict(params)
    while left:
        ready = [n for n, p in left.items() if not any(o in left for o in p.when)]
        if not ready:
            for name in left:
                circle = f"conditions in a circle: {', '.join(left)}"
                problems.add(written[name].place("when"), f"params.{name}.when", circle)
            return ordered | left
        # One at a time: a parameter moves back only as far as its conditions need.
        ordered[ready[0]] = left.pop(ready[0])
    return ordered


def check_search(
    search: Search,
    params: Mapping[str, Param],
    rows: Collection[object],
    where: Callable[..., Where],
    problems: Problems,
) -> None:
    """That the sampler fits what is searched. `where`: place of a parameter, a section or a key of one."""
    if search.sampler == "grid":
        if search.start:
            problems.add(where("search", "start"), "search.start", "a grid runs its own points only")
        for name, param in params.items():
            if param.count() is None:
                problems.add(where(name), f"params.{name}", "sampler grid needs grid, choice, or a range with step")
        return
    if not params:
        sampler = search.sampler
        problems.add(where("params"), "params", f"nothing is searched; sampler {sampler} needs a parameter with values")
    if rows:
        problems.add(where("points"), "points", f"listed points need sampler grid, got {search.sampler}")


def suited(search: Search) -> Search:
    """`sampler: auto` as what it takes: a Gaussian process, which on recorded curves ends nearer the best for the same
    training (docs/performance.md)."""
    return replace(search, sampler="gp") if search.sampler == "auto" else search


def check_size(space: Space, where: Callable[..., Where], problems: Problems) -> None:
    """That a grid is not too large, nor cut short."""
    count = space.cardinality() if space.is_grid else None
    if count is None:
        return
    if count > MOST_POINTS:
        problems.add(where("params"), "params", f"a grid of {count:,} points; at most {MOST_POINTS:,} can be run")
    elif space.search.trials is not None and space.search.trials < count:
        message = f"a grid runs its exact product of {count} points, got {space.search.trials}"
        problems.add(where("search", "trials"), "search.trials", message)


def check_combinations(space: Space, where: Callable[..., Where], problems: Problems, draws: bool) -> None:
    """That no combination of values is forbidden by the method (a head that the pooling lacks, ...).

    draws: also of points drawn of the whole space. A stored study does without: what it has begun it may go on with.
    """
    conflicts, base = declared(space.method).config.conflicts, space.base
    seen = set()
    for point in itertools.chain(combinations(space), _draws(space) if draws else ()):
        for key, message in conflicts({**base, **point}):
            # Each value of a list is told of; a range has too many, whose messages differ in their numbers only.
            listed = key in space.params and space.params[key].values is not None
            fault = (key, repr(point.get(key)) if listed else "", _NUMBER.sub("", message))
            if fault not in seen:
                seen.add(fault)
                problems.add(where(key), f"params.{key}", message)


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """All points over typical values when they are few, else every pair of parameters varied around a first point."""
    small = replace(space, params={name: _typical(p) for name, p in space.params.items()})
    count = small.cardinality()
    if count is not None and count <= _MOST_CHECKED:
        yield from small.points()
        return
    lone = {name: p if p.listed else replace(p, values=_typical_values(p)[:1]) for name, p in small.params.items()}
    for pair in itertools.combinations([n for n, p in lone.items() if not p.listed], 2):
        varied = replace(small, params=lone | {name: small.params[name] for name in pair})
        yield from itertools.islice(varied.points(), _MOST_CHECKED)


def _typical(param: Param) -> Param:
    if param.listed:
        return param
    return replace(param, kind="choice", values=_typical_values(param), low=None, high=None, step=None, log=False)


def _typical_values(param: Param) -> tuple[Any, ...]:
    return param.values if param.values is not None else (param.low, param.high)


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
    """Values without repetition, first ones kept (lists do not hash)."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)
