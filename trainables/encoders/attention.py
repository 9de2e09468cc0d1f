"""Attention of packed sentences, each over its own tokens, and dropout noise.

The CPU computes one batched product per group of sentences of equal length. On accelerators kernel launches cost more
than padding, so one kernel runs: flash attention over sentences of any length where the card, the type and the family
allow it, else `scaled_dot_product_attention` over a padded grid.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainables.encoders.packing import Packed

log = logging.getLogger(__name__)
FLASH_FROM = (8, 0)  # compute capability: Ampere
FLASH_WIDTH = 256  # of a head, at most
LONG = 1024  # tokens from which a sentence's scores are not held whole where no gradient needs them
MASKS = ((True, None), (True, 3), (False, 3))  # causal and window, as they are checked
FLASH_TOLERANCE = 0.03  # of the largest value: four roundings to bf16


def attend(
    query: Tensor, key_value: Tensor, packed: Packed, heads: int, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Multi-head attention of every sentence over its own tokens.

    Args:
        query: (T, H) of all tokens, or (N, H) of the first tokens only; not yet scaled by 1/sqrt(H / heads).
        key_value: (T, 2H), keys then values.
        dropout: p of the attention probabilities, 0 outside training; drawn from torch's global generator.
        bias: (heads or 1, longest, longest) added to the scores before the softmax (MPNet's relative positions, or -inf
            where a token must not attend to another), or None.
    Returns: the context of each query, shaped like `query`.
    """
    return (attend_fused if few_launches(query.device) else attend_grouped)(
        query, key_value, packed, heads, dropout, bias
    )


def few_launches(device: torch.device) -> bool:
    """Whether a device runs asynchronously, so that the number of kernel launches decides the speed."""
    return device.type != "cpu"


def attend_grouped(
    query: Tensor, key_value: Tensor, packed: Packed, heads: int, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """`attend` without padding: one batched product per sentence length (CPU).

    Filler rows may follow the queries, keys and values of all tokens; their context is zero. Lower precisions are
    computed in float32, which is faster on small products whose shapes change all the time.
    """
    if query.dtype in (torch.bfloat16, torch.float16):
        filler = max(0, len(query) - len(packed.ids))
        query, key_value = query[: len(packed.ids)], key_value[: len(packed.ids)]
        context = attend_grouped(query.float(), key_value.float(), packed, heads, dropout, bias)
        return F.pad(context, (0, 0, 0, filler)).to(query.dtype)
    if packed.longest >= LONG and not dropout and not torch.is_grad_enabled():
        return _attend_long(query, key_value, packed, heads, bias)
    noise = None
    if dropout:
        # Scores of a sentence: heads x its queries x its tokens.
        squares = packed.lengths if len(query) == len(packed) else packed.lengths**2
        noise = keep_noise((heads * int(squares.sum()),), dropout, query)
    bias = bias if bias is None else bias.to(query.dtype)
    with torch.autocast("cpu", enabled=False):  # transformers' layers call under autocast, with float32 rotations
        context = _GroupedAttention.apply(query, key_value, bias, noise, packed, heads)  # type: ignore[no-untyped-call]
    return cast(Tensor, context)


def _attend_long(query: Tensor, key_value: Tensor, packed: Packed, heads: int, bias: Tensor | None) -> Tensor:
    """`attend_grouped` sentence by sentence, by a kernel whose memory grows with the tokens and not with their square.

    A text of 8,192 tokens would take 6.4 GB of scores in 12 heads.
    """
    width, contexts = query.shape[1] // heads, []
    all_tokens = len(query) != len(packed)
    with torch.autocast("cpu", enabled=False):
        for number, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
            q = query[start : start + length] if all_tokens else query[number : number + 1]
            pair = key_value[start : start + length].view(length, 2, heads, width).permute(1, 2, 0, 3)
            mask = None if bias is None else bias[None, :, : len(q), :length].to(q.dtype)
            context = F.scaled_dot_product_attention(
                q.view(1, -1, heads, width).transpose(1, 2), pair[:1], pair[1:], attn_mask=mask
            )
            contexts.append(context[0].transpose(0, 1).reshape(-1, heads * width))
    return torch.cat(contexts)


def attend_fused(
    query: Tensor, key_value: Tensor, packed: Packed, heads: int, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """`attend` by one kernel (accelerators)."""
    width = query.shape[1] // heads
    if bias is None and flash_fits(query.device, query.dtype, width, drops=dropout > 0):
        key, value = key_value.view(-1, 2, heads, width).unbind(1)
        return _flash(query.view(-1, heads, width), key, value, packed, dropout)
    n = len(packed)
    all_tokens = len(query) != n
    key, value = packed.pad(key_value).view(n, -1, 2, heads, width).permute(2, 0, 3, 1, 4)
    query = (packed.pad(query) if all_tokens else query[:, None]).view(n, -1, heads, width).transpose(1, 2)
    return _padded(query, key, value, packed, dropout, bias, all_tokens)


def attend_joint(qkv: Tensor, packed: Packed, heads: int, dropout: float = 0.0, bias: Tensor | None = None) -> Tensor:
    """`attend_fused` of every token, for (T, 3H) queries, then keys, then values."""
    width = qkv.shape[1] // heads // 3
    if bias is None and flash_fits(qkv.device, qkv.dtype, width, drops=dropout > 0):
        query, key, value = qkv.view(-1, 3, heads, width).unbind(1)
        return _flash(query, key, value, packed, dropout)
    query, key, value = packed.pad(qkv).view(len(packed), -1, 3, heads, width).permute(2, 0, 3, 1, 4)
    return _padded(query, key, value, packed, dropout, bias, all_tokens=True)


@cache
def flash_fits(device: torch.device, dtype: torch.dtype, width: int, masked: bool = False, drops: bool = False) -> bool:
    """Whether PyTorch's flash attention computes heads of this width on this device; checked once per process.

    Args: masked: causal and within a window, too; drops: with dropout, too.
    """
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= FLASH_WIDTH
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= FLASH_FROM
        and flash_agrees(device, dtype, width)
        and (not drops or flash_drops(device, dtype, width))
        and (not masked or all(flash_agrees(device, dtype, width, *mask) for mask in MASKS))
    )


def attend_masked(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: float, causal: bool, window: int | None
) -> Tensor:
    """Attention of (T, heads, d) queries, keys and values where a token sees those before it, within a window, or both.

    Args: window: tokens this far apart do not attend to each other, None = any distance.
    Returns: (T, heads d).
    """
    heads, width = query.shape[1:]
    masked = causal or window is not None
    if few_launches(query.device):  # flash attention wants one type; under autocast rotations leave float32
        query, key = query.to(value.dtype), key.to(value.dtype)
        if flash_fits(query.device, query.dtype, width, masked, dropout > 0):
            return _flash(query, key, value, packed, dropout, *((causal, window) if masked else ()))
    bias = mask_of(packed.longest, causal, window, query)
    return attend(query.flatten(1), torch.cat([key.flatten(1), value.flatten(1)], 1), packed, heads, dropout, bias)


def mask_of(longest: int, causal: bool, window: int | None, like: Tensor) -> Tensor | None:
    """(1, longest, longest) 0 where a token attends to another and -inf elsewhere; None where all attend to all."""
    if not causal and window is None:
        return None
    position = torch.arange(longest, device=like.device)
    back = position[:, None] - position[None]  # how far the other token lies before
    hidden = back < 0 if causal else torch.zeros_like(back, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (back.abs() >= window)
    return torch.zeros(1, longest, longest, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)


def flash_agrees(
    device: torch.device, dtype: torch.dtype, width: int, causal: bool = False, window: int | None = None
) -> bool:
    """Whether flash attention runs and agrees with the padded grid, gradients included; logs a warning if not."""
    lengths, heads = np.array([1, 2, 5, 5, 19]), 2
    packed = Packed(torch.zeros(int(lengths.sum()), dtype=torch.long, device=device), lengths, np.arange(len(lengths)))
    generator = torch.Generator().manual_seed(0)  # leaves the trial's random state alone
    qkv = torch.randn(len(packed.ids), 3, heads, width, generator=generator).to(device, dtype).requires_grad_()
    upstream = torch.randn(len(packed.ids), heads * width, generator=generator).to(device, dtype)
    try:
        with torch.enable_grad():
            query, key, value = packed.pad(qkv.flatten(1)).view(len(packed), -1, 3, heads, width).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(1)
            bias = mask_of(packed.longest, causal, window, qkv)
            outs = (
                _flash(q, k, v, packed, 0.0, *((causal, window) if bias is not None else ())),
                _padded(query, key, value, packed, 0.0, bias, True),
            )
            grads = [torch.autograd.grad(out, qkv, upstream)[0] for out in outs]
        pairs = (outs[0].detach(), outs[1].detach()), grads
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        problem = "" if worst <= FLASH_TOLERANCE else f"differs by {worst:.1e} from attention over a padded grid"
    except (RuntimeError, NotImplementedError) as error:
        problem = f"failed ({str(error).splitlines()[0]})"
    if problem:
        log.warning("flash attention of %s heads of %d on %s %s: using padded attention", dtype, width, device, problem)
    return not problem


def flash_drops(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether flash attention runs forward and backward with dropout; logs a warning if not.

    On some cards its backward takes wide heads only without (above 192 on those of compute capability 8.6 and 8.9).
    """
    lengths = np.array([1, 2, 5])
    packed = Packed(torch.zeros(int(lengths.sum()), dtype=torch.long, device=device), lengths, np.arange(len(lengths)))
    qkv = torch.ones(len(packed.ids), 3, 2, width, device=device, dtype=dtype, requires_grad=True)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        try:
            query, key, value = qkv.unbind(1)
            gradient = torch.autograd.grad(_flash(query, key, value, packed, 0.5).sum(), qkv)[0]
            problem = "" if bool(gradient.isfinite().all()) else "has gradients that are no numbers"
        except (RuntimeError, NotImplementedError) as error:
            problem = f"failed ({str(error).splitlines()[0]})"
    if problem:
        log.warning(
            "flash attention with dropout, heads of %d on %s %s: using padded attention", width, device, problem
        )
    return not problem


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Packed,
    dropout: float,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Flash attention of (T or N, heads, d) queries over (T, heads, d) keys and values; no padding, no dense mask.

    Args: window: tokens this far apart do not attend to each other, None = all do.
    Calls the operator itself because `torch.nn.attention.varlen` has no dropout.
    """
    all_tokens = len(query) != len(packed)
    context, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        packed.ends if all_tokens else packed.ends_of_first,
        packed.ends,
        packed.longest if all_tokens else 1,
        packed.longest,
        dropout,
        causal,
        False,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0 if causal else window - 1,
    )
    return cast(Tensor, context).flatten(1)


def _padded(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: float, bias: Tensor | None, all_tokens: bool
) -> Tensor:
    """Attention of (N, heads, longest or 1, d) queries over (N, heads, longest, d) keys and values."""
    mask = packed.mask[:, None, None]
    if bias is not None:
        scores = bias if all_tokens else bias[:, :1]
        mask = scores.to(query.dtype)[None].masked_fill(~mask, -torch.inf)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    context = context.transpose(1, 2).reshape(-1, query.shape[1] * query.shape[3])
    return context.index_select(0, packed.slots) if all_tokens else context


class _GroupedAttention(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + bias) v, one batched product per length.

    Its backward pass is explicit because autograd over some twenty slices copies more than the products cost
    (benchmarks/packing.py). Softmax gradient as in FlashAttention: dS = P * (dP - rowsum(dO * O)), also under dropout.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key_value: Tensor,
        bias: Tensor | None,
        noise: Tensor | None,
        packed: Packed,
        heads: int,
    ) -> Tensor:
        d = query.shape[1] // heads
        rows, pair_rows, back = packed.head_rows(heads)
        all_tokens = len(query) != len(packed)
        q = query.reshape(-1, d)
        q = (q.index_select(0, rows) if all_tokens else q) * d**-0.5
        key, value = key_value.reshape(-1, d).index_select(0, pair_rows).chunk(2)
        blocks = _blocks(packed, heads, all_tokens)
        probs = q.new_empty(sum(b.scores.stop - b.scores.start for b in blocks))
        out = torch.empty_like(q)
        for b in blocks:
            scores = torch.bmm(b.queries_in(q), b.keys_in(key).transpose(1, 2))
            if bias is not None:
                b.per_sentence(scores).add_(bias[:, : b.queries, : b.length])
            torch.softmax(scores, -1, out=b.square(probs))
        dropped = probs if noise is None else probs * noise
        for b in blocks:
            torch.bmm(b.square(dropped), b.keys_in(value), out=b.queries_in(out))
        ctx.save_for_backward(q, key, value, probs, noise, out)
        learned = bias is not None and ctx.needs_input_grad[2]
        ctx.plan = packed, heads, all_tokens, blocks, bias.shape if learned and bias is not None else None
        return (out.index_select(0, back) if all_tokens else out).view(query.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, key, value, probs, noise, out = ctx.saved_tensors
        packed, heads, all_tokens, blocks, bias_shape = ctx.plan
        d = q.shape[1]
        rows, _, back = packed.head_rows(heads)
        grad = grads[0].reshape(-1, d)
        if all_tokens:
            grad = grad.index_select(0, rows)
        correction = (grad * out).sum(-1, keepdim=True)
        pair = torch.empty(2 * len(key), d, dtype=q.dtype)
        grad_key, grad_value = pair.chunk(2)
        grad_q, scores = torch.empty_like(q), torch.empty_like(probs)
        dropped = probs if noise is None else probs * noise
        for b in blocks:
            torch.bmm(b.square(dropped).transpose(1, 2), b.queries_in(grad), out=b.keys_in(grad_value))
            torch.bmm(b.queries_in(grad), b.keys_in(value).transpose(1, 2), out=b.square(scores))
        if noise is not None:
            scores.mul_(noise)
        grad_bias = None if bias_shape is None else q.new_zeros(bias_shape)
        for b in blocks:
            square = b.square(scores).sub_(b.queries_in(correction)).mul_(b.square(probs))
            if grad_bias is not None:
                grad_bias[:, : b.queries, : b.length] += b.per_sentence(square).sum(0)
            torch.bmm(square, b.keys_in(key), out=b.queries_in(grad_q))
            torch.bmm(square.transpose(1, 2), b.queries_in(q), out=b.keys_in(grad_key))
        grad_q *= d**-0.5
        if all_tokens:
            grad_q = grad_q.index_select(0, back)
        # (T, 2, heads) order again: a token's keys of all heads, then its values.
        pair = (
            pair.view(2, -1, d).index_select(1, back).view(2, -1, heads * d).transpose(0, 1).reshape(-1, 2 * heads * d)
        )
        return grad_q.view(-1, heads * d), pair, grad_bias, None, None, None


@dataclass(frozen=True)
class _Block:
    """One group's slices of the grouped tables: (rows, d) queries, (rows, d) keys or values, flat scores."""

    count: int
    heads: int
    queries: int
    length: int
    query_rows: slice
    key_rows: slice
    scores: slice

    def queries_in(self, table: Tensor) -> Tensor:
        return table[self.query_rows].view(self.count * self.heads, self.queries, table.shape[1])

    def keys_in(self, table: Tensor) -> Tensor:
        return table[self.key_rows].view(self.count * self.heads, self.length, table.shape[1])

    def square(self, flat: Tensor) -> Tensor:
        return flat[self.scores].view(self.count * self.heads, self.queries, self.length)

    def per_sentence(self, square: Tensor) -> Tensor:
        return square.view(self.count, self.heads, self.queries, self.length)


def _blocks(packed: Packed, heads: int, all_tokens: bool) -> list[_Block]:
    blocks, end = [], 0
    for group in packed.groups:
        first, queries = (group.token, group.length) if all_tokens else (group.sentence, 1)
        query_rows = slice(first * heads, (first + group.count * queries) * heads)
        key_rows = slice(group.token * heads, (group.token + group.count * group.length) * heads)
        scores = slice(end, end + group.count * heads * queries * group.length)
        blocks.append(_Block(group.count, heads, queries, group.length, query_rows, key_rows, scores))
        end = scores.stop
    return blocks


def keep_noise(shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """Dropout factors: 0 with probability p, else 1 / (1 - p), from torch's global generator.

    p is rounded to 1/65536 and the factor is that of the rounded p, so that the mean is exactly 1. This is four times
    as fast as `F.dropout` on a CPU. A p that would be rounded to 0 or 1 is left to `F.dropout`.
    """
    dropped = round(p * 2**16)
    if not 0 < dropped < 2**16:
        return F.dropout(torch.ones(*shape, dtype=like.dtype), p)
    size = int(np.prod(shape))
    draws = torch.empty(size // 4 + 1, dtype=torch.int64).random_(-(2**63), None)
    noise = torch.empty(*shape, dtype=like.dtype)
    torch.ge(draws.view(torch.int16)[:size].view(*shape), dropped - 2**15, out=noise)
    return noise.mul_(2**16 / (2**16 - dropped))
