"""Faults that are told to people in one line, and the parts such lines are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataError(ValueError):
    """Data is missing, unreachable or not in the promised form; the message is one line for people."""


class EncoderError(ValueError):
    """An encoder that cannot be used: what was looked for, where, and what to do, in one line."""


class PluginError(ValueError):
    """A method or an evaluation from outside that cannot be used; names file and line, or the distribution."""


def first_line(error: object) -> str:
    """The first line of an error's message (or of a text); the name of its class when it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def last_line(error: object) -> str:
    """The last line, where a traceback in a message (or a program's error output) says what happened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


# Words that people try, which the spelling alone would take for another one. None: nothing is meant by it here.
MEANT = {"bayes": "tpe", "bayesian": "tpe", "min": None, "max": None, "rand": "random", "sha": "successive_halving"}


def closest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """The known word that a mistyped one most likely means, or None.

    Args:
        cutoff: the least similarity, 1 = equal (`difflib.SequenceMatcher.ratio`).
    """
    if not isinstance(word, str):
        return None
    words = [k for k in known if isinstance(k, str)]
    if word in MEANT:
        return meant if (meant := MEANT[word]) in words else None
    found = difflib.get_close_matches(word[:100], words, 1, cutoff)
    return found[0] if found else None


def close_to(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` when a known word is close, else nothing."""
    found = closest(word, known, cutoff)
    return f"; did you mean '{found}'?" if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when a known word is close, else `; allowed: a, b, c`."""
    known = list(known)
    return close_to(word, known) or f"; allowed: {', '.join(known)}"
