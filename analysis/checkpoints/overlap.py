"""Pairs of a test set that were already there when the model was trained or chosen, counted in the texts themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainables.data.sets import Pairs


@dataclass(frozen=True)
class Overlap:
    """`count` of the `total` rows of the test set stand in the part ("train" or "dev") of another set."""

    test: str
    total: int
    seen: str
    part: str
    count: int

    def __str__(self) -> str:
        what = "which selected" if self.part == "dev" else "which trained"
        share = 100 * self.count / self.total
        return (
            f"{self.test} test: {self.count:,} of {self.total:,} pairs ({share:.1f} %) also stand in "
            f"{self.seen} {self.part}, {what}; its score is not one on unseen data"
        )


def overlaps(tests: Sequence[Pairs], seen: Sequence[tuple[str, Pairs]]) -> list[Overlap]:
    """Overlaps that are not empty, in the order of the test sets.

    A pair is the same pair whatever the order of its sentences, their case and their white space; its score does not
    matter. Every row of the test set counts, repeated ones too.

    Args: seen: ("train" or "dev", pair set).
    """
    known = [(part, pairs.name, {*map(_key, pairs.first, pairs.second)}) for part, pairs in seen]
    found = []
    for test in tests:
        keys = list(map(_key, test.first, test.second))
        for part, name, pairs in known:
            if count := sum(key in pairs for key in keys):
                found.append(Overlap(test.name, len(keys), name, part, count))
    return found


def _key(first: str, second: str) -> tuple[str, str]:
    a, b = (" ".join(text.casefold().split()) for text in (first, second))
    return (a, b) if a <= b else (b, a)
