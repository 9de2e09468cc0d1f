"""The contract: error lines, whole files, hyperparameters and the fields that a configuration inherits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainables.contract import EncoderConfig, hyperparameter
from trainables.contract.config import build, hyperparameters, values
from trainables.contract.errors import close_to, did_you_mean, first_line, last_line
from trainables.contract.trial import whole_file


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig):
    epochs: int = 3
    sizes: tuple[int, ...] = hyperparameter((1, 2), "sizes", low=1, high=9)
    lambda_: float = hyperparameter(0.5, "weight", name="lambda", above=0, below=1)
    rate: float | None = hyperparameter(None, "rate", kind="float", low=0)
    form: str = hyperparameter("a", "form", choices=("a", "b"))


def test_plain_default_inherits_range_and_meaning() -> None:
    base, own = hyperparameters(EncoderConfig)["epochs"], hyperparameters(Config)["epochs"]
    assert (own.default, own.low, own.doc, own.kind) == (3, base.low, base.doc, "int")


def test_configuration_is_built_from_yaml_names_and_back() -> None:
    given: dict[str, Any] = {"lambda": 0.25, "sizes": [3], "rate": 1, "micro_batch": "auto"}
    config = build(Config, given)
    assert (config.lambda_, config.sizes, config.rate, config.epochs) == (0.25, (3,), 1.0, 3)
    assert build(Config, values(config)) == config
    assert {name: values(config)[name] for name in given} == given


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lambda": 1.0}, "lambda: expected a number > 0 and < 1, got 1.0"),
        ({"lambda": None}, "lambda: expected a number > 0 and < 1, got null"),
        ({"lambda": float("nan")}, "lambda: expected a number > 0 and < 1, got nan"),
        ({"epochs": True}, "epochs: expected a whole number >= 1, got True"),
        ({"epochs": 2.0}, "epochs: expected a whole number >= 1, got 2.0"),
        ({"rate": "fast"}, "rate: expected a number >= 0 or null, got 'fast'"),
        ({"micro_batch": 0}, "micro_batch: expected a whole number >= 1 or auto or null, got 0"),
        ({"form": "c"}, "form: expected one of a, b, got 'c'"),
        ({"bidirectional": 1}, "bidirectional: expected true or false, got 1"),
        ({"sizes": [1, 10]}, "sizes: expected a list of whole numbers >= 1 and <= 9, got 10"),
        ({"sizes": []}, "sizes: expected a list of whole numbers >= 1 and <= 9, got []"),
        ({"lr": 1, "form": "c"}, "lr: unknown; form: expected one of a, b, got 'c'"),
        ({"freeze": 1, "lora.rank": 4}, "freeze: does not go with lora.rank above 0"),
    ],
)
def test_wrong_values_are_all_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(Config, wrong)
    assert str(caught.value).startswith(message)


def test_first_and_last_line_of_an_error() -> None:
    assert first_line(ValueError("\n one \n two\n")) == "one"
    assert last_line(ValueError("one\n two \n")) == "two"
    assert (first_line(KeyError()), last_line(OSError()), last_line("a\nb")) == ("KeyError", "OSError", "b")


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("temprature", ("temperature", "dropout"), "; did you mean 'temperature'?"),
        ("xyz", ("a", "b"), "; allowed: a, b"),
        ("min", ("float", "int", "choice"), "; allowed: float, int, choice"),
        ("bayes", ("grid", "random", "tpe", "cmaes"), "; did you mean 'tpe'?"),
        ("tp", ("grid", "random", "tpe", "cmaes"), "; did you mean 'tpe'?"),
    ],
)
def test_hints_do_not_mislead(word: str, known: tuple[str, ...], hint: str) -> None:
    assert did_you_mean(word, known) == hint
    assert close_to(["a"], ["a"]) == close_to("xyz", known) == ""


def test_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with whole_file(path) as file:
        file.write(b"first")
        assert not path.exists()

    def half() -> None:
        with whole_file(path) as file:
            file.write(b"second, cut of")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        half()
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
