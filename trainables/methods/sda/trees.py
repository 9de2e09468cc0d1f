"""Reading a dependency parse by token numbers: subtrees, the main clause, the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainables.data.parses import Token
from trainables.methods.sda.words import CLAUSES


def label(token: Token) -> str:
    """The dependency label without its subtype: the Chinese parser's advcl:loc is an advcl (D38)."""
    return token.dep.split(":")[0]


def is_mark(token: Token) -> bool:
    return token.pos == "PUNCT"


def root_of(tokens: Sequence[Token]) -> int | None:
    """The number of the first root."""
    return next((i for i, t in enumerate(tokens) if t.dep == "ROOT"), None)


def children_of(tokens: Sequence[Token], i: int) -> list[int]:
    """The numbers of the direct children of token i, in token order."""
    return [j for j, t in enumerate(tokens) if t.head == i and j != i]


def subtree(tokens: Sequence[Token], top: int) -> list[int]:
    """The numbers of a token and of all below it, in token order."""
    return [i for i in range(len(tokens)) if top in _path(tokens, i)]


def main_clause(tokens: Sequence[Token]) -> Iterator[int]:
    """The numbers of the tokens that are in no subordinate clause."""
    for i in range(len(tokens)):
        if not any(label(tokens[j]) in CLAUSES for j in _path(tokens, i)):
            yield i


def _path(tokens: Sequence[Token], i: int) -> Iterator[int]:
    """Token i and its heads up to a root."""
    for _ in tokens:  # bounds the walk, should an annotation contain a circle
        yield i
        if tokens[i].head == i:
            return
        i = tokens[i].head
