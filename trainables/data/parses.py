"""Dependency parses of a corpus as flat arrays, for SDA."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Token(NamedTuple):
    """One token of a parsed sentence, in spaCy's words. A tuple because millions of them are made.

    Attributes:
        text: the token as written; lemma: its base form (may be empty).
        pos: coarse part of speech ("VERB"); tag: the fine one ("VBD").
        dep: dependency label ("nsubj", "ROOT").
        head: number of the head token in the sentence; the root's is its own.
        space: a blank follows it in the text (Chinese: between the words of a Latin name).
    """

    text: str
    lemma: str
    pos: str
    tag: str
    dep: str
    head: int
    space: bool = False


COLUMNS: dict[str, type[np.generic]] = {
    "text": np.uint32, "lemma": np.uint32, "pos": np.uint16, "tag": np.uint16, "dep": np.uint16, "head": np.uint16,
    "space": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class Parses:
    """The parses of n sentences with T tokens in all; sentence i is tokens starts[i]:starts[i + 1].

    words, labels: the distinct strings; text, lemma: (T,) uint32 numbers into `words`; pos, tag, dep: (T,) uint16
    numbers into `labels`; head: (T,) uint16 position in the sentence; space: (T,) bool; starts: (n + 1,) int64.
    """

    words: Sequence[str]
    labels: Sequence[str]
    text: NDArray[np.uint32]
    lemma: NDArray[np.uint32]
    pos: NDArray[np.uint16]
    tag: NDArray[np.uint16]
    dep: NDArray[np.uint16]
    head: NDArray[np.uint16]
    space: NDArray[np.bool_]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> list[Token]:
        return next(self.part(i, i + 1).sentences())

    def part(self, start: int, stop: int) -> Parses:
        """Sentences start:stop, with the words in them alone: parts travel to other processes."""
        a, b = int(self.starts[start]), int(self.starts[stop])
        columns = {name: getattr(self, name)[a:b] for name in COLUMNS}
        used, numbers = np.unique([columns["text"], columns["lemma"]], return_inverse=True)
        columns |= zip(("text", "lemma"), numbers.astype(np.uint32), strict=True)
        return Parses([self.words[i] for i in used], self.labels, **columns, starts=self.starts[start : stop + 1] - a)

    def sentences(self) -> Iterator[list[Token]]:
        """The tokens of every sentence in turn."""
        words, labels = self.words, self.labels
        tokens = [
            Token(words[text], words[lemma], labels[pos], labels[tag], labels[dep], head, space)
            for text, lemma, pos, tag, dep, head, space in zip(
                *(getattr(self, name).tolist() for name in COLUMNS), strict=True
            )
        ]
        for a, b in itertools.pairwise(self.starts.tolist()):
            yield tokens[a:b]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal parses; what is derived from them is cached under it."""
        digest = hashlib.blake2b(repr([*self.words, self.labels]).encode(), digest_size=16)
        for name in (*COLUMNS, "starts"):
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        return digest.hexdigest()

    @staticmethod
    def from_tokens(sentences: Iterable[Sequence[Token]]) -> Parses:
        """Parses given as tokens."""
        words, labels = _Numbers(), _Numbers()
        columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
        starts = [0]
        for sentence in sentences:
            for token in sentence:
                columns["text"].append(words[token.text])
                columns["lemma"].append(words[token.lemma])
                for name in ("pos", "tag", "dep"):
                    columns[name].append(labels[getattr(token, name)])
                columns["head"].append(token.head)
                columns["space"].append(token.space)
            starts.append(len(columns["text"]))
        return Parses(
            list(words),
            list(labels),
            **{name: np.array(column, COLUMNS[name]) for name, column in columns.items()},
            starts=np.array(starts, np.int64),
        )

    @staticmethod
    def joined(parts: Sequence[Parses]) -> Parses:
        """The sentences of all parts, under one table of words and one of labels."""
        words, labels = _Numbers(), _Numbers()
        columns: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in COLUMNS.items()}
        starts = [np.zeros(1, np.int64)]
        for part in parts:
            word = np.array([words[w] for w in part.words], np.uint32)
            label = np.array([labels[w] for w in part.labels], np.uint16)
            for name in COLUMNS:
                column = getattr(part, name)
                if name not in ("head", "space"):
                    column = (word if name in ("text", "lemma") else label)[column]
                columns[name].append(column)
            starts.append(part.starts[1:] + starts[-1][-1])
        arrays = {name: np.concatenate(column) for name, column in columns.items()}
        return Parses(list(words), list(labels), **arrays, starts=np.concatenate(starts))


class _Numbers(dict[str, int]):
    """Numbers strings in the order of their first use."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number
