"""What a script reports through, and is told by."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from trainables.contract.errors import PluginError
from trainables.contract.trial import DEVICE_MEMORY, Evaluation, Outcome, Report, TrialSpec, Verdict, metric_parts
from trainables.scripts.files import ScriptFiles, WriteModel
from trainables.training.broken import Broken

EVAL_EXAMPLES = "eval_examples"  # a hyperparameter of this name says how far apart evaluations are meant to be
PAUSE_LOOK_S, PAUSE_LOOK_SHARE = 0.5, 0.01  # whether to pause: looked this often, for at most this share of the time


class TrialOver(BaseException):
    """Ends a script that goes on after it was told to end. No `Exception`, which scripts may catch."""


@dataclass
class Position:
    """Where a script's trial stands; with the saved state all that another life needs."""

    examples: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    planned: int = 0


class ScriptReport:
    """A script's `report`: `report(examples, {"stsb_dev": 0.81})` hands over an evaluation and gives the verdict."""

    def __init__(self, spec: TrialSpec, files: ScriptFiles, report: Report, pausing: Callable[[], bool]) -> None:
        self._spec, self._files, self._report, self._pausing = spec, files, report, pausing
        self._parts = metric_parts(spec.metric)
        self._verdict: Verdict = "go"
        self._best: float | None = None
        self._best_at = 0
        self._asked_to_pause, self._look = False, 0.0
        self.position, self.resume = Position(), None
        if (found := files.load()) is not None and self._take_best():
            position, state = found
            self.position = Position(**{f.name: position[f.name] for f in dataclasses.fields(Position)})
            self.resume = str(state)
        else:
            self._best, self._best_at = None, 0
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
    ) -> Verdict:
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

        Returns: "go"; "prune": end now; "pause": end now, to be resumed, and so with all that is needed saved.
        Raises: ValueError or PluginError for an evaluation that cannot be one; TrialOver, which is not to be caught,
            if the script was told to end.
        """
        self._count_time()
        if self._verdict != "go":
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
            self._files.save_best({"spec": self._spec.to_dict(), "best": at, "model": model is not None})
        self._count_time()
        if checkpoint is not None:
            self.saved(checkpoint)
        self._verdict = self._report(
            Evaluation(
                rung=rung,
                examples=position.examples,
                value=value,
                metrics=metrics,
                best=self._best,
                best_at=self._best_at,
                seconds=position.seconds,
                resumed_from=self._resumed_from,
                planned=position.planned,
            )
        )
        self._clock = time.monotonic()  # waiting for the verdict is not the trial's time
        return self._verdict

    def saved(self, checkpoint: str | os.PathLike[str], examples: int | None = None) -> None:
        """Another life of the trial can go on from this file or folder, complete on disk, in `config["checkpoints"]`.

        Args: examples: training examples that it holds; None = those of the last evaluation.
        """
        self._count_time()
        position = self.position if examples is None else dataclasses.replace(self.position, examples=int(examples))
        self._files.save(checkpoint, vars(position))

    def pausing(self) -> bool:
        """Whether the study is being interrupted: save what is needed to go on, then return. Cheap; ask every step."""
        now = time.monotonic()
        if not self._asked_to_pause and now >= self._look:
            self._asked_to_pause = self._pausing()
            self._look = now + max(PAUSE_LOOK_S, (time.monotonic() - now) / PAUSE_LOOK_SHARE)
        return self._asked_to_pause

    def outcome(self) -> Outcome:
        """How the trial ended, now that the script has returned.

        Raises: PluginError if it never reported.
        """
        self._count_time()
        p = self.position
        done = bool(p.planned) and p.examples >= p.planned
        stop = {"prune": "pruned", "pause": "paused", "go": "paused" if self._asked_to_pause else "completed"}
        ended = "completed" if done else stop[self._verdict]
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
            told = ", ".join(values) or "nothing"
            raise PluginError(f"report: expected {' and '.join(missing)}, which selects, got {told}")
        value = sum(float(values[part]) for part in self._parts) / len(self._parts)
        if not math.isfinite(value):
            raise Broken("nan", f"{self._spec.metric} is {value} after {examples} training examples")
        return value

    def _rung(self, position: Position) -> int:
        every = self._spec.params.get(EVAL_EXAMPLES)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            position.evaluations += 1
            return position.examples
        position.evaluations = max(position.examples // every, position.evaluations + 1)
        return position.evaluations * every

    def _take_best(self) -> bool:
        """Go on with the best that an earlier life reached; False where its model is gone."""
        record = self._files.load_best()
        if record is None:
            return True  # it was interrupted before its first evaluation
        self._best, self._best_at = record["best"]["value"], record["best"]["examples"]
        return not record["model"] or self._files.has_model()

    def _count_time(self) -> None:
        now = time.monotonic()
        self.position.seconds += now - self._clock
        self._clock = now
