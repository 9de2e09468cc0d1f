"""A trial's process: kinds of faults, freed memory, pause checks, the log, the environment."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trial_process import spec_of

from trainables.contract.trial import LOG, MODEL_MEMORY, STEP_SECONDS, TrialSpec
from trainables.on_ray.messages import PHASE
from trainables.on_ray.trainable import InProcess
from trainables.on_ray.worker_group import interface
from trainables.training import method_trial
from trainables.training.distributed import World
from trainables.training.trial import LOG_FIRST, LOG_LAST, classify, run_trial, saved_log, throttled

pytestmark = pytest.mark.costly
SPEC = TrialSpec(method="simcse", encoder="builtin:tiny", data={}, metric="m", folder="unused")


def following(first: Exception, second: Exception) -> Exception:
    """As torch's writer raises when a write has failed."""
    second.__context__ = first
    return second


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
        (
            following(OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 768 vs 662")),
            "disk",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
        (ValueError("expected CUDA error to be spelled"), "error"),
    ],
)
def test_kinds_of_faults(fault: Exception, kind: str) -> None:
    found, line = classify(fault)
    assert found == kind
    assert "\n" not in line


def test_failed_trial_frees_its_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
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
    gc.disable()  # only what is let go of counts
    try:
        outcome = run_trial(SPEC, lambda _: "go", World(device=torch.device("cuda")))
    finally:
        gc.enable()
    assert (outcome.stop, alive) == ("failed:oom", [False])


def test_page_locked_memory_is_returned_after_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps such buffers: those of a large encoder's states would stay while small ones are trained."""
    returned: list[str] = []
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: returned.append("page-locked"), raising=False)
    for device in ("cpu", "cuda"):
        run_trial(replace(SPEC, method="unknown"), lambda _: "go", World(device=torch.device(device)))
    assert returned == ["page-locked"]


def test_workers_rendezvous_on_the_network_of_their_ray() -> None:
    """A host's name may resolve to its loopback address, where gloo finds no other node."""
    assert interface("127.0.0.1") == "lo"
    assert interface("203.0.113.7") == ""


def test_pause_checks_are_rare_and_final(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("trainables.training.trial.time.monotonic", lambda: clock[0])
    answers = iter([False, True])
    check = throttled(lambda: next(answers))
    found = []
    for clock[0] in (0.0, 0.1, 0.4, 0.6, 0.7, 9.0):
        found.append(check())
    assert found == [False, False, False, True, True, True]


def messages_of(spec: TrialSpec) -> list[dict[str, Any]]:
    """What a host sends for one trial, phases left out."""
    host = InProcess(spec)
    threads = threading.active_count()
    host.begin(spec)
    found = [host.receive()]
    while not found[-1]["done"]:
        if PHASE not in found[-1]:
            host.answer("go")
        found.append(host.receive())
    assert threading.active_count() == threads, "a thread is left behind"
    return [message for message in found if PHASE not in message]


@pytest.mark.timeout(60)
def test_device_that_does_not_start_fails_the_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error before the trial's own fault handling ended its thread, and the driver waited for ever."""

    def refuse(_: object) -> str:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr("trainables.training.machine.describe", refuse)
    (end,) = messages_of(replace(spec_of(tmp_path, "t"), cpus=torch.get_num_threads()))
    assert (end["stop"], end["reason"]) == ("failed:error", "RuntimeError: No CUDA GPUs are available")


def test_trials_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setattr("trainables.on_ray.trainable.run_and_send", lambda *_: None)
    monkeypatch.setattr("trainables.on_ray.trainable.check_cuda", lambda: None)  # this torch may know no GPU
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    spec = replace(SPEC, cpus=torch.get_num_threads())
    InProcess(spec)._run(spec)
    host = InProcess(spec)
    for gpus in (0.25, 0.25, 1.0, 0.25):  # one of them runs alone
        host._run(replace(spec, gpus=gpus))
    assert asked == [0.25, 1.0, 0.25]


ONE_TRIAL = "import sys, pathlib, test_trial; from trial_process import spec_of\n"
ONE_TRIAL += "print(test_trial.messages_of(spec_of(pathlib.Path(sys.argv[1]), 't'))[-1]['stop'])"


@pytest.mark.slow  # a process that loads all of Ray Train; the SLURM test starts every trial so, too
def test_environment_of_a_launcher_starts_no_process_group(tmp_path: Path) -> None:
    """A driver started by torchrun or under SLURM has these variables; nothing listens at that address."""
    launcher = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}  # fmt: skip
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-c", ONE_TRIAL, str(tmp_path)],
        env=os.environ | launcher | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("completed"), done.stdout + done.stderr[-2000:]


IN_A_PROCESS = """
import faulthandler, io, logging, subprocess, sys, warnings
from trainables.training.trial import saved_log
with saved_log(sys.argv[1]):
    print("printed")
    print("progress 1 %\\rprogress 2 %", file=sys.stderr)
    warnings.warn("a warning")
    logging.getLogger("x").warning("logged")
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)
    subprocess.run(["echo", "of a child"], stdout=sys.stdout, check=True)
    sys.stdout.buffer.write(b"bytes\\n")
    print(sys.stdout.encoding, sys.stdout.isatty(), flush=True)
    sys.stderr.close()
    print("after all", file=sys.stderr)
print("outside")
"""


def test_log_holds_what_a_trial_prints_and_warns(tmp_path: Path) -> None:
    """Whatever a script does with its streams; what goes around their `write` is printed and not saved."""
    words = [sys.executable, "-c", IN_A_PROCESS, str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, encoding="utf-8")
    printed = ["printed", "of a child", "bytes", "utf-8 False", "outside"]
    assert sorted(done.stdout.splitlines()) == sorted(printed)
    assert "logged" in done.stderr
    with saved_log(str(tmp_path)):
        print("the next session")
        print("\ud83d half an emoji, größer")
    lines = (tmp_path / LOG).read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["printed", "progress 2 %"]
    assert any("UserWarning: a warning" in line for line in lines)
    assert lines[-5:] == ["logged", "utf-8 False", "after all", "the next session", "\\ud83d half an emoji, größer"]


def test_log_is_bounded_and_counts_what_it_left_out(tmp_path: Path) -> None:
    with saved_log(str(tmp_path)):
        pass
    assert not (tmp_path / LOG).exists()
    with saved_log(str(tmp_path)):
        for k in range(5_000):
            print(k)
    lines = (tmp_path / LOG).read_text().splitlines()
    assert len(lines) == LOG_FIRST + 1 + LOG_LAST
    assert lines[LOG_FIRST] == f"[{5_000 - LOG_FIRST - LOG_LAST} lines left out]"
    assert (lines[0], lines[-1]) == ("0", "4999")


def test_measuring_changes_nothing_in_a_trial(tmp_path: Path) -> None:
    plain, measured = (
        messages_of(replace(spec_of(tmp_path, str(measure)), measure=measure)) for measure in (False, True)
    )
    first, *_ = [m for m in measured if PHASE not in m]
    facts = {name for name in first["metrics"] if name.startswith((MODEL_MEMORY, STEP_SECONDS))}
    assert facts >= {MODEL_MEMORY, f"{STEP_SECONDS}1"}
    assert all(first["metrics"][name] > 0 for name in facts)

    def results(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(m.get("value"), m.get("metrics", {}).get("loss"), m["best"]) for m in messages if PHASE not in m]

    assert results(measured) == results(plain)
