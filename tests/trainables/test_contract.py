"""Small things that every room shares: lines of errors, whole files."""

from __future__ import annotations

import pytest

from trainables.contract.errors import close_to, closest, did_you_mean, first_line, last_line
from trainables.contract.whole_files import whole_file


def test_lines_of_errors():
    assert first_line(ValueError("\n one \n two\n")) == "one"
    assert last_line(ValueError("one\n two \n")) == "two"
    assert (first_line(KeyError()), last_line(OSError())) == ("KeyError", "OSError")
    assert last_line("a\nb") == "b"


def test_close_words():
    assert closest("temprature", ["temperature", "dropout"]) == "temperature"
    assert closest(["a"], ["a"]) is None
    assert close_to("xyz", ["temperature"]) == ""
    assert did_you_mean("xyz", ["a", "b"]) == "; allowed: a, b"


def test_a_file_is_there_whole_or_as_it_was(tmp_path):
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


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("min", ("float", "int", "choice"), "; allowed: float, int, choice"),
        ("bayes", ("grid", "random", "tpe", "cmaes"), "; did you mean 'tpe'?"),
        ("tp", ("grid", "random", "tpe", "cmaes"), "; did you mean 'tpe'?"),
    ],
)
def test_hints_do_not_mislead(word: str, known: tuple[str, ...], hint: str) -> None:
    from trainables.contract.errors import did_you_mean

    assert did_you_mean(word, known) == hint
