"""Whitening (arXiv:2103.15316): vectors are centred, rotated and scaled to unit variance; nothing is trained.

With mean mu and covariance S = U diag(s) U^T of the sentences seen so far, x -> (x - mu) U diag(s)^(-1/2), of which the
first k columns are used. The more sentences it has seen the better it is, so that it is evaluated, pruned and compared
as a trained method is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.errors import EncoderError
from trainables.data.tokens import Tokens
from trainables.encoders.load import LoadedEncoder
from trainables.encoders.network import Encoded, Network, SentenceNetwork, Views
from trainables.methods.baselines.config import WHITENING, WhiteningConfig
from trainables.methods.method import Batch, Examples, Method, Untrained

NO_VARIANCE = 1e-7  # of the largest: below it a direction is rounding, and scaling it up would be noise


def kernel(mean: Tensor, covariance: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """(W, b) with W (k, D), b (k,), so that W x + b is whitened, directions of the largest variance first.

    Directions without variance (fewer sentences than D) give zeros.

    Args: mean: (D,); covariance: (D, D); dimensions: k <= D.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    values, vectors = values.flip(0)[:dimensions], vectors.flip(1)[:, :dimensions]
    scale = torch.where(values > NO_VARIANCE * values[0], values.clamp_min(1e-300).rsqrt(), 0.0)
    weight = (vectors * scale).T
    return weight, -weight @ mean.double()


def untouched(config: WhiteningConfig) -> EncoderConfig:
    return EncoderConfig(
        pooling=config.pooling,
        include_prompt=config.include_prompt,
        max_length=config.max_length,
        eval_max_length=config.eval_max_length,
        head="none",
        dropout=0.0,
    )


class WhiteningNetwork(SentenceNetwork):
    """The untouched encoder and a linear head that is computed from the vectors it was given.

    Buffers: seen (), total (D,), products (D, D), sums over the sentences so far, float64.
    """

    seen: Tensor
    total: Tensor
    products: Tensor

    def __init__(self, config: WhiteningConfig, loaded: LoadedEncoder, seed: int) -> None:
        super().__init__(untouched(config), loaded, seed)
        self.requires_grad_(False)
        width = int(self.encoder.config.hidden_size)
        self.dimensions = width if config.dimensions is None else config.dimensions
        if self.dimensions > width:
            raise EncoderError(f"dimensions: expected at most {width} for {loaded.source}, got {config.dimensions}")
        for name, shape in (("seen", ()), ("total", (width,)), ("products", (width, width))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.linear = nn.Linear(width, self.dimensions).requires_grad_(False)
        self.head, self.head_at_test, self.stale = nn.Sequential(self.linear), True, False

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """Accumulate mean and covariance of the vectors; they are returned unchanged."""
        x = pooled["anchor"].double()
        self.seen += len(x)
        self.total += x.sum(0)
        self.products += x.T @ x
        self.stale = True
        return pooled

    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """As `SentenceNetwork.embed`, whitened by what was seen."""
        if self.stale:
            mean = self.total / self.seen
            weight, bias = kernel(mean, self.products / self.seen - torch.outer(mean, mean), self.dimensions)
            self.linear.weight.copy_(weight)
            self.linear.bias.copy_(bias)
            self.stale = False
        return super().embed(sequences)


def plain(config: WhiteningConfig, source: LoadedEncoder, seed: int) -> Network:
    """The encoder as it came."""
    del seed
    return SentenceNetwork(untouched(config), source, 0)


def views(examples: Examples, batch: Batch, config: WhiteningConfig, rng: np.random.Generator) -> Views:
    """Every sentence once."""
    del config, rng
    return {"anchor": examples.columns["sentence"].take(batch)}


METHOD = Method(
    declaration=WHITENING,
    views=views,
    network=WhiteningNetwork,
    loss=None,
    optimiser=None,
    untrained=Untrained(plain, reads=("pooling", "include_prompt", "eval_max_length")),
)
