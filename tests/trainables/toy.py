"""A method small enough to train in milliseconds: averaged embeddings, InfoNCE between a sentence and itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from trainables.contract.declaration import Declaration
from trainables.data.tokens import TokenColumn, Tokens
from trainables.encoders.network import Encoded, Network, Views
from trainables.methods.method import Examples, Method
from trainables.methods.simcse.config import SimcseConfig
from trainables.methods.simcse.method import loss, views

WORDS = 50


class ToyNetwork(Network):
    """Mean of word vectors with dropout, a linear head in training."""

    whole_batch = ("head",)

    def __init__(self, config: SimcseConfig, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.EmbeddingBag(WORDS, 8, mode="mean")
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def _mean(self, rows: Sequence[Tokens]) -> Tensor:
        flat = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        starts = torch.tensor([0, *np.cumsum([len(r) for r in rows])[:-1]])
        return self.words(flat, starts)

    def encode(self, views: Views) -> dict[str, Tensor]:
        return {role: self.dropout(self._mean(rows)) for role, rows in views.items()}

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        joined = self.head(torch.cat(list(pooled.values())))
        return dict(zip(pooled, joined.split([len(v) for v in pooled.values()]), strict=True))

    @torch.no_grad()
    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        return self._mean(sequences)


METHOD = Method(
    untrained=None,
    declaration=Declaration(name="toy", config=SimcseConfig),
    views=views,
    loss=loss,
    network=lambda config, _source, seed: ToyNetwork(config, seed),
)


def examples(n: int = 64, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, n)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    column = TokenColumn(rng.integers(0, WORDS, starts[-1]).astype(np.int32), starts)
    return Examples({"sentence": column}, facts={"f": 1.0})


def evaluate(embed):
    """Spearman against word overlap of neighbouring sentences; similarities as the loop stores them."""
    rows = [examples(40, seed=1).columns["sentence"][i] for i in range(40)]
    z = nn.functional.normalize(embed(rows), dim=1)
    cosine = (z[:-1] * z[1:]).sum(1).numpy()
    gold = [len(set(a) & set(b)) for a, b in pairwise(rows)]
    value = float(spearmanr(cosine, gold).statistic)
    return value, {"toy_dev": value}, {"toy_dev": cosine.astype(np.float32)}
