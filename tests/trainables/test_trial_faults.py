"""Faults of a trial's process: what kind they are, what is freed, what the environment may not do."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
import torch

from trainables.contract.trial import TrialSpec
from trainables.training import method_trial
from trainables.training.distributed import World
from trainables.training.trial import classify, run_trial

pytestmark = pytest.mark.costly


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore"), "device"),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"), "device"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), "device"),
        (torch.distributed.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error"), "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (torch.AcceleratorError("CUDA error: out of memory"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
        (ValueError("expected CUDA error to be spelled"), "error"),
    ],
)
def test_kinds_of_faults(fault: Exception, kind: str) -> None:
    found, line = classify(fault)
    assert found == kind
    assert "\n" not in line


def test_a_failed_trial_holds_no_memory_of_the_device_when_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Big:
        pass

    left: list[weakref.ref[Big]] = []
    alive: list[bool] = []

    def fails(*_: object) -> None:
        network = Big()
        left.append(weakref.ref(network))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(method_trial, "train_by_method", fails)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(left[0]() is not None))
    spec = TrialSpec(method="simcse", encoder="builtin:tiny", data={}, metric="m", folder="unused")
    gc.disable()  # only what is let go of counts
    try:
        outcome = run_trial(spec, lambda _: "go", World(device=torch.device("cuda")))
    finally:
        gc.enable()
    assert (outcome.stop, alive) == ("failed:oom", [False])


def test_trials_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainables.on_ray.in_process import InProcess

    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    threads = torch.get_num_threads()
    monkeypatch.setattr(InProcess, "_fit", lambda *_: None)
    spec = TrialSpec(method="simcse", encoder="e", data={}, metric="m", folder="f", cpus=threads)
    InProcess(spec).begin(spec)
    host = InProcess(replace(spec, gpus=0.25))
    for gpus in (0.25, 0.25, 1.0, 0.25):  # one of them runs alone
        host.begin(replace(spec, gpus=gpus))
    assert asked == [0.25, 1.0, 0.25]


ONE_TRIAL = """
import sys
from trial_process import spec_of
from trainables.on_ray.in_process import InProcess
spec = spec_of(__import__("pathlib").Path(sys.argv[1]), "t")
host = InProcess(spec)
host.begin(spec)
message = host.receive()
while not message["done"]:
    if "phase" not in message:
        host.answer("go")
    message = host.receive()
print(message["stop"])
"""


@pytest.mark.slow  # a process that loads all of Ray Train; the SLURM test starts every trial so, too
def test_the_environment_of_a_launcher_starts_no_process_group(tmp_path: object) -> None:
    """Whoever starts the driver by torchrun or under SLURM leaves these; nobody answers at that address."""
    launcher = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}  # fmt: skip
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-c", ONE_TRIAL, str(tmp_path)],
        env=os.environ | launcher | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("completed"), done.stdout + done.stderr[-2000:]
