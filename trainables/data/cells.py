"""What one cell of a file means: a text, a number, or nothing. The one place of these rules, for every reader."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

REPLACEMENT = "\ufffd"
_LONE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair: no character, and no UTF-8 can hold it
_BOOLEANS = {"true": 1.0, "false": 0.0}
_NO_SCORE = frozenset(("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none"))


def whole(text: str) -> str:
    """The text with U+FFFD for every half of a surrogate pair, as JSON's `"\\ud83d"` gives one."""
    return _LONE.sub(REPLACEMENT, text)


def text_of(value: object, replaced: Callable[[], object] = lambda: None) -> str:
    """The text of a cell; "" where it is missing (null, NaN). A number is its digits.

    Args: replaced: called when the text has half of a surrogate pair, of which U+FFFD takes the place.
    Raises: ValueError for anything else (a list, an object, true, a date): its notation would be trained on.
    """
    if isinstance(value, str):
        if (text := whole(value)) is not value and text != value:
            replaced()
        return text
    if value is None or (isinstance(value, (float, Decimal)) and math.isnan(value)):
        return ""
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):  # of a Parquet column without the note that it is UTF-8
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    raise ValueError(f"expected a text or a number, got {shown(value)}")


def replaced_note(first: object, count: int) -> str:
    """The note on texts in which U+FFFD took the place of something; first: file and line of the first one."""
    texts = "1 text has" if count == 1 else f"{count} texts have"
    return f"{first}: half of a surrogate pair, which is no character; {texts} U+FFFD in its place"


def has_score(text: str) -> bool:
    """Whether a score is there: not empty, and none of the words for "missing" (NaN, NA, N/A, null, None)."""
    return text.strip().lower() not in _NO_SCORE


def score_of(text: str) -> float:
    """A score; true and false are 1 and 0.

    Raises: ValueError if it is no finite number.
    """
    word = text.strip().lower()
    try:
        value = _BOOLEANS[word] if word in _BOOLEANS else math.nan if "_" in word else float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        comma = "; numbers are written with a point, 4.5" if re.fullmatch(r"[-+]?\d+,\d+", word) else ""
        raise ValueError(f"expected a number as score, got {shown(text)}{comma}")
    return value


def shown(value: object) -> str:
    """A value as a message shows it: on one line, at most 60 characters, nothing that a terminal cannot print."""
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return whole(" ".join((text if len(text) <= 60 else text[:57] + "...").split()))
