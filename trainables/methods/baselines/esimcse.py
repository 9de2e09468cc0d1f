"""ESimCSE (arXiv:2109.04380): some tokens repeated in the positive, earlier sentences' vectors as more negatives.

The queue holds what a momentum copy of the network, without dropout, made of the last batches (Sec. 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trainables.data.tokens import Tokens, behind_prompt
from trainables.encoders.load import LoadedEncoder
from trainables.encoders.network import Encoded, SentenceNetwork, Views
from trainables.methods.baselines.config import ESIMCSE, EsimcseConfig
from trainables.methods.losses import cosines, own_column
from trainables.methods.method import Batch, Examples, Method


def repeated(tokens: Tokens, rate: float, rng: np.random.Generator) -> Tokens:
    """The tokens, some of them twice in a row: uniform 0 .. max(2, floor(rate * n)) of them (Eq. 1-2).

    A rate of 0 repeats none.
    """
    most = min(len(tokens), max(2, int(rate * len(tokens)))) if rate else 0
    times = np.ones(len(tokens), np.int64)
    if most:
        times[rng.choice(len(tokens), rng.integers(0, most + 1), replace=False)] = 2
    doubled: Tokens = np.repeat(tokens, times)
    return doubled


class MomentumNetwork(SentenceNetwork):
    """A network, a copy that follows it slowly, and a queue of the copy's vectors.

    Buffers: queue (Q, D), the newest first; queued (), how many of its rows hold a vector; `filled` is that number,
    known without asking the device.
    """

    queue: Tensor
    queued: Tensor

    def __init__(self, config: EsimcseConfig, loaded: LoadedEncoder, seed: int) -> None:
        super().__init__(config, loaded, seed)
        self.momentum = config.momentum
        self.newest: Tensor | None = None
        rows = int(config.queue_batches * config.batch_size)
        self.slow = SentenceNetwork(config, loaded, seed).requires_grad_(False) if rows else None
        self.register_buffer("queue", torch.zeros(rows, self.encoder.config.hidden_size))
        self.register_buffer("queued", torch.zeros((), dtype=torch.long))
        self.filled = 0
        self.register_load_state_dict_post_hook(_count)  # type: ignore[no-untyped-call]  # torch's own

    def encode(self, views: Views) -> dict[str, Tensor]:
        """As `SentenceNetwork.encode`, and the slow network's vectors of the anchors, "slow"."""
        pooled = super().encode(views)
        if self.slow is not None:
            with torch.no_grad(), self.slow._without_dropout():
                pooled["slow"] = self.slow.encode({"anchor": views["anchor"]})["anchor"]
        return pooled

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """The heads; "queue" (q, D) are vectors of earlier batches, none at first."""
        z = dict(super().project({role: v for role, v in pooled.items() if role != "slow"}))
        if self.slow is not None:
            with torch.no_grad():
                self.newest = self.slow.project({"anchor": pooled["slow"]})["anchor"].float()
        return z | {"queue": self.queue[: self.filled].clone()}

    @torch.no_grad()
    def after_step(self) -> None:
        """theta_slow <- m theta_slow + (1 - m) theta (Eq. 3); the newest vectors push out the oldest."""
        if self.slow is None or self.newest is None:
            return
        fast = self.state_dict()
        for name, slow in self.slow.state_dict().items():
            if slow.is_floating_point():
                slow.lerp_(fast[name], 1 - self.momentum)
        self.queue.copy_(torch.cat([self.newest, self.queue])[: len(self.queue)])
        self.filled = min(len(self.queue), self.filled + len(self.newest))
        self.queued.fill_(self.filled)
        self.newest = None


def _count(network: MomentumNetwork, _: object) -> None:
    network.filled = int(network.queued)


def views(examples: Examples, batch: Batch, config: EsimcseConfig, rng: np.random.Generator) -> Views:
    """The sentence, and the sentence with repetitions."""
    sentences = examples.columns["sentence"].take(batch)

    def repeat(tokens: Tokens) -> Tokens:
        return repeated(tokens, config.repetition, rng)

    return {"anchor": sentences, "positive": [behind_prompt(s, examples.prompt, repeat) for s in sentences]}


def loss(z: Encoded, config: EsimcseConfig) -> Tensor:
    """InfoNCE over the batch's positives and the queue (Eq. 4)."""
    return own_column(cosines(z["anchor"], torch.cat([z["positive"], z["queue"]])) / config.temperature)


METHOD = Method(declaration=ESIMCSE, views=views, loss=loss, network=MomentumNetwork)
