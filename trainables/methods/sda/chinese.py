"""SDA's modal verbs, double negation and negation for Chinese, official-compatible (arXiv:2210.03963; methods 4.2).

The defects of the public code are kept on purpose (D22, D38); the `fixed` modules repair them. Every function takes a
parsed sentence of at least one token and returns the text, tokens joined without blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainables.data.parses import Token
from trainables.methods.sda.dice import Dice, half, pick
from trainables.methods.sda.english import without_negations
from trainables.methods.sda.words import (
    ADVERBS_ZH,
    AUXILIARIES,
    MODALS_ZH,
    NEGATED_AT_ROOT_ZH,
    NEGATION_OPENERS_ZH,
    NEGATIONS_ZH,
    OPENERS_ZH,
)


def add_modal(tokens: Sequence[Token], rng: Dice) -> str:
    """MV: a modal phrase before the root verb or an adverb before the first adjective, else an opener."""
    step, phrases = (modal_verb, MODALS_ZH) if half(rng) else (strong_adjective, ADVERBS_ZH)
    return step(tokens, pick(rng, phrases), rng)  # each always changes the sentence: no second step as in English


def modal_verb(tokens: Sequence[Token], phrase: str, rng: Dice) -> str:
    """`phrase` before the first root that is a verb, else an opener in front."""
    roots = (i for i, t in enumerate(tokens) if t.dep == "ROOT" and t.pos.startswith("V"))
    return _before(tokens, next(roots, None), phrase, rng)


def strong_adjective(tokens: Sequence[Token], adverb: str, rng: Dice) -> str:
    """`adverb` before the first adjective, else an opener in front."""
    return _before(tokens, next((i for i, t in enumerate(tokens) if t.pos == "ADJ"), None), adverb, rng)


def _before(tokens: Sequence[Token], i: int | None, phrase: str, rng: Dice) -> str:
    words = [t.text for t in tokens]
    words.insert(i or 0, pick(rng, OPENERS_ZH) if i is None else phrase)
    return "".join(words)


def double_negation(tokens: Sequence[Token], rng: Dice) -> str:
    """DN: negations removed and added until there are two, an opener standing in for a missing second one.

    The parts of speech are those of the sentence before the removal, so they are out of step after one (D22).
    """
    kept, count = without_negations(tokens, NEGATIONS_ZH)
    words = [t.text for t in kept]
    for i, token in enumerate(kept):
        if count == 2:  # a higher count goes on, as in the code (D22)
            break
        if token.dep in AUXILIARIES or _negated_root(token, tokens[i].pos):
            words[i] = "不" + token.text
            count += 1
    if count == 1:
        words.insert(0, pick(rng, NEGATION_OPENERS_ZH))
    return "".join(words)


def negate(tokens: Sequence[Token], rng: Dice) -> str:
    """NEG: the first negation word, auxiliary (an English " not" follows it, D38) or verbal root decides."""
    words = [t.text for t in tokens]
    for i, token in enumerate(tokens):
        if token.text in NEGATIONS_ZH:
            del words[i]
        elif token.dep in AUXILIARIES:
            words[i] += " not"
        elif _negated_root(token, token.pos):
            words[i] = "不" + token.text
        else:
            continue
        return "".join(words)
    return "".join([pick(rng, NEGATION_OPENERS_ZH), *words])


def _negated_root(token: Token, pos: str) -> bool:
    return token.dep == "ROOT" and (token.text in NEGATED_AT_ROOT_ZH or pos.startswith("V"))
