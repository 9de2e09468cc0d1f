"""Packed batches: assembly, attention against the padded computation, dropout noise."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from trainables.encoders.attention import LONG, attend, attend_fused, attend_grouped, keep_noise
from trainables.encoders.packing import Packed, pack


def sequences(*lengths: int) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.int32) + 100 * (i + 1) for i, n in enumerate(lengths)]


def test_assembly() -> None:
    packed = pack(sequences(3, 0, 9, 1, 3), 6, [1, 2], [3])
    assert packed.order.tolist() == [1, 3, 0, 2, 4]
    assert packed.lengths.tolist() == [3, 4, 6, 6, 6]
    assert packed.ids.tolist() == [
        *(1, 2, 3), *(1, 2, 400, 3), *(1, 2, 100, 101, 102, 3), *(1, 2, 300, 301, 302, 3), *(1, 2, 500, 501, 502, 3),
    ]  # fmt: skip
    assert packed.positions.tolist() == [*range(3), *range(4), *range(6), *range(6), *range(6)]
    assert packed.first.tolist() == [0, 3, 7, 13, 19]
    assert [(g.sentence, g.token, g.count, g.length) for g in packed.groups] == [
        (0, 0, 1, 3),
        (1, 3, 1, 4),
        (2, 7, 3, 6),
    ]
    assert packed.restore(torch.tensor([10, 11, 12, 13, 14])).tolist() == [12, 10, 13, 11, 14]
    assert packed.pad(packed.ids, 7)[0].tolist() == [1, 2, 3, 7, 7, 7]
    assert packed.mask.sum(1).tolist() == packed.lengths.tolist()


@pytest.mark.parametrize(("given", "length"), [([], 8), (sequences(2), 3)])
def test_nothing_to_pack_is_refused(given: list[np.ndarray], length: int) -> None:
    with pytest.raises(ValueError, match="at least one sentence and room"):
        pack(given, length, [1, 2], [3])


def plain_attention(query: Tensor, key_value: Tensor, packed: Packed, heads: int, bias: Tensor | None) -> Tensor:
    """Sentence by sentence, head by head."""
    width = query.shape[1] // heads
    key, value = key_value.chunk(2, 1)
    rows = []
    for n, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
        asked = query[start : start + length] if len(query) == len(key_value) else query[n : n + 1]
        parts = []
        for h in range(heads):
            s = slice(h * width, (h + 1) * width)
            scores = asked[:, s] @ key[start : start + length, s].T / math.sqrt(width)
            if bias is not None:
                scores = scores + bias[h, : len(asked), :length]
            parts.append(scores.softmax(-1) @ value[start : start + length, s])
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


@pytest.mark.parametrize("all_tokens", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("attention", [attend_grouped, attend_fused])
def test_attention_equals_the_plain_computation(
    attention: Callable[..., Tensor], all_tokens: bool, with_bias: bool
) -> None:
    packed, heads = pack(sequences(3, 1, 7, 3, 0, 5, 3), 16, [1], [2]), 2
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    inputs = [random(len(packed.ids) if all_tokens else len(packed), 6), random(len(packed.ids), 12)]
    if with_bias:
        inputs.append(random(heads, packed.longest, packed.longest))
    bias = inputs[2] if with_bias else None
    weight = random(*inputs[0].shape).detach()
    ours = attention(inputs[0], inputs[1], packed, heads, bias=bias)
    theirs = plain_attention(inputs[0], inputs[1], packed, heads, bias)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("all_tokens", [True, False])
def test_attention_dropout_has_the_gradient_of_what_it_computed(all_tokens: bool) -> None:
    packed = pack(sequences(3, 1, 3), 16, [1], [2])
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(packed.ids) if all_tokens else len(packed), 4), (len(packed.ids), 8)]
    inputs = [torch.randn(*s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]

    def once(*given: Tensor) -> Tensor:
        torch.manual_seed(3)  # the same mask at every call, so that finite differences see one function
        return attend(*given, packed, 2, dropout=0.4)

    assert not torch.equal(once(*inputs), attend(*inputs, packed, 2))
    assert torch.autograd.gradcheck(once, inputs)


@pytest.mark.parametrize("attention", [attend_grouped, attend_fused])
def test_attention_dropout_drops_probabilities(attention: Callable[..., Tensor]) -> None:
    """Equal scores, values 1: the context is a mean of the noise, with mean 1 and variance p / (1 - p) / length."""
    p, length, copies = 0.3, 5, 4000
    packed = pack(sequences(*[length - 2] * copies), 16, [1], [2])
    ones = torch.ones(copies * length, 2)
    torch.manual_seed(0)
    context = attention(ones, ones.repeat(1, 2), packed, 2, p)
    # 40,000 values; ten standard errors of the mean and six of the variance.
    assert context.mean().item() == pytest.approx(1.0, abs=0.015)
    assert context.var().item() == pytest.approx(p / (1 - p) / length, rel=0.05)


def test_noise_has_mean_one_and_the_requested_rate() -> None:
    like = torch.zeros(1)
    for p in (0.1, 0.5, 0.8):
        torch.manual_seed(0)
        noise = keep_noise((400, 1001), p, like)
        kept = (noise != 0).double().mean().item()
        # Six standard deviations of a share of 400,400 draws: a false alarm in 5e8 seeds.
        assert abs(kept - (1 - p)) < 6 * math.sqrt(p * (1 - p) / noise.numel())
        assert set(noise.unique().tolist()) == {0.0, noise.max().item()}
        assert noise.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
        torch.manual_seed(0)
        assert torch.equal(noise, keep_noise((400, 1001), p, like))
        assert not torch.equal(noise, keep_noise((400, 1001), p, like))


def test_a_share_lost_to_rounding_is_drawn_all_the_same() -> None:
    torch.manual_seed(0)
    like = torch.zeros(1)
    few = keep_noise((2_000_000,), 2**-18, like)
    assert 1 <= int((few == 0).sum()) <= 22  # 7.6 expected
    most = keep_noise((2_000_000,), 0.999995, like)
    assert 1 <= int((most != 0).sum()) <= 26  # 10 expected
    torch.testing.assert_close(float(most.max()), 200_000.0, rtol=0.01, atol=0)
    assert bool((keep_noise((5,), 0.0, like) == 1).all())


def test_noise_of_neighbours_is_independent() -> None:
    torch.manual_seed(0)
    kept = (keep_noise((400_000,), 0.5, torch.zeros(1)) != 0).double() - 0.5
    for lag in (1, 2, 3, 4, 8):
        # Mean of products of +-1/2: six standard deviations.
        assert abs((kept[lag:] * kept[:-lag]).mean().item()) < 6 * 0.25 / math.sqrt(400_000)


LONG_TEXT = """
import resource, torch
from trainables.encoders.attention import attend_grouped
from trainables.encoders.packing import pack
import numpy as np
packed = pack([np.zeros(4096, np.int32)], 4096, (), ())
q, kv = torch.randn(4096, 48), torch.randn(4096, 96)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    attend_grouped(q, kv, packed, heads=12)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.costly
def test_evaluating_a_long_text_takes_no_memory_for_all_scores() -> None:
    done = subprocess.run([sys.executable, "-c", LONG_TEXT], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 200  # MB; 12 x 4096 x 4096 scores are 805, held twice


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_long_texts_have_the_same_vectors_without_gradients(biased: bool, first_only: bool) -> None:
    heads, width = 2, 8
    packed = pack([np.zeros(n, np.int32) for n in (LONG + 3, 5, 1)], 2 * LONG, (), ())
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(len(packed) if first_only else len(packed.ids), heads * width, generator=generator)
    pair = torch.randn(len(packed.ids), 2 * heads * width, generator=generator)
    bias = torch.randn(heads, packed.longest, packed.longest, generator=generator) if biased else None
    whole = attend_grouped(query, pair, packed, heads, bias=bias)
    with torch.no_grad():
        assert (attend_grouped(query, pair, packed, heads, bias=bias) - whole).abs().max() < 1e-5
