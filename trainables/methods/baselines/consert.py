"""ConSERT (arXiv:2105.11741), unsupervised: NT-Xent of two views made at the embedding layer.

shuffle: the tokens in another order, which to an encoder with position embeddings is the authors' shuffled positions;
special tokens keep their places here. Cutoff: a sentence's tokens, or features of all its tokens, are set to zero.
Cutoffs are drawn where dropout masks are, from torch's generator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainables.data.tokens import Tokens, behind_prompt
from trainables.encoders.load import LoadedEncoder
from trainables.encoders.network import Encoded, SentenceNetwork, Views
from trainables.encoders.packing import Packed, to_device
from trainables.methods.baselines.config import CONSERT, ConsertConfig
from trainables.methods.losses import nt_xent
from trainables.methods.method import Batch, Examples, Method

ROLES = ("anchor", "positive")
SPECIAL_TOKENS = 2


def shuffled(tokens: Tokens, max_length: int, rng: np.random.Generator) -> Tokens:
    """The tokens that remain (max_length, special ones included), in random order."""
    order: Tokens = rng.permutation(tokens[: max_length - SPECIAL_TOKENS])
    return order


def token_cutoff(noise: Tensor, packed: Packed, share: float) -> Tensor:
    """(T,) True for the floor(share * length) tokens of each sentence whose noise is smallest.

    Args: noise: (T,) draws; packed: where the sentences lie.
    """
    rank = packed.pad(noise, float("inf")).argsort(dim=1, stable=True).argsort(1)
    cut = rank < (packed.lengths_tensor * share).floor()[:, None]
    return cut.flatten().index_select(0, packed.slots)


def feature_cutoff(noise: Tensor, share: float) -> Tensor:
    """(S, H) True for the floor(share * H) features of each sentence whose noise (S, H) is smallest."""
    return noise.argsort(dim=1, stable=True).argsort(1) < int(share * noise.shape[1])


class ConsertNetwork(SentenceNetwork):
    """An encoder whose embedding layer's output is cut, in training, as its role requires."""

    def __init__(self, config: ConsertConfig, loaded: LoadedEncoder, seed: int) -> None:
        super().__init__(config, loaded, seed)
        self.cut_of = dict(zip(ROLES, (config.first_view, config.second_view), strict=True))
        self.token_share, self.feature_share = config.token_cutoff, config.feature_cutoff

    def encode(self, views: Views) -> dict[str, Tensor]:
        """As `SentenceNetwork.encode`, with cutoff."""
        packed = self._pack([tokens for rows in views.values() for tokens in rows])
        kinds = np.repeat([self.cut_of[role] for role in views], [len(rows) for rows in views.values()])[packed.order]

        def change(x: Tensor) -> Tensor:
            of_token = {k: np.repeat(kinds == k, packed.lengths) for k in ("token_cutoff", "feature_cutoff")}
            cut = {kind: to_device(of, x.device) for kind, of in of_token.items()}
            if of_token["token_cutoff"].any():
                drawn = token_cutoff(torch.rand(len(x), device=x.device), packed, self.token_share)
                x = x.masked_fill((drawn & cut["token_cutoff"])[:, None], 0.0)
            if of_token["feature_cutoff"].any():
                noise = torch.rand(len(packed), x.shape[1], device=x.device)
                drawn = feature_cutoff(noise, self.feature_share).index_select(0, packed.sentence)
                x = x.masked_fill(drawn & cut["feature_cutoff"][:, None], 0.0)
            return x

        vectors = self._pooled(packed, change)
        return dict(zip(views, torch.split(vectors, [len(rows) for rows in views.values()]), strict=True))


def views(examples: Examples, batch: Batch, config: ConsertConfig, rng: np.random.Generator) -> Views:
    """The sentence twice, shuffled where the role requires it."""
    sentences = examples.columns["sentence"].take(batch)

    def shuffle(tokens: Tokens) -> Tokens:
        return shuffled(tokens, config.max_length - examples.prompt, rng)

    return {
        role: [behind_prompt(s, examples.prompt, shuffle) for s in sentences] if view == "shuffle" else sentences
        for role, view in zip(ROLES, (config.first_view, config.second_view), strict=True)
    }


def loss(z: Encoded, config: ConsertConfig) -> Tensor:
    """NT-Xent (Eq. 1)."""
    return nt_xent(z["anchor"], z["positive"], config.temperature)


METHOD = Method(declaration=CONSERT, views=views, loss=loss, network=ConsertNetwork)
