"""Cores and memory that this process may use: of the machine, its affinity and its control groups (containers, SLURM).

The only place where either is read. No torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")  # lines `number:controllers:path`; of version 2 `0::path`


def cores() -> int:
    """CPU cores this process may use, at least 1; of a quota of 2.5 cores 2."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_quotas()])))


def share_of_cores() -> int:
    """Cores for one of the workers that a trial has on this node, at least 1; `cores` outside a worker group."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # Ray Train's and torchrun's variable


def memory() -> int:
    """Bytes of memory this process may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = (*_read("", "memory.max"), *_read("memory", "memory.limit_in_bytes"))
    return int(min([total, *(limit for limit, *_ in limits)]))


def _quotas() -> Iterator[float]:
    """Cores of each quota on CPU time."""
    for quota, period in _read("", "cpu.max"):
        yield quota / period
    periods = _read("cpu", "cpu.cfs_period_us")
    for (quota,), (period,) in zip(_read("cpu", "cpu.cfs_quota_us"), periods, strict=False):
        if quota > 0:  # -1: none
            yield quota / period


def _read(controller: str, name: str) -> list[list[float]]:
    """The numbers in a file of this process's group and those above it, where they are numbers and not `max`.

    In a container the path may be that of the host, which is not there: the container's own group is the root.

    Args: controller: of version 1; "" = version 2.
    """
    base, own = CGROUPS / controller, Path()
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                own = Path(path.lstrip("/"))
    found = []
    for group in dict.fromkeys([own, *own.parents]):
        with contextlib.suppress(OSError, ValueError):
            found.append([float(word) for word in (base / group / name).read_text().split()])
    return found
