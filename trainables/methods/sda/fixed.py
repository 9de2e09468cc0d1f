"""SDA's punctuation insertion without the defects of the public code, English and Chinese (methods 4.3; D22, D38).

The corrected rules use the same word lists and draws as the official ones, except: tokens are found by number, never by
their text; a subject or clause is its whole subtree; text keeps the blanks its writing has. MV, DN and NEG are in
`fixed_english` and `fixed_chinese`. Every function takes a parsed sentence of at least one token and returns the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half
from trainables.methods.sda.trees import children_of, is_mark, label, root_of, subtree
from trainables.methods.sda.words import CLAUSES, SUBJECTS, WRITING, Writing

QUOTE = '"'
QUESTION_MARKS = ("?", "？")  # end marks too: the official lists lack them
CLOSING = ('"', "''", "”", "’", "'", ")", "）", "」", "』")


def plain(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """The anchor: the tokens joined (D21), in Chinese with the blanks that the text has, as in "Cisco Systems"."""
    del rng
    return joined(words_of(tokens, language), language)


def words_of(tokens: Sequence[Token], language: str) -> list[str]:
    """The tokens' texts; Chinese ones carry the blank that follows them."""
    return [t.text if language == "en" or not t.space else t.text + " " for t in tokens]


def joined(words: Sequence[str], language: str) -> str:
    """The text of words as `words_of` gives them, with some changed or added."""
    return WRITING[language].blank.join(words).rstrip()


def insert_punctuation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """PI: marks the subject or a clause (a coin says which first), or ends the sentence with an exclamation mark.

    Args:
        tokens: a parsed sentence, at least one token; language: "en" or "zh".
    """
    writing = WRITING[language]
    words = words_of(tokens, language)
    rules = (mark_subject, mark_clause) if half(rng) else (mark_clause, mark_subject)
    edits = (rule(tokens, words, rng, writing) for rule in rules)
    edited = next((e for e in edits if e != words), exclaimed(words, writing))
    return joined(edited, language)


def mark_subject(tokens: Sequence[Token], words: Sequence[str], rng: Dice, writing: Writing) -> list[str]:
    """Quotes around the subject, or a comma after it unless a mark is there, if the root's first child is one."""
    root = root_of(tokens)
    children = [] if root is None else children_of(tokens, root)
    if children and label(tokens[children[0]]) in SUBJECTS:
        span = subtree(tokens, children[0])
        first, last = span[0], span[-1]
        if half(rng):
            inner = [*words[first:last], words[last].rstrip()]
            return [*words[:first], QUOTE, *inner, QUOTE, *words[last + 1 :]]
        if not is_mark(tokens[last]) and not (last + 1 < len(tokens) and is_mark(tokens[last + 1])):
            return _with_comma(words, last + 1, writing)
    return list(words)


def mark_clause(tokens: Sequence[Token], words: Sequence[str], rng: Dice, writing: Writing) -> list[str]:
    """A comma before the first clause that does not begin the sentence or follow a mark."""
    del rng
    for i, token in enumerate(tokens):
        if label(token) in CLAUSES:
            first = subtree(tokens, i)[0]
            if first >= 1 and not is_mark(tokens[first - 1]) and not is_mark(tokens[first]):
                return _with_comma(words, first, writing)
    return list(words)


def _with_comma(words: Sequence[str], place: int, writing: Writing) -> list[str]:
    return [*words[: place - 1], words[place - 1].rstrip(), writing.comma, *words[place:]]


def exclaimed(words: Sequence[str], writing: Writing) -> list[str]:
    """An exclamation mark in place of the final marks, before closing quotes or brackets, or added."""
    ends = (*writing.ends, *QUESTION_MARKS)
    stop = len(words)
    while stop and words[stop - 1].strip() in CLOSING:
        stop -= 1
    if not stop or words[stop - 1].strip() not in ends:  # ( so ) is closed by no mark
        stop = len(words)
    start = stop
    while start > 1 and words[start - 1].strip() in ends:
        start -= 1
    return [*words[: start - 1], words[start - 1].rstrip(), writing.strong_end, *words[stop:]]
