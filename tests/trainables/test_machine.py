"""Memory, precision and load of a trial's machine."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from trainables.contract import limits
from trainables.training import machine
from trainables.training.machine import CPU, GPU, MEMORY, Usage, in_bf16, in_fp16

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ALLOCATE = """
from trainables.contract.trial import TrialSpec
from trainables.on_ray.trainable import InProcess
InProcess(TrialSpec(method="simcse", encoder="e", data={}, metric="m", folder="f"))  # as Tune sets up a trial's process
import torch
kept = torch.ones(2**25)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")) / 1024)
"""


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.costly
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs malloc_trim")
def test_freed_memory_returns_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SECONDS_BETWEEN", 0.0)
    blocks = [bytearray(60_000) for _ in range(4_000)]  # below the size that malloc maps separately
    keep = blocks[::200]  # pins the heap's end: free alone returns nothing
    full = resident_mb()
    del blocks
    machine.release_memory()
    assert full - resident_mb() > 100
    assert len(keep) == 20


def output_of(code: str, **changes: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"} | changes
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="this system has no transparent huge pages"
)
@pytest.mark.slow
def test_large_tensors_use_huge_pages_unless_disabled() -> None:
    asked = float(output_of(ALLOCATE))
    assert asked >= 2  # of 128: at least one, also where memory is in pieces
    if "[madvise]" in HUGE_PAGES.read_text():
        assert float(output_of(ALLOCATE, THP_MEM_ALLOC_ENABLE="0")) < asked


@pytest.mark.costly
def test_importing_the_package_changes_no_environment() -> None:
    code = "import os; before = dict(os.environ); import trainables.training.trial; print(before == dict(os.environ))"
    assert output_of(code) == "True"


@pytest.mark.fast
def test_a_busy_core_is_a_hundred_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, work = iter([10.0, 12.0, 16.0]), iter([1.0, 4.0, 5.0])  # 3 s of work in 2 s, then 1 in 4
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(machine.time, "process_time", lambda: next(work))
    with closing(Usage(torch.device("cpu"))) as used:
        first, second = used.read(), used.read()
    assert (first[CPU], second[CPU]) == (150.0, 25.0)
    assert 20 < first[MEMORY] < 100_000
    assert GPU not in first


@pytest.mark.fast
def test_gpu_utilisation_is_sampled_and_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = itertools.cycle([40, 60])
    monkeypatch.setattr(machine, "SAMPLED_S", 0.002)
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: next(busy))
    with closing(Usage(torch.device("cuda"))) as used:
        time.sleep(0.05)
        assert 40 <= used.read()[GPU] <= 60
    monkeypatch.delattr(torch.cuda, "utilization")  # as without nvidia-ml-py: one figure less, no failed trial
    with closing(Usage(torch.device("cuda"))) as used:
        assert GPU not in used.read()


@pytest.mark.parametrize(
    ("amx", "avx", "pays_from"), [(True, True, 256), (False, True, 128), (False, False, None)], ids=str
)
def test_bf16_is_chosen_by_the_device_and_the_width(
    monkeypatch: pytest.MonkeyPatch, amx: bool, avx: bool, pays_from: int | None
) -> None:
    assert {"amx_tile", "avx512_bf16"} <= torch.cpu.get_capabilities().keys() or platform.machine() != "x86_64"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": amx, "avx512_bf16": avx})
    cpu = torch.device("cpu")
    for width in (64, 128, 256, 384):
        network = torch.nn.Linear(512, width)
        assert in_bf16("auto", network, cpu) is (pays_from is not None and width >= pays_from)
        assert in_bf16("bf16", network, cpu)
        assert not in_bf16("fp32", network, cpu)


GB = 10**9
V2, V1 = "0::/job/step\n", "7:memory:/job/step\n4:cpu,cpuacct:/job/step\n0::/\n"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": f"{2 * GB}"}, (1, 2 * GB)),  # inside a container
        (V2, {"cpu.max": "max 100000", "memory.max": "max"}, (4, None)),
        (V2, {"job/cpu.max": "200000 100000", "job/step/memory.max": "max", "job/memory.max": f"{GB}"}, (2, GB)),
        (V2, {"job/step/cpu.max": "50000 100000"}, (1, None)),  # half a core
        (V1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, (3, None)),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, (4, None)),
        (V1, {"memory/job/memory.limit_in_bytes": f"{GB}", "memory/memory.limit_in_bytes": f"{2**63}"}, (4, GB)),
        (None, {}, (4, None)),  # no control groups
    ],
)
def test_limits_of_control_groups_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str | None, files: dict[str, str], expected: Any
) -> None:
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    assert limits.cores() == expected[0]
    assert limits.memory() == (expected[1] or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


@pytest.mark.fast
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_trial_bound_to_its_cores_has_all_of_its_memory() -> None:
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    network = torch.nn.Linear(4, 4)
    try:
        os.sched_setaffinity(0, {min(before)})
        torch.set_num_threads(1)
        room = machine.room_for_graphs(network, torch.device("cpu"))
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
    assert room == limits.memory() - 4 * sum(p.numel() * 4 for p in network.parameters())


@pytest.mark.parametrize(
    ("bf16", "capability", "fp16"),
    [(True, (8, 0), False), (False, (7, 5), True), (False, (7, 0), True), (False, (6, 1), False)],
    ids=["A100", "T4", "V100", "P40"],
)
def test_auto_takes_fp16_on_a_card_without_bf16(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, capability: tuple[int, int], fp16: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    card = torch.device("cuda")
    assert in_fp16("auto", card) is fp16
    assert in_fp16("fp16", card)
    assert not in_fp16("fp32", card)
    assert not in_fp16("auto", torch.device("cpu"))
