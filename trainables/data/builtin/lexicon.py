"""The concepts that builtin sentences are about, each with its English and Chinese words (read from lexicon.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import TypeVar

T = TypeVar("T")
LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Concept:
    """One meaning: all its words are synonyms.

    kind: person, animal, ..., action, ...; family: concepts of one kind and family are similar or opposite.
    english, chinese: the words as lexicon.txt writes them (verbs with irregular forms, phrases with blanks).
    objects, agents: of actions: the kinds that may be acted on (none = intransitive) and that may act.
    """

    kind: str
    family: str
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    objects: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()

    def words(self, language: str) -> tuple[str, ...]:
        """The concept's words in "en" or "zh"."""
        return self.english if language == "en" else self.chinese


@cache
def concepts() -> tuple[Concept, ...]:
    """All concepts, in the order of lexicon.txt."""
    text = (files("trainables.data.builtin") / "lexicon.txt").read_text(encoding="utf-8")
    return tuple(_concept(line) for line in text.splitlines() if line and not line.startswith("#"))


def _concept(line: str) -> Concept:
    head, english, chinese = (part.strip() for part in line.split("|"))
    head, _, more_agents = head.partition(">")
    kind, family, *objects = head.split()
    agents = ("person", *more_agents.split()) if kind == "action" else ()
    return Concept(kind, family, _words(english), _words(chinese), tuple(objects), agents)


def _words(listed: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in listed.split(","))


@cache
def of_kinds(*kinds: str) -> tuple[Concept, ...]:
    """The concepts of the given kinds."""
    return tuple(c for c in concepts() if c.kind in kinds)


def pick(rng: Random, options: tuple[T, ...] | list[T]) -> T:
    """One of `options`. Only `rng.random()` is used: its stream is the same in every Python version."""
    return options[int(rng.random() * len(options))]


def require_language(language: str) -> None:
    """Raises: ValueError for a language that has no builtin corpus."""
    if language not in LANGUAGES:
        raise ValueError(f"expected a language with a builtin corpus ({', '.join(LANGUAGES)}), got {language!r}")
