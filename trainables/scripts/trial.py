"""Trials that a script of the user's trains: what the script gets, what it reports, and the files of its trial.

<trial>/last/script.json  position of the trial, as of the last state that the script saved
<trial>/last/script/...   what the script wrote to resume from; of a URI only the state that it named last
<trial>/best/trial.json   the trial's spec and its best evaluation
<trial>/best/model/       the folder that the script wrote at that evaluation, if it writes one
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainables.contract.errors import PluginError
from trainables.contract.registry import CHECKPOINTS, DATA, DEVICE, ENCODER, RESUME, SEED, script_function
from trainables.contract.trial import (
    DEVICE_MEMORY,
    MODEL,
    SCRIPT_FOLDER,
    SCRIPT_STATE,
    TRIAL,
    Decision,
    Evaluation,
    Outcome,
    Report,
    TrialSpec,
    metric_parts,
    phase,
)
from trainables.training.checkpoint import TrialFolder
from trainables.training.distributed import World
from trainables.training.trial import ProcessCache, TrainingFailure, seed_generators

WriteModel = Callable[[str], object]  # writes a model into the folder of this name
EVAL_EXAMPLES = "eval_examples"  # a hyperparameter of this name: nominal examples between two evaluations


def train_by_script(
    spec: TrialSpec, report: Report, world: World, cache: ProcessCache, pausing: Callable[[], bool]
) -> Outcome:
    """The runner (`trial.TrialRunner`) of a script's trial: calls its function with `config` and a `ScriptReport`.

    Raises: what the script raises, and PluginError for one that cannot be called or reports nothing.
    """
    del cache  # modules stay imported; what else a script holds between trials is up to it
    assert spec.script is not None, "checked with the space"
    phase(f"importing {Path(spec.script.file).name}")
    function = script_function(spec.script)
    seed_generators(spec.seed)
    files = ScriptFiles(spec.folder)
    if world.device.type == "cuda":  # an earlier trial of this process had a peak of its own
        torch.cuda.reset_peak_memory_stats()
    try:
        script_report = ScriptReport(spec, files, report, pausing)
        phase(f"running {Path(spec.script.file).name}")
        try:
            function(config_of(spec, files, script_report.resume, world), script_report)
        except TrialOver:
            pass
        except SystemExit as end:
            raise RuntimeError(f"the script called sys.exit({end.code!r})") from end
        # The state stays until the study has recorded how the trial ended: an end that is lost on its way to the
        # driver, with this process, then costs no training.
        return script_report.outcome()
    finally:
        files.close()
        gc.collect()  # a trainer and its model refer to each other


def config_of(spec: TrialSpec, files: ScriptFiles, resume: str | None, world: World) -> dict[str, Any]:
    """What a script's function gets: its hyperparameters, and with them

    seed: of the trial (random, numpy and torch are seeded with it already); encoder: the space's, or None; data: the
    space's `data`; device: "cpu" or "cuda"; checkpoints: a local folder for states that survive a kill; resume: the
    state to resume from, as it was given to `report.saved`, or None.
    """
    data = {name: value for name, value in spec.data.items() if value}
    return {
        **spec.params, SEED: spec.seed, ENCODER: spec.encoder or None, DATA: data, DEVICE: world.device.type,
        CHECKPOINTS: str(files.checkpoints), RESUME: resume,
    }  # fmt: skip


class TrialOver(BaseException):
    """Ends a script that goes on after a decision to end. No `Exception`, which scripts may catch."""


@dataclass
class Position:
    """Position of a script's trial; with the saved state all that another session needs."""

    examples: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    planned: int = 0


class ScriptReport:
    """A script's `report`: `report(examples, {"stsb_dev": 0.81})` hands over an evaluation and gives the decision."""

    def __init__(self, spec: TrialSpec, files: ScriptFiles, report: Report, pausing: Callable[[], bool]) -> None:
        self._spec, self._files, self._report, self._pausing = spec, files, report, pausing
        self._parts = metric_parts(spec.metric)
        self._decision: Decision = "go"
        self._best: float | None = None
        self._best_at = 0
        self._pausing_seen = False
        self.position, self.resume = Position(), None
        best, found = files.read_json(TRIAL), files.load()
        # without a best the trial was interrupted before its first evaluation; without its model it starts again
        if found is not None and (best is None or not best["model"] or files.exists(MODEL)):
            position, state = found
            self.position = Position(**{f.name: position[f.name] for f in dataclasses.fields(Position)})
            self.resume = str(state)
            if best is not None:
                self._best, self._best_at = best["best"]["value"], best["best"]["examples"]
        self._resumed_from = self.position.examples
        self._clock = time.monotonic()

    def __call__(
        self,
        examples: int,
        values: Mapping[str, float],
        *,
        of: int = 0,
        model: WriteModel | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Decision:
        """Report an evaluation.

        Args:
            examples: training examples so far (or any count that grows with training and means the same in every
                trial): pruning compares trials where they are equal. Of a space with a hyperparameter
                `eval_examples` the k-th evaluation counts as one after k times so many.
            values: metric -> number; the one that selects is among them, under its name in the space.
            of: what `examples` will be at the end; 0 = not known. Warm-up of the pruner and hyperband need it.
            model: writes the model into the folder whose name it gets (`SentenceTransformer.save_pretrained`). Called
                if this evaluation is the trial's best; the folder is what `analysis export` copies.
            checkpoint: as `saved`.

        Returns: "go"; "prune": end now; "pause": save what is needed to resume, then end.
        Raises: ValueError or PluginError for an evaluation that cannot be one; TrialOver, which is not to be caught,
            if an earlier decision was to end.
        """
        self._count_time()
        if self._decision != "go":
            raise TrialOver
        position = self.position
        value = self._checked(examples, values)
        position.examples, position.planned = int(examples), int(of) or position.planned
        rung = self._rung(position)
        metrics = {name: float(v) for name, v in values.items()} | {self._spec.metric: value}
        if torch.cuda.is_available() and self._spec.gpus:
            metrics[DEVICE_MEMORY] = torch.cuda.max_memory_allocated() / 1e9
        if self._best is None or (value > self._best if self._spec.mode == "max" else value < self._best):
            self._best, self._best_at = value, position.examples
            if model is not None:
                self._files.save_model(model)
            at = {"examples": position.examples, "value": value, "metrics": metrics}
            self._files.write_json(TRIAL, {"spec": self._spec.to_dict(), "best": at, "model": model is not None})
        self._count_time()
        if checkpoint is not None:
            self.saved(checkpoint)
        evaluation = Evaluation(
            rung=rung, examples=position.examples, value=value, metrics=metrics, best=self._best, best_at=self._best_at,
            seconds=position.seconds, resumed_from=self._resumed_from, planned=position.planned,
        )  # fmt: skip
        self._decision = self._report(evaluation)
        self._clock = time.monotonic()  # waiting for the decision is not the trial's time
        return self._decision

    def saved(self, checkpoint: str | os.PathLike[str], examples: int | None = None) -> None:
        """A later session can resume from this file or folder, complete on disk, in `config["checkpoints"]`.

        Args: examples: training examples that it holds; None = those of the last evaluation.
        """
        self._count_time()
        position = self.position if examples is None else dataclasses.replace(self.position, examples=int(examples))
        self._files.save(checkpoint, vars(position))

    def pausing(self) -> bool:
        """Whether the study is being interrupted: save what is needed to resume, then return. Call it every step."""
        self._pausing_seen = self._pausing_seen or self._pausing()
        return self._pausing_seen

    def outcome(self) -> Outcome:
        """How the trial ended, now that the script has returned.

        Raises: PluginError if it never reported.
        """
        self._count_time()
        p = self.position
        done = bool(p.planned) and p.examples >= p.planned
        stop = {"prune": "pruned", "pause": "paused", "go": "paused" if self._pausing_seen else "completed"}
        ended = "completed" if done else stop[self._decision]
        if self._best is None and ended == "completed":
            where = self._spec.script.file if self._spec.script else ""
            raise PluginError(f"{where}: returned without a report")
        return Outcome(stop=ended, best=self._best, best_at=self._best_at, examples=p.examples, seconds=p.seconds)

    def _checked(self, examples: int, values: Mapping[str, float]) -> float:
        """The selecting value of an evaluation."""
        if isinstance(examples, bool) or int(examples) != examples or examples <= self.position.examples:
            before = f"a whole number above the {self.position.examples} of the evaluation before"
            raise ValueError(f"report: expected training examples so far, {before}, got {examples!r}")
        if missing := [part for part in self._parts if part not in values]:
            given = ", ".join(values) or "nothing"
            raise PluginError(f"report: expected {' and '.join(missing)}, which selects, got {given}")
        value = sum(float(values[part]) for part in self._parts) / len(self._parts)
        if not math.isfinite(value):
            raise TrainingFailure("nan", f"{self._spec.metric} is {value} after {examples} training examples")
        return value

    def _rung(self, position: Position) -> int:
        every = self._spec.params.get(EVAL_EXAMPLES)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            position.evaluations += 1
            return position.examples
        position.evaluations = max(position.examples // every, position.evaluations + 1)
        return position.evaluations * every

    def _count_time(self) -> None:
        now = time.monotonic()
        self.position.seconds += now - self._clock
        self._clock = now


class ScriptFiles(TrialFolder):
    """Files of one script trial.

    Attributes:
        checkpoints: the local folder that the script may write its states into.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        place = Path(folder) / SCRIPT_FOLDER if self.is_local else Path(tempfile.mkdtemp(prefix="script-"))
        self.checkpoints = place.absolute()
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def load(self) -> tuple[dict[str, Any], Path] | None:
        """Position of the session before and the state that it saved; None where one of them is missing."""
        position = self.read_json(SCRIPT_STATE)
        if position is None:
            return None
        state = self.checkpoints / position["checkpoint"]
        if not self.is_local:
            filesystem, path = self.locate(f"{SCRIPT_FOLDER}/{position['checkpoint']}")
            with contextlib.suppress(FileNotFoundError):
                filesystem.get(path, str(state), recursive=True)
        return (position, state) if state.exists() else None

    def save(self, checkpoint: str | os.PathLike[str], position: Mapping[str, Any]) -> None:
        """From now on the trial resumes from this file or folder.

        Raises: ValueError if it is not in `checkpoints`.
        """
        state = Path(checkpoint).absolute()
        if not state.is_relative_to(self.checkpoints) or state == self.checkpoints or not state.exists():
            raise ValueError(f"checkpoint: expected a file or folder in {self.checkpoints}, got {checkpoint}")
        name = state.relative_to(self.checkpoints).as_posix()
        before = None if self.is_local else self.read_json(SCRIPT_STATE)
        if not self.is_local:
            self._upload(state, f"{SCRIPT_FOLDER}/{name}")
        self.write_json(SCRIPT_STATE, {**position, "checkpoint": name})
        if before is not None and before["checkpoint"] != name:
            self.delete(f"{SCRIPT_FOLDER}/{before['checkpoint']}")

    def save_model(self, write: WriteModel) -> None:
        """Replace the best model by what `write` writes; a crash on the way leaves the one before, or none."""
        target = Path(self.folder) / MODEL
        if self.is_local:
            target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".model-", dir=target.parent if self.is_local else None) as scratch:
            draft = Path(scratch) / "model"
            write(str(draft))
            self.delete(MODEL)
            if self.is_local:
                draft.rename(target)
            else:
                self._upload(draft, MODEL)

    def close(self) -> None:
        """Leave nothing outside the trial's folder."""
        if not self.is_local:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A file's content, None where it is missing or torn."""
        try:
            found = json.loads(self.read(name) or b"")
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _upload(self, source: Path, name: str) -> None:
        """Copy a file or folder, file by file: `put` of a folder means another place where the target exists."""
        filesystem, target = self.locate(name)
        for path in [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]:
            inside = "" if path == source else f"/{path.relative_to(source).as_posix()}"
            filesystem.makedirs(f"{target}{inside}".rsplit("/", 1)[0], exist_ok=True)
            filesystem.put_file(str(path), f"{target}{inside}")
