"""Chance as an argument: everything random in an edit comes from one small interface.

`random.Random` fits it; so does anything that replays chosen outcomes, which is how tests list every possible result of
a rule with its exact probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Dice(Protocol):
    """The only source of chance of an edit."""

    def randrange(self, stop: int, /) -> int:
        """A uniform whole number in 0..stop - 1."""


def half(rng: Dice) -> bool:
    """A fair coin."""
    return rng.randrange(2) == 0


def pick(rng: Dice, options: Sequence[T]) -> T:
    """One of `options` (not empty), each equally likely."""
    return options[rng.randrange(len(options))]


def pick_places(rng: Dice, n: int, count: int) -> list[int]:
    """`count` distinct numbers of 0..n - 1 in rising order, every set equally likely (a partial shuffle)."""
    places = list(range(n))
    for i in range(count):
        j = i + rng.randrange(n - i)
        places[i], places[j] = places[j], places[i]
    return sorted(places[:count])
