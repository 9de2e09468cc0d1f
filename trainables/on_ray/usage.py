"""What a trial takes of the machine: MLflow shows metrics of these names under "System metrics"."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

SAMPLED_S = 1.0  # a card says how busy it was in the last moment only
CPU, MEMORY, GPU = (
    f"system/{name}" for name in ("process_cpu_percentage", "process_memory_megabytes", "gpu_utilization_percentage")
)


class Usage:
    """Of the trial's own process, between one evaluation and the next; of a card as a whole, whoever else uses it.

    Args: device: torch's. A card's figure wants nvidia-ml-py (extra `gpu`), without which it is left out.
    """

    def __init__(self, device: Any) -> None:
        self._device, self._samples, self._closed = device, list[float](), threading.Event()
        self._clock, self._cpu = time.monotonic(), time.process_time()
        if device.type == "cuda" and _busy(device) is not None:
            threading.Thread(target=self._sample, daemon=True, name="usage").start()

    def __enter__(self) -> Usage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()

    def read(self) -> dict[str, float]:
        """Since the last call: CPU time in percent of the wall time, 100 a core; the card's mean utilisation in
        percent. Memory is what the process holds now, in 1e6 bytes, where the system tells (Linux)."""
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
            if (busy := _busy(self._device)) is not None:
                self._samples.append(busy)


def _busy(device: Any) -> float | None:
    """Percent of the last moment in which the card was at work; None where nobody can say."""
    import torch

    try:
        return float(torch.cuda.utilization(device))
    except Exception:  # no nvidia-ml-py, no right to ask, a card in trouble: a figure less, never a trial
        return None
