"""ArcCSE (arXiv:2203.06875): InfoNCE with a margin on the positive's angle, and a triplet of masked sentences.

A sentence entails what is left of it when words are masked, the more words the less: its vector is to be nearer to the
sentence with 20 % of the tokens masked in one span than to that with 40 %, of which the former are a part (Sec. 3.3).
The triplet is encoded without dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.data.tokens import Texts, Tokens
from trainables.encoders.network import Encoded, SentenceNetwork, Views
from trainables.methods.baselines.config import ARCCSE, ArccseConfig
from trainables.methods.losses import cosines, own_column
from trainables.methods.method import Batch, Examples, Method, TextTools, mask_text, tokenised_sentences

PAIR, TRIPLET = ("anchor", "positive"), ("whole", "masked", "masked more")
EDGE = 1e-6  # of the cosine: beyond it the arc cosine has no finite slope


@dataclass(frozen=True, kw_only=True)
class MaskExamples(Examples):
    """mask: id of the mask token."""

    mask: int


def prepare(texts: Texts, config: ArccseConfig, seed: int, tools: TextTools) -> Examples:
    """Tokens, and the mask token's id. Raises: DataError if there is none."""
    columns = tokenised_sentences(texts, config, seed, tools).columns
    return MaskExamples(columns, mask=int(tools.tokenise([mask_text(tools)])[0][0]))


def nested_masks(
    tokens: Tokens, less: float, more: float, mask: int, rng: np.random.Generator
) -> tuple[Tokens, Tokens]:
    """The tokens with a span of round(less * n), and with one of round(more * n) around it, replaced by the mask."""
    n = len(tokens)
    short, long = round(less * n), round(more * n)
    start = int(rng.integers(0, n - long + 1))
    inner = start + int(rng.integers(0, long - short + 1))
    nearer, farther = tokens.copy(), tokens.copy()
    nearer[inner : inner + short] = mask
    farther[start : start + long] = mask
    return nearer, farther


def views(examples: Examples, batch: Batch, config: ArccseConfig, rng: np.random.Generator) -> Views:
    """The sentence twice; for the triplet the sentence and its two masked versions."""
    assert isinstance(examples, MaskExamples)
    # Cut first: a mask in what the encoder cuts off would have no effect.
    kept = [s[: config.max_length - 2] for s in examples.columns["sentence"].take(batch)]
    pair = dict.fromkeys(PAIR, kept)
    if not config.triplet_weight:
        return pair
    start = examples.prompt
    masks = [nested_masks(s[start:], config.masked, config.masked_more, examples.mask, rng) for s in kept]
    masked = {
        role: [np.concatenate([s[:start], m[number]]) for s, m in zip(kept, masks, strict=True)]
        for number, role in enumerate(TRIPLET[1:])
    }
    return pair | {"whole": kept, **masked}


class ArccseNetwork(SentenceNetwork):
    """An encoder that leaves out dropout for the triplet."""

    def encode(self, views: Views) -> dict[str, Tensor]:
        """As `SentenceNetwork.encode`, in two passes."""
        pair = super().encode({role: views[role] for role in PAIR})
        if TRIPLET[0] not in views:
            return pair
        with self._without_dropout():
            return pair | super().encode({role: views[role] for role in TRIPLET})


def arc_con(anchor: Tensor, positive: Tensor, temperature: float, margin: float) -> Tensor:
    """InfoNCE with cos(theta_ii + margin) for the positive's cosine (Eq. 4).

    Args: anchor, positive: (N, D); margin: m in radians. An angle beyond pi - m counts as pi: no wrapping round.
    """
    cosine = cosines(anchor, positive)
    angle = torch.acos(cosine.diagonal().clamp(-1 + EDGE, 1 - EDGE))
    shifted = torch.cos((angle + margin).clamp_max(math.pi)) if margin else cosine.diagonal()
    return own_column((cosine + torch.diag(shifted - cosine.diagonal())) / temperature)


def triplet(whole: Tensor, nearer: Tensor, farther: Tensor, margin: float) -> Tensor:
    """Mean of max(0, cos(whole, farther) - cos(whole, nearer) + margin), vectors (N, D) (Eq. 5)."""
    near, far = (torch.cosine_similarity(whole, other, eps=1e-8) for other in (nearer, farther))
    return (far - near + margin).relu().mean()


def loss(z: Encoded, config: ArccseConfig) -> Tensor:
    """ArcCon + lambda * triplet (Eq. 6)."""
    pairs = arc_con(z["anchor"], z["positive"], config.temperature, math.radians(config.margin_degrees))
    if not config.triplet_weight:
        return pairs
    return pairs + config.triplet_weight * triplet(z["whole"], z["masked"], z["masked more"], config.triplet_margin)


METHOD = Method(declaration=ARCCSE, prepare=prepare, views=views, loss=loss, network=ArccseNetwork)
