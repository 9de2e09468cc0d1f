"""SDA's modal verbs, double negation and negation for English, official-compatible (arXiv:2210.03963; methods 4.2).

The defects of the public code are kept on purpose (D22); the `fixed` modules repair them. Every function takes a
parsed sentence of at least one token and returns the text, tokens joined by blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half, pick
from trainables.methods.sda.words import (
    ADVERBS_EN,
    AUXILIARIES,
    BE_FORMS,
    MODALS_EN,
    NEGATED_AT_ROOT_EN,
    NEGATION_OPENERS_EN,
    NEGATIONS_EN,
)


def add_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase at the verb or an adverb at the adjectives; the other one if the first changed nothing."""
    text = " ".join(t.text for t in tokens)
    steps = ((modal_verb, MODALS_EN), (strong_adjectives, ADVERBS_EN))
    for step, phrases in steps if half(rng) else reversed(steps):
        edited = step(tokens, pick(rng, phrases))
        if edited != text:
            return edited
    return text


def modal_verb(tokens: Sequence[Token], phrase: str) -> str:
    """`phrase` at the first auxiliary or root: "is" -> "has to be", "painted" -> "had to paint"."""
    words = [t.text for t in tokens]
    deciding = (i for i, t in enumerate(tokens) if t.dep in AUXILIARIES or t.dep == "ROOT")
    i = next(deciding, None)
    if i is not None:
        edited = _modal_auxiliary(tokens[i], phrase) if tokens[i].dep in AUXILIARIES else _modal_root(tokens[i], phrase)
        words[i] = edited or words[i]
    return " ".join(words)


def _modal_auxiliary(token: Token, phrase: str) -> str | None:
    if token.text in ("am", "are", "be"):
        return phrase + " be"
    if token.text == "is":
        return phrase.replace("have", "has") + " be"
    if token.text in ("was", "were"):
        return phrase.replace("have", "had") + " be"
    return None


def _modal_root(token: Token, phrase: str) -> str | None:
    if token.text.lower() in BE_FORMS:
        return phrase + " be"
    have = {"VBP": "have", "VBZ": "has", "VBD": "had"}.get(token.tag)
    return None if have is None else f"{phrase.replace('have', have)} {token.lemma}"


def strong_adjectives(tokens: Sequence[Token], adverb: str) -> str:
    """`adverb` before every adjective."""
    return " ".join(f"{adverb} {t.text}" if t.pos == "ADJ" else t.text for t in tokens)


def double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: negations removed and added until there are two, an opener standing in for a missing second one."""
    kept, count = without_negations(tokens)
    words = [t.text for t in kept]
    for i, token in enumerate(kept):
        if count == 2:  # a higher count goes on, as in the code (D22)
            break
        negated = word_negated(token)
        if negated is not None:
            words[i] = negated
            count += 1
    if count == 1:
        words.insert(0, pick(rng, NEGATION_OPENERS_EN))
    return " ".join(words)


def without_negations(
    tokens: Sequence[Token], negations: Sequence[str] = NEGATIONS_EN
) -> tuple[list[Token], int]:  # also the Chinese rules'
    """The tokens less the negation words, and how many these were.

    As the code deletes while it iterates, the token directly after a deleted one is not looked at (D22).
    """
    kept, count, after_deletion = [], 0, False
    for token in tokens:
        after_deletion = token.text in negations and not after_deletion
        if after_deletion:
            count += 1
        else:
            kept.append(token)
    return kept, count


def word_negated(token: Token) -> str | None:
    """The auxiliary or root with its negation, or None where the rules have none."""
    if token.dep in AUXILIARIES or (token.dep == "ROOT" and token.text.lower() in NEGATED_AT_ROOT_EN):
        return token.text + " not"
    do = {"VBP": "do", "VBZ": "does", "VBD": "did"}.get(token.tag)
    return f"{do} not {token.lemma}" if token.dep == "ROOT" and do else None


def negate(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word, auxiliary or root decides; "did n't" becomes "did not n't" (D22)."""
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if token.text in NEGATIONS_EN:
            del words[i]
        elif negated := word_negated(token):
            words[i] = negated
        elif token.dep == "ROOT":
            words.insert(0, "no")
        else:
            continue
        return " ".join(words)
    return " ".join([pick(rng, NEGATION_OPENERS_EN), *words])
