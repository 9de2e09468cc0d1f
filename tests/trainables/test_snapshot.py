"""A snapshot is of the moment it was taken, whatever training does before its copy has come from the device."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trainables.training import checkpoint
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


class LateDevice(TorchFunctionMode):
    """Every tensor is on a GPU whose stream of steps is always done and whose copies to the host are as late as may be:
    they happen when their event is waited for, out of memory that is given away as soon as nothing holds it."""

    is_cuda = torch.Tensor.is_cuda.__get__

    def __init__(self):
        super().__init__()
        self.ordered, self.held, self.copies = False, [], []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == LateDevice.is_cuda:
            return True
        if func is torch.Tensor.record_stream:
            self.held.append(args[0])
            return None
        if func is torch.Tensor.to and (kwargs or {}).get("non_blocking"):
            assert self.ordered, "the copy may come before what it is to read"
            assert args[0] is self.held[-1], "what the copy reads may be given away before"
            host = torch.full_like(args[0], -1)
            self.copies.append(lambda source=args[0]: host.copy_(source))
            return host
        return func(*args, **(kwargs or {}))

    def wait_stream(self, _):
        self.ordered = True

    def record_event(self):
        return self

    def synchronize(self):
        for copy in self.copies:
            copy()


def test_late_copy_is_of_its_moment(monkeypatch):
    late = LateDevice()
    monkeypatch.setattr(checkpoint, "_copy_stream", lambda _: late)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    tensor, numbers = torch.zeros(3), torch.arange(3)
    with late:
        taken = Snapshot({"a": [tensor], "b": (numbers, 5)}, torch.device("cuda"))
        tensor += 1
        numbers += 1
        read = taken.read()
    assert len(late.copies) == 2
    assert torch.equal(read["a"][0], torch.zeros(3))
    assert torch.equal(read["b"][0], torch.arange(3))
    assert read["b"][1] == 5


def test_of_its_moment_on_a_cpu():
    assert_of_its_moment("cpu", 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_of_its_moment_on_a_gpu():
    """Steps follow at once and nothing waits; twice, so that page-locked buffers are reused."""
    for _ in range(2):
        read = assert_of_its_moment("cuda", 50)
        assert all(tensor.is_pinned() for tensor in tensors(read["network"]))
