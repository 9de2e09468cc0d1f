"""The parses of a corpus by the parser that its study names, from the cache or made now.

A *parser* is an installed spaCy pipeline (`en_core_web_sm`), a folder that holds one, or `builtin` (the annotation that
comes with the generated corpus).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainables.data.builtin import builtin_parses
from trainables.data.parallel import progress_shown
from trainables.data.parses import Arrays, Parses, hash_texts
from trainables.data.spacy_parser import USUAL_PIPELINES, ParserError, parse_texts, pipeline_identity

BUILTIN = "builtin"
FORMAT = 2  # of the stored arrays; part of every cache key

Cached = Callable[[str, Sequence[object], Callable[[], Any]], Any]  # TextTools.cached


def parsed(texts: Sequence[str], parser: str | None, language: str, cached: Cached) -> Parses:
    """The parses of `texts`, from the cache or made now with visible progress (see `parse_texts`).

    Args:
        parser: pipeline name, folder or "builtin"; None = the paper's for the language.
        language: "en" or "zh".
        cached: `TextTools.cached`; the key is the texts' hash and the parser's name, version and training record.
    Raises: ParserError.
    """
    parser = parser or USUAL_PIPELINES[language]
    if parser == BUILTIN:
        try:
            return builtin_parses(tuple(texts), language)
        except KeyError as error:
            raise ParserError(
                f"parser {BUILTIN!r}: knows the sentences of the builtin corpus alone, got {error.args[0][:60]!r}; "
                "name a spaCy pipeline in data.parser"
            ) from None

    def make() -> Arrays:
        with progress_shown(f"Parsing with {parser}") as progress:
            return parse_texts(texts, parser, language, progress=progress).to_arrays()

    key = (hash_texts(texts), parser_identity(parser, language), FORMAT)
    return Parses.from_arrays(cached("parses", key, make))


def parser_identity(parser: str | None, language: str) -> str:
    """What tells a parser from every other one, for cache keys; see `spacy_parser.pipeline_identity`.

    Raises: ParserError.
    """
    parser = parser or USUAL_PIPELINES[language]
    return BUILTIN if parser == BUILTIN else pipeline_identity(parser, language)
