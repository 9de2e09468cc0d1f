"""Exceptions whose message is one line for people, and helpers that make such lines."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class DataError(ValueError):
    """Data is missing, unreachable or malformed."""


class EncoderError(ValueError):
    """An encoder that cannot be used; the message names what is missing, where, and what to do."""


class PluginError(ValueError):
    """A method, evaluation or script from outside that cannot be used; names file and line, or the distribution."""


def first_line(error: object) -> str:
    """The first line of an error's message (or of a text); the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def last_line(error: object) -> str:
    """The last line, which holds the cause where a message contains a traceback (or a program's error output)."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


STORES = ("botocore.", "gcsfs.", "google.auth.")  # packages whose errors are those of a bucket or of its login


def storage_line(fault: BaseException, storage: str = "") -> str:
    """One line for an error of a bucket's client, or for one that follows from it (s3fs raises Python's own); "" for
    other errors, and for a missing object.

    Args: storage: its address, if known.
    """
    cause: BaseException | None = None if isinstance(fault, FileNotFoundError) else fault
    while cause is not None and not type(cause).__module__.startswith(STORES):
        cause = cause.__cause__
    if cause is None:
        return ""
    where = f"storage {storage}" if storage else "storage"
    line = f"{where}: {type(cause).__name__}: {first_line(cause)}"
    return f"{line} (trials have the environment of their node's `ray start`)"


def line_in(file: str, error: BaseException) -> int | None:
    """The line of a file from which an error came, by its traceback; None if the file is not part of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


# Words whose meaning the spelling alone would miss. None: no known word is meant.
MEANT = {"bayes": "tpe", "bayesian": "tpe", "min": None, "max": None, "rand": "random", "sha": "successive_halving"}


def close_to(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` if a known word is close, else nothing.

    Args:
        cutoff: the least similarity, 1 = equal (`difflib.SequenceMatcher.ratio`).
    """
    if not isinstance(word, str):
        return ""
    words = [k for k in known if isinstance(k, str)]
    if word in MEANT:
        found = [meant for meant in (MEANT[word],) if meant in words]
    else:
        found = difflib.get_close_matches(word[:100], words, 1, cutoff)
    return f"; did you mean '{found[0]}'?" if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known word is close, else `; allowed: a, b, c`."""
    known = list(known)
    return close_to(word, known) or f"; allowed: {', '.join(known)}"
