"""A searched hyperparameter: its kind, its values, the condition under which it exists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from search.space.nodes import Node, Problems
from search.space.sections import mistake
from trainables.contract.config import Hyperparameter
from trainables.contract.errors import did_you_mean

PARAM_KINDS = ("float", "int", "choice", "grid")
_KEYS = (*PARAM_KINDS, "log", "step", "when")
_COMPUTED = ("sample_from", "function", "lambda", "expression", "expr", "eval", "formula")
COMPUTED = "no value is computed from others; list the combinations under `points`"


@dataclass(frozen=True, kw_only=True)
class Param:
    """One searched hyperparameter.

    Attributes:
        name: the hyperparameter's YAML name.
        kind: "float" or "int" (a range), "choice" or "grid" (a list; the two differ in what the writer meant only).
        low, high: closed bounds of a range; step: distance of its values (an int range without log has step 1).
        log: a range searched on the logarithm.
        values: the values of a list, as YAML gives them (a list of whole numbers stays a list).
        when: other parameter -> its values under which this one exists; all must hold.
        listed: the values come from the `points` section.
        written_high: the upper end as written, where the last step lies below it.
    """

    name: str
    kind: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    values: tuple[Any, ...] | None = None
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    listed: bool = False
    written_high: float | None = dataclasses.field(default=None, compare=False)

    @property
    def bounds(self) -> tuple[float, float]:
        """low and high of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def typical(self) -> tuple[Any, ...]:
        """Its values, or the ends of its range."""
        return self.values if self.values is not None else self.bounds

    def count(self) -> int | None:
        """How many different values there are; None = not countable."""
        if self.values is not None:
            return len(self.values)
        low, high = self.bounds
        if self.step is not None:
            return round((high - low) / self.step) + 1
        return int(high - low) + 1 if self.kind == "int" else None

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
        """The value of the space closest to `value`; the first one where values have no distance."""
        if self.values is not None:
            numbers = [v for v in self.values if _is_number(v)]
            if any(_same(value, v) for v in self.values) or not (_is_number(value) and numbers):
                return next((v for v in self.values if _same(value, v)), self.values[0])
            # On the logarithm where all are positive (rates, batch sizes), else plain: never one beside the other.
            log = min(value, *numbers) > 0
            return min(numbers, key=lambda v: abs(math.log(v / value)) if log else abs(v - value))
        low, high = self.bounds
        if not _is_number(value):
            return low
        inside = min(max(value, low), high)
        if self.step is not None:
            return self.at(round((inside - low) / self.step))
        return round(inside) if self.kind == "int" else float(inside)

    def drawn(self, draw: Random) -> Any:
        """A value drawn evenly, on the logarithm where the range is."""
        if self.values is not None:
            return draw.choice(self.values)
        low, high = self.bounds
        if self.log:
            return self.nearest(math.exp(draw.uniform(math.log(low), math.log(high))))
        count = self.count()
        return draw.uniform(low, high) if count is None else self.at(draw.randrange(count))

    def rising(self) -> list[Any] | None:
        """The values of a list of at least three numbers, in order; None of other parameters."""
        values = self.values or ()
        return sorted(values) if len(values) > 2 and all(map(_is_number, values)) else None

    def place(self, value: Any) -> float:
        """Where a number lies between the ends of the range, on its scale, or among the values of `rising`: 0 to 1."""
        if (values := self.rising()) is not None:
            return values.index(value) / (len(values) - 1)
        low, high = self.bounds
        return math.log(value / low) / math.log(high / low) if self.log else float((value - low) / (high - low))

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


def read_param(field: Hyperparameter, node: Node, problems: Problems) -> Param:
    """A `{float: [low, high], ...}` mapping as a parameter of this hyperparameter field.

    `when` is read as lists of values; `checks.py` checks it against the other parameters. A mistaken parameter is
    reported and has no values, so that its conditions can still be checked.
    """
    given = node.value
    before = len(problems.found)
    for name in given.keys() - _KEYS:
        problems.add(node.place(name), COMPUTED if name in _COMPUTED else "unknown" + did_you_mean(name, _KEYS))
    when: dict[str, tuple[Any, ...]] = {}
    if (condition := node.get("when")) is not None:
        if not isinstance(condition.value, dict) or not condition.value:
            got = condition.kind()
            problems.add(condition.where, f"expected a mapping of parameter to value or values, got {got}")
        for name, item in condition.entries().items():
            when[name] = tuple(v if isinstance(v := item.plain(), list) else [v])
    kinds = [kind for kind in PARAM_KINDS if kind in given]
    settings: dict[str, Any] = {}
    if len(kinds) == 1:
        read = _read_list if kinds[0] in ("choice", "grid") else _read_range
        settings = read(field, kinds[0], node, problems)
    elif kinds or len(problems.found) == before:
        got = f"got {' and '.join(kinds)}" if kinds else "got none"
        problems.add(node.where, f"expected exactly one of {', '.join(PARAM_KINDS)}, {got}")
    if len(problems.found) > before:
        return Param(name=field.name, kind="choice", values=(), when=when)
    return Param(name=field.name, kind=kinds[0], when=when, **settings)


def _read_list(field: Hyperparameter, kind: str, param: Node, problems: Problems) -> dict[str, Any]:
    node = param.value[kind]
    for name in ("log", "step"):
        if name in param.value:
            problems.add(param.place(name), f"has no effect for {kind}; list the values")
    if not isinstance(node.value, list) or not node.value:
        got = "an empty list" if node.value == [] else node.kind()
        problems.add(node.where, f"expected a list of values, got {got}")
        return {}
    values: list[Any] = []
    for item in node.value:
        value = item.plain()
        message = mistake(field, value)
        if message or any(_same(value, v) for v in values):
            problems.add(item.where.named(node.where.key), message or f"{value!r} is given twice")
        else:
            values.append(stored(field, value))
    return {"values": tuple(values)}


def _read_range(field: Hyperparameter, kind: str, param: Node, problems: Problems) -> dict[str, Any]:
    node, before = param.value[kind], len(problems.found)
    if field.kind != kind or field.choices is not None:
        fits = f"write {field.kind}" if field.kind in ("float", "int") and not field.choices else "write choice or grid"
        problems.add(node.where, f"{field.name} takes {field.expected()}; {fits}")
        return {}
    bounds = node.plain()
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, bounds)):
        got = "a list of " + str(len(bounds)) if isinstance(bounds, list) and len(bounds) != 2 else repr(bounds)
        problems.add(node.where, f"expected [low, high], got {got}")
        return {}
    for bound in bounds:
        if message := field.problem(bound):
            problems.add(node.where, message)
    low, high = bounds
    if low >= high:
        problems.add(node.where, f"low must be below high, got {low!r} and {high!r}")
    log = param.value["log"].value if "log" in param.value else False
    if not isinstance(log, bool):
        problems.add(param.place("log"), f"expected true or false, got {log!r}")
    elif log and low <= 0:
        problems.add(node.where.named(param.where.key), f"log scale needs low > 0, got {low!r}")
    step: float | None = 1 if kind == "int" and not log else None
    if (given := param.get("step")) is not None:
        step = given.plain()
        if message := step_problem(kind, step, low, high, log is True):
            problems.add(given.where, message)
    if len(problems.found) > before:
        return {}
    typed, written_high = float if kind == "float" else int, None
    step = None if step is None or log else typed(step)  # with log it is 1, as without it
    if step is not None and abs((high - low) / step - round((high - low) / step)) > _DIVIDES:
        written_high, high = high, Decimal(repr(low)) + math.floor((high - low) / step) * Decimal(repr(step))
    return {"low": typed(low), "high": typed(high), "step": step, "log": log, "written_high": written_high}


_DIVIDES = 1e-6  # of a step, by which floating point may miss the end of a range


def step_problem(kind: str, step: Any, low: float, high: float, log: bool) -> str | None:
    """What is wrong with the step of a range, None if nothing is (or the bounds themselves are wrong)."""
    if not _is_number(step) or not step > 0 or not math.isfinite(step):
        return f"expected a number > 0, got {step!r}"
    if kind == "int" and not isinstance(step, int):
        return f"expected a whole number > 0, got {step!r}"
    if log and not (kind == "int" and step == 1):
        return "cannot be joined with log; list the values as a choice"
    if not low < high or not math.isfinite(high - low):
        return None
    steps = (high - low) / step
    if steps > 1e9:
        return f"too small: {steps:.0f} steps from {low:g} to {high:g}"
    return None if steps >= 1 - _DIVIDES else f"larger than the range {low:g} to {high:g}, got {step:g}"


def stored(field: Hyperparameter, value: Any) -> Any:
    """A legal value as spaces keep it: floats as float, lists as lists."""
    return list(value) if field.kind in ("ints", "words") and value is not None else field.coerce(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if _is_number(a) and _is_number(b):
        return math.isclose(a, b)
    return bool(a == b)


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """The first of all equal values (lists do not hash)."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)
