"""Word vectors of the builtin vocabulary: synonyms close, words of one family related, the rest near orthogonal."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainables.data.builtin import chinese, english
from trainables.data.builtin.lexicon import concepts, require_language

DIM = 300
_FAMILY, _CONCEPT, _WORD = 0.5, 1.0, 0.6  # standard deviations of the parts of a content word's vector
_SCALE = 0.1  # root mean square of a part of weight 1; near word2vec's
_SEED = 20211


def word_vectors(language: str, dim: int = DIM) -> tuple[list[str], NDArray[np.float32]]:
    """Words (lower-cased, without apostrophes) and their vectors, (words, dim).

    A content word's vector is the sum of a part of its family, one of its concept and one of its own; a function
    word has only the last. English words come with all their inflected forms; Chinese words are segmented words.

    Raises: ValueError for a language without a builtin corpus, or dim < 1.
    """
    require_language(language)
    if dim < 1:
        raise ValueError(f"expected dim >= 1, got {dim}")
    words, vectors = _word_vectors(language, dim)
    return list(words), vectors.copy()


@cache
def _word_vectors(language: str, dim: int) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    rng = np.random.default_rng([_SEED, dim, len(language), language == "zh"])
    families: dict[tuple[str, str], NDArray[np.float64]] = {}
    meanings = {}
    for concept in concepts():
        family = families.setdefault((concept.kind, concept.family), rng.standard_normal(dim))
        meanings[concept] = _FAMILY * family + _CONCEPT * rng.standard_normal(dim)
    source = english if language == "en" else chinese
    found = {}
    for word, of in source.concept_words().items():
        found[word] = np.mean([meanings[c] for c in of], axis=0) + _WORD * rng.standard_normal(dim)
    for word in source.function_words():
        found[word.replace("'", "")] = rng.standard_normal(dim)
    for contracted in ("isnt", "wasnt", "hasnt", "doesnt", "didnt") if language == "en" else ():
        found[contracted] = rng.standard_normal(dim)
    return tuple(found), (_SCALE * np.stack(list(found.values()))).astype(np.float32)
