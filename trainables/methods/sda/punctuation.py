"""SDA's punctuation insertion (PI), official-compatible, English and Chinese (arXiv:2210.03963; methods 4.2).

It follows the public code where that departs from the paper (D22): a token is found by the first equal word, quotes are
single, and in Chinese the fallbacks do not run. `fixed` and its neighbours are the repaired version.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half, pick
from trainables.methods.sda.trees import children_of
from trainables.methods.sda.words import CLAUSES, SUBJECTS, WRITING, Writing


def plain(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """The anchor: the tokens joined as every edit joins them (D21)."""
    del rng
    return WRITING[language].blank.join(t.text for t in tokens)


def insert_punctuation(tokens: Sequence[Token], rng: Dice, language: str) -> str:
    """Marks the subject or a clause (which first is a coin's choice), or the end of the sentence if neither is there.

    Args:
        tokens: a parsed sentence, at least one token; language: "en" or "zh".
    Returns: the joined text. In Chinese the code compares a text with blanks to one without, so that the fallbacks run
        for one-token sentences only and about half of the sentences stay as they are (D22).
    """
    writing = WRITING[language]
    compared = " ".join(t.text for t in tokens)
    rules = (mark_subject, mark_clause) if half(rng) else (mark_clause, mark_subject)
    for rule in (*rules, mark_tail):
        edited = rule(tokens, rng, writing)
        if edited != compared:
            break
    return edited


def mark_subject(tokens: Sequence[Token], rng: Dice, writing: Writing) -> str:
    """Quotes around the subject, or a comma after it, if the root's first child is one."""
    words = [t.text for t in tokens]
    root = next((i for i, t in enumerate(tokens) if t.dep == "ROOT"), None)
    children = [] if root is None else children_of(tokens, root)
    if children and tokens[children[0]].dep in SUBJECTS:
        span = [children[0], *children_of(tokens, children[0])]
        places = [words.index(words[i]) for i in span]
        first, last = min(places), max(places)
        if half(rng):
            words[first] = "'" + writing.blank + words[first]
            words[last] += writing.blank + "'"
        else:
            words[last] += writing.blank + writing.comma
    return writing.blank.join(words)


def mark_clause(tokens: Sequence[Token], rng: Dice, writing: Writing) -> str:
    """A comma before the first child of the first clause that has a place for one."""
    del rng
    words = [t.text for t in tokens]
    labels = [t.dep for t in tokens]
    for label in labels:
        if label not in CLAUSES:
            continue
        children = children_of(tokens, labels.index(label))
        if not children:
            break
        place = words.index(words[children[0]])
        if place >= 1:
            words[place - 1] += writing.blank + writing.comma
            break
    return writing.blank.join(words)


def mark_tail(tokens: Sequence[Token], rng: Dice, writing: Writing) -> str:
    """Quotes around the sentence, or a random end mark in place of the present one (perhaps the same) or added."""
    words = [t.text for t in tokens]
    if half(rng):
        words = ["'", *words, "'"]
    else:
        if words[-1] in writing.ends:
            words.pop()
        words.append(pick(rng, writing.ends))
    return writing.blank.join(words)
