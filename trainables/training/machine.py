"""The machine of a trial: its memory, the precision that its device is fast in, its description and its load.

Torch is imported inside the functions: the driver imports this module and does without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import statistics
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.contract.errors import first_line
from trainables.contract.limits import cores, memory
from trainables.contract.trial import CARD_MEMORY, GPU_BUSY, PROCESS_MEMORY

if TYPE_CHECKING:
    import torch
    from torch import nn

SECONDS_BETWEEN = 10.0  # a call of `release_memory` costs up to 0.2 s per GB that it frees
AMX_PAYS_FROM, AVX_PAYS_FROM = 256, 128  # network widths from which bf16 is faster than float32 on a CPU, by its unit
FP16_FROM = (7, 0)  # compute capability with units for fp16: Volta
SAMPLED_S = 1.0  # a GPU reports its utilisation of the last moment only
CPU, MEMORY, GPU = "system/process_cpu_percentage", PROCESS_MEMORY, GPU_BUSY
_released = float("-inf")


def use_large_pages() -> None:
    """Have torch map large tensors, made anew in every step, with 2 MB pages (docs/development/measurements.md).

    Torch reads this once, at its first allocation: call this where a process that will train is set up.
    THP_MEM_ALLOC_ENABLE in the environment wins.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def release_memory() -> None:
    """Return freed memory to the system, at most every `SECONDS_BETWEEN`; does nothing without glibc.

    Without it a trial process on 42,000 dev pairs grew to 3 GB in two trials of a 20 MB encoder; half a GB was in use.
    """
    global _released
    if time.monotonic() - _released >= SECONDS_BETWEEN:
        with contextlib.suppress(OSError, AttributeError):  # musl and macOS have no malloc_trim
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        _released = time.monotonic()


def room_for_graphs(network: nn.Module, device: torch.device) -> float:
    """Bytes of a trial's share of the device's memory that its weights, gradients and optimiser leave.

    On a GPU the share is the process's memory fraction, on a CPU that of its threads among the cores that it may use.
    """
    import torch

    if device.type == "cuda":
        share = torch.cuda.get_per_process_memory_fraction(device)
        total = torch.cuda.get_device_properties(device).total_memory * share
    else:
        total = memory() * min(1.0, torch.get_num_threads() / cores())
    return max(0.0, total - model_memory(network))


def model_memory(network: nn.Module) -> float:
    """Bytes of weights, their gradients and Adam's two moments."""
    size = dict.fromkeys((False, True), 0)
    for p in network.parameters():
        size[p.requires_grad] += p.numel() * p.element_size()
    return float(size[False] + 4 * size[True])


def card_memory(device: torch.device) -> dict[str, float]:
    """The memory of the whole card under its metric's name; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    import torch

    return {CARD_MEMORY: torch.cuda.get_device_properties(device).total_memory / 1e9}


def cuda_problem() -> str:
    """Why torch cannot use the GPU that Ray has made visible to this process; "" if it can."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own
    except Exception as error:  # a build without CUDA, no driver, an old one, no card
        return first_line(error)
    return ""


def check_cuda() -> None:
    """Raises: RuntimeError, a fault of the device, when torch cannot use the GPU of this process."""
    if problem := cuda_problem():
        raise RuntimeError(f"CUDA error: torch cannot use the GPU that Ray reserved: {problem}")


def in_bf16(precision: str, network: nn.Module, device: torch.device) -> bool:
    """Whether matrix products run in bf16 (weights, norms, sums, softmax, pooling and losses stay in float32).

    `auto`: where the device multiplies bf16 in hardware. On a CPU that means AMX or AVX512-BF16; networks too narrow
    for it spend their time elsewhere (docs/development/measurements.md).
    """
    import torch

    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    width = max((min(p.shape) for p in network.parameters() if p.ndim == 2), default=0)
    units = torch.cpu.get_capabilities()  # type: ignore[no-untyped-call]
    if units.get("amx_tile"):  # such a CPU has AVX512-BF16 too
        return width >= AMX_PAYS_FROM
    return width >= AVX_PAYS_FROM and bool(units.get("avx512_bf16"))


def in_fp16(precision: str, device: torch.device) -> bool:
    """Whether matrix products run in fp16, with loss scaling. `auto`: on a GPU with fp16 units and none for bf16."""
    import torch

    if precision != "auto" or device.type != "cuda":
        return precision == "fp16"
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return not bf16 and torch.cuda.get_device_capability(device) >= FP16_FROM


@cache
def describe(device: torch.device) -> str:
    """`node7, NVIDIA H100 80GB HBM3, driver 550.54.15`, or `laptop, CPU AMD EPYC 9R14`."""
    if device.type == "cuda":
        import torch

        driver = _after("/proc/driver/nvidia/version", "Kernel Module").split()
        parts = [torch.cuda.get_device_name(device), *(f"driver {number}" for number in driver[:1])]
    else:
        name = _after("/proc/cpuinfo", "model name").lstrip("\t :") or platform.machine()
        parts = [f"CPU {name}"]
    return ", ".join([socket.gethostname(), *parts])


def _after(file: str, word: str) -> str:
    """What follows a word in the first line that has it; "" without one, or without the file."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
            if word in line:
                return line.partition(word)[2].strip()
    return ""


class Usage:
    """Load of the trial's process between two evaluations, under the names that MLflow shows as "System metrics".

    A GPU's utilisation is that of the whole card, whoever uses it; it needs nvidia-ml-py (extra `gpu`) and is left out
    without it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._samples, self._closed = device, list[float](), threading.Event()
        self._clock, self._cpu = time.monotonic(), time.process_time()
        if device.type == "cuda" and _utilisation(device) is not None:
            threading.Thread(target=self._sample, daemon=True, name="usage").start()

    def close(self) -> None:
        self._closed.set()

    def read(self) -> dict[str, float]:
        """Since the last call: CPU time in percent of the wall time, 100 a core; the card's mean utilisation in
        percent. Memory is what the process holds now, in 1e6 bytes (Linux)."""
        clock, cpu = time.monotonic(), time.process_time()
        found = {CPU: round(100 * (cpu - self._cpu) / max(clock - self._clock, 1e-9), 1)}
        self._clock, self._cpu = clock, cpu
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found[MEMORY] = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
        samples, self._samples = self._samples, []
        if samples:
            found[GPU] = round(statistics.fmean(samples), 1)
        return found

    def _sample(self) -> None:
        while not self._closed.wait(SAMPLED_S):
            if (percent := _utilisation(self._device)) is not None:
                self._samples.append(percent)


def _utilisation(device: torch.device) -> float | None:
    """Percent of the last moment in which the card was busy; None where it cannot be read."""
    import torch

    try:
        return float(torch.cuda.utilization(device))
    except Exception:  # no nvidia-ml-py, no permission, a broken card: one figure less, never a trial
        return None
