"""The discrete edits SDA is compared with (arXiv:2210.03963, Tables 8 and 9), which may well change the meaning.

The paper names them without their details; each docstring says whose recipe is followed. An edit takes the words of a
sentence (at least one) and returns words; shares are of the words, and every edit by share changes at least one word
and leaves at least one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from trainables.contract.errors import DataError
from trainables.methods.sda.config import COMPARISON_EDITS
from trainables.methods.sda.dice import Dice, pick, pick_places

Words = list[str]
Synonyms = Callable[[str], Sequence[str]]  # word -> words of the same meaning, itself not among them

MASK_SHARE = 0.15
REPEAT_SHARE = 0.32  # ESimCSE's dup_rate
SYNONYM_SHARE = 0.10  # EDA's alpha
MARKS = {"en": (".", ";", "?", ":", "!", ","), "zh": ("。", "；", "？", "：", "！", "，")}  # AEDA's six


class ThesaurusError(DataError):
    """The thesaurus is missing; the message says how to get it."""


def word_edit(name: str, language: str, mask: str = "") -> Callable[[Sequence[str], Dice], Words]:
    """The edit of a name in `config.COMPARISON_EDITS`.

    Args:
        language: "en" or "zh"; mask: the tokenizer's mask token, for `mask`.
    Raises: ThesaurusError for `synonym` without WordNet.
    """
    match name:
        case "crop_10" | "crop_20" | "crop_30":
            return functools.partial(crop, share=int(name[-2:]) / 100)
        case "delete_10" | "delete_20" | "delete_30":
            return functools.partial(delete_words, share=int(name[-2:]) / 100)
        case "synonym":
            return functools.partial(replace_synonyms, synonyms=wordnet(language))
        case "mask":
            return functools.partial(mask_words, mask=mask)
        case "repeat":
            return repeat_words
        case "random_punctuation":
            return functools.partial(insert_random_marks, language=language)
    raise ValueError(f"edit: expected one of {', '.join(COMPARISON_EDITS)}, got {name!r}")


def crop(words: Sequence[str], rng: Dice, share: float) -> Words:
    """A random span without `share` of the words (SimCSE Table 1, "crop k %")."""
    dropped = _count(len(words), share)
    start = rng.randrange(dropped + 1)
    return list(words[start : start + len(words) - dropped])


def delete_words(words: Sequence[str], rng: Dice, share: float) -> Words:
    """Without `share` of the words, at random places (SimCSE Table 1, "word deletion k %")."""
    gone = set(pick_places(rng, len(words), _count(len(words), share)))
    return [w for i, w in enumerate(words) if i not in gone]


def mask_words(words: Sequence[str], rng: Dice, mask: str, share: float = MASK_SHARE) -> Words:
    """`share` of the words, at random places, become `mask`.

    The cell of SDA Table 8 equals that of SimCSE Table 1's "MLM 15 %", where a BERT fills the masked places; the method
    specification (4.5) says mask, so they stay masked here.
    """
    edited = list(words)
    for i in pick_places(rng, len(words), _count(len(words), share)):
        edited[i] = mask
    return edited


def repeat_words(words: Sequence[str], rng: Dice, share: float = REPEAT_SHARE) -> Words:
    """Some words twice: a uniform number in 0..max(2, int(share * n)) of them (ESimCSE, arXiv:2109.04380, Sec. 3.1)."""
    most = min(len(words), max(2, int(share * len(words))))
    twice = set(pick_places(rng, len(words), rng.randrange(most + 1)))
    return [w for i, word in enumerate(words) for w in ([word, word] if i in twice else [word])]


def insert_random_marks(words: Sequence[str], rng: Dice, language: str) -> Words:
    """A uniform number in 1..max(1, n // 3) of random marks before random distinct words (AEDA, arXiv:2108.13276)."""
    count = 1 + rng.randrange(max(1, len(words) // 3))
    before = set(pick_places(rng, len(words), count))
    return [w for i, word in enumerate(words) for w in ([pick(rng, MARKS[language]), word] if i in before else [word])]


def replace_synonyms(words: Sequence[str], rng: Dice, synonyms: Synonyms, share: float = SYNONYM_SHARE) -> Words:
    """Of the words that have synonyms, max(1, floor(share * words)) become one of theirs (EDA, arXiv:1901.11196)."""
    edited = list(words)
    choices = [(i, found) for i, word in enumerate(words) if (found := synonyms(word))]
    count = min(len(choices), max(1, int(share * len(words))))
    for j in pick_places(rng, len(choices), count):
        i, found = choices[j]
        edited[i] = pick(rng, found)
    return edited


def wordnet(language: str) -> Synonyms:
    """WordNet's synonyms through NLTK: English, and Chinese by the Open Multilingual Wordnet.

    Raises: ThesaurusError if NLTK or the data is missing.
    """
    try:
        from nltk.corpus import wordnet as reader
    except ImportError as error:
        raise ThesaurusError(
            "augmentation synonym needs NLTK, which is not installed: `pip install 'contrastive-search[sda]'`"
        ) from error
    code = {"en": "eng", "zh": "cmn"}[language]
    try:
        reader.synsets("dog")
        if language != "en":
            reader.synsets("狗", lang=code)
    except LookupError as error:
        raise ThesaurusError(
            "augmentation synonym needs WordNet, which is not installed: `python -m nltk.downloader wordnet omw-1.4`"
        ) from error

    @functools.cache
    def synonyms(word: str) -> Sequence[str]:
        found = {
            name.replace("_", " ")
            for synset in reader.synsets(word.lower(), lang=code)
            for name in synset.lemma_names(lang=code)
        }
        return sorted(found - {word, word.lower()})  # sorted: sets of text have no fixed order

    return synonyms


def _count(n: int, share: float) -> int:
    """How many of n words a share is: at least 1, at most n - 1."""
    return min(n - 1, max(1, round(share * n)))
