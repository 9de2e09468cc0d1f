"""The operations that shares of a card's rate are stated in, against torch's own count (benchmarks/operations.py)."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from benchmarks import operations
from benchmarks.launches import Launches
from benchmarks.operations import matmul_rate, step_operations
from trainables.encoders.packing import pack
from trainables.encoders.trunk import trunk_of

CONFIG = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40,
    max_position_embeddings=24, attn_implementation="eager",
)  # fmt: skip


def similarities(first: Tensor, second: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(first) @ F.normalize(second).T, torch.arange(len(first)))


def test_operations_of_a_packed_step_are_those_that_torch_counts() -> None:
    lengths = [4, 9, 7, 4, 11]
    rng = np.random.default_rng(0)
    sentences = [rng.integers(5, 60, n - 2).astype(np.int32) for n in lengths]
    packed = pack(sentences * 2, 32, (1,), (2,), torch.device("cpu"))
    trunk = trunk_of(BertModel(CONFIG).train())
    assert trunk is not None
    with FlopCounterMode(display=False) as counted:
        (last,) = trunk.states(packed, (3,), 0.1, first_tokens_only=True).values()
        first, second = packed.restore(last).chunk(2)
        similarities(first, second).backward()  # type: ignore[no-untyped-call]
    assert step_operations(CONFIG, np.array(lengths), 5, last_first_only=True) == pytest.approx(
        counted.get_total_flops(), rel=1e-9
    )


def test_operations_of_a_step_of_the_library_are_those_that_torch_counts() -> None:
    """On sentences of equal length, where nothing is padded."""
    model = BertModel(CONFIG, add_pooling_layer=False).train()
    ids = torch.randint(5, 60, (5, 8))
    with FlopCounterMode(display=False) as counted:
        views = [model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0] for _ in range(2)]
        similarities(*views).backward()  # type: ignore[no-untyped-call]
    assert step_operations(CONFIG, np.full(5, 8), 5, last_first_only=False) == pytest.approx(
        counted.get_total_flops(), rel=1e-9
    )


def test_the_rate_is_taken_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operations.SIZE, "cpu", 8)
    products: list[int] = []
    seconds = iter([0.0, 5.0, 10.0, 12.0, 20.0, 26.0, 30.0, 39.0, 40.0, 50.0])

    def clock() -> float:
        products.append(counted.counts["mm"])
        return next(seconds)

    monkeypatch.setattr(time, "perf_counter", clock)
    with Launches() as counted:
        rate = matmul_rate("cpu", torch.float32)
    assert products[0] == operations.PRODUCTS  # before the clock is looked at for the first time
    assert counted.counts["mm"] == operations.PRODUCTS * (operations.REPEATS + 1)
    assert rate == operations.PRODUCTS * 2 * 8**3 / 2  # the fastest block took two seconds
