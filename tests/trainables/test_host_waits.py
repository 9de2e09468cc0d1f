"""A training step hands its kernels to the device and does not wait for them (counted on the CPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launches import HostWaits, accelerator
from torch.overrides import TorchFunctionMode

from benchmarks.packing import training
from trainables.encoders.packing import to_device

pytestmark = pytest.mark.costly


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"sentence number {i} of a corpus" for i in range(600)))
    return file


def test_an_array_goes_to_a_gpu_from_page_locked_memory() -> None:
    class Gpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append((func.__name__, *args[1:], kwargs))
            return args[0]

    calls: list[Any] = []
    array, device = np.arange(3), torch.device("cuda")
    with Gpu():
        there = to_device(array, device)
    assert there.tolist() == [0, 1, 2]
    assert calls == [("pin_memory", None), ("to", device, {"non_blocking": True})]


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("simcse", {}),
        ("simcse", {"mlm_weight": 0.1}),
        ("simcse", {"micro_batch": 8}),
        ("consert", {"first_view": "token_cutoff", "second_view": "feature_cutoff"}),
        ("diffcse", {}),
        ("edacse", {}),
        ("esimcse", {}),
    ],
)
def test_a_step_waits_for_nothing(
    method: str,
    params: dict[str, Any],
    texts: Path,
    real_data: Path,  # noqa: ARG001  # skips without data
) -> None:
    one = training(method, "bf16", Path("builtin:tiny"), texts, False, torch.device("cpu"), **params, batch_size=16)
    with accelerator():
        one._step(one.batches[0])
        with HostWaits() as seen:
            one._step(one.batches[1])
            one._step(one.batches[2])
        assert not seen.counts
        with HostWaits() as seen:
            one._mean_loss()  # which is read every LOSS_CHECK_STEPS
    assert seen.counts == {"__float__": 1}
