"""One searched parameter: what is read of a file, each refusal at its limit, the values it can take."""

from __future__ import annotations

from typing import Any

import pytest

from search.space.load import describe
from search.space.nodes import Problems, Where, from_plain
from search.space.params import Param, read_param, step_problem, stored
from trainables.contract.config import Hyperparameter

RATE = Hyperparameter("rate", "float", 0.1)
COUNT = Hyperparameter("count", "int", 3, low=1, high=1000)
KIND = Hyperparameter("kind", "str", "a", choices=("a", "b"))
FEW = Hyperparameter("few", "int", 1, choices=(1, 2))
TEXT = Hyperparameter("text", "str", "", optional=True)
SIZES = Hyperparameter("sizes", "ints", (1,))


def read(field: Hyperparameter, written: dict[str, Any]) -> tuple[Param, list[str]]:
    problems = Problems()
    param = read_param(field, from_plain(written, Where("x.yaml", 3, key=field.name)), problems)
    return param, [f"{problem.where.key}: {problem.message}" for problem in problems.found]


@pytest.mark.parametrize(
    ("field", "written", "param"),
    [
        (RATE, {"float": [0, 1]}, Param(name="rate", kind="float", low=0.0, high=1.0)),
        (RATE, {"float": [1e-9, 1], "log": True}, Param(name="rate", kind="float", low=1e-9, high=1.0, log=True)),
        (RATE, {"float": [0, 1], "step": 1}, Param(name="rate", kind="float", low=0.0, high=1.0, step=1.0)),
        (RATE, {"float": [0, 1], "step": 0.1}, Param(name="rate", kind="float", low=0.0, high=1.0, step=0.1)),
        (COUNT, {"int": [1, 9]}, Param(name="count", kind="int", low=1, high=9, step=1)),
        (COUNT, {"int": [1, 9], "step": 4}, Param(name="count", kind="int", low=1, high=9, step=4)),
        (COUNT, {"int": [1, 9], "log": True}, Param(name="count", kind="int", low=1, high=9, log=True)),
        (KIND, {"choice": ["a"]}, Param(name="kind", kind="choice", values=("a",))),
        (RATE, {"grid": [1, 0.5]}, Param(name="rate", kind="grid", values=(1.0, 0.5))),
        (TEXT, {"grid": [None, "x"]}, Param(name="text", kind="grid", values=(None, "x"))),
        (SIZES, {"grid": [[1, 2], [3]]}, Param(name="sizes", kind="grid", values=([1, 2], [3]))),
        (
            KIND, {"choice": ["a", "b"], "when": {"on": True, "size": [1, 2]}},
            Param(name="kind", kind="choice", values=("a", "b"), when={"on": (True,), "size": (1, 2)}),
        ),
    ],
)  # fmt: skip
def test_a_written_parameter_is_read(field: Hyperparameter, written: dict[str, Any], param: Param) -> None:
    found, problems = read(field, written)
    assert problems == []
    assert found == param
    assert [type(found.low), type(found.high), type(found.step)] == [
        type(param.low),
        type(param.high),
        type(param.step),
    ]


@pytest.mark.parametrize(
    ("field", "written", "problem"),
    [  # those of `bad_spaces` are not repeated
        (RATE, {"float": 3}, "rate.float: expected [low, high], got 3"),
        (RATE, {"grid": [1, 2], "step": 1}, "rate.step: has no effect for grid; list the values"),
        (RATE, {"flaot": [0, 1]}, "rate.flaot: unknown; did you mean 'float'?"),
        (FEW, {"int": [1, 2]}, "few.int: few takes one of 1, 2; write choice or grid"),
    ],
)
def test_mistaken_parameter_is_rejected(field: Hyperparameter, written: dict[str, Any], problem: str) -> None:
    found, got = read(field, written)
    assert got == [problem]
    assert (found.kind, found.values) == ("choice", ())


@pytest.mark.parametrize(
    ("bounds", "step", "problem"),
    [
        ([0.0, 0.4], 0.1, None),
        ([0.2, 0.3], 0.1, None),  # one step
        ([0.0, 0.4], 0.3, None),  # cut
        ([0.0, 0.4], 0.5, "larger than the range 0 to 0.4, got 0.5"),
        ([0.5, 1.0], 1 / 2.2e9, "too small: 1100000000 steps from 0.5 to 1"),
        ([0.0, float("inf")], 0.1, None),  # the mistakes of the bounds are reported at the bounds
        ([0.0, 1.0], float("inf"), "expected a number > 0, got inf"),
        ([0.0, 1.0], True, "expected a number > 0, got True"),
    ],
)
def test_a_step_fits_its_range(bounds: list[float], step: float, problem: str | None) -> None:
    low, high = bounds
    assert step_problem("float", step, low, high, log=False) == problem


@pytest.mark.parametrize(
    ("field", "written", "values", "asked"),
    [
        (RATE, {"float": [0.05, 0.5], "step": 0.1}, [0.05, 0.15, 0.25, 0.35, 0.45], 0.5),
        (RATE, {"float": [0.1, 0.4], "step": 0.1}, [0.1, 0.2, 0.3, 0.4], None),
        (COUNT, {"int": [16, 70], "step": 16}, [16, 32, 48, 64], 70),
        (COUNT, {"int": [1, 4], "log": True, "step": 1}, [1, 2, 3, 4], None),
    ],
)
def test_a_range_ends_at_its_last_step(
    field: Hyperparameter, written: dict[str, Any], values: list[float], asked: float | None
) -> None:
    found, got = read(field, written)
    assert (got, list(found), found.written_high) == ([], values, asked)
    again, _ = read(field, found.written())
    assert again == found
    assert ("(no step ends at " in describe(found)) == (asked is not None)


TENTHS = Param(name="x", kind="float", low=0.1, high=0.4, step=0.1)
EIGHTS = Param(name="x", kind="int", low=8, high=32, step=8)
PLAIN = Param(name="x", kind="int", low=3, high=9)
LOG = Param(name="x", kind="float", low=1e-5, high=1e-3, log=True)


def values(*found: Any) -> Param:
    return Param(name="x", kind="choice", values=found)


def test_values_of_a_range_are_exact_and_typed() -> None:
    assert list(TENTHS) == [0.1, 0.2, 0.3, 0.4]  # 0.3, not 0.30000000000000004
    assert list(EIGHTS) == [8, 16, 24, 32]
    whole = list(Param(name="x", kind="int", low=2, high=5, log=True))
    assert (whole, {type(value) for value in whole}) == ([2, 3, 4, 5], {int})
    assert [param.count() for param in (TENTHS, EIGHTS, PLAIN, LOG)] == [4, 4, 7, None]


@pytest.mark.parametrize(
    ("param", "legal", "illegal"),
    [
        (values(True, 2, "a"), [True, 2, 2.0, "a"], [1, "b", False]),
        (values(0.1, 0.4), [0.4 + 1e-16], [0.4000001]),
        (TENTHS, [0.1, 0.3, 0.30000000000000004], [0.35, 0.5, "a", True]),
        (EIGHTS, [24], [12]),
        (LOG, [3e-5], [2e-3, "x"]),
    ],
)
def test_legal_values_are_those_of_the_space(param: Param, legal: list[Any], illegal: list[Any]) -> None:
    assert [param.legal(value) for value in (*legal, *illegal)] == [True] * len(legal) + [False] * len(illegal)


@pytest.mark.parametrize(
    ("param", "given", "nearest"),
    [
        (values(16, 64), [31, 33], [16, 64]),  # on the logarithm they meet at 32
        (values(1.0, 4.0), [1.99, 2.01, 100, 0, -3, "x", True], [1.0, 4.0, 4.0, 1.0, 1.0, 1.0, 1.0]),
        (values(0.0, 0.4), [0.19, 0.21, 0.0, -1], [0.0, 0.4, 0.0, 0.0]),  # 0 has no logarithm: plain distance for all
        (values(0.1, 0.4), [0.0, 0.19, 0.21, -1], [0.1, 0.1, 0.4, 0.1]),
        (values(1, True), [True, 1, 2], [True, 1, 1]),
        (values("cls", "avg"), ["max"], ["cls"]),
        (values("none", 3, 9), [8], [9]),
        (EIGHTS, [1, 11, 13, 29, 99], [8, 8, 16, 32, 32]),
        (Param(name="x", kind="float", low=0.1, high=0.5, step=0.2), [0.0, 0.19, 0.41], [0.1, 0.1, 0.5]),
        (PLAIN, [5.6, 2, "x"], [6, 3, 3]),
        (LOG, [1e-6, 3e-5, 1, "x"], [1e-5, 3e-5, 1e-3, 1e-5]),
    ],
)
def test_the_nearest_value_at_ties_and_edges(param: Param, given: list[Any], nearest: list[Any]) -> None:
    found = [param.nearest(value) for value in given]
    assert found == nearest
    assert [type(value) for value in found] == [type(value) for value in nearest]


def test_values_are_stored_with_the_type_of_their_field() -> None:
    assert (stored(RATE, 1), type(stored(RATE, 1))) == (1.0, float)
    assert stored(SIZES, (1, 2)) == [1, 2]
    assert stored(TEXT, None) is None
    assert stored(Hyperparameter("words", "words", (), optional=True), None) is None
