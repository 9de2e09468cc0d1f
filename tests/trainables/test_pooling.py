"""Poolings in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainables.contract.config import POOLINGS
from trainables.encoders.network import average, wanted_states
from trainables.encoders.packing import pack


def test_states_of_every_pooling() -> None:
    found = {pooling: wanted_states(pooling, 12) for pooling in POOLINGS}
    assert found == {
        "cls": (12,),
        "cls_before_pooler": (12,),
        "avg": (12,),
        "avg_first_last": (1, 12),
        "avg_top2": (11, 12),
        "pretrained_pooler": (12,),
        "last": (12,),
    }
    with pytest.raises(ValueError, match=r"pooling: expected one of cls, .*, got 'max'"):
        wanted_states("max", 12)


@pytest.mark.parametrize("numbers", [(3,), (1, 3)])
def test_average_is_over_layers_and_own_tokens(numbers: tuple[int, ...]) -> None:
    packed = pack([np.zeros(n, np.int32) for n in (4, 0, 2)], 16, [1], [2])
    generator = torch.Generator().manual_seed(0)
    states = {n: torch.randn(len(packed.ids), 5, dtype=torch.float64, generator=generator) for n in numbers}
    got = average(states, packed)
    for i, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
        rows = [state[t] for state in states.values() for t in range(start, start + length)]
        torch.testing.assert_close(got[i], sum(rows) / len(rows))


def test_half_precision_states_are_summed_in_float32() -> None:
    packed = pack([np.zeros(300, np.int32)], 302, [1], [2])
    states = torch.ones(302, 2, dtype=torch.bfloat16)  # a bfloat16 sum of ones stops growing at 256
    assert torch.equal(average({3: states}, packed), torch.ones(1, 2))
