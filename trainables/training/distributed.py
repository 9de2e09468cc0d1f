"""A batch in parts: shared among workers, encoded in pieces, with the gradient of the whole batch on one device.

Workers: each encodes its share, gathers all vectors and computes the whole loss, with gradient through its own vectors
only (methods 1.5). The encoder's gradient is then the SUM of the workers' gradients: that of one device on the joined
batch. Modules used by `project` (`Network.whole_batch`) run on the gathered batch on every worker: their gradients are
whole already and are averaged (this removes rounding). A network's own term (`Network.own_loss`: masked or replaced
tokens) is the mean of the workers', each over its share: close to one device's number, but not equal.

Pieces (GradCache, Gao et al. 2021, arXiv:2101.06983): a contrastive loss needs all vectors of a batch at once, not all
graphs. The vectors are made piece by piece without a graph, the loss gives their gradients, and every piece is encoded
again with the same random draws to accumulate its part of the weights' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainables.data.tokens import TokenColumn, Tokens
from trainables.encoders.network import Network, Views

BUCKET_BYTES = 32 * 2**20  # one all-reduce per bucket: few calls, bounded extra memory
PROBE = 8  # examples, the longest: measured with 8 and with 16, the difference is the cost of 8, without fixed costs
USED = 0.6  # of the memory: backward holds gradients beside what was saved, and later batches have longer examples
Encode = Callable[[Views], dict[str, Tensor]]
Embed = Callable[[Sequence[Tokens]], Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The position of this process among the trial's workers; the default is the only one.

    rank: 0 <= rank < size; rank 0 scores, reports and saves. device: of this worker's network.
    patient: gloo group with a long timeout, for steps that some workers reach much later (preparing data, scoring, a
        decision). None = the default group, whose collectives fail after Ray's 1,800 s.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patient: Any = None

    def share(self, n: int) -> slice:
        """This worker's part of n things; the parts are contiguous, in rank order, and differ by at most one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def shares(self, n: int) -> list[int]:
        """(size,) how many of n things each worker's `share` holds."""
        return [n * (rank + 1) // self.size - n * rank // self.size for rank in range(self.size)]

    def gather(self, local: Tensor, sizes: Sequence[int]) -> Tensor:
        """(sum of sizes, D) rows of all workers in rank order; gradient flows through the local rows only.

        Args:
            local: (sizes[rank], D). sizes: (size,) rows of every worker, given, since exchanging them would
                make every step wait for the device.
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

    def by_one(self, work: Callable[[Embed], T], embed: Embed) -> T:
        """Only rank 0 calls `work`; the other workers help to encode what it embeds. Every worker gets the result."""
        if self.size == 1:
            return work(embed)
        shared, result = self.sharded(embed), None
        if self.rank == 0:

            def asked(sequences: Sequence[Tokens]) -> Tensor:
                self.broadcast(TokenColumn(np.concatenate(sequences), np.cumsum([0, *map(len, sequences)])))
                return shared(sequences)

            result = work(asked)
            self.broadcast(None)
        else:
            while (column := self.broadcast(None)) is not None:
                shared(column.take(range(len(column))))
        return self.broadcast(result)  # type: ignore[no-any-return]

    def sharded(self, embed: Embed) -> Embed:
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

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.patient)
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


def encode_in_pieces(
    encode: Encode, views: Views, size: int, device: torch.device
) -> tuple[dict[str, Tensor], Callable[[], None]]:
    """The vectors of all views, and a function that accumulates the weights' gradients; call it once, after backward.

    Args:
        encode: gives vectors per role, with a graph where gradients are on; size: examples in a piece, at least 1.
        device: where it draws dropout masks, besides the CPU.
    Returns: role -> (N, H) leaves of a new graph; the function adds to the gradients of the weights.
    """
    examples = max(map(len, views.values()))
    pieces = [{role: rows[at : at + size] for role, rows in views.items()} for at in range(0, examples, size)]
    states: list[tuple[Tensor, Tensor | None]] = []
    parts: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for piece in pieces:
            states.append(random_state(device))
            parts.append(encode(piece))
    leaves = {role: torch.cat([part[role] for part in parts]).requires_grad_() for role in parts[0]}

    def accumulate() -> None:
        after, begin = random_state(device), dict.fromkeys(leaves, 0)
        for piece, state in zip(pieces, states, strict=True):
            set_random_state(state, device)
            outputs: list[Tensor] = []
            gradients: list[Tensor] = []
            for role, vectors in encode(piece).items():
                gradient, at = leaves[role].grad, begin[role]
                begin[role] += len(vectors)
                if gradient is not None and vectors.requires_grad:
                    outputs.append(vectors)
                    gradients.append(gradient[at : at + len(vectors)])
            torch.autograd.backward(outputs, gradients)
        set_random_state(after, device)

    return leaves, accumulate


def largest_piece(encode: Encode, views: Views, room: float, device: torch.device) -> int:
    """`micro_batch: auto`: the examples, at least 1, whose graph takes at most `USED` of `room` bytes.

    Computed from what a few examples save for backward, not tried out: a CPU has no out-of-memory error to catch. The
    same machine gives the same size, so that a resumed trial draws the same dropout masks. No generator is moved.

    Args:
        encode: gives vectors per role, with a graph; views: of a batch, or a worker's share of it.
    """
    examples = max(map(len, views.values()))
    lengths = [max(len(rows[i]) for rows in views.values() if i < len(rows)) for i in range(examples)]
    longest = sorted(range(examples), key=lengths.__getitem__, reverse=True)[:PROBE]
    before = random_state(device)
    small, large = (_saved_bytes(encode, views, longest * times) for times in (1, 2))
    set_random_state(before, device)
    return max(1, int(USED * room / max((large - small) / len(longest), 1.0)))


def _saved_bytes(encode: Encode, views: Views, picked: list[int]) -> int:
    """Bytes that the graph of some examples saves for backward, each storage once."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = encode({role: [rows[i] for i in picked if i < len(rows)] for role, rows in views.items()})
    del graph
    return sum(saved.values())


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """States of the generators that dropout draws from: the CPU's, and the GPU's if the device is one."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    """Back to a `random_state`."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
