"""One searched parameter as a file writes it: what is read of it, and each refusal at its limit."""

from __future__ import annotations

from typing import Any

import pytest

from search.space.nodes import Node
from search.space.params import Param, read_param, stored
from search.space.problems import Problems, Where
from trainables.contract.config import Hyperparameter

RATE = Hyperparameter("rate", "float", 0.1)
COUNT = Hyperparameter("count", "int", 3, low=1, high=1000)
KIND = Hyperparameter("kind", "str", "a", choices=("a", "b"))
FEW = Hyperparameter("few", "int", 1, choices=(1, 2))
TEXT = Hyperparameter("text", "str", "", optional=True)
SIZES = Hyperparameter("sizes", "ints", (1,))


def node(value: Any) -> Node:
    if isinstance(value, dict):
        value = {key: node(v) for key, v in value.items()}
    return Node([node(v) for v in value] if isinstance(value, list) else value, Where("x.yaml", 3))


def read(knob: Hyperparameter, written: dict[str, Any]) -> tuple[Param, list[str]]:
    problems = Problems()
    param = read_param(knob, node(written), knob.name, problems)
    return param, [f"{problem.key}: {problem.message}" for problem in problems.found]


@pytest.mark.parametrize(
    ("knob", "written", "param"),
    [
        (RATE, {"float": [0, 1]}, Param(name="rate", kind="float", low=0.0, high=1.0)),
        (RATE, {"float": [1e-9, 1], "log": True}, Param(name="rate", kind="float", low=1e-9, high=1.0, log=True)),
        (RATE, {"float": [0, 1], "step": 1}, Param(name="rate", kind="float", low=0.0, high=1.0, step=1.0)),
        (RATE, {"float": [0, 1e9], "step": 1}, Param(name="rate", kind="float", low=0.0, high=1e9, step=1.0)),
        (RATE, {"float": [0, 1], "step": 0.1}, Param(name="rate", kind="float", low=0.0, high=1.0, step=0.1)),
        (COUNT, {"int": [1, 9]}, Param(name="count", kind="int", low=1, high=9, step=1)),
        (COUNT, {"int": [1, 9], "step": 4}, Param(name="count", kind="int", low=1, high=9, step=4)),
        (COUNT, {"int": [1, 9], "log": True}, Param(name="count", kind="int", low=1, high=9, log=True)),
        (COUNT, {"int": [1, 9], "log": False}, Param(name="count", kind="int", low=1, high=9, step=1)),
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
def test_what_is_read(knob: Hyperparameter, written: dict[str, Any], param: Param) -> None:
    found, problems = read(knob, written)
    assert problems == []
    assert found == param
    assert [type(found.low), type(found.high), type(found.step)] == [
        type(param.low),
        type(param.high),
        type(param.step),
    ]


@pytest.mark.parametrize(
    ("knob", "written", "problems"),
    [
        (RATE, {"float": [1, 1]}, ["rate.float: low must be below high, got 1 and 1"]),
        (RATE, {"float": [0, 1], "log": True}, ["rate: log scale needs low > 0, got 0"]),
        (RATE, {"float": [0, 1], "log": 1}, ["rate.log: expected true or false, got 1"]),
        (RATE, {"float": [0, 1, 2]}, ["rate.float: expected [low, high], got a list of 3"]),
        (RATE, {"float": [0, "x"]}, ["rate.float: expected [low, high], got [0, 'x']"]),
        (RATE, {"float": [0, True]}, ["rate.float: expected [low, high], got [0, True]"]),
        (RATE, {"float": 3}, ["rate.float: expected [low, high], got 3"]),
        (RATE, {"float": [0, 1], "step": 0}, ["rate.step: expected a number > 0, got 0"]),
        (RATE, {"float": [0, 1], "step": "x"}, ["rate.step: expected a number > 0, got 'x'"]),
        (RATE, {"float": [0, 1], "step": float("inf")}, ["rate.step: expected a number > 0, got inf"]),
        (RATE, {"float": [1, 2], "step": 0.5, "log": True}, ["rate.step: cannot be joined with log"]),
        (RATE, {"float": [0, 1], "step": 0.3}, ["rate.step: must divide the range 0 to 1, got 0.3"]),
        (RATE, {"float": [0, 1], "step": 3}, ["rate.step: must divide the range 0 to 1, got 3"]),
        (RATE, {"float": [0, 2e9], "step": 1}, ["rate.step: too small: 2000000000 steps from 0 to 2e+09"]),
        (COUNT, {"int": [1, 9], "step": 1.5}, ["count.step: expected a whole number > 0, got 1.5"]),
        (COUNT, {"int": [0, 1001]}, [
            "count.int: expected a whole number >= 1 and <= 1000, got 0",
            "count.int: expected a whole number >= 1 and <= 1000, got 1001",
        ]),
        (COUNT, {"float": [1, 9]}, [
            "count.float: count takes a whole number >= 1 and <= 1000; write int",
        ]),
        (RATE, {"int": [1, 9]}, ["rate.int: rate takes a number; write float"]),
        (FEW, {"int": [1, 2]}, ["few.int: few takes one of 1, 2; write choice or grid"]),
        (TEXT, {"float": [1, 2]}, ["text.float: text takes text or null; write choice or grid"]),
        (KIND, {"int": [1, 2]}, ["kind.int: kind takes one of a, b; write choice or grid"]),
        (KIND, {"choice": []}, ["kind.choice: expected a list of values, got an empty list"]),
        (KIND, {"choice": "a"}, ["kind.choice: expected a list of values, got text"]),
        (KIND, {"choice": ["a", "c", "a"]}, [
            "kind.choice: expected one of a, b, got 'c'", "kind.choice: 'a' is given twice",
        ]),
        (RATE, {"grid": [1, 1.0]}, ["rate.grid: 1.0 is given twice"]),
        (KIND, {"choice": ["a", "b"], "log": True}, ["kind.log: has no meaning for choice; list the values"]),
        (RATE, {"grid": [1, 2], "step": 1}, ["rate.step: has no meaning for grid; list the values"]),
        (RATE, {"grid": [1, 2], "float": [1, 2]}, [
            "rate: expected exactly one of float, int, choice, grid, got float and grid",
        ]),
        (RATE, {}, ["rate: expected exactly one of float, int, choice, grid, got none"]),
        (RATE, {"flaot": [0, 1]}, ["rate.flaot: unknown; did you mean 'float'?"]),
        (KIND, {"choice": ["a", "b"], "when": {}}, [
            "kind.when: expected a mapping of parameter to value or values, got a mapping",
        ]),
    ],
)  # fmt: skip
def test_each_refusal_at_its_limit(knob: Hyperparameter, written: dict[str, Any], problems: list[str]) -> None:
    found, got = read(knob, written)
    assert sorted(got) == sorted(problems)
    assert (found.kind, found.values) == ("choice", ())


def test_values_of_ranges_by_hand() -> None:
    tenth = Param(name="x", kind="float", low=0.1, high=0.4, step=0.1)
    assert (tenth.count(), list(tenth)) == (4, [0.1, 0.2, 0.3, 0.4])
    whole = Param(name="x", kind="int", low=2, high=5, log=True)
    assert (whole.count(), list(whole)) == (4, [2, 3, 4, 5])
    assert [type(v) for v in whole] == [int] * 4
    assert Param(name="x", kind="float", low=0.0, high=1.0).count() is None


def test_what_a_space_can_give() -> None:
    flags = Param(name="x", kind="choice", values=(True, 2, "a"))
    assert [flags.legal(v) for v in (True, 1, 2, 2.0, "a", "b", False)] == [True, False, True, True, True, False, False]
    steps = Param(name="x", kind="float", low=0.1, high=0.4, step=0.1)
    assert [steps.legal(v) for v in (0.1, 0.3, 0.30000000000000004, 0.35, 0.5, "a", True)] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_the_nearest_value_at_ties_and_edges() -> None:
    rates = Param(name="x", kind="choice", values=(1.0, 4.0))
    assert [rates.nearest(v) for v in (1.99, 2.01, 100)] == [1.0, 4.0, 4.0]  # on the logarithm they meet at 2
    with_zero = Param(name="x", kind="choice", values=(0.0, 4.0))
    assert [with_zero.nearest(v) for v in (1.99, 2.01)] == [0.0, 4.0]
    assert [rates.nearest(v) for v in (0, -3, "x", True)] == [1.0, 1.0, 1.0, 1.0]
    assert Param(name="x", kind="float", low=2.0, high=3.0).nearest("x") == 2.0


def test_a_parameter_as_a_file_writes_it() -> None:
    for knob, written in (
        (RATE, {"float": [0.0, 1.0], "step": 0.5}),
        (RATE, {"float": [0.5, 1.0], "log": True}),
        (COUNT, {"int": [1, 9], "step": 2}),
        (COUNT, {"int": [1, 9]}),
        (KIND, {"choice": ["a", "b"], "when": {"on": [True]}}),
    ):
        assert read(knob, written)[0].written() == written


def test_values_are_kept_as_their_knob_has_them() -> None:
    assert (stored(RATE, 1), type(stored(RATE, 1))) == (1.0, float)
    assert stored(SIZES, (1, 2)) == [1, 2]
    assert stored(TEXT, None) is None
    assert stored(Hyperparameter("words", "words", (), optional=True), None) is None
