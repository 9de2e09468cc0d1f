"""SDA (arXiv:2210.03963): a minimal syntactic edit is the positive, the negated sentence a relaxed own negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainables.configs import SdaConfig
from trainables.defaults import AUGMENT, adamw, sentence_network, shuffled_epochs
from trainables.losses import info_nce, info_nce_margin
from trainables.method import Encoded, Examples, Method, Texts, TokenColumn, Views, Workshop
from trainables.sda_corpus import NEGATION, NO_EDIT, edited_texts

PUBLISHED_COVERAGE = {"pi": 0.9814, "mv": 0.8832, "dn": 0.8789}  # Table 2, English Wikipedia
MASK_TOKENS = ("[MASK]", "<mask>")  # BERT's and RoBERTa's family


def prepare(texts: Texts, config: SdaConfig, seed: int, workshop: Workshop) -> Examples:
    """Columns "anchor", "positive" and, if used, "negative", from the parser's tokens (D21).

    Parses and edited texts are made once per corpus and options (`sda_corpus`); only which sentences get their edit at
    an `augmentation_share` below 1 depends on the seed (D27).
    Facts: coverage_<augmentation> and coverage_neg, shares of sentences the rule changes in [0, 1], the former beside
    published_coverage_<augmentation> where Table 2 has it.
    Raises: ParserError, ThesaurusError; ValueError if augmentation `mask` meets a tokenizer without a mask token.
    """
    parses = workshop.parse(texts["sentence"])
    mask = _mask_token(workshop) if config.augmentation == "mask" else ""

    def edited(edit: str) -> list[str]:
        return edited_texts(parses, edit, config.rule_set, workshop.language, workshop.cached, mask)

    anchor_texts = edited(NO_EDIT)
    columns = {"anchor": workshop.tokenise(anchor_texts)}
    facts = {}
    for role, edit in {"positive": config.augmentation, "negative": NEGATION}.items():
        if role == "negative" and not config.negation_negative:
            continue
        edited_role = edited(edit)
        columns[role] = workshop.tokenise(edited_role)
        changed = sum(a != b for a, b in zip(anchor_texts, edited_role, strict=True))
        facts[f"coverage_{edit}"] = changed / max(len(anchor_texts), 1)
        if edit in PUBLISHED_COVERAGE and workshop.language == "en":
            facts[f"published_coverage_{edit}"] = PUBLISHED_COVERAGE[edit]
    columns["positive"] = shared(columns["positive"], columns["anchor"], config.augmentation_share, seed)
    return Examples(columns, facts=facts)


def shared(edited: TokenColumn, plain: TokenColumn, share: float, seed: int) -> TokenColumn:
    """Exactly round(share * n) sentences of `edited`, a random subset fixed for the run, the rest of `plain` (D27).

    With one seed the subset of a smaller share lies within that of a larger one.
    """
    n = len(edited)
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng([seed, AUGMENT]).permutation(n)[: round(share * n)]] = True
    if chosen.all():
        return edited
    rows = [(edited if c else plain)[i] for i, c in enumerate(chosen)]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return TokenColumn(np.concatenate(rows), starts)


def _mask_token(workshop: Workshop) -> str:
    for token in MASK_TOKENS:
        if len(workshop.tokenise([token])[0]) == 1:
            return token
    raise ValueError(f"augmentation mask: expected a tokenizer with one of {', '.join(MASK_TOKENS)}, found neither")


def views(examples: Examples, batch: NDArray[np.int64], config: SdaConfig, rng: np.random.Generator) -> Views:
    """Anchor, its edit and its negation, all in one training-mode pass."""
    del config, rng
    return {role: column.take(batch) for role, column in examples.columns.items()}


def loss(z: Encoded, config: SdaConfig) -> Tensor:
    """Eq. 4: N + 1 logits per anchor, delta taken off the negation's cosine (D23, D24); plain InfoNCE without it."""
    if not config.negation_negative:
        return info_nce(z["anchor"], z["positive"], config.temperature)
    return info_nce_margin(
        z["anchor"], z["positive"], z["negative"], config.temperature, config.delta, config.negation_scope
    )


METHOD = Method(
    "sda",
    SdaConfig,
    prepare,
    shuffled_epochs,
    views,
    loss,
    sentence_network,
    adamw,
    prepared_from=("augmentation", "rule_set", "negation_negative", "augmentation_share", "seed"),
)
