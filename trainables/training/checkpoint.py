"""A trial's files: `last/` to resume from, `best/` what the study saves. Local folders or fsspec URIs.

<trial>/last/state.pt             everything training needs to resume; replaced whole, deleted when the trial has ended
<trial>/best/weights.safetensors  network weights of the best evaluation (encoder and head); with LoRA, or of the
                                  words in use only, they need the encoder's folder too (`encoders.load.is_part`)
<trial>/best/trial.json           the trial's spec and the evaluation they belong to
<trial>/best/similarities.npz     float32 arrays of that evaluation: cosines (`<set>_dev`) and gold scores
                                  (`<set>_gold`) of dev pairs; retrieval measures per query (`<set>_ndcg10_queries`);
                                  cosines and measures of truncated vectors (`...@<width>`)
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from trainables.contract import formats
from trainables.contract.trial import LAST, SIMILARITIES, STATE, TRIAL, WEIGHTS, whole_file


class Snapshot:
    """A copy on the CPU of nested dicts and lists of tensors, which training no longer changes.

    A GPU copies in the background: out of a second copy on the device, made in the stream of the steps, so that no part
    of a step waits (weights are not all that a step changes: batch-norm's sums change in its forward, a queue after
    it). Memory for the second copy is mostly free between steps, when there is no graph.
    """

    def __init__(self, value: Any, device: torch.device) -> None:
        self._value, self._event = None, None
        with contextlib.suppress(torch.OutOfMemoryError):
            self._value = _each_tensor(value, lambda tensor: tensor.detach().clone())
        if self._value is None:  # what trains almost fills its share of the GPU: training waits for the copy
            self._value = _each_tensor(value, lambda tensor: tensor.detach().to("cpu", copy=True))
        elif device.type == "cuda":
            copies = _copy_stream(device)
            copies.wait_stream(torch.cuda.current_stream(device))

            def fetch(tensor: Tensor) -> Tensor:
                if tensor.is_cuda:
                    tensor.record_stream(copies)  # its memory is not reused before it has been read
                return tensor.to("cpu", non_blocking=True)  # page-locked: torch retains such buffers and reuses them

            with torch.cuda.stream(copies):
                self._value = _each_tensor(self._value, fetch)
            self._event = copies.record_event()

    def read(self) -> Any:
        """The copy, once it is complete."""
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


class TrialFolder:
    """A trial's folder, a local path or a URI. A file is replaced whole or not at all."""

    def __init__(self, folder: str) -> None:
        self.folder, self.is_local = folder, "://" not in folder

    def locate(self, name: str) -> tuple[Any, str]:
        """The fsspec filesystem and the path in it."""
        filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{name}")
        return filesystem, path

    def read(self, name: str) -> bytes | None:
        """A file's content, None without one."""
        filesystem, path = self.locate(name)
        with contextlib.suppress(FileNotFoundError):
            data: bytes = filesystem.cat_file(path)
            return data
        return None

    def write(self, name: str, data: bytes | memoryview) -> None:
        if not self.is_local:
            with fsspec.open(f"{self.folder}/{name}", "wb") as file:  # one object, visible when complete
                file.write(data)
            return
        with self.whole(name) as file:
            file.write(data)

    def whole(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file of a local folder to write into, see `whole_file`."""
        target = Path(self.folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return whole_file(target)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        content = {**content, **formats.stamp(formats.CHECKPOINT)}
        self.write(name, json.dumps(content, ensure_ascii=False, indent=1).encode())

    def exists(self, name: str) -> bool:
        filesystem, path = self.locate(name)
        return bool(filesystem.exists(path))

    def delete(self, name: str) -> None:
        """Delete a file or a folder with all that is in it, if it is there."""
        filesystem, path = self.locate(name)
        with contextlib.suppress(FileNotFoundError):
            filesystem.rm(path, recursive=True)


class TrialFiles(TrialFolder):
    """The checkpoints of a trial of ours."""

    def save_last(self, state: Mapping[str, Any]) -> None:
        """Replace the resumable state. On a local disk it is written as it is, elsewhere as one object."""
        state = {**state, **formats.stamp(formats.CHECKPOINT)}
        if self.is_local:
            with self.whole(STATE) as file:
                torch.save(state, file)
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.write(STATE, buffer.getbuffer())

    def load_last(self) -> dict[str, Any] | None:
        """The saved state. None where there is none, or it cannot be read: the trial starts again from its seed.

        Raises: NewerFormatError where a newer version wrote it.
        """
        if (data := self.read(STATE)) is None:
            return None
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception:  # torn or foreign file: torch raises a dozen kinds
            return None
        self._check(STATE, state)
        return {name: value for name, value in state.items() if name not in (formats.FORMAT, formats.VERSION)}

    def drop_last(self) -> None:
        """Delete the resumable state, if any."""
        self.delete(LAST)

    def save_best(
        self, weights: Mapping[str, Tensor], trial: Mapping[str, Any], similarities: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Write the best checkpoint; trial.json comes last, so that a reader who sees it sees the rest.

        That holds for the first one. Until a later one is complete, new files stand beside the older trial.json.
        """
        self.write(WEIGHTS, save_safetensors({k: v.contiguous() for k, v in weights.items()}))
        buffer = io.BytesIO()
        np.savez(buffer, **similarities)  # type: ignore[arg-type]  # numpy's stub accepts no mapping of arrays
        self.write(SIMILARITIES, buffer.getbuffer())
        self.write_json(TRIAL, trial)

    def has_best(self) -> bool:
        """Whether the best checkpoint is complete."""
        return all(map(self.exists, (WEIGHTS, SIMILARITIES, TRIAL)))

    def best_value(self) -> tuple[float, int] | None:
        """Value and training examples of the evaluation that the best checkpoint belongs to, None without one."""
        if (trial := self.read(TRIAL)) is None:
            return None
        best = json.loads(trial)["best"]
        return best["value"], best["examples"]

    def load_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(weights, trial.json).

        Raises: FileNotFoundError naming the file, when the trial has no best checkpoint (or the study deleted it);
            NewerFormatError where a newer version wrote it.
        """
        weights, trial = self.read(WEIGHTS), self.read(TRIAL)
        if weights is None or trial is None:
            raise FileNotFoundError(f"{self.folder}/{WEIGHTS}")
        about = json.loads(trial)
        self._check(TRIAL, about)
        return load_safetensors(weights), about

    def _check(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            formats.check_format(content, formats.CHECKPOINT)
        except formats.NewerFormatError as error:
            raise formats.NewerFormatError(f"{self.folder}/{name}: {error}") from None
