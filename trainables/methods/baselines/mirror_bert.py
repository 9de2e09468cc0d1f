"""Mirror-BERT (arXiv:2104.08027) on sentences: NT-Xent of a sentence and its copy with a masked span of characters."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trainables.contract.trial import AUGMENT
from trainables.data.tokens import Texts, TokenColumn
from trainables.encoders.network import Encoded, Views
from trainables.methods.baselines.config import MIRROR_BERT, MirrorBertConfig
from trainables.methods.losses import nt_xent
from trainables.methods.method import Batch, Examples, Method, TextTools, mask_text, sampled, tokenised_sentences


def masked(sentence: str, span: int, shortest: int, mask: str, rng: np.random.Generator) -> str:
    """`span` neighbouring characters, wherever they begin, replaced by the mask token between blanks (Sec. 2.1).

    A sentence of fewer than `shortest` characters, or not longer than the span, stays as it is.
    """
    if not span or len(sentence) < shortest or len(sentence) <= span:
        return sentence
    start = int(rng.integers(0, len(sentence) - span))
    return f"{sentence[:start]} {mask} {sentence[start + span :]}"


def prepare(texts: Texts, config: MirrorBertConfig, seed: int, tools: TextTools) -> Examples:
    """Columns "sentence" and, for every epoch, "masked 0" ...: a span of characters is not one of tokens.

    Raises: DataError if the tokenizer has no mask token.
    """
    columns = dict(tokenised_sentences(texts, config, seed, tools).columns)
    if not config.span:
        return Examples(columns)
    mask, sentences = mask_text(tools), list(texts["sentence"])
    used = sampled(len(sentences), config, seed)
    for epoch in range(config.epochs):
        rng = np.random.default_rng([seed, AUGMENT, epoch])
        changed = [masked(sentences[i] or " ", config.span, config.shortest, mask, rng) for i in used]
        made = tools.tokenise(changed, "query")
        starts = np.zeros(len(sentences) + 1, dtype=np.int64)  # of what a sample leaves out: no tokens
        starts[1:][used] = np.diff(made.starts)
        columns[f"masked {epoch}"] = TokenColumn(made.flat, starts.cumsum())
    return Examples(columns)


def views(examples: Examples, batch: Batch, config: MirrorBertConfig, rng: np.random.Generator) -> Views:
    """The sentence, and its copy with the span of this epoch masked."""
    del rng
    positive = f"masked {batch.epoch}" if config.span else "sentence"
    return {"anchor": examples.columns["sentence"].take(batch), "positive": examples.columns[positive].take(batch)}


def loss(z: Encoded, config: MirrorBertConfig) -> Tensor:
    """NT-Xent (Eq. 1)."""
    return nt_xent(z["anchor"], z["positive"], config.temperature)


METHOD = Method(
    declaration=MIRROR_BERT,
    prepare=prepare,
    views=views,
    loss=loss,
    prepared_from=("span", "shortest", "epochs", "sample_size", "seed"),
)
