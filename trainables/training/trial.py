"""One trial from its spec: `run_trial`, what it does with faults, what a process holds between trials. No Ray here.

What trains is the trial's runner, named by the `Declaration` of its method.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from trainables.contract.errors import DataError, EncoderError, first_line, storage_line
from trainables.contract.registry import declared, load_object, use_plugins
from trainables.contract.trial import LOG, Decision, Evaluation, Outcome, Report, TrialSpec, study_folder
from trainables.training.checkpoint import TrialFolder
from trainables.training.distributed import World

T = TypeVar("T")
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")  # system, CUDA, cuBLAS
BROKEN_DEVICE = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "NCCL error", "ECC error", "device-side assert")
CACHED = 4  # prepared objects of each kind that a process holds: the encoder, corpora, dev sets of recent trials
PAUSE_CHECK_S, PAUSE_CHECK_SHARE = 0.5, 0.01  # pause checks: this often, for at most this share of the time
LOG_FIRST, LOG_LAST = 200, 800  # lines of a trial's log that are saved
LOG_LINE = 2_000  # characters of one


class TrainingFailure(RuntimeError):
    """Training cannot go on; `kind` is the failure's kind in the tracking schema ("nan" or "collapse")."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class ProcessCache:
    """What a trial process holds so that the next trial costs its training only."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The object made before for this key, or `make()`; the least recently used of a kind is dropped first."""
        objects = self._objects.setdefault(kind, {})
        found = objects.pop(key) if key in objects else make()
        objects[key] = found
        while len(objects) > CACHED:
            objects.pop(next(iter(objects)))
        return found


def seed_generators(seed: int) -> None:
    """Have Python, NumPy and torch draw what follows from a trial's seed, whatever this process has run before."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class TrialRunner(Protocol):
    """Runs (or resumes) one trial to its end, from its spec.

    It passes every evaluation to `report` and obeys the decision, calls `pausing` between evaluations (cheap: once a
    step) and, if true, saves its state and ends. State and best checkpoint are in `spec.folder`. What it raises becomes
    an outcome by `classify`. cache: what this process holds from one trial to the next.
    """

    def __call__(
        self, spec: TrialSpec, report: Report, world: World, cache: ProcessCache, pausing: Callable[[], bool]
    ) -> Outcome: ...


def run_trial(
    spec: TrialSpec,
    report: Report,
    world: World | None = None,
    cache: ProcessCache | None = None,
    pausing: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run (or resume) a trial to its end. Never raises for a fault of the trial: the outcome states what happened.

    In a group of workers a fault that only one of them met is raised there, since other workers wait for it.
    """
    world, cache = world or World(), cache or ProcessCache()
    last: Evaluation | None = None

    def remember(evaluation: Evaluation) -> Decision:
        nonlocal last
        last = evaluation
        return report(evaluation)

    try:
        use_plugins(spec.plugins)
        runner: TrialRunner = load_object(declared(spec.method).runner)
        outcome = runner(spec, remember, world, cache, throttled(pausing))
    except BaseException as fault:  # code from outside also raises what is no Exception: a cancelled task, Rust's panic
        if not isinstance(fault, Exception) and threading.current_thread() is threading.main_thread():
            raise  # a signal: it ends whoever trains in the main thread
        if world.size > 1 and not isinstance(fault, TrainingFailure):
            raise
        outcome = failed(fault, last, study_folder(spec.folder))
    if world.device.type == "cuda":  # only here: a fault's traceback holds the network
        gc.collect()  # a network and its hooks refer to each other
        with contextlib.suppress(RuntimeError):  # a broken device raises where it is used
            torch.cuda.empty_cache()
            empty_host_cache()
    return outcome


def empty_host_cache() -> None:
    """Return page-locked memory (copies of states, batches) to the system: torch keeps it, up to what one trial used.

    Does nothing in versions of torch that lack it.
    """
    getattr(torch.accelerator, "empty_host_cache", lambda: None)()


def throttled(pausing: Callable[[], bool]) -> Callable[[], bool]:
    """The same check, cheap enough to be called in every step; once true it stays true."""
    requested, next_check = False, 0.0

    def check() -> bool:
        nonlocal requested, next_check
        now = time.monotonic()
        if not requested and now >= next_check:
            requested = pausing()
            next_check = now + max(PAUSE_CHECK_S, (time.monotonic() - now) / PAUSE_CHECK_SHARE)
        return requested

    return check


def failed(fault: BaseException, last: Evaluation | None = None, study: str = "") -> Outcome:
    """The outcome of a trial of this study (its address) that a fault has ended after this evaluation. Call it where
    the fault is handled."""
    kind, reason = classify(fault, study)
    text = "" if isinstance(fault, TrainingFailure) else traceback.format_exc()
    outcome = Outcome(f"failed:{kind}", None, 0, 0, 0.0, reason, text)
    if last is None:
        return outcome
    return replace(outcome, best=last.best, best_at=last.best_at, examples=last.examples, seconds=last.seconds)


def _full_disk(fault: BaseException | None) -> OSError | None:
    """The error of a full disk that this fault is or follows: torch's writer raises another one at its own end."""
    while fault is not None:
        if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
            return fault
        fault = fault.__cause__ or fault.__context__
    return None


def classify(fault: BaseException, study: str = "") -> tuple[str, str]:
    """(kind, one line) of a fault of a study's trial: nan, collapse, oom, device, disk, data or error.

    `disk`: the study's disk is full, or its bucket rejects the trial or does not answer.

    `device`: the GPU or its driver is in a broken state, and with it this process: no trial can run in it any more,
    whatever its configuration.
    """
    line, text = first_line(fault), str(fault)
    if isinstance(fault, TrainingFailure):
        return fault.kind, line
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in OUT_OF_MEMORY):
        return "oom", line
    if (full := _full_disk(fault)) is not None:
        return "disk", first_line(full)
    if isinstance(fault, (DataError, EncoderError)):
        return "data", line
    if unstored := storage_line(fault, study):
        return "disk", unstored
    if isinstance(fault, torch.AcceleratorError) or (
        isinstance(fault, RuntimeError) and any(sign in text for sign in BROKEN_DEVICE)
    ):
        return "device", line
    name = type(fault).__name__
    return "error", name if line == name else f"{name}: {line}"


@contextlib.contextmanager
def saved_log(folder: str) -> Iterator[None]:
    """Inside, what this process prints and warns is also recorded; at the end it is appended to the trial's `log.txt`.

    Only `write` of stdout and stderr changes: scripts may do with the two streams whatever else they want.
    """
    lines, rest, dropped = list[str](), "", 0
    streams: set[Any] = {sys.stdout, sys.stderr} - {None}

    def record(stream: Any) -> None:
        onward = stream.write

        def write(text: str) -> int:
            nonlocal rest, dropped
            *new, rest = (rest + text).split("\n")
            rest = rest[-LOG_LINE:]
            lines.extend(line.rsplit("\r", 1)[-1][:LOG_LINE] for line in new)  # of a progress bar the last state
            extra = max(0, len(lines) - LOG_FIRST - LOG_LAST)
            del lines[LOG_FIRST : LOG_FIRST + extra]
            dropped += extra
            with contextlib.suppress(Exception):  # a closed stream, a text that it cannot encode
                onward(text)
            return len(text)

        stream.write = write

    for stream in streams:
        record(stream)
    try:
        yield
    finally:
        for stream in streams:
            del stream.write
        if dropped:
            lines.insert(LOG_FIRST, f"[{dropped} lines left out]")
        if text := "".join(f"{line}\n" for line in lines) + rest.rsplit("\r", 1)[-1]:
            with contextlib.suppress(Exception):  # a full disk: the trial's own end reports it
                files = TrialFolder(folder)
                text = (files.read(LOG) or b"").decode(errors="replace") + text.removesuffix("\n") + "\n"
                files.write(LOG, text[-LOG_LAST * LOG_LINE :].encode(errors="backslashreplace"))
