"""A snapshot is of the moment it was taken, whatever training does before its copy has come from the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainables.training.checkpoint import Snapshot


def trained(device):
    """A network with batch-norm and its optimiser, and what makes a step of them."""
    network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.1)
    x = torch.randn(32, 64, device=device)

    def step():
        (network(x) ** 3).mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    step()
    return (lambda: {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "losses": [x.sum()]}), step


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors(part)]


def assert_of_its_moment(device, steps):
    state, step = trained(device)
    before = [tensor.clone() for tensor in tensors(state())]
    taken = Snapshot(state(), torch.device(device))
    for _ in range(steps):
        step()
    read = taken.read()
    assert read.keys() == state().keys()
    assert read["optimiser"]["param_groups"] == state()["optimiser"]["param_groups"]
    assert len(tensors(read)) == len(before)
    changed = 0
    for copy, then, now in zip(tensors(read), before, tensors(state()), strict=True):
        assert torch.equal(copy, then.cpu())
        changed += not torch.equal(then, now)
    assert changed >= len(before) - 1  # all but the loss
    return read


def test_of_its_moment_on_a_cpu():
    assert_of_its_moment("cpu", 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_of_its_moment_on_a_gpu():
    """Steps follow at once and nothing waits; twice, so that page-locked buffers are reused."""
    for _ in range(2):
        read = assert_of_its_moment("cuda", 50)
        assert all(tensor.is_pinned() for tensor in tensors(read["network"]))
