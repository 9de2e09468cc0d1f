"""What a step would launch on a GPU and wait for there, counted on the CPU.

A dispatch hook sees every operator that computes something; views and allocations launch nothing and are left out, an
operator over a list of tensors counts once. The branches for accelerators are taken on the CPU, where dropout and
attention, which are several operators there, are replaced by single ones. Copies from the host are not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import library
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.encoders.packing import to_device

LAUNCHES_NOTHING = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "_local_scalar_dense",
    "_record_function_enter_new", "_record_function_exit",
)  # fmt: skip


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts operators that would launch a kernel, by name, while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        returned = func._schema.returns
        views = bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
        if not views and name not in LAUNCHES_NOTHING:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


_FROM_NUMPY = torch.from_numpy
WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero", "unique")


class HostWaits(TorchFunctionMode):
    """Counts, by name, the calls that would have the host wait for a device, while it is active.

    They hand a tensor's values to Python or make a shape of them, or bring an array there by another way than
    `to_device` ("from_numpy").
    """

    def __enter__(self) -> HostWaits:
        self._patch = patch.object(torch, "from_numpy", self._from_numpy)
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *fault: Any) -> None:
        super().__exit__(*fault)  # type: ignore[no-untyped-call]  # torch's own
        self._patch.stop()

    def _from_numpy(self, array: Any) -> Any:
        if sys._getframe(1).f_code is not to_device.__code__:
            self.counts["from_numpy"] += 1
        return _FROM_NUMPY(array)

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        indexed = args[1] if name in ("__getitem__", "__setitem__") else None
        if name in WAITS:
            self.counts[name] += 1
        elif isinstance(indexed, torch.Tensor) and indexed.dtype == torch.bool:
            self.counts["mask"] += 1
        return func(*args, **(kwargs or {}))


class _Attention(torch.autograd.Function):
    """One operator forward and one backward, as the fused kernels; the backward has no dropout: nothing is trained."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, p: float) -> Any:
        ctx.save_for_backward(q, k, v, mask)
        ctx.p = p
        return torch.ops.counted.attention(q, k, v, mask, p)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *torch.ops.counted.attention_backward(grads[0], *ctx.saved_tensors), None, None


def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, **_: Any) -> Any:
    return _Attention.apply(q, k, v, attn_mask, dropout_p)  # type: ignore[no-untyped-call]


@library.custom_op("counted::attention", mutates_args=())
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, p: float) -> torch.Tensor:
    return _PLAIN(q, k, v, attn_mask=mask, dropout_p=p).clone()


@library.custom_op("counted::attention_backward", mutates_args=())
def _backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _gradients(grad, q, k, v, mask)


def _gradients(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    probs, grad = scores.softmax(-1).nan_to_num(), grad.float()
    grad_scores = grad @ v.float().mT
    grad_scores = probs * (grad_scores - (grad_scores * probs).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    found = grad_scores @ k.float(), grad_scores.mT @ q.float(), probs.mT @ grad
    return found[0].to(q.dtype), found[1].to(q.dtype), found[2].to(q.dtype)


@library.custom_op("counted::flash", mutates_args=())
def _flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: list[int], b: list[int], c: list[int], d: list[int], p: float
) -> torch.Tensor:
    """(T or N, heads, width) queries; rows a[i] to b[i] of sentence i attend to the keys of rows c[i] to d[i]."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for one, end, first, last in zip(a, b, c, d, strict=True):
        asked, given = slice(one, end), slice(first, last)
        query, key, value = (x[rows].transpose(0, 1)[None] for x, rows in ((q, asked), (k, given), (v, given)))
        out[asked] = _PLAIN(query, key, value, dropout_p=p)[0].transpose(0, 1)
    return out


@library.custom_op("counted::flash_backward", mutates_args=())
def _flash_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: list[int],
    b: list[int],
    c: list[int],
    d: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    for one, end, first, last in zip(a, b, c, d, strict=True):
        asked, given = slice(one, end), slice(first, last)
        seed, query, key, value = (x.transpose(0, 1) for x in (grad[asked], q[asked], k[given], v[given]))
        parts = _gradients(seed, query, key, value, None)
        for whole, rows, part in zip(found, (asked, given, given), parts, strict=True):
            whole[rows] = part.transpose(0, 1)
    return found[0], found[1], found[2]


_PLAIN = F.scaled_dot_product_attention


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ARG001
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _flash(query: Any, key: Any, value: Any, packed: Any, dropout: float) -> Any:
    """Variable-length flash attention: one operator forward and one backward, sentence by sentence inside."""
    starts = packed.starts.tolist() if len(query) == len(key) else range(len(packed))
    sizes = packed.lengths.tolist() if len(query) == len(key) else [1] * len(packed)
    asked = [slice(a, a + n) for a, n in zip(starts, sizes, strict=True)]
    given = [slice(a, a + n) for a, n in zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)]
    return _VariableLength.apply(query, key, value, asked, given, dropout).flatten(1)  # type: ignore[no-untyped-call]


class _VariableLength(torch.autograd.Function):
    """As `_Attention`, for sentences end to end."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, asked: Any, given: Any, p: float) -> Any:
        ctx.save_for_backward(q, k, v)
        ctx.slices = (
            [s.start for s in asked],
            [s.stop for s in asked],
            [s.start for s in given],
            [s.stop for s in given],
        )
        return torch.ops.counted.flash(q, k, v, *ctx.slices, p)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *torch.ops.counted.flash_backward(grads[0], *ctx.saved_tensors, *ctx.slices), None, None, None


@contextmanager
def accelerator() -> Iterator[None]:
    """On the CPU, the operators that a step would call on an accelerator."""
    from trainables.encoders import attention

    with (
        patch.object(attention, "few_launches", lambda _: True),
        patch.object(attention, "flash_fits", lambda _, dtype, *__, **___: dtype == torch.bfloat16),
        patch.object(attention, "_flash", _flash),
        patch.object(F, "dropout", _dropout),
        patch.object(F, "scaled_dot_product_attention", _attention),
    ):
        yield
