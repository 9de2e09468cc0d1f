"""Every possible result of a rule with its exact probability, by replaying all outcomes of its draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from trainables.methods.sda.rules import Dice


class Replay:
    """Dice that fall as given, then 0; records how many faces each had."""

    def __init__(self, given: list[int]) -> None:
        self.given = given
        self.faces: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.faces.append(stop)
        return self.given[len(self.faces) - 1] if len(self.faces) <= len(self.given) else 0


def outcomes(rule: Callable[[Dice], str]) -> dict[str, Fraction]:
    """text -> probability; the probabilities add up to 1."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    given: list[int] = []
    while True:
        dice = Replay(given)
        text = rule(dice)
        probability = Fraction(1)
        for faces in dice.faces:
            probability /= faces
        found[text] += probability
        given = [*given, *[0] * (len(dice.faces) - len(given))]
        while given and given[-1] == dice.faces[len(given) - 1] - 1:
            given.pop()
        if not given:
            assert sum(found.values()) == 1
            return dict(found)
        given[-1] += 1
