"""SDA's edits over a whole corpus: once per parses and options, cached; and the edits that it is compared with.

An edited text depends on the sentence and the options alone, not on the trial's seed or its neighbours: as in the
public code the augmented file is made once, before all runs (methods 4.1), so every trial and every later study on the
corpus shares it. Seeds differ in initialisation, dropout, batches and the subset of `augmentation_share`.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from random import Random

from trainables.contract.errors import DataError
from trainables.contract.limits import share_of_cores
from trainables.data.parses import Cached, Parses, in_chunks
from trainables.methods.sda import corrected
from trainables.methods.sda import rules as official
from trainables.methods.sda.config import COMPARISON_EDITS
from trainables.methods.sda.rules import LANGUAGES, Dice, Rule, pick, pick_places

Words = list[str]
Synonyms = Callable[[str], Sequence[str]]  # word -> words of the same meaning, itself not among them

NO_EDIT, NEGATION = "none", "neg"  # none: the anchor, tokens joined (D21)
RULE_SETS: dict[str, dict[str, dict[str, Rule]]] = {
    "official": official.RULES,
    "fixed": corrected.RULES,
    "paper": corrected.PRINTED,
}
AUGMENTATION_SEED = 2023  # the public script's
RULES_VERSION = 4  # part of the cache key: raise it when a rule's output changes
CHUNK = 5000  # sentences handed to a process at a time
ALONE = 20_000  # sentences up to which starting processes costs more than it saves

MASK_SHARE = 0.15
REPEAT_SHARE = 0.32  # ESimCSE's dup_rate
SYNONYM_SHARE = 0.10  # EDA's alpha
MARKS = {"en": (".", ";", "?", ":", "!", ","), "zh": ("。", "；", "？", "：", "！", "，")}  # AEDA's six


class ThesaurusError(DataError):
    """The thesaurus is missing; the message names the command that installs it."""


def edited_texts(
    parses: Parses,
    edit: str,
    rule_set: str,
    language: str,
    cached: Cached,
    mask: str = "",
) -> list[str]:
    """The text of every sentence after `edit`, from the cache or made now with visible progress.

    Args:
        edit: pi, mv, dn, ensemble, neg, none (tokens joined only) or a comparison edit of `COMPARISON_EDITS`.
        rule_set: of `RULE_SETS`; language: "en" or "zh"; mask: the mask token, for edit `mask`.
    Raises: ThesaurusError for `synonym` without WordNet.
    """

    def make() -> list[str]:
        rule_for(edit, rule_set, language, mask)  # raises here, not in a process, if the thesaurus is missing
        bounds = [(i, min(i + CHUNK, len(parses))) for i in range(0, len(parses), CHUNK)]
        chunks = [(parses.part(*b), edit, rule_set, language, mask) for b in bounds]
        processes = 1 if len(parses) <= ALONE else share_of_cores()
        parts = in_chunks(_edit_chunk, chunks, processes, f"SDA edit {edit}")
        return [text for part in parts for text in part]

    key = (parses.fingerprint, edit, rule_set, language, mask, AUGMENTATION_SEED, RULES_VERSION)
    found: list[str] = cached("sda_edit", key, make)
    return found


def _edit_chunk(chunk: tuple[Parses, str, str, str, str]) -> list[str]:
    parses, edit, rule_set, language, mask = chunk
    rule, blank, rng = rule_for(edit, rule_set, language, mask), LANGUAGES[language].blank, Random()
    stream = AUGMENTATION_SEED << 64 | zlib.crc32(edit.encode()) << 32
    texts = []
    for tokens in parses.sentences():
        if not tokens:
            texts.append("")
            continue
        rng.seed(stream | zlib.crc32(blank.join(t.text for t in tokens).encode()))
        texts.append(rule(tokens, rng))
    return texts


def rule_for(edit: str, rule_set: str, language: str, mask: str = "") -> Rule:
    """The function behind an edit's name (see `edited_texts`).

    Raises: ValueError where the rule set has no rules for the language.
    """
    if language not in RULE_SETS[rule_set]:
        raise ValueError(
            f"rule_set {rule_set}: its rules are English, got language {language!r}; use official or fixed"
        )
    rules = RULE_SETS[rule_set][language]
    if edit in rules:
        return rules[edit]
    if edit == "ensemble":  # one rule drawn per sentence (D25)
        drawn = [rules[name] for name in ("pi", "mv", "dn")]
        return lambda tokens, rng: pick(rng, drawn)(tokens, rng)
    change = word_edit(edit, language, mask)
    if rule_set == "official":
        blank = LANGUAGES[language].blank
        return lambda tokens, rng: blank.join(change([t.text for t in tokens], rng))
    return lambda tokens, rng: corrected.joined(change(corrected.words_of(tokens, language), rng), language)


# ------------------------------------------------------------ comparison edits (Tables 8 and 9)
# The paper names them without their details; each docstring names the recipe that is followed. An edit takes the words
# of a sentence (at least one) and returns words; shares are of the words. An edit by share changes at least one word
# and leaves at least one: a sentence of one word is not cropped, deleted or masked.
def word_edit(name: str, language: str, mask: str = "") -> Callable[[Sequence[str], Dice], Words]:
    """The edit of a name in `COMPARISON_EDITS`.

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
    raise AssertionError(f"{name}: the configuration allows {', '.join(COMPARISON_EDITS)}")


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
    specification (4.5) requires masking, so they stay masked here.
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
