"""What is wrong with a space file: every mistake with its place, collected and raised together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LONGEST = 300  # characters of a message; a mistaken value may be a whole document


@dataclass(frozen=True, order=True)
class Where:
    """The place of a value: a line of a file (1-based; 0 = the file as a whole), or an override."""

    file: str
    line: int = 0
    override: bool = False

    def at(self, key: str) -> str:
        """`file:line: key` or `--set key`; key may be empty."""
        if self.override:
            return f"--set {key}"
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {key}" if key else place


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake. `str` gives `file:line: key: message`, always a single printable line."""

    where: Where
    key: str
    message: str

    def __str__(self) -> str:
        text = self.message if len(self.message) <= LONGEST else self.message[:LONGEST] + "..."
        key = self.key if len(self.key) <= LONGEST else self.key[:LONGEST] + "..."
        line = f"{self.where.at(key)}: {text}"
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class SpaceError(ValueError):
    """A space file cannot be used; `problems` lists everything wrong with it, by file and line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass
class Problems:
    """Collects mistakes while a file is read, so that all are reported at once."""

    found: list[Problem] = field(default_factory=list)
    unreadable: bool = False  # part of a file is lost: what is left must not be judged

    def add(self, where: Where, key: str, message: str) -> None:
        self.found.append(Problem(where, key, message))

    def lost(self, where: Where, key: str, message: str) -> None:
        """A mistake that hides what was meant."""
        self.add(where, key, message)
        self.unreadable = True

    def raise_if_any(self) -> None:
        if self.found:
            raise SpaceError(self.found)
