"""What a method trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trainables.data.tokens import Tokens
from trainables.encoders.adapters import place
from trainables.encoders.views import Encoded, Views


class Network(nn.Module, ABC):
    """A sentence encoder in training.

    whole_batch: names of the modules that `project` runs on the gathered batch. Every worker of a trial computes their
        whole gradient, while the gradients of all other modules are sums over the workers' shares.
    """

    whole_batch: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, views: Views) -> dict[str, Tensor]:
        """Training-mode vectors per role, (N, H), before any head; one forward pass over all roles."""

    @abstractmethod
    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """Heads, applied to the global batch (so that batch-norm sees all workers' examples)."""

    @abstractmethod
    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """Evaluation-time vectors (n, D) in the given order, no gradient."""

    def own_loss(self, views: Views, pooled: Mapping[str, Tensor], rng: np.random.Generator) -> Tensor | None:
        """What the network adds to its method's loss, () and already weighted, on a worker's share; None = nothing.

        pooled: what `encode` gave for these views, with its gradient.
        """
        del views, pooled, rng
        return None

    def settle(self, device: torch.device, bf16: bool) -> None:
        """Go to the device that trains, where matrix products run in bf16 or not."""
        place(self, device, bf16)
        self.to(device)

    def after_step(self) -> None:
        """Move on what gradients do not: a momentum encoder, a queue. Called after every optimiser step."""
