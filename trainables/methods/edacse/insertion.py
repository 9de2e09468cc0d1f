"""Insertion of punctuation marks into a sentence, as text and as token ids (EdaCSE 3.3, D10-D12).

Inserting ids is what training does: no tokenizer in the loop. It equals inserting into the text and tokenising the
result wherever the tokenizer isolates the marks (`isolated_marks`) and every unit of the sentence is tokenised alone as
it is within the sentence (`unit_ends`). BERT's WordPiece cuts words at white space, at CJK characters and at
punctuation before it looks for pieces, so under these two conditions a mark never changes its neighbours' tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainables.data.tokens import TokenColumn, Tokens

ALPHABETS: Mapping[str, str] = {
    "english": ".,!?;:",
    "chinese": "。，！？；：",
    "chinese_without_strong": "。，；：",
    "english_without_strong": ".,;:",
    "english_extended": ".,!?;:[]~|",  # the paper's list ends with "etc." (D12)
}
_UNITS = {
    "character": re.compile(r"[A-Za-z0-9]+|[^\s]"),  # D10: a run of ASCII letters or digits is one unit
    "word": re.compile(r"\S+"),
}
Tokenise = Callable[[Sequence[str]], TokenColumn]


def unit_spans(text: str, unit: str) -> list[tuple[int, int]]:
    """(start, end) character offsets of the units of a sentence; white space belongs to none.

    Args:
        unit: "character": every character, ASCII letter or digit runs kept whole; "word": split at white space.
    """
    return [m.span() for m in _UNITS[unit].finditer(text)]


def draw_insertions(
    units: int, max_marks: int, marks: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What to insert where: n ~ uniform{1..max_marks} gaps and one mark for each (3.3 points 2-4, D11).

    Args:
        units: U >= 0; gap g in 0..U-1 lies after unit g, the gap at the very start does not exist.
        marks: size of the alphabet; marks are drawn with replacement.
    Returns: gaps (n,), rising, different from each other unless n > U; mark numbers (n,). Both empty if U is 0.
    Raises: ValueError if max_marks < 1.
    """
    if max_marks < 1:
        raise ValueError(f"max_marks: expected a whole number >= 1, got {max_marks}")
    if units == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    n = int(rng.integers(1, max_marks + 1))
    gaps = rng.choice(units, n, replace=n > units)
    gaps.sort()
    return gaps, rng.integers(0, marks, n)


def insert_marks(text: str, max_marks: int, alphabet: str, rng: np.random.Generator, unit: str = "character") -> str:
    """The sentence with 1..max_marks marks inserted, without blanks (3.3); unchanged if it has no unit.

    Args:
        alphabet: name in `ALPHABETS`.
        unit: "character" or "word" (D10).
    """
    marks = ALPHABETS[alphabet]
    ends = [end for _, end in unit_spans(text, unit)]
    gaps, drawn = draw_insertions(len(ends), max_marks, len(marks), rng)
    pieces, last = [], 0
    for gap, mark in zip(gaps, drawn, strict=True):
        pieces += [text[last : ends[gap]], marks[mark]]
        last = ends[gap]
    return "".join([*pieces, text[last:]])


def insert_mark_ids(
    tokens: Tokens, ends: NDArray[np.int32], marks: NDArray[np.int32], max_marks: int, rng: np.random.Generator
) -> Tokens:
    """`insert_marks` on token ids: for equal draws the same as tokenising its result (see the module's head).

    Args:
        tokens: (L,) ids without special tokens.
        ends: (U,) token offset behind each unit, from `unit_ends`.
        marks: (A,) token id of each mark of the alphabet, from `isolated_marks`.
    Returns: (L + n,) ids, 1 <= n <= max_marks, or the tokens themselves if U is 0.
    """
    gaps, drawn = draw_insertions(len(ends), max_marks, len(marks), rng)
    return np.insert(tokens, ends[gaps], marks[drawn]).astype(np.int32, copy=False)


def isolated_marks(alphabet: str, tokenise: Tokenise) -> NDArray[np.int32] | None:
    """(A,) token ids of the marks if the tokenizer cuts every mark off its neighbours, else None.

    Every mark is tried alone, between letters, digits, CJK characters, beside every other mark and around a blank. A
    byte-pair tokenizer fails (it merges marks, and a word's tokens depend on the blank before it).
    """
    marks = ALPHABETS[alphabet]
    contexts = ["a", "1", "中", "b2", " ", "é", *marks]
    probes = [(left, mark, right) for mark in marks for left in contexts for right in contexts]
    words = sorted({*contexts, *marks})
    known = tokenise([*words, *("".join(p) for p in probes)])
    alone = {word: known[i].tolist() for i, word in enumerate(words)}
    if any(len(alone[mark]) != 1 for mark in marks) or alone[" "]:
        return None
    for i, probe in enumerate(probes):
        if known[len(words) + i].tolist() != [token for part in probe for token in alone[part]]:
            return None
    return np.array([alone[mark][0] for mark in marks], np.int32)


def unit_ends(
    texts: Sequence[str], tokens: TokenColumn, unit: str, alphabet: str, tokenise: Tokenise
) -> tuple[TokenColumn, NDArray[np.bool_]]:
    """Where the units of every sentence end among its tokens, and where marks may be inserted as ids.

    A sentence qualifies if the tokens of its units, each tokenised alone, laid end to end are the sentence's own.
    What fails is rare in Chinese: characters that the tokenizer glues ("é" after a letter, full-width digits).

    Args:
        tokens: `tokenise(texts)`.
    Returns:
        column of (U_i,) token offsets behind each unit; empty for sentences that do not qualify;
        (n,) true where ids may be inserted (sentences without units included: nothing is inserted there).
    """
    split = [[text[a:b] for a, b in unit_spans(text, unit)] for text in texts]
    words = sorted({word for units in split for word in units})
    brackets = set("[]") <= set(ALPHABETS[alphabet])
    alone = tokenise(words)
    if brackets:  # "[" + "MASK" + "]" would become a special token
        framed = tokenise([f"[{word}]" for word in words])
        unframed = np.diff(framed.starts) != np.diff(alone.starts) + 2
    else:
        unframed = np.zeros(len(words), bool)
    number = {word: i for i, word in enumerate(words)}
    lengths = np.diff(alone.starts)

    qualifies = np.zeros(len(texts), bool)
    rows: list[NDArray[np.int64]] = []
    for i, units in enumerate(split):
        index = np.fromiter((number[word] for word in units), np.int64, len(units))
        ends = np.cumsum(lengths[index])
        row, laid = tokens[i], [alone[int(j)] for j in index]
        qualifies[i] = (
            len(row) == (ends[-1] if len(ends) else 0)
            and not unframed[index].any()
            and (not laid or np.array_equal(np.concatenate(laid), row))
        )
        rows.append(ends if qualifies[i] else ends[:0])
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    flat = np.concatenate(rows) if rows else np.empty(0)
    return TokenColumn(flat.astype(np.int32), starts), qualifies
