"""The builtin corpora and word vectors, read from the files beside this one; README.md is their datasheet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError

FOLDER = Path(__file__).parent
LANGUAGES = ("en", "zh")
DIM = 300  # of the word vectors
FAMILY_WEIGHT, CONCEPT_WEIGHT, WORD_WEIGHT = 0.5, 1.0, 0.6  # standard deviations of the parts of a word's vector
SCALE = 0.1  # root mean square of a part of weight 1; near word2vec's
SEED = 20211


def corpus_file(language: str, part: str) -> Path:
    """The file of a part of a corpus: "sentences", "triplets", or the scored pairs of "dev" or "test"."""
    suffix = "txt" if part == "sentences" else "tsv"
    return FOLDER / f"{language}_{part}.{suffix}.gz"


def word_vectors(language: str) -> tuple[list[str], NDArray[np.float32]]:
    """Words (lower-cased, without apostrophes) and their vectors, (words, 300); equal calls give equal numbers.

    A content word's vector is the sum of a part of its family, one of its concept and one of its own; a function
    word has only the last. English words come with all their inflected forms; Chinese words are segmented words.
    The numbers are drawn here: stored, they would take a megabyte.

    Raises: DataError for a language without a builtin corpus.
    """
    if language not in LANGUAGES:
        raise DataError(f"expected a language with a builtin corpus ({', '.join(LANGUAGES)}), got {language!r}")
    known = json.loads((FOLDER / "words.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng([SEED, DIM, len(language), language == "zh"])
    families, concepts = rng.standard_normal((len(known["family"]), 2, DIM)).swapaxes(0, 1)
    meanings = FAMILY_WEIGHT * families[known["family"]] + CONCEPT_WEIGHT * concepts
    vectors = []
    for of in known[language].values():
        own = rng.standard_normal(DIM)
        vectors.append(meanings[of].mean(axis=0) + WORD_WEIGHT * own if of else own)
    return list(known[language]), (SCALE * np.stack(vectors)).astype(np.float32)
