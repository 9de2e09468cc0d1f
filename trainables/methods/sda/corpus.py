"""SDA's edits over a whole corpus: offline, in parallel processes, once per parses and options, cached.

An edited text depends on the sentence and the options alone, not on the trial's seed, its neighbours or the number of
processes: as in the public code the augmented file is made once, before all runs (methods 4.1), so every trial and
every later study on the corpus shares it. The seeds of a search differ in initialisation, dropout, batches and the
subset of `augmentation_share`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from trainables import edits, sda_chinese, sda_english, sda_fixed
from trainables.chunks import cores, in_chunks, progress_shown
from trainables.dice import Dice, pick
from trainables.parses import Arrays, Cached, Parses, Token, pack_texts, unpack_texts
from trainables.sda_punctuation import insert_punctuation
from trainables.sda_words import WRITING

Rule = Callable[[Sequence[Token], Dice], str]

NO_EDIT = "none"  # the anchor: tokens joined (D21)
NEGATION = "neg"
AUGMENTATION_SEED = 2023  # the public script's
RULES_VERSION = 1  # part of the cache key: raise it when a rule's output changes
CHUNK = 5000  # sentences handed to a process at a time
ALONE = 20_000  # sentences up to which starting processes costs more than it saves

OFFICIAL: dict[str, dict[str, Rule]] = {
    "en": {
        "pi": partial(insert_punctuation, language="en"),
        "mv": sda_english.add_modal,
        "dn": sda_english.double_negation,
        NEGATION: sda_english.negate,
    },
    "zh": {
        "pi": partial(insert_punctuation, language="zh"),
        "mv": sda_chinese.add_modal,
        "dn": sda_chinese.double_negation,
        NEGATION: sda_chinese.negate,
    },
}
FIXED: dict[str, dict[str, Rule]] = {
    "en": {
        "pi": partial(sda_fixed.insert_punctuation, language="en"),
        "mv": sda_english.add_modal,
        "dn": sda_fixed.double_negation_english,
        NEGATION: sda_fixed.negate_english,
    },
    "zh": {
        "pi": partial(sda_fixed.insert_punctuation, language="zh"),
        "mv": sda_chinese.add_modal,
        "dn": sda_fixed.double_negation_chinese,
        NEGATION: sda_fixed.negate_chinese,
    },
}
RULE_SETS = {"official": OFFICIAL, "fixed": FIXED}


def edited_texts(
    parses: Parses,
    edit: str,
    rule_set: str,
    language: str,
    cached: Cached,
    mask: str = "",
    processes: int | None = None,
) -> list[str]:
    """The text of every sentence after `edit`, from the cache or made now with visible progress.

    Args:
        edit: pi, mv, dn, ensemble, neg, none (tokens joined only) or a comparison edit of `configs.COMPARISON_EDITS`.
        rule_set: "official" or "fixed"; language: "en" or "zh"; mask: the mask token, for edit `mask`.
        processes: None = one per core, few sentences alone in this process.
    Raises: ThesaurusError for `synonym` without WordNet.
    """

    def make() -> Arrays:
        rule_for(edit, rule_set, language, mask)  # a missing thesaurus is found out here, not in a process
        bounds = [(i, min(i + CHUNK, len(parses))) for i in range(0, len(parses), CHUNK)]
        chunks = [(parses.part(*b), edit, rule_set, language, mask) for b in bounds]
        wanted = processes or (1 if len(parses) <= ALONE else cores())
        with progress_shown(f"SDA edit {edit}") as progress:
            parts = in_chunks(_edit_chunk, chunks, [b - a for a, b in bounds], wanted, progress)
        return pack_texts([text for part in parts for text in part], "texts")

    key = (parses.fingerprint, edit, rule_set, language, mask, AUGMENTATION_SEED, RULES_VERSION)
    return unpack_texts(cached("sda_edit", key, make), "texts")


def _edit_chunk(chunk: tuple[Parses, str, str, str, str]) -> list[str]:
    parses, edit, rule_set, language, mask = chunk
    rule, blank, rng = rule_for(edit, rule_set, language, mask), WRITING[language].blank, Random()
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
    """The function behind an edit's name (see `edited_texts`)."""
    rules, blank = RULE_SETS[rule_set][language], WRITING[language].blank
    if edit in rules:
        return rules[edit]
    if edit == "ensemble":  # one rule drawn per sentence (D25)
        drawn = [rules[name] for name in ("pi", "mv", "dn")]
        return lambda tokens, rng: pick(rng, drawn)(tokens, rng)
    if edit == NO_EDIT:
        return partial(_joined, blank=blank)
    change = edits.word_edit(edit, language, mask)
    return lambda tokens, rng: blank.join(change([t.text for t in tokens], rng))


def _joined(tokens: Sequence[Token], rng: Dice, blank: str) -> str:
    del rng
    return blank.join(t.text for t in tokens)
