"""transformers' Trainer (and so sentence-transformers') as a trial: its evaluations are reported, its saves resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trainables.scripts.trial import ScriptReport, WriteModel


class ReportCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Reports every evaluation of a Trainer, and one at its end; stops it, saving its state first, when it is to end.

    The Trainer's `output_dir` is `config["checkpoints"]`, and it goes on by
    `trainer.train(resume_from_checkpoint=config["resume"])`; its `save_steps` bounds the work that a crash loses.

    Args:
        report: of the script's function.
        metrics: our metric -> the Trainer's: {"stsb_dev": "eval_stsb_dev_spearman_cosine"}.
        model: writes the model of a best evaluation into a folder: `model.save_pretrained`; None = none is stored.
    Raises: ValueError at an evaluation that lacks one of the Trainer's metrics.
    """

    def __init__(self, report: ScriptReport, metrics: Mapping[str, str], model: WriteModel | None = None) -> None:
        self._report, self._metrics, self._model = report, metrics, model
        self._reported = -1  # step of the last evaluation

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
        elif self._report.pausing():
            control.should_save = control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any) -> None:
        if state.global_step in (0, self._reported):  # before training, or once more after it
            return
        self._reported = state.global_step
        if missing := [theirs for theirs in self._metrics.values() if theirs not in metrics]:
            raise ValueError(f"ReportCallback: {missing[0]!r} was not evaluated; there are {', '.join(metrics)}")
        values = {ours: metrics[theirs] for ours, theirs in self._metrics.items()}
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        values |= {"loss": losses[-1]} if losses else {}
        examples, planned = (self._examples(args, steps) for steps in (state.global_step, state.max_steps))
        decision = self._report(examples, values, of=planned, model=self._model)
        if decision != "go":
            control.should_training_stop = True
            control.should_save = decision == "pause"

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._report.saved(folder, self._examples(args, state.global_step))

    @staticmethod
    def _examples(args: Any, steps: int) -> int:
        """Training examples of so many optimiser steps of this process."""
        return int(args.train_batch_size * args.gradient_accumulation_steps) * steps
