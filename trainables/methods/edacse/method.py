"""EdaCSE (Appl. Sci. 2023, 13, 10120): SimCSE plus a second InfoNCE term with inserted punctuation.

loss = nce(h, h') + lambda * nce(h, g): h, h' are two dropout views of a sentence, g the sentence with a few marks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.streams import AUGMENT
from trainables.data.tokens import Texts, TokenColumn, Tokens
from trainables.encoders.network import Encoded, Views
from trainables.methods.edacse.config import EDACSE, EdacseConfig
from trainables.methods.edacse.insertion import insert_mark_ids, insert_marks, isolated_marks, unit_ends
from trainables.methods.losses import info_nce
from trainables.methods.method import Batch, Examples, Method, TextTools
from trainables.methods.shared import PLAIN_ENCODER, adamw, sampled, sentence_network, shuffled_epochs


@dataclass(frozen=True, kw_only=True)
class MarkedExamples(Examples):
    """Examples of one column "sentence" and "ends", where marks go.

    marks: (A,) token ids of the alphabet.
    on_text: (n,) row in `prepared` of a sentence whose marks must be inserted as text, else -1.
    prepared: for every epoch those sentences with their marks inserted, tokenised.
    """

    marks: NDArray[np.int32]
    on_text: NDArray[np.int64]
    prepared: tuple[TokenColumn, ...]


def _plain(config: EdacseConfig) -> bool:
    return config.max_marks == 0 or config.lambda_ == 0  # nothing but SimCSE: no third encoding


def prepare(texts: Texts, config: EdacseConfig, seed: int, tools: TextTools) -> Examples:
    """Token and unit columns; sentences whose tokens marks would change get their insertions here, one per epoch."""
    sentences = [s or " " for s in texts["sentence"]]
    tokens = tools.tokenise(sentences)
    if _plain(config):
        return Examples({"sentence": tokens})
    marks = isolated_marks(config.alphabet, tools.tokenise)
    if marks is None:
        empty = TokenColumn(np.empty(0, np.int32), np.zeros(len(sentences) + 1, np.int64))
        marks, ends, by_ids = np.empty(0, np.int32), empty, np.zeros(len(sentences), bool)
    else:
        ends, by_ids = tools.cached(
            "unit_ends",
            (config.unit, config.alphabet, tokens, sentences),  # the tokens stand for the tokenizer
            lambda: unit_ends(sentences, tokens, config.unit, config.alphabet, tools.tokenise),
        )
    needed = sampled(len(sentences), config, seed)
    needed = needed[~by_ids[needed]]
    on_text = np.full(len(sentences), -1, np.int64)
    on_text[needed] = np.arange(len(needed))
    prepared = []
    for epoch in range(config.epochs if len(needed) else 0):
        rng = np.random.default_rng([seed, AUGMENT, epoch])
        inserted = [insert_marks(sentences[i], config.max_marks, config.alphabet, rng, config.unit) for i in needed]
        prepared.append(tools.tokenise(inserted))
    return MarkedExamples(
        {"sentence": tokens, "ends": ends},
        facts={"inserted_as_text_share": float(1 - by_ids.mean())},
        marks=marks,
        on_text=on_text,
        prepared=tuple(prepared),
    )


def views(examples: Examples, batch: Batch, config: EdacseConfig, rng: np.random.Generator) -> Views:
    """The sentence twice, and once with new marks (3.3 point 5: new draws at every use)."""
    sentences = examples.columns["sentence"].take(batch)
    if _plain(config):
        return {"anchor": sentences, "positive": sentences}
    assert isinstance(examples, MarkedExamples)
    ends = examples.columns["ends"]

    def augmented(tokens: Tokens, i: int) -> Tokens:
        if (row := examples.on_text[i]) >= 0:
            return examples.prepared[batch.epoch][int(row)]
        return insert_mark_ids(tokens, ends[i], examples.marks, config.max_marks, rng)

    marked = [augmented(tokens, i) for tokens, i in zip(sentences, batch, strict=True)]
    return {"anchor": sentences, "positive": sentences, "augmented": marked}


def loss(z: Encoded, config: EdacseConfig) -> Tensor:
    """nce(h, h') + lambda * nce(h, g); the negatives of the second term are the other augmented sentences (D13)."""
    between_views = info_nce(z["anchor"], z["positive"], config.temperature)
    if _plain(config):
        return between_views
    return between_views + config.lambda_ * info_nce(z["anchor"], z["augmented"], config.temperature)


METHOD = Method(
    declaration=EDACSE,
    prepare=prepare,
    plan=shuffled_epochs,
    views=views,
    loss=loss,
    network=sentence_network,
    optimiser=adamw,
    prepared_from=("max_marks", "lambda_", "alphabet", "unit", "epochs", "sample_size", "seed"),
    untrained=PLAIN_ENCODER,
)
