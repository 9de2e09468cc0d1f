"""In which precision a trial's matrix products run."""

from __future__ import annotations

import torch
from torch import nn

# Width of a network from which bf16 is faster than float32 on a CPU, by the unit that multiplies it.
AMX_PAYS_FROM, AVX_PAYS_FROM = 256, 128


def in_bf16(precision: str, network: nn.Module, device: torch.device) -> bool:
    """Whether matrix products run in bf16 (weights, norms, sums, softmax, pooling and losses stay in float32).

    `auto`: where the device multiplies bf16 in hardware. On a CPU that means AMX or AVX512-BF16; networks too narrow
    for it spend their time elsewhere (docs/performance.md).
    """
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    width = max((min(p.shape) for p in network.parameters() if p.ndim == 2), default=0)
    units = torch.cpu.get_capabilities()  # type: ignore[no-untyped-call]
    if units.get("amx_tile"):  # such a CPU has AVX512-BF16 too
        return width >= AMX_PAYS_FROM
    return width >= AVX_PAYS_FROM and bool(units.get("avx512_bf16"))
