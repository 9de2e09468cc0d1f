"""The way of a batch's arrays to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device; a GPU is handed it without waiting for what it still has to do.

    From page-locked memory, that is, which torch keeps and reuses: a copy from other memory may wait for all kernels
    before it, also a non-blocking one if it is larger than the driver's own buffer (64 KiB).
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
