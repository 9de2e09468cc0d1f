"""What a sentence encoder gets wrong: length bias, blindness to negation, relatedness scatter (methods 5.5, 7.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainables.data import Pairs
from trainables.metrics import cosines

EmbedTexts = Callable[[Sequence[str]], NDArray[np.floating]]  # texts -> (n, D) in the same order

FILLERS = {"en": ("um", "uh", "er", "hmm", "ah"), "zh": ("嗯", "啊", "呃", "哦", "哎")}  # words without meaning
RELATEDNESS_SCALE = 5.0  # SICK scores are divided by it in SelfCCL's figure


@dataclass(frozen=True)
class LengthBias:
    """How much length alone moves the cosine (EdaCSE's motivation).

    before, after: mean cosine of the pairs as they are, and with the shorter sentence padded to the other's length.
    change: after - before; > 0: equal length alone makes sentences look alike. pairs: how many had unequal lengths.
    """

    before: float
    after: float
    pairs: int

    @property
    def change(self) -> float:
        return self.after - self.before


def length_bias(embed: EmbedTexts, pairs: Pairs, language: str) -> LengthBias:
    """Mean cosine change when the shorter sentence of a pair is padded with meaningless words (methods 7.6).

    Length counts words in English, characters in Chinese. Fillers go to the end, in a fixed turn, so the result is
    the same at every call. Pairs of equal length are left out.

    Raises: ValueError for another language or if no pair has unequal lengths.
    """
    if language not in FILLERS:
        raise ValueError(f"language: expected one of {', '.join(FILLERS)}, got {language!r}")
    longer, shorter, padded = [], [], []
    for a, b in zip(pairs.first, pairs.second, strict=True):
        gap = _length(a, language) - _length(b, language)
        if gap:
            long, short = (a, b) if gap > 0 else (b, a)
            longer.append(long)
            shorter.append(short)
            padded.append(pad(short, abs(gap), language))
    if not longer:
        raise ValueError("length bias: expected pairs of unequal length, got none")
    anchor = embed(longer)
    before, after = (float(np.mean(cosines(anchor, embed(other)))) for other in (shorter, padded))
    return LengthBias(before, after, len(longer))


def pad(sentence: str, units: int, language: str) -> str:
    """The sentence with `units` meaningless words behind it.

    >>> pad("A dog runs.", 2, "en")
    'A dog runs. um uh'
    """
    fillers = [FILLERS[language][i % len(FILLERS[language])] for i in range(units)]
    return sentence + "".join(fillers) if language == "zh" else " ".join([sentence, *fillers])


def negation_similarity(embed: EmbedTexts, sentences: Sequence[str], negated: Sequence[str]) -> float:
    """Mean cosine of sentences with their negations, in [-1, 1] (SDA, methods 7.6); lower = negation is noticed.

    Call it with the encoder before and after training to see what training did. Sentences that the negation rule left
    unchanged are not counted.

    Args:
        negated: negation of each sentence, in the same order.
    Raises: ValueError if the lengths differ or nothing was negated.
    """
    changed = [(s, n) for s, n in zip(sentences, negated, strict=True) if s != n]
    if not changed:
        raise ValueError("negation similarity: expected negated sentences, got only unchanged ones")
    return float(np.mean(cosines(embed([s for s, _ in changed]), embed([n for _, n in changed]))))


@dataclass(frozen=True)
class Scatter:
    """Points of SelfCCL's Figure 4: gold relatedness / 5 against cosine, one per pair.

    label: entailment label of each pair where the data has one (column `subset`), else None.
    """

    relatedness: NDArray[np.float64]
    cosine: NDArray[np.float64]
    label: list[str] | None

    def contradictions(self) -> Scatter:
        """The points of contradiction pairs only (720 in SICK test).

        Raises: ValueError if the pairs have no labels.
        """
        if self.label is None:
            raise ValueError("scatter: expected pairs with entailment labels (column subset), got none")
        chosen = np.array([label.upper() == "CONTRADICTION" for label in self.label])
        return Scatter(
            self.relatedness[chosen], self.cosine[chosen], [s for s, c in zip(self.label, chosen, strict=True) if c]
        )


def relatedness_scatter(embed: EmbedTexts, pairs: Pairs) -> Scatter:
    """Cosine and relatedness of every pair of SICK (methods 5.5, third experiment)."""
    cosine = cosines(embed(pairs.first), embed(pairs.second)).astype(np.float64)
    return Scatter(pairs.gold / RELATEDNESS_SCALE, cosine, pairs.subset)


def _length(sentence: str, language: str) -> int:
    return len(sentence) if language == "zh" else len(sentence.split())
