"""The builtin corpora: generated English and Chinese sentences whose similarity is known by construction.

A sentence is written from a semantic frame (who does what to whom, where, when, why, or not). Two sentences are as
similar as their frames; synonyms, word order, voice, tense and articles do not count, shared words alone do not help.
Everything follows from the seed: the same call gives the same bytes on every machine and Python version. Frames are
divided between train, dev and test by their hash, so no sentence of one is in another. These corpora are for trying
the platform out and for tests: their scores say nothing about real language.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal
from zlib import crc32

from trainables.data.builtin import chinese, english
from trainables.data.builtin.frames import Frame, contradict, draw, shorten, similarity, vary
from trainables.data.builtin.lexicon import Concept, pick, require_language
from trainables.data.builtin.vectors import word_vectors
from trainables.data.parses import Token

__all__ = ["pairs", "parse", "sentences", "triplets", "word_vectors"]

PAIRS = 500  # of each of dev and test
_SPLITS = ("dev", "test", "train", "train")  # a frame belongs to the one its hash points at
_CHANGES = (0, 1, 1, 2, 2, 3, 4, 6, 9, 9)  # changes of meaning between the sentences of a pair, drawn uniformly


def sentences(language: str, n: int, seed: int = 0) -> list[str]:
    """`n` distinct training sentences in "en" or "zh"; fewer of the same seed are a prefix of more.

    Raises: ValueError for another language or n < 0.
    """
    _require(language, n)
    rng = Random(f"sentences {language} {seed}")
    found: dict[str, None] = {}
    while len(found) < n:
        found[_write(_draw_of("train", rng), language, rng)] = None
    return list(found)


def triplets(language: str, n: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """`n` training triplets (anchor, a sentence that follows from it, one that contradicts it).

    Raises: ValueError for another language or n < 0.
    """
    _require(language, n)
    rng = Random(f"triplets {language} {seed}")
    return list(_triplets(language, n, rng))


def pairs(language: str, split: Literal["dev", "test"], n: int | None = None) -> list[tuple[str, str, float]]:
    """The first `n` (default 500) sentence pairs of a split, with their similarity in [0, 5] in steps of 0.1.

    Raises: ValueError for another language or split or n < 0.
    """
    _require(language, n or 0)
    if split not in ("dev", "test"):
        raise ValueError(f"expected split dev or test, got {split!r}")
    rng = Random(f"pairs {language} {split}")
    found = []
    for _ in range(PAIRS if n is None else n):
        first = _draw_of(split, rng)
        changes = pick(rng, _CHANGES)
        second = vary(first, changes, rng)
        while _split_of(second) != split:
            second = vary(first, changes, rng)
        score = round(5 * similarity(first, second), 1)
        found.append((_write(first, language, rng), _write(second, language, rng), score))
    return found


def parse(sentence: str, language: str) -> list[Token]:
    """Dependency parse of a builtin sentence, in the labels of spaCy's models of the language.

    Raises: ValueError for another language, or a sentence that the builtin grammar cannot have made.
    """
    require_language(language)
    return english.parse(sentence) if language == "en" else chinese.parse(sentence)


def _require(language: str, n: int) -> None:
    require_language(language)
    if n < 0:
        raise ValueError(f"expected n >= 0, got {n}")


def _triplets(language: str, n: int, rng: Random) -> Iterator[tuple[str, str, str]]:
    for _ in range(n):
        anchor = _draw_of("train", rng)
        entailed, contradicted = shorten(anchor, rng), contradict(anchor, rng)
        while _split_of(entailed) != "train":
            entailed = shorten(anchor, rng)
        while _split_of(contradicted) != "train":
            contradicted = contradict(anchor, rng)
        yield (_write(anchor, language, rng), _write(entailed, language, rng), _write(contradicted, language, rng))


def _draw_of(split: str, rng: Random) -> Frame:
    frame = draw(rng)
    while _split_of(frame) != split:
        frame = draw(rng)
    return frame


def _split_of(frame: Frame) -> str:
    slots = (frame.agent, frame.action, frame.object, frame.quality, frame.description,
             frame.place, frame.time, frame.reason)  # fmt: skip
    key = "/".join(slot.english[0] if isinstance(slot, Concept) else "" for slot in slots) + f"/{frame.negated}"
    return _SPLITS[crc32(key.encode()) % len(_SPLITS)]


def _write(frame: Frame, language: str, rng: Random) -> str:
    return english.write(frame, rng) if language == "en" else chinese.write(frame, rng)
