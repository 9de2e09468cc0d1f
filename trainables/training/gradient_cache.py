"""Gradient caching (GradCache, Gao et al. 2021, arXiv:2101.06983): a batch larger than memory, encoded in pieces.

A contrastive loss needs all vectors of a batch at once, not all graphs: the vectors are made piece by piece without a
graph, the loss gives their gradients, and every piece is encoded again with the same draws to carry its part on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainables.encoders.network import Views

Encode = Callable[[Views], dict[str, Tensor]]


def encode_in_pieces(
    encode: Encode, views: Views, size: int, device: torch.device
) -> tuple[dict[str, Tensor], Callable[[], None]]:
    """The vectors of all views, and what carries their gradients on into the weights, to be called once after backward.

    Args:
        encode: what gives vectors per role, with a graph where gradients are on; size: examples in a piece, at least 1.
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

    def carry() -> None:
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

    return leaves, carry


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the generators stand that dropout draws from: the CPU's, and the GPU's if the device is one."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    """Back to a `random_state`."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
