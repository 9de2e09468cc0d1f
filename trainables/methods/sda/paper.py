"""SDA's rules as its paper prints them, English (arXiv:2210.03963, Algorithms 1 to 3; methods 4.3.1, D22).

They part from the public code: PI tries clause, subject and final mark in this order; MV adds modal phrases only, a
past verb becoming "must have travelled"; DN negates twice inside the sentence, "Not that" standing in for a missing
second negation. What the paper does not print (spans, agreement, NEG) is done as in the corrected rules. Every function
takes a parsed sentence of at least one token and returns the text, tokens joined by blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice
from trainables.methods.sda.english import word_negated
from trainables.methods.sda.fixed import exclaimed, mark_clause, mark_subject
from trainables.methods.sda.fixed_english import FINITE, modal_verb
from trainables.methods.sda.words import ENGLISH, NEGATIONS_EN

PREFIX = "Not that"


def insert_punctuation(tokens: Sequence[Token], rng: Dice) -> str:
    """PI (Algorithm 1): a comma before a clause, else quotes around or a comma after the subject, else a final "!"."""
    words = [t.text for t in tokens]
    edits = (rule(tokens, words, rng, ENGLISH) for rule in (mark_clause, mark_subject))
    return " ".join(next((e for e in edits if e != words), exclaimed(words, ENGLISH)))


def add_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV (Algorithm 2): a modal phrase at the main verb, no adverbs; unchanged where none fits."""
    return " ".join(modal_verb(tokens, rng, perfect=True) or [t.text for t in tokens])


def double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN (Algorithm 3): negations go, then auxiliaries and the root verb are negated until there are two.

    The pseudo-code writes "do not" before any root verb, whatever its tense.
    """
    del rng
    kept = [t for t in tokens if t.text not in NEGATIONS_EN]
    count = len(tokens) - len(kept)
    words = []
    for token in kept:
        negated = _negated(token) if count < 2 else None
        count += negated is not None
        words.append(negated or token.text)
    return " ".join([PREFIX, *words] if count == 1 else words)


def _negated(token: Token) -> str | None:
    found = word_negated(token)
    if token.dep == "ROOT" and token.tag in FINITE and not (found or "").endswith(" not"):
        return f"do not {token.lemma or token.text}"
    return found
