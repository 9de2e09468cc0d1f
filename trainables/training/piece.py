"""`micro_batch: auto`: the most examples whose graph a trial's memory holds, from what a few of them keep for backward.

Counted, not tried out: a CPU has no out-of-memory error to try, its system ends the process; and the same machine gives
the same size, so that a trial draws the same dropout masks after it was resumed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from trainables.encoders.network import Views
from trainables.training.gradient_cache import Encode, random_state, set_random_state

PROBE = 8  # examples, the longest of the batch, once and twice: what does not grow with them is no example's
USED = 0.6  # of the room: a backward pass holds gradients beside what was kept, and later batches have longer examples
CGROUP = Path("/sys/fs/cgroup/memory.max")  # of this container


def largest_piece(encode: Encode, views: Views, room: float, device: torch.device) -> int:
    """The examples, at least 1, whose graph takes at most `USED` of `room` bytes. It draws nothing that others would.

    Args:
        encode: what gives vectors per role, with a graph; views: of a batch, or a worker's share of it.
    """
    examples = max(map(len, views.values()))
    lengths = [max(len(rows[i]) for rows in views.values() if i < len(rows)) for i in range(examples)]
    longest = sorted(range(examples), key=lengths.__getitem__, reverse=True)[:PROBE]
    before = random_state(device)
    small, large = (_kept(encode, views, longest * times) for times in (1, 2))
    set_random_state(before, device)
    return max(1, int(USED * room / max((large - small) / len(longest), 1.0)))


def _kept(encode: Callable[[Views], object], views: Views, picked: list[int]) -> int:
    """Bytes that the graph of some examples keeps until backward, each storage once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = encode({role: [rows[i] for i in picked if i < len(rows)] for role, rows in views.items()})
    del graph
    return sum(kept.values())


def room_for_graphs(network: nn.Module, device: torch.device) -> float:
    """Bytes of a trial's share of the device's memory that its weights, gradients and optimiser leave.

    A GPU's share is what its trials were given of it; a CPU's that of its threads among the machine's cores.
    """
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    trained = sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)
    if device.type == "cuda":
        share = torch.cuda.get_per_process_memory_fraction(device)
        total = torch.cuda.get_device_properties(device).total_memory * share
    else:
        total = _machine_memory() * min(1.0, torch.get_num_threads() / (os.cpu_count() or 1))
    return float(max(0.0, total - weights - 3 * trained))  # gradients and Adam's two moments


def _machine_memory() -> float:
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        return min(total, float(CGROUP.read_text()))
    except (OSError, ValueError):  # none, or "max"
        return total
