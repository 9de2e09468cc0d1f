"""Real trials with real faults: a `TrialJob` whose trials meet what their learning rate stands for."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import torch

from trainables.contract.trial import TrialSpec
from trainables.methods.simcse import method as simcse
from trainables.on_ray.trainable import TrialJob

OK, RAISE, OOM, KILL, NAN, DISK, DEVICE = 1e-3, 2e-3, 3e-3, 4e-3, 0.5, 5e-3, 6e-3  # learning rates
PLAIN = simcse.UNSUPERVISED
DISK_SIZE = "128k"  # a checkpoint of builtin:tiny takes more


class FaultyJob(TrialJob):
    """Faults come in the third step: after the first evaluation and, with checkpoint_seconds 0, a checkpoint."""

    def _begin(self, spec: TrialSpec, config: dict[str, Any]) -> None:
        rate, steps = spec.params["learning_rate"], 0

        def loss(z: Any, config: Any) -> torch.Tensor:
            nonlocal steps
            steps += 1
            if steps == 3:
                fault(rate, Path(spec.folder))
            value: torch.Tensor = PLAIN.loss(z, config)
            return value * float("nan") if rate == NAN and steps == 3 else value

        simcse.UNSUPERVISED = dataclasses.replace(PLAIN, loss=loss)
        if rate == DISK:
            mount(Path(spec.folder))
        super()._begin(spec, config)


def fault(rate: float, folder: Path) -> None:
    """What befalls the trial with this learning rate."""
    if rate == RAISE:
        raise KeyError("a bug in the trial")
    if rate == OOM:
        torch.empty(2**50, dtype=torch.float32)  # the allocator's own error
    if rate == DEVICE and not (marker := folder / "broken").exists():
        marker.write_text(str(os.getpid()))
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    if rate == DEVICE:
        assert (folder / "broken").read_text() != str(os.getpid()), "the process was to be replaced"
    if rate == KILL and not (marker := folder / "killed").exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def mount(folder: Path) -> bool:
    """A small disk of its own in place of a folder; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)
