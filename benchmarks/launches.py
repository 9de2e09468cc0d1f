"""Kernel launches of one training step on a GPU, counted where there is none: unsupervised SimCSE, batch 64, bf16.

A dispatch hook sees every operator that computes something; views and allocations launch nothing and are left out, an
operator over a list of tensors counts once. The branches for accelerators are taken on the CPU: padded attention, and
dropout and attention as the single operators that they are there (on a CPU both fall apart into several). Counts do not
depend on an encoder's width: 12 layers and 12 heads as in BERT-base, narrow.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.packing import training

SHAPE = "narrow"
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


class _Attention(torch.autograd.Function):
    """One operator forward and one backward, as the fused kernels; the backward knows no dropout, nothing is learnt."""

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


@torch.library.custom_op("counted::attention", mutates_args=())
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, p: float) -> torch.Tensor:
    return _PLAIN(q, k, v, attn_mask=mask, dropout_p=p).clone()


@torch.library.custom_op("counted::attention_backward", mutates_args=())
def _backward(
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


_PLAIN = F.scaled_dot_product_attention


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ARG001
    return torch.native_dropout(x, p, True)[0] if training and p else x


@contextmanager
def accelerator() -> Iterator[None]:
    """On the CPU, the operators that a step would call on an accelerator."""
    from trainables.encoders import attention, trunk

    def keep_noise(shape: Any, p: float, like: Any) -> Any:
        return F.dropout(like.new_ones(*shape), p)

    with (
        patch.object(trunk, "attend", attention.attend_padded),
        patch.object(trunk, "keep_noise", keep_noise),
        patch.object(trunk, "_quantum", lambda _: 1),  # rows are filled up on a CPU only
        patch.object(F, "dropout", _dropout),
        patch.object(F, "scaled_dot_product_attention", _attention),
    ):
        yield


def step_launches(encoder: Path, sentences: Path, padded: bool) -> Counter[str]:
    """Launches of a step by operator, after two steps that warm up."""
    one = training("simcse", "bf16", encoder, sentences, padded, torch.device("cpu"), max_length=32)
    with accelerator():
        for number in range(2):
            one._step(one.batches[number])
        with Launches() as counted:
            one._step(one.batches[2])
    counts: Counter[str] = counted.counts
    return counts


def run(runs: int) -> dict[str, Any]:  # noqa: ARG001  # nothing is timed: every run counts the same
    """Launches a step, packed and padded by the library's own forward, and what most of them are."""
    rows, details = [], {}
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(Path(folder) / "encoder", SHAPE)
        sentences = write_lines(Path(folder) / "stsb.txt", stsb_sentences())
        for way in ("packed", "padded"):
            counts = step_launches(encoder, sentences, way == "padded")
            rows.append({"way": way, "launches": counts.total()} | dict(counts.most_common(6)))
            details[way] = dict(counts.most_common())
    return {"rows": rows, "by operator": details}
