"""Freed memory goes back to the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainables.training import memory

pytestmark = pytest.mark.costly


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_holes_in_the_heap_are_given_back() -> None:
    if memory._libc() is None:
        pytest.skip("not glibc")
    blocks = [bytearray(60_000) for _ in range(4_000)]  # below the size that malloc maps separately
    keep = blocks[::200]  # pins the heap's end: free alone gives nothing back
    full = resident_mb()
    del blocks
    memory.give_back(at_once=True)
    assert full - resident_mb() > 100
    assert len(keep) == 20


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ALLOCATE = """
from trainables.contract.trial import TrialSpec
from trainables.on_ray.in_process import InProcess
InProcess(TrialSpec(method="simcse", encoder="e", data={}, metric="m", folder="f"))  # as Tune sets up a trial's process
import torch
kept = torch.ones(2**25)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")) / 1024)
"""


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="this system has no transparent huge pages"
)
@pytest.mark.slow
def test_large_tensors_lie_in_huge_pages_unless_told_otherwise() -> None:
    def huge_mb(**changes: str) -> float:
        environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"} | changes
        done = subprocess.run(
            [sys.executable, "-c", ALLOCATE], check=True, capture_output=True, text=True, env=environment
        )
        return float(done.stdout)

    asked = huge_mb()
    assert asked >= 2  # of 128: at least one, also where memory is in pieces
    if "[madvise]" in HUGE_PAGES.read_text():
        assert huge_mb(THP_MEM_ALLOC_ENABLE="0") < asked


def test_importing_the_package_changes_no_environment() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    code = "import os; before = dict(os.environ); import trainables.training.trial; print(before == dict(os.environ))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "True"


def resident_mb() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 1e6
