"""What a script's trial keeps in its folder, a local one or a URI.

<trial>/last/script.json  where the trial stands, as of the last state that the script saved
<trial>/last/script/...   what the script wrote to go on from; of a URI only the state that it named last
<trial>/best/trial.json   the trial's spec and its best evaluation
<trial>/best/model/       the folder that the script wrote at that evaluation, if it writes one
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec

from trainables.contract.trial import MODEL, SCRIPT_FOLDER, SCRIPT_STATE, TRIAL, whole_file

WriteModel = Callable[[str], object]  # writes a model into the folder of this name


class ScriptFiles:
    """Files of one trial.

    Attributes:
        checkpoints: the local folder that the script may write its states into.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._local = "://" not in folder
        place = Path(folder) / SCRIPT_FOLDER if self._local else Path(tempfile.mkdtemp(prefix="script-"))
        self.checkpoints = place.absolute()
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def load(self) -> tuple[dict[str, Any], Path] | None:
        """Where the life before stood and the state that it saved; None where one of them is not there."""
        position = self._read(SCRIPT_STATE)
        if position is None:
            return None
        state = self.checkpoints / position["checkpoint"]
        if not self._local:
            filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{SCRIPT_FOLDER}/{position['checkpoint']}")
            with contextlib.suppress(FileNotFoundError):
                filesystem.get(path, str(state), recursive=True)
        return (position, state) if state.exists() else None

    def save(self, checkpoint: str | os.PathLike[str], position: Mapping[str, Any]) -> None:
        """From now on the trial goes on from this file or folder.

        Raises: ValueError if it does not lie in `checkpoints`.
        """
        state = Path(checkpoint).absolute()
        if not state.is_relative_to(self.checkpoints) or state == self.checkpoints or not state.exists():
            raise ValueError(f"checkpoint: expected a file or folder in {self.checkpoints}, got {checkpoint}")
        name = state.relative_to(self.checkpoints).as_posix()
        before = None if self._local else self._read(SCRIPT_STATE)
        if not self._local:
            filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{SCRIPT_FOLDER}/{name}")
            _put(filesystem, state, path)
        self._write(SCRIPT_STATE, {**position, "checkpoint": name})
        if before is not None and before["checkpoint"] != name:
            self._delete(f"{SCRIPT_FOLDER}/{before['checkpoint']}")

    def save_model(self, write: WriteModel) -> None:
        """Replace the best model by what `write` writes; a death on the way leaves the one before, or none."""
        if not self._local:
            with tempfile.TemporaryDirectory() as scratch:
                write(f"{scratch}/model")
                self._delete(MODEL)
                filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{MODEL}")
                _put(filesystem, Path(scratch) / "model", path)
            return
        target = Path(self.folder) / MODEL
        draft = target.with_name(f".model-{os.getpid()}-{secrets.token_hex(4)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(str(draft))
            shutil.rmtree(target, ignore_errors=True)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def has_model(self) -> bool:
        filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{MODEL}")
        return bool(filesystem.exists(path))

    def save_best(self, record: Mapping[str, Any]) -> None:
        self._write(TRIAL, record)

    def load_best(self) -> dict[str, Any] | None:
        return self._read(TRIAL)

    def close(self) -> None:
        """Leave nothing outside the trial's folder."""
        if not self._local:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        """A file's content, None where it is not there or is torn."""
        filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{name}")
        try:
            found = json.loads(filesystem.cat_file(path))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        data = json.dumps(content, ensure_ascii=False, indent=1).encode()
        if self._local:
            target = Path(self.folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as file:
                file.write(data)
            return
        with fsspec.open(f"{self.folder}/{name}", "wb") as file:  # one object, visible when complete
            file.write(data)

    def _delete(self, name: str) -> None:
        filesystem, path = fsspec.core.url_to_fs(f"{self.folder}/{name}")
        with contextlib.suppress(FileNotFoundError):
            filesystem.rm(path, recursive=True)


def _put(filesystem: Any, source: Path, target: str) -> None:
    """Copy a file or folder, file by file: `put` of a folder means another place where the target exists."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        inside = "" if path == source else f"/{path.relative_to(source).as_posix()}"
        filesystem.makedirs(f"{target}{inside}".rsplit("/", 1)[0], exist_ok=True)
        filesystem.put_file(str(path), f"{target}{inside}")
