"""One trial from its spec: what a warm process keeps between trials, and `run_trial`. No Ray here.

What trains is the trial's body, named by the `Declaration` of its method.
"""

from __future__ import annotations

import errno
import random
import threading
import traceback
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from trainables.contract.errors import DataError, EncoderError, first_line
from trainables.contract.registry import declared, load_object, use_plugins
from trainables.contract.trial import Outcome, Report, TrialSpec
from trainables.training.broken import Broken
from trainables.training.distributed import World
from trainables.training.memory import free_device_memory

T = TypeVar("T")
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")  # system, CUDA, cuBLAS
BROKEN_DEVICE = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "NCCL error", "ECC error", "device-side assert")
KEPT = 4  # prepared things of each kind that a warm process holds: the encoder, corpora, dev sets of recent trials


class ProcessCache:
    """What a trial process holds so that the next trial costs its training only."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The thing made before for this key, or `make()`; the least recently used of a kind goes first."""
        kept = self._kept.setdefault(kind, {})
        thing = kept.pop(key) if key in kept else make()
        kept[key] = thing
        while len(kept) > KEPT:
            kept.pop(next(iter(kept)))
        return thing


def seed_generators(seed: int) -> None:
    """Have Python, NumPy and torch draw what follows from a trial's seed, whatever this process has run before."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Body(Protocol):
    """Runs (or goes on with) one trial to its end, from its spec.

    It hands every evaluation to `report` and obeys the verdict, asks `pausing` now and then whether to save its state
    and end, and keeps what it needs to go on, and its best checkpoint, in `spec.folder`. What it raises is an outcome
    by `classify`. kept: what this process holds from one trial to the next.
    """

    def __call__(
        self, spec: TrialSpec, report: Report, world: World, kept: ProcessCache, pausing: Callable[[], bool]
    ) -> Outcome: ...


def run_trial(
    spec: TrialSpec,
    report: Report,
    world: World | None = None,
    kept: ProcessCache | None = None,
    pausing: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run (or go on with) a trial to its end. Never raises for a fault of the trial: the outcome says what happened.

    In a group of workers a fault that only one of them met is raised there, since the others wait for it.
    """
    world, kept = world or World(), kept or ProcessCache()
    last: list[Any] = []

    def remember(evaluation: Any) -> Any:
        last[:] = [evaluation]
        return report(evaluation)

    try:
        use_plugins(spec.plugins)
        body: Body = load_object(declared(spec.method).runner)
        outcome = body(spec, remember, world, kept, pausing)
    except BaseException as fault:  # of code from outside also what is no Exception: a cancelled task, a panic of Rust
        if not isinstance(fault, Exception) and threading.current_thread() is threading.main_thread():
            raise  # whoever trains there is ended by a signal
        kind, reason = classify(fault)
        if world.size > 1 and not isinstance(fault, Broken):
            raise
        best, best_at, examples, seconds = (
            (last[0].best, last[0].best_at, last[0].examples, last[0].seconds) if last else (None, 0, 0, 0.0)
        )
        text = "" if kind in ("nan", "collapse") else traceback.format_exc()
        outcome = Outcome(f"failed:{kind}", best, best_at, examples, seconds, reason, text)
    if world.device.type == "cuda":
        free_device_memory()  # only here: a fault's traceback holds the network
    return outcome


def classify(fault: BaseException) -> tuple[str, str]:
    """(kind, one line) of a fault: nan, collapse, oom, device, disk, data or error.

    `device`: the GPU or what speaks with it is in a broken state, and with it this process: no trial can run in it any
    more, whatever its configuration.
    """
    line, text = first_line(fault), str(fault)
    if isinstance(fault, Broken):
        return fault.kind, line
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in OUT_OF_MEMORY):
        return "oom", line
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk", line
    if isinstance(fault, (DataError, EncoderError)):
        return "data", line
    if isinstance(fault, torch.AcceleratorError) or (
        isinstance(fault, RuntimeError) and any(sign in text for sign in BROKEN_DEVICE)
    ):
        return "device", line
    name = type(fault).__name__
    return "error", name if line == name else f"{name}: {line}"
