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

from trainables.data.parses import Parses, Token
from trainables.data.parsing import Cached, cores, in_chunks
from trainables.methods.sda import chinese, comparison_edits, english, fixed, fixed_chinese, fixed_english, paper
from trainables.methods.sda import punctuation as sda_punctuation
from trainables.methods.sda.dice import Dice, pick
from trainables.methods.sda.words import WRITING

Rule = Callable[[Sequence[Token], Dice], str]

NO_EDIT = "none"  # the anchor: tokens joined (D21)
NEGATION = "neg"
AUGMENTATION_SEED = 2023  # the public script's
RULES_VERSION = 4  # part of the cache key: raise it when a rule's output changes
CHUNK = 5000  # sentences handed to a process at a time
ALONE = 20_000  # sentences up to which starting processes costs more than it saves

RULE_SETS: dict[str, dict[str, dict[str, Rule]]] = {
    "official": {
        "en": {
            NO_EDIT: partial(sda_punctuation.plain, language="en"),
            "pi": partial(sda_punctuation.insert_punctuation, language="en"),
            "mv": english.add_modal,
            "dn": english.double_negation,
            NEGATION: english.negate,
        },
        "zh": {
            NO_EDIT: partial(sda_punctuation.plain, language="zh"),
            "pi": partial(sda_punctuation.insert_punctuation, language="zh"),
            "mv": chinese.add_modal,
            "dn": chinese.double_negation,
            NEGATION: chinese.negate,
        },
    },
    "fixed": {
        "en": {
            NO_EDIT: partial(fixed.plain, language="en"),
            "pi": partial(fixed.insert_punctuation, language="en"),
            "mv": fixed_english.add_modal,
            "dn": fixed_english.double_negation,
            NEGATION: fixed_english.negate,
        },
        "zh": {
            NO_EDIT: partial(fixed.plain, language="zh"),
            "pi": partial(fixed.insert_punctuation, language="zh"),
            "mv": fixed_chinese.add_modal,
            "dn": fixed_chinese.double_negation,
            NEGATION: fixed_chinese.negate,
        },
    },
    "paper": {  # no Chinese: the paper prints none
        "en": {
            NO_EDIT: partial(fixed.plain, language="en"),
            "pi": paper.insert_punctuation,
            "mv": paper.add_modal,
            "dn": paper.double_negation,
            NEGATION: fixed_english.negate,
        },
    },
}


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
        edit: pi, mv, dn, ensemble, neg, none (tokens joined only) or a comparison edit of `config.COMPARISON_EDITS`.
        rule_set: of `RULE_SETS`; language: "en" or "zh"; mask: the mask token, for edit `mask`.
        processes: None = one per core, few sentences alone in this process.
    Raises: ThesaurusError for `synonym` without WordNet.
    """

    def make() -> list[str]:
        rule_for(edit, rule_set, language, mask)  # a missing thesaurus is found out here, not in a process
        bounds = [(i, min(i + CHUNK, len(parses))) for i in range(0, len(parses), CHUNK)]
        chunks = [(parses.part(*b), edit, rule_set, language, mask) for b in bounds]
        wanted = processes or (1 if len(parses) <= ALONE else cores())
        parts = in_chunks(_edit_chunk, chunks, wanted, f"SDA edit {edit}")
        return [text for part in parts for text in part]

    key = (parses.fingerprint, edit, rule_set, language, mask, AUGMENTATION_SEED, RULES_VERSION)
    found: list[str] = cached("sda_edit", key, make)
    return found


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
    change = comparison_edits.word_edit(edit, language, mask)
    if rule_set == "official":
        blank = WRITING[language].blank
        return lambda tokens, rng: blank.join(change([t.text for t in tokens], rng))
    return lambda tokens, rng: fixed.joined(change(fixed.words_of(tokens, language), rng), language)
