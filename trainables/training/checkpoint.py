"""A trial's files: `last/` to go on after a death, `best/` what the study keeps. Local folders or fsspec URIs.

<trial>/last/state.pt             everything training needs to go on; replaced whole, gone when the trial has ended
<trial>/best/weights.safetensors  network weights of the best evaluation (encoder and head)
<trial>/best/trial.json           the trial's spec and the evaluation they belong to
<trial>/best/similarities.npz     cosine of every dev pair at that evaluation, float32, one array per dev set
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from trainables.contract.trial import LAST, SIMILARITIES, STATE, TRIAL, WEIGHTS, whole_file


class Snapshot:
    """A copy on the CPU of nested dicts and lists with tensors in them, which training no longer changes.

    From a GPU it is on its way while training goes on. It is read from a second copy on the device, made in the stream
    of the steps, because weights are not all that a step changes (batch-norm's sums change in its forward, a queue
    after it): so no part of a step has to wait for it. The room for that is free between steps, when no graph is held.
    """

    def __init__(self, value: Any, device: torch.device) -> None:
        self._value, self._event = _each_tensor(value, lambda tensor: tensor.detach().clone()), None
        if device.type == "cuda":
            beside = _copy_stream(device)
            beside.wait_stream(torch.cuda.current_stream(device))

            def fetch(tensor: Tensor) -> Tensor:
                if tensor.is_cuda:
                    tensor.record_stream(beside)  # its memory is not given away before it has been read
                return tensor.to("cpu", non_blocking=True)  # page-locked: torch keeps such buffers and reuses them

            with torch.cuda.stream(beside):
                self._value = _each_tensor(self._value, fetch)
            self._event = beside.record_event()

    def read(self) -> Any:
        """The copy, once all of it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._value


@cache
def _copy_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _each_tensor(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {k: _each_tensor(v, function) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each_tensor(v, function) for v in value)
    return value


class BackgroundWriter:
    """Writes beside training, one thing after another.

    seconds: what the last write took.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write, as soon as the last write is done. Raises: what that one raised."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written. Raises: what the last write raised, once."""
        self.settle()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def settle(self) -> None:
        """Until nothing is being written, whatever became of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, write: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            write()
        except BaseException as fault:  # for the training thread, which asks for it
            self._fault = fault
        self.seconds = time.monotonic() - began


class TrialFiles:
    """Reads and writes the files of one trial; every file appears whole or not at all."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._local = "://" not in folder

    def save_last(self, state: Mapping[str, Any]) -> None:
        """Replace the resumable state."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        self._write(STATE, buffer.getbuffer())

    def load_last(self) -> dict[str, Any] | None:
        """The state of the life before, or None. A state that cannot be read counts as none: the trial starts anew."""
        data = self._read(STATE)
        if data is None:
            return None
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception:  # torn or foreign file: torch raises a dozen kinds
            return None
        return state

    def save_best(
        self, weights: Mapping[str, Tensor], trial: Mapping[str, Any], similarities: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Write the best checkpoint; trial.json comes last, so that a reader who sees it sees the rest."""
        self._write(WEIGHTS, save_safetensors({k: v.contiguous() for k, v in weights.items()}))
        buffer = io.BytesIO()
        np.savez(buffer, **similarities)  # type: ignore[arg-type]  # numpy's stub knows no mapping of arrays
        self._write(SIMILARITIES, buffer.getbuffer())
        self._write(TRIAL, json.dumps(trial, ensure_ascii=False, indent=1).encode())

    def has_best(self) -> bool:
        """Whether the best checkpoint is there, all of it."""
        filesystem, folder = fsspec.core.url_to_fs(self.folder)
        return all(filesystem.exists(f"{folder}/{name}") for name in (WEIGHTS, SIMILARITIES, TRIAL))

    def load_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(weights, trial.json).

        Raises: FileNotFoundError naming the file, when the trial has no best checkpoint (or it was not kept).
        """
        weights, trial = self._read(WEIGHTS), self._read(TRIAL)
        if weights is None or trial is None:
            raise FileNotFoundError(f"{self.folder}/{WEIGHTS}")
        return load_safetensors(weights), json.loads(trial)

    def drop_last(self) -> None:
        """Delete the resumable state, if any."""
        with contextlib.suppress(FileNotFoundError):
            if self._local:
                os.unlink(Path(self.folder) / STATE)
                os.rmdir(Path(self.folder) / LAST)
            else:
                filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{STATE}")
                filesystem.rm(path)

    def _write(self, name: str, data: bytes | memoryview) -> None:
        if not self._local:
            with fsspec.open(f"{self.folder}/{name}", "wb") as f:  # one object, visible when complete
                f.write(data)
            return
        target = Path(self.folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            file.write(data)

    def _read(self, name: str) -> bytes | None:
        try:
            if self._local:
                return (Path(self.folder) / name).read_bytes()
            with fsspec.open(f"{self.folder}/{name}", "rb") as f:
                data: bytes = f.read()
            return data
        except FileNotFoundError:
            return None
