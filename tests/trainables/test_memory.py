"""Freed memory goes back to the system."""

from __future__ import annotations

import sys

import pytest

from trainables import memory


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


def resident_mb() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 1e6
