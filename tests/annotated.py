"""Parsed sentences, written manually, for the tests of SDA's rules."""

from __future__ import annotations

from trainables.data.parses import Token


def annotated(text: str) -> list[Token]:
    """`word|pos|tag|dep|head` or `word|pos|tag|dep|head|lemma` per token, separated by blanks."""
    tokens = []
    for item in text.split():
        word, pos, tag, dep, head, *lemma = item.split("|")
        tokens.append(Token(word, lemma[0] if lemma else word, pos, tag, dep, int(head)))
    return tokens
