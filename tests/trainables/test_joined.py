"""Weights side by side in one type, and their gradients' way back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainables.encoders.trunk import joined


def layers(*outs: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(3, out) for out in outs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_concatenation_and_cast(dtype: torch.dtype) -> None:
    query, key, value, out = every = layers(3, 3, 2, 4)
    found = joined([[query, key, value], [out]], dtype)
    plain = [
        (torch.cat([layer.weight for layer in group]).to(dtype), torch.cat([layer.bias for layer in group]).to(dtype))
        for group in ([query, key, value], [out])
    ]

    def gradients(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        total = sum((part * torch.arange(part.numel(), dtype=dtype).view_as(part)).sum() for p in pairs for part in p)
        assert isinstance(total, Tensor)
        return list(torch.autograd.grad(total, [p for layer in every for p in layer.parameters()]))

    for ours, theirs in zip(found, plain, strict=True):
        assert all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(ours, theirs, strict=True))
    for a, b in zip(gradients(found), gradients(plain), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == torch.float32


def test_what_is_frozen_or_not_read_has_no_gradient() -> None:
    query, key, out = layers(3, 3, 4)
    key.requires_grad_(False)
    (weight, _), _ = joined([[query, key], [out]], torch.bfloat16)
    weight.sum().backward()
    assert query.weight.grad is not None
    assert [p.grad for p in (query.bias, *key.parameters(), *out.parameters())] == [None] * 5


def test_a_layer_alone_in_its_own_type_is_not_copied() -> None:
    (out,) = layers(4)
    ((weight, bias),) = joined([[out]], torch.float32)
    assert weight is out.weight
    assert bias is out.bias
