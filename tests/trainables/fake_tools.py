"""What methods prepare their examples with, for tests: words are tokens, nothing is cached."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainables.data.tokens import TokenColumn


def column(rows: Sequence[Sequence[int]]) -> TokenColumn:
    flat = np.array([i for row in rows for i in row], np.int32)
    return TokenColumn(flat, np.cumsum([0, *map(len, rows)]))


class FakeTools:
    """`TextTools` whose tokens are what a pattern finds, numbered as they come."""

    def __init__(self, language: str = "en", pattern: str = r"\S+") -> None:
        self.language, self.pattern = language, re.compile(pattern)
        self.numbers: dict[str, int] = {}

    def tokenise(self, texts: Sequence[str], prompt: str = "") -> TokenColumn:
        assert prompt in ("", "query", "document")
        found = [self.pattern.findall(text) for text in texts]
        return column([[self.numbers.setdefault(word, len(self.numbers)) for word in words] for words in found])

    def text(self, tokens: np.ndarray, blank: str = " ") -> str:
        words = list(self.numbers)
        return blank.join(words[i] for i in tokens)

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], Any]) -> Any:
        assert name
        assert parts
        return make()
