"""Where a trial runs, for people: the host, its device, the device's driver."""

from __future__ import annotations

import platform
import socket
from functools import cache
from pathlib import Path
from typing import Any


@cache
def place_of(device: Any) -> str:
    """`node7, NVIDIA H100 80GB HBM3, driver 550.54.15`, or `laptop, CPU AMD EPYC 9R14`. Args: device: torch's."""
    if device.type == "cuda":
        import torch

        driver = _after("/proc/driver/nvidia/version", "Kernel Module").split()
        return ", ".join(
            [socket.gethostname(), torch.cuda.get_device_name(device), *(f"driver {d}" for d in driver[:1])]
        )
    name = _after("/proc/cpuinfo", "model name").lstrip("\t :") or platform.machine()
    return f"{socket.gethostname()}, CPU {name}"


def _after(file: str, word: str) -> str:
    """What follows a word in the first line that has it; "" without one, or without the file."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(word)[2].strip() for line in lines if word in line), "")
