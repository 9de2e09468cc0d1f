"""Every possible result of a rule with its exact probability, by replaying all outcomes of its draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from trainables.methods.sda.words import Dice


class Replay:
    """Dice that fall as told, then 0; remembers how many faces each had."""

    def __init__(self, told: list[int]) -> None:
        self.told = told
        self.faces: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.faces.append(stop)
        return self.told[len(self.faces) - 1] if len(self.faces) <= len(self.told) else 0


def outcomes(rule: Callable[[Dice], str]) -> dict[str, Fraction]:
    """text -> probability; the probabilities add up to 1."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    told: list[int] = []
    while True:
        dice = Replay(told)
        text = rule(dice)
        probability = Fraction(1)
        for faces in dice.faces:
            probability /= faces
        found[text] += probability
        told = [*told, *[0] * (len(dice.faces) - len(told))]
        while told and told[-1] == dice.faces[len(told) - 1] - 1:
            told.pop()
        if not told:
            assert sum(found.values()) == 1
            return dict(found)
        told[-1] += 1
