"""SDA (arXiv:2210.03963): a minimal syntactic edit is the positive, the negated sentence a relaxed own negative."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from trainables.contract.trial import AUGMENT
from trainables.data.tokens import Texts, TokenColumn
from trainables.encoders.network import Encoded
from trainables.methods.losses import info_nce, info_nce_margin
from trainables.methods.method import Examples, Method, TextTools, all_columns, mask_text, share_changed
from trainables.methods.sda.config import SDA, SdaConfig
from trainables.methods.sda.edits import AUGMENTATION_SEED, NEGATION, NO_EDIT, RULES_VERSION, edited_texts

PUBLISHED_COVERAGE = {"pi": 0.9814, "mv": 0.8832, "dn": 0.8789}  # Table 2, English Wikipedia


def prepare(texts: Texts, config: SdaConfig, seed: int, tools: TextTools) -> Examples:
    """Columns "anchor", "positive" and, if used, "negative", from the parser's tokens (D21).

    Parses and edited texts are made once per corpus and options (`edits`); only which sentences get their edit at
    an `augmentation_share` below 1 depends on the seed (D27).
    Facts: coverage_<augmentation> and coverage_neg, shares of sentences the rule changes in [0, 1], the former beside
    published_coverage_<augmentation> where Table 2 has it; jaccard_<augmentation> and jaccard_neg (Sec. 6.3).
    Raises: ParserError, ThesaurusError; DataError if augmentation `mask` meets a tokenizer without a mask token.
    """
    parses = tools.parse(texts["sentence"])
    mask = mask_text(tools) if config.augmentation == "mask" else ""

    def edited(edit: str) -> list[str]:
        return edited_texts(parses, edit, config.rule_set, tools.language, tools.cached, mask)

    anchor_texts = edited(NO_EDIT)
    columns = {"anchor": tools.tokenise(anchor_texts, "query")}
    facts = {}
    for role, edit in {"positive": config.augmentation, "negative": NEGATION}.items():
        if role == "negative" and not config.negation_negative:
            continue
        edited_role = edited(edit)
        columns[role] = tools.tokenise(edited_role, "query")
        facts[f"coverage_{edit}"] = share_changed(anchor_texts, edited_role)
        made_from = [parses.fingerprint, edit, config.rule_set, tools.language, mask, AUGMENTATION_SEED, RULES_VERSION]
        facts[f"jaccard_{edit}"] = tools.cached(
            "sda_jaccard", made_from, partial(mean_jaccard, anchor_texts, edited_role, tools.language)
        )
        if edit in PUBLISHED_COVERAGE and tools.language == "en":
            facts[f"published_coverage_{edit}"] = PUBLISHED_COVERAGE[edit]
    columns["positive"] = partly_edited(columns["positive"], columns["anchor"], config.augmentation_share, seed)
    return Examples(columns, facts=facts)


def mean_jaccard(first: Sequence[str], second: Sequence[str], language: str) -> float:
    """Mean over sentences of |A & B| / |A | B| in [0, 1], A and B the sets of words (Chinese: of characters).

    1 for two empty texts and for an empty corpus.
    """

    def words(text: str) -> set[str]:
        return set(text.split()) if language == "en" else set(text) - {" "}

    pairs = [(words(a), words(b)) for a, b in zip(first, second, strict=True)]
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs])) if pairs else 1.0


def partly_edited(edited: TokenColumn, plain: TokenColumn, share: float, seed: int) -> TokenColumn:
    """Exactly round(share * n) sentences of `edited`, a random subset fixed for the run, the rest of `plain` (D27).

    With one seed the subset of a smaller share lies within that of a larger one.
    """
    n = len(edited)
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng([seed, AUGMENT]).permutation(n)[: round(share * n)]] = True
    if chosen.all():
        return edited
    rows = [(edited if c else plain)[i] for i, c in enumerate(chosen)]
    return TokenColumn(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def loss(z: Encoded, config: SdaConfig) -> Tensor:
    """Eq. 4: N + 1 logits per anchor, delta taken off the negation's cosine (D23, D24); plain InfoNCE without it."""
    if not config.negation_negative:
        return info_nce(z["anchor"], z["positive"], config.temperature)
    return info_nce_margin(
        z["anchor"], z["positive"], z["negative"], config.temperature, config.delta, config.negation_scope
    )


METHOD = Method(
    declaration=SDA,
    prepare=prepare,
    views=all_columns,
    loss=loss,
    prepared_from=("augmentation", "rule_set", "negation_negative", "augmentation_share", "seed"),
)
