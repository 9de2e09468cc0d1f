"""Hyperparameters as data: a dataclass field that knows its type, its range, its meaning and its source.

A configuration class is a frozen dataclass whose fields are made with `knob(...)`. `search.space` checks a YAML file
against the knobs without torch; the methods read plain attributes. Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class Knob:
    """One hyperparameter: what values it takes and what it means.

    Attributes:
        name: the word used in YAML and in tables (`lambda`, where the Python field is `lambda_`).
        kind: "float", "int", "bool", "str", "ints" or "words" (a tuple of integers or texts, written as a YAML list).
        default: value when nothing is said.
        low, high: closed bounds; `above`, `below`: open ones. None = unbounded.
        choices: allowed values of a "str" knob (or of a number with few legal values).
        optional: None (YAML `null`) is allowed.
        word: a text that is allowed beside numbers.
        doc: one line: meaning, unit and source (paper section or D-number).
    """

    name: str
    kind: str
    default: Any
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    optional: bool = False
    word: str | None = None
    doc: str = ""

    def problem(self, value: Any) -> str | None:
        """One line that says what is wrong with `value` (expected, got, allowed), or None when it is fine."""
        if value is None:
            return None if self.optional else f"expected {self.expected()}, got null"
        if self.word is not None and value == self.word:
            return None
        if self.kind == "ints":
            if not isinstance(value, (list, tuple)) or not value or not all(_is_int(v) for v in value):
                return f"expected {self.expected()}, got {value!r}"
            return next((p for p in (self._range_problem(v) for v in value) if p), None)
        if self.kind == "words":
            fine = isinstance(value, (list, tuple)) and all(isinstance(v, str) and v.strip() for v in value)
            return None if fine else f"expected {self.expected()}, got {value!r}"
        if not _KIND_TESTS[self.kind](value):
            return f"expected {self.expected()}, got {value!r}"
        if self.choices is not None:
            return None if value in self.choices else f"expected {self.expected()}, got {value!r}"
        return self._range_problem(value) if self.kind in ("float", "int") else None

    def _range_problem(self, value: float) -> str | None:
        if not math.isfinite(value):
            return f"expected {self.expected()}, got {value!r}"
        inside = (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        return None if inside else f"expected {self.expected()}, got {value!r}"

    def expected(self) -> str:
        """Words for the allowed values, such as "a number > 0" or "one of one_way, nt_xent"."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        noun = {
            "float": "a number",
            "int": "a whole number",
            "bool": "true or false",
            "str": "text",
            "ints": "a list of whole numbers",
            "words": "a list of names",
        }[self.kind]
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in ((">=", self.low), (">", self.above), ("<=", self.high), ("<", self.below))
            if bound is not None
        ]
        others = [word for word in (self.word, "null" if self.optional else None) if word]
        return " or ".join([" ".join([noun, " and ".join(bounds)]).strip(), *others])

    def coerce(self, value: Any) -> Any:
        """The value as the dataclass stores it (ints become floats for float knobs, lists become tuples)."""
        if value is None:
            return None
        if self.kind == "float":
            return float(value)
        return tuple(value) if self.kind in ("ints", "words") else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KIND_TESTS: dict[str, Callable[[Any], bool]] = {
    "float": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "int": _is_int,
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
}


def knob(default: Any, doc: str, *, kind: str | None = None, name: str | None = None, **limits: Any) -> Any:
    """A dataclass field with a `Knob` in its metadata; the kind is the default's type unless said."""
    if kind is None:
        kind = "ints" if isinstance(default, tuple) else type(default).__name__
    assert kind in ("float", "int", "bool", "str", "ints", "words"), kind
    return dataclasses.field(default=default, metadata={"knob": (name, kind, doc, limits)})


def knobs(config: type[Any]) -> dict[str, Knob]:
    """All knobs of a configuration class by YAML name, in the order of the class."""
    found = {}
    for f in dataclasses.fields(config):
        name, kind, doc, limits = f.metadata["knob"]
        name = name or f.name
        found[name] = Knob(name=name, kind=kind, default=f.default, doc=doc, **limits)
    return found


def problems(config: type[Any], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything wrong with `values` as (key, message) pairs: unknown names, wrong types, ranges, then conflicts."""
    known = knobs(config)
    found = []
    for key, value in values.items():
        if key not in known:
            found.append((key, "unknown"))
        elif message := known[key].problem(value):
            found.append((key, message))
    conflicts = getattr(config, "conflicts", None)
    if not found and conflicts is not None:
        found.extend(conflicts({k: values.get(k, known[k].default) for k in known}))
    return found


def build(config: type[C], values: Mapping[str, Any]) -> C:
    """The configuration object for YAML-named `values`.

    Raises: ValueError naming the first wrong key (the space checker reports all of them; this is the last guard).
    """
    if wrong := problems(config, values):
        raise ValueError("; ".join(f"{key}: {message}" for key, message in wrong))
    known = knobs(config)
    fields = {
        (f.metadata["knob"][0] or f.name): f.name for f in dataclasses.fields(cast(Any, config))
    }  # YAML name -> Python name
    return config(**{fields[k]: known[k].coerce(v) for k, v in values.items()})


def values(config: Any) -> dict[str, Any]:
    """The YAML-named values of a configuration object (the inverse of `build`)."""
    return {
        (f.metadata["knob"][0] or f.name): list(v) if isinstance(v := getattr(config, f.name), tuple) else v
        for f in dataclasses.fields(config)
    }


Conflicts = Sequence[tuple[str, str]]
Idle = Mapping[str, tuple[str, Any]]
