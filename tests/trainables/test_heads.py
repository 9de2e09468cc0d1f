"""Heads: shapes, seeds, the formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainables.encoders.heads import MlmHead, make_head


def test_linear_tanh_is_its_formula() -> None:
    head = make_head("linear_tanh", 8, seed=1)
    assert head is not None
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    weight, bias = head.parameters()
    torch.testing.assert_close(head(x), torch.tanh(x @ weight.T + bias))


def test_mlp_bn_is_diffcse_projector() -> None:
    head = make_head("mlp_bn", 8, seed=1)
    assert head is not None
    assert [tuple(p.shape) for p in head.parameters()] == [(16, 8), (16,), (16,), (8, 16)]
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    first, scale, shift, second = head.parameters()

    def normal(v: torch.Tensor) -> torch.Tensor:
        return (v - v.mean(0)) / (v.var(0, unbiased=False) + 1e-5).sqrt()

    expected = normal(torch.relu(normal(x @ first.T) * scale + shift) @ second.T)
    torch.testing.assert_close(head(x), expected, rtol=1e-4, atol=1e-5)


def test_the_seed_alone_decides() -> None:
    torch.manual_seed(0)
    first = make_head("linear_tanh", 8, seed=1)
    torch.manual_seed(99)
    second, third = make_head("linear_tanh", 8, seed=1), make_head("linear_tanh", 8, seed=2)
    assert first is not None
    assert second is not None
    assert third is not None
    weights = [next(h.parameters()) for h in (first, second, third)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_none_and_unknown() -> None:
    assert make_head("none", 8, seed=0) is None
    with pytest.raises(ValueError, match="expected one of linear_tanh, mlp_bn, none, got 'mlp'"):
        make_head("mlp", 8, seed=0)


def test_mlm_head_takes_what_the_checkpoint_has() -> None:
    pretrained = {"dense.weight": torch.eye(4), "dense.bias": torch.ones(4), "bias": torch.arange(6.0)}
    head = MlmHead(4, (6, 4), pretrained, seed=0)
    decoder = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = F.layer_norm(F.gelu(x + 1), (4,), eps=1e-12) @ decoder.T + torch.arange(6.0)
    torch.testing.assert_close(head(x, decoder), expected)
