"""A searched hyperparameter: its kind, its values, the condition under which it exists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from search.space.nodes import Node
from search.space.problems import Problems
from search.space.sections import mistake
from trainables.contract.config import Hyperparameter
from trainables.contract.errors import did_you_mean

KINDS = ("float", "int", "choice", "grid")
_KEYS = (*KINDS, "log", "step", "when")


@dataclass(frozen=True, kw_only=True)
class Param:
    """One searched hyperparameter.

    Attributes:
        name: the knob's YAML name.
        kind: "float" or "int" (a range), "choice" or "grid" (a list; the two differ in what the writer meant only).
        low, high: closed bounds of a range; step: distance of its values (an int range without log has step 1).
        log: a range searched on the logarithm.
        values: the values of a list, as YAML gives them (a list of whole numbers stays a list).
        when: other parameter -> its values under which this one exists; all must hold.
        listed: the values come from the `points` section.
    """

    name: str
    kind: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    values: tuple[Any, ...] | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    listed: bool = False

    def count(self) -> int | None:
        """How many different values there are; None = not countable."""
        if self.values is not None:
            return len(self.values)
        assert self.low is not None
        assert self.high is not None
        if self.step is not None:
            return round((self.high - self.low) / self.step) + 1
        return int(self.high - self.low) + 1 if self.kind == "int" else None

    def __iter__(self) -> Iterator[Any]:
        """All values of a countable parameter, in the order of the file or rising."""
        count = self.count()
        assert count is not None, f"{self.name} has no list of values"
        yield from map(self.at, range(count))

    def at(self, i: int) -> Any:
        """Value i of a countable parameter, from 0."""
        if self.values is not None:
            return self.values[i]
        # Decimal: 0.1 + 2 * 0.1 is to be 0.3, the value a reader of the file expects.
        value = Decimal(repr(self.low)) + i * Decimal(repr(self.step if self.step is not None else 1))
        return int(value) if self.kind == "int" else float(value)

    def legal(self, value: Any) -> bool:
        """Whether the space can give this value."""
        if self.values is not None:
            return any(_same(value, v) for v in self.values)
        return _is_number(value) and _same(value, self.nearest(value))

    def nearest(self, value: Any) -> Any:
        """The value of the space closest to `value`; the first one when closeness has no meaning."""
        if self.values is not None:
            numbers = [v for v in self.values if _is_number(v)]
            if any(_same(value, v) for v in self.values) or not (_is_number(value) and numbers):
                return next((v for v in self.values if _same(value, v)), self.values[0])
            # On the logarithm where all are positive (rates, batch sizes), else plain: never one beside the other.
            log = min(value, *numbers) > 0
            return min(numbers, key=lambda v: abs(math.log(v / value)) if log else abs(v - value))
        assert self.low is not None
        assert self.high is not None
        if not _is_number(value):
            return self.low
        inside = min(max(value, self.low), self.high)
        if self.step is not None:
            return self.at(round((inside - self.low) / self.step))
        return round(inside) if self.kind == "int" else float(inside)

    def drawn(self, draw: Random) -> Any:
        """A value drawn evenly, on the logarithm where the range is."""
        if self.values is not None:
            return draw.choice(self.values)
        assert self.low is not None
        assert self.high is not None
        if self.log:
            return self.nearest(math.exp(draw.uniform(math.log(self.low), math.log(self.high))))
        count = self.count()
        return draw.uniform(self.low, self.high) if count is None else self.at(draw.randrange(count))

    def rising(self) -> list[Any] | None:
        """The values of a list of at least three numbers, in order; None of other parameters."""
        values = self.values or ()
        return sorted(values) if len(values) > 2 and all(map(_is_number, values)) else None

    def place(self, value: Any) -> float:
        """Where a number lies between the ends of the range, on its scale, or among the values of `rising`: 0 to 1."""
        if (values := self.rising()) is not None:
            return values.index(value) / (len(values) - 1)
        assert self.low is not None
        assert self.high is not None
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def written(self) -> dict[str, Any]:
        """The parameter as a space file writes it."""
        out: dict[str, Any] = {self.kind: [self.low, self.high] if self.values is None else list(self.values)}
        if self.log:
            out["log"] = True
        if self.step is not None and not (self.kind == "int" and self.step == 1):
            out["step"] = self.step
        if self.when:
            out["when"] = {name: list(values) for name, values in self.when.items()}
        return out


def read_param(knob: Hyperparameter, node: Node, key: str, problems: Problems) -> Param:
    """A `{float: [low, high], ...}` mapping as a parameter of this knob.

    `when` is read as lists of values; `conditions.py` checks it against the other parameters. A mistaken parameter is
    reported and has no values, so that its conditions can still be checked.
    """
    given = node.value
    before = len(problems.found)
    for name in given.keys() - _KEYS:
        problems.add(given[name].where, f"{key}.{name}", "unknown" + did_you_mean(name, _KEYS))
    when = _read_when(given["when"], f"{key}.when", problems) if "when" in given else {}
    mistaken = Param(name=knob.name, kind="choice", values=(), when=when)
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        got = f"got {' and '.join(kinds)}" if kinds else "got none"
        if kinds or len(problems.found) == before:
            problems.add(node.where, key, f"expected exactly one of {', '.join(KINDS)}, {got}")
        return mistaken
    kind = kinds[0]
    if kind in ("choice", "grid"):
        for name in ("log", "step"):
            if name in given:
                problems.add(given[name].where, f"{key}.{name}", f"has no meaning for {kind}; list the values")
        param = _read_list(knob, kind, given[kind], f"{key}.{kind}", problems)
    else:
        param = _read_range(knob, kind, given, key, problems)
    if param is None or len(problems.found) > before:
        return mistaken
    return Param(**{**vars(param), "when": when})


def _read_list(knob: Hyperparameter, kind: str, node: Node, key: str, problems: Problems) -> Param | None:
    if not isinstance(node.value, list) or not node.value:
        got = "an empty list" if node.value == [] else node.kind()
        problems.add(node.where, key, f"expected a list of values, got {got}")
        return None
    values: list[Any] = []
    for item in node.value:
        value = item.plain()
        if message := mistake(knob, value):
            problems.add(item.where, key, message)
        elif any(_same(value, v) for v in values):
            problems.add(item.where, key, f"{value!r} is given twice")
        else:
            values.append(stored(knob, value))
    return Param(name=knob.name, kind=kind, values=tuple(values)) if values else None


def _read_range(
    knob: Hyperparameter, kind: str, given: Mapping[str, Node], key: str, problems: Problems
) -> Param | None:
    node = given[kind]
    place = f"{key}.{kind}"
    if knob.kind != kind or knob.choices is not None:
        fits = f"write {knob.kind}" if knob.kind in ("float", "int") and not knob.choices else "write choice or grid"
        problems.add(node.where, place, f"{knob.name} takes {knob.expected()}; {fits}")
        return None
    bounds = node.plain()
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, bounds)):
        got = "a list of " + str(len(bounds)) if isinstance(bounds, list) and len(bounds) != 2 else repr(bounds)
        problems.add(node.where, place, f"expected [low, high], got {got}")
        return None
    messages = [message for bound in bounds if (message := knob.problem(bound))]
    for message in dict.fromkeys(messages):
        problems.add(node.where, place, message)
    low, high = bounds
    if low >= high:
        problems.add(node.where, place, f"low must be below high, got {low!r} and {high!r}")
    log = given["log"].value if "log" in given else False
    if not isinstance(log, bool):
        problems.add(given["log"].where, f"{key}.log", f"expected true or false, got {log!r}")
    elif log and low <= 0:
        problems.add(node.where, key, f"log scale needs low > 0, got {low!r}")
    step = _read_step(kind, given["step"], bounds, log is True, f"{key}.step", problems) if "step" in given else None
    if kind == "int" and step is None and not log:
        step = 1
    if messages:
        return None
    bound = float if kind == "float" else int
    return Param(name=knob.name, kind=kind, low=bound(low), high=bound(high), step=step, log=log is True)


def _read_step(kind: str, node: Node, bounds: list[Any], log: bool, key: str, problems: Problems) -> float | None:
    step, (low, high) = node.value, bounds
    if not _is_number(step) or not step > 0 or not math.isfinite(step):
        problems.add(node.where, key, f"expected a number > 0, got {node.plain()!r}")
    elif kind == "int" and not isinstance(step, int):
        problems.add(node.where, key, f"expected a whole number > 0, got {step!r}")
    elif log:
        problems.add(node.where, key, "cannot be joined with log")
    elif low < high and math.isfinite(high - low):
        steps = (high - low) / step
        if steps > 1e9:
            problems.add(node.where, key, f"too small: {steps:.0f} steps from {low:g} to {high:g}")
        elif round(steps) < 1 or abs(steps - round(steps)) > 1e-6:
            problems.add(node.where, key, f"must divide the range {low:g} to {high:g}, got {step:g}")
        else:
            return int(step) if kind == "int" else float(step)
    return None


def _read_when(node: Node, key: str, problems: Problems) -> dict[str, tuple[Any, ...]]:
    if not isinstance(node.value, dict) or not node.value:
        problems.add(node.where, key, f"expected a mapping of parameter to value or values, got {node.kind()}")
        return {}
    return {name: tuple(v if isinstance(v := item.plain(), list) else [v]) for name, item in node.value.items()}


def stored(knob: Hyperparameter, value: Any) -> Any:
    """A legal value as spaces keep it: floats as float, lists as lists."""
    return list(value) if knob.kind in ("ints", "words") and value is not None else knob.coerce(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if _is_number(a) and _is_number(b):
        return math.isclose(a, b)
    return bool(a == b)
