"""The workers of a trial: how batches are shared out and how a data-parallel gradient equals one device's.

Every worker encodes its share of the batch, gathers all workers' vectors and computes the whole loss, with gradient
through its own vectors only (methods 1.5). The encoder's gradient is then the SUM of the workers' gradients: what one
device would compute on the joined batch. Modules used by `project` (the network's `whole_batch`) run on the
gathered batch on every worker, so their gradients are whole already and are averaged, which only removes rounding.
A network's own term (`Network.own_loss`: masked or replaced tokens) is the mean of the workers', each a mean over the
tokens of its share, drawn from one generator state: close to one device's, but not its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainables.data.tokens import Tokens
from trainables.encoders.network import Network

BUCKET_BYTES = 32 * 2**20  # one all-reduce per bucket: few calls, bounded extra memory


@dataclass(frozen=True)
class World:
    """The place of this process among the trial's workers; the default is the only one.

    rank: 0 <= rank < size; rank 0 evaluates, reports and saves. device: where this worker's network lives.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, n: int) -> slice:
        """This worker's part of n things; the parts are contiguous, in rank order, and differ by at most one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def shares(self, n: int) -> list[int]:
        """(size,) how many of n things each worker's `share` holds."""
        return [n * (rank + 1) // self.size - n * rank // self.size for rank in range(self.size)]

    def gather(self, local: Tensor, sizes: Sequence[int]) -> Tensor:
        """(sum of sizes, D) rows of all workers in rank order; gradient flows through the local rows only.

        Args:
            local: (sizes[rank], D). sizes: (size,) rows of every worker, which all know: asking for them would have
                every step wait for the device.
        """
        if self.size == 1:
            return local
        assert len(local) == sizes[self.rank], (len(local), sizes)
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        rows[self.rank] = local
        return torch.cat(rows)

    def reduce_gradients(self, network: Network) -> None:
        """Turn every worker's gradients into those of one device on the joined batch."""
        if self.size == 1:
            return
        of_the_whole = tuple(f"{name}." for name in network.whole_batch)
        for whole in (False, True):
            gradients = [
                p.grad
                for name, p in network.named_parameters()
                if p.grad is not None and name.startswith(of_the_whole) is whole
            ]
            for bucket in _buckets(gradients):
                flat = torch.cat([g.reshape(-1) for g in bucket])
                dist.all_reduce(flat)
                if whole:
                    flat /= self.size
                for gradient, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                    gradient.copy_(summed.view_as(gradient))

    def sharded(self, embed: Callable[[Sequence[Tokens]], Tensor]) -> Callable[[Sequence[Tokens]], Tensor]:
        """An `embed` that divides the sequences among the workers; all workers must call it with the same ones.

        Every size-th sequence is a worker's own: callers sort by length, so that contiguous shares would be uneven.
        """
        if self.size == 1:
            return embed

        def divided(sequences: Sequence[Tokens]) -> Tensor:
            if len(sequences) < self.size:  # else some worker would embed none
                return embed(sequences)
            sizes = [len(range(rank, len(sequences), self.size)) for rank in range(self.size)]
            rows = self.gather(embed(sequences[self.rank :: self.size]), sizes)
            order = torch.cat([torch.arange(rank, len(sequences), self.size) for rank in range(self.size)])
            return rows[torch.argsort(order).to(rows.device)]

        return divided

    def agree(self, value: Any) -> Any:
        """Rank 0's value, on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if not buckets or size > room:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(gradient)
        room -= size
    return buckets
