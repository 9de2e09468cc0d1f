"""Augmentation of whole sentences, which GCLSR's tables compare with that of word vectors: EDA and back-translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from trainables.contract.errors import DataError
from trainables.data.files import read_table
from trainables.methods.sda.comparison_edits import Synonyms, replace_synonyms

PAIR = ("sentence", "translation")  # columns of a file of back-translations


def eda(words: Sequence[str], rng: Random, share: float, synonyms: Synonyms) -> list[str]:
    """One of EDA's four operations, each equally likely, with n = max(1, floor(share * words)) (arXiv:1901.11196).

    Synonym replacement of n words; n synonyms of random words inserted anywhere; n swaps of two words; every word left
    out with probability `share`, but for one. Of fewer than two words nothing is swapped or left out.
    """
    n, edited = max(1, int(share * len(words))), list(words)
    match rng.randrange(4):
        case 0:
            return replace_synonyms(words, rng, synonyms, share)
        case 1:
            known = [found for word in words if (found := synonyms(word))]
            for _ in range(n if known else 0):
                edited.insert(rng.randrange(len(edited) + 1), rng.choice(rng.choice(known)))
        case 2 if len(edited) > 1:
            for _ in range(n):
                i, j = rng.sample(range(len(edited)), 2)
                edited[i], edited[j] = edited[j], edited[i]
        case 3 if len(edited) > 1:
            edited = [word for word in words if rng.random() >= share] or [rng.choice(words)]
    return edited


def check_words(sentences: Sequence[str], language: str) -> None:
    """That EDA finds words in them, which blanks part. Raises: DataError for Chinese that is written as usual."""
    if language == "zh" and sum(len(s.split()) > 1 for s in sentences) < len(sentences) / 2:
        raise DataError(
            "params.sentence_augmentation: eda changes words with blanks between them, and to it most of the training "
            "sentences are one word; put blanks between the words, or use back_translation"
        )


def back_translations(path: str) -> Mapping[str, str]:
    """Sentence -> its translation into another language and back, from a table with columns sentence and translation.

    Raises: DataError naming the file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"params.back_translations: no such file: {path}")

    def columns(header: Sequence[str]) -> dict[str, str]:
        if missing := [name for name in PAIR if name not in header]:
            raise DataError(f"{file}: expected columns {' and '.join(PAIR)}, got no {missing[0]}")
        return {name: name for name in PAIR}

    table = read_table(file, columns).columns
    return dict(zip(table["sentence"], table["translation"], strict=True))
