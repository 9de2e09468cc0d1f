"""The weights of a transformer block as its matrix products read them: in their precision, projections side by side.

One operator over all of them, forward and backward. Layer by layer they are sixteen casts each way, which on a GPU is
a third of the kernels that a training step launches (benchmarks/launches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

Linear = tuple[Tensor, Tensor]  # (out, in) weights and (out,) biases


def joined(groups: Sequence[Sequence[nn.Linear]], dtype: torch.dtype) -> list[Linear]:
    """Weights and biases of each group's layers, one below the other, in `dtype`.

    Args:
        groups: layers that read the same input; a group of one whose weights have the type already is not copied.
    Returns: per group (sum of out, in) weights and (sum of out,) biases. Gradients come back in the parameters' type.
    """
    wanted = [
        [cast(Tensor, getattr(layer, kind)) for layer in group] for group in groups for kind in ("weight", "bias")
    ]
    copied = [n for n, parts in enumerate(wanted) if len(parts) > 1 or parts[0].dtype != dtype]
    found = [parts[0] for parts in wanted]
    if copied:
        sizes = tuple(len(wanted[n]) for n in copied)
        made = _Joined.apply(dtype, sizes, *(part for n in copied for part in wanted[n]))  # type: ignore[no-untyped-call]
        for n, whole in zip(copied, made, strict=True):
            found[n] = whole
    return list(zip(found[::2], found[1::2], strict=True))


class _Joined(torch.autograd.Function):
    """`torch.cat` of several groups of tensors at once, to another type."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, sizes: tuple[int, ...], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.parts = sizes, [(len(part), part.dtype) for part in parts]
        wholes: list[Tensor] = []
        places: list[Tensor] = []
        first = 0
        for size in sizes:
            rows = [len(part) for part in parts[first : first + size]]
            wholes.append(parts[first].new_empty((sum(rows), *parts[first].shape[1:]), dtype=dtype))
            places += torch.split(wholes[-1], rows)
            first += size
        torch._foreach_copy_(places, list(parts))
        return tuple(wholes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for size, grad in zip(ctx.sizes, grads, strict=True):
            rows = [length for length, _ in ctx.parts[len(found) : len(found) + size]]
            found += [None] * size if grad is None else torch.split(grad, rows)
        found = [grad if needed else None for grad, needed in zip(found, ctx.needs_input_grad[2:], strict=True)]
        casts = [n for n, grad in enumerate(found) if grad is not None and grad.dtype != ctx.parts[n][1]]
        if casts:
            given = [cast(Tensor, found[n]) for n in casts]
            made = [torch.empty_like(g, dtype=ctx.parts[n][1]) for n, g in zip(casts, given, strict=True)]
            torch._foreach_copy_(made, given)
            for n, grad in zip(casts, made, strict=True):
                found[n] = grad
        return None, None, *found
