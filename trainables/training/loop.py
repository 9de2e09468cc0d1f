"""The training loop of every method: plain torch, no Ray. One function, `train`; its state is `Progress`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.config import AUTO
from trainables.contract.metric_names import DEVICE_MEMORY, MICRO_BATCH
from trainables.contract.phases import phase
from trainables.contract.spec import Evaluation, Outcome, Report, Verdict
from trainables.contract.streams import AUGMENT
from trainables.encoders.network import Views
from trainables.encoders.words_in_use import WordsInUse, follow_decay
from trainables.methods.method import Batch
from trainables.training.broken import Broken
from trainables.training.checkpoint import BackgroundWriter, Snapshot
from trainables.training.distributed import World
from trainables.training.gradient_cache import encode_in_pieces
from trainables.training.piece import largest_piece, room_for_graphs
from trainables.training.precision import in_bf16
from trainables.training.setup import TrainingSetup

LOSS_CHECK_STEPS = 16  # NaN is looked for this often between evaluations: each look waits for the device
SAVE_EVERY = 20  # times what a save takes: the least time from one save to the next
PAUSE_LOOK_S, PAUSE_LOOK_SHARE = 0.5, 0.01  # whether to pause: asked this often, for at most this share of the time


@dataclass
class Progress:
    """Where a trial stands; what `last/` holds besides weights and optimiser."""

    step: int = 0
    examples: int = 0
    best: float | None = None
    best_at: int = 0
    seconds: float = 0.0
    piece: int | None = None  # what `micro_batch: auto` has found


@dataclass
class _Best:
    """Weights and similarities of the best evaluation, until they are written."""

    weights: Snapshot | None = None
    similarities: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    trial: dict[str, Any] = field(default_factory=dict)


class Training:
    """One life of a trial. Use `train`."""

    def __init__(self, setup: TrainingSetup, world: World, pausing: Callable[[], bool]) -> None:
        method, config, examples, seed = setup.method, setup.config, setup.examples, setup.seed
        self.method, self.config, self.examples, self.evaluate = method, config, examples, setup.evaluate
        self.seed, self.mode, self.files, self.world, self.about = seed, setup.mode, setup.files, world, setup.about
        self.pausing, self.look_again = pausing, 0.0
        self.network = setup.network
        self.words = [part for part in self.network.modules() if isinstance(part, WordsInUse)]
        self.bf16 = in_bf16(config.precision, self.network, world.device)
        self.network.move_to_device(world.device, self.bf16)
        # a last batch smaller than the group would leave a worker without an example
        batches = (batch for batch in method.plan(examples, config, seed) if len(batch) >= world.size)
        self.batches = cut(batches, config.max_examples)
        self.planned = sum(len(batch) for batch in self.batches)
        self.optimiser, self.scheduler = None, None
        if method.optimiser is not None:
            self.optimiser, self.scheduler = method.optimiser(
                self.network, config, len(self.batches), max(1, len(self.batches) // config.epochs)
            )
            follow_decay(self.network, self.optimiser)
        self.progress, self.best = Progress(), _Best()
        if world.device.type == "cuda":  # an earlier trial of this process had a peak of its own
            torch.cuda.reset_peak_memory_stats(world.device)
        # cuDNN plans its attention anew for every length of padded batches, 60 ms each, and is no faster afterwards
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.rung_size = config.eval_steps * config.batch_size if config.eval_steps else config.eval_examples
        self.losses: list[Tensor] = []
        self.metrics: dict[str, float] = dict(examples.facts)
        self.writer, self.saved_at, self.save_seconds = BackgroundWriter(), time.monotonic(), 0.0
        torch.manual_seed(seed * 1000 + world.rank)  # dropout masks: from here on each worker draws its own
        self.resumed_from = self._resume()

    def run(self, report: Report) -> Outcome:
        """Train from where the trial stands to its end, a verdict that stops it, or a failure (`Broken`)."""
        try:
            return self._run(report)
        finally:
            self.writer.settle()  # after a failure too, nobody writes into the folder any more

    def _run(self, report: Report) -> Outcome:
        verdict: Verdict = "go"
        clock = time.monotonic()
        while self.progress.step < len(self.batches) and verdict == "go":
            if self.world.rank == 0 and self.progress.best is None:  # from the first evaluation on those are heard
                phase("training", self.progress.examples, self.planned)
            before = self._rungs()
            self._step(self.batches[self.progress.step])
            self.progress.seconds += time.monotonic() - clock
            clock = time.monotonic()
            rung = self._rungs()
            if rung > before or self.progress.step == len(self.batches):
                evaluation = self._evaluate(max(rung, before + 1) * self.rung_size)
                self.progress.seconds += time.monotonic() - clock
                clock = time.monotonic()
                verdict = self.world.agree(report(evaluation) if self.world.rank == 0 else None)
                clock = time.monotonic()  # waiting for the verdict is not the trial's time
            elif self._pause_wanted():
                verdict = "pause"
            if self.world.rank == 0 and self._save_due():
                self._save_last()
        done = self.progress.step >= len(self.batches)
        stop = "completed" if done else {"prune": "pruned", "pause": "paused", "go": "completed"}[verdict]
        if self.world.rank == 0:
            if stop == "paused":
                self._save_last()
                self.writer.wait()
            else:
                self.writer.wait()
                self._save_best()
                self.files.drop_last()
        p = self.progress
        return Outcome(stop=stop, best=p.best, best_at=p.best_at, examples=p.examples, seconds=p.seconds)

    def _rungs(self) -> int:
        """How many rungs the trial has reached: by steps with `eval_steps`, so that small batches delay none."""
        every, p = self.config.eval_steps, self.progress
        return p.step // every if every else p.examples // self.rung_size

    def _step(self, batch: Batch) -> None:
        config, world = self.config, self.world
        rng = np.random.default_rng([self.seed, AUGMENT, self.progress.step])
        views = self.method.views(self.examples, batch, config, rng)  # of the whole batch: the same on any world
        if self.words and not self.words[0].covers(tokens for rows in views.values() for tokens in rows):
            for words in self.words:  # a method's views have tokens that its examples have not
                words.widen(self.optimiser)
            self.words = []
        mine = world.share(len(batch))
        self.network.train()
        share = {role: rows[mine] for role, rows in views.items()}
        with torch.set_grad_enabled(self.method.loss is not None):
            pooled, carry = self._vectors(share)
        with self._autocast(), torch.set_grad_enabled(self.method.loss is not None):
            gathered = {role: world.gather(v.float(), world.shares(len(batch))) for role, v in pooled.items()}
            z = self.network.project(gathered)
        if self.method.loss is not None:
            loss = self.method.loss({role: v.float() for role, v in z.items()}, config)
            with self._autocast():
                own = self.network.own_loss(share, pooled, rng)
            total = loss if own is None else loss + own / world.size
            total.backward()  # type: ignore[no-untyped-call]
            carry()
            self._descend()
            self.losses.append(loss.detach())
        self.network.after_step()
        self.progress.step += 1
        self.progress.examples += len(batch)
        if self.progress.step % LOSS_CHECK_STEPS == 0:
            self._mean_loss()

    def _vectors(self, share: Views) -> tuple[dict[str, Tensor], Callable[[], None]]:
        """This worker's vectors, and what is to be called after backward, see `encode_in_pieces`."""

        def encode(views: Views) -> dict[str, Tensor]:
            with self._autocast():  # one for each piece: it keeps what it has cast, also from where there is no graph
                return self.network.encode(views)

        size, examples = self.config.micro_batch, max(map(len, share.values()))
        if size == AUTO:
            if self.progress.piece is None:
                room = room_for_graphs(self.network, self.world.device)
                self.progress.piece = min(examples, largest_piece(encode, share, room, self.world.device))
                self.metrics[MICRO_BATCH] = float(self.progress.piece)
            size = self.progress.piece
        if not isinstance(size, int) or size >= examples:
            return encode(share), lambda: None
        return encode_in_pieces(encode, share, size, self.world.device)

    def _descend(self) -> None:
        assert self.optimiser is not None
        assert self.scheduler is not None
        self.world.reduce_gradients(self.network)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.scheduler.step()

    def _pause_wanted(self) -> bool:
        """Whether the trial is to end here, between evaluations. Workers agree on it every few steps."""
        if self.world.size > 1 and self.progress.step % LOSS_CHECK_STEPS:
            return False
        wanted, now = False, time.monotonic()
        if self.world.rank == 0 and now >= self.look_again:
            wanted = self.pausing()
            self.look_again = now + max(PAUSE_LOOK_S, (time.monotonic() - now) / PAUSE_LOOK_SHARE)
        return bool(self.world.agree(wanted if self.world.rank == 0 else None))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.bf16)

    def _mean_loss(self) -> float:
        if self.method.loss is None:
            return 0.0
        mean = float(torch.stack(self.losses).mean()) if self.losses else math.nan
        if not math.isfinite(mean):
            raise Broken("nan", f"the loss is {mean} after {self.progress.examples} training examples")
        return mean

    def _evaluate(self, rung: int) -> Evaluation:
        p = self.progress
        loss = self._mean_loss()
        self.losses.clear()
        self.network.eval()
        with self._autocast():
            value, metrics, similarities = self.evaluate(self.world.sharded(self.network.embed))
        if not math.isfinite(value):
            raise Broken("collapse", f"all sentences have the same vector after {p.examples} training examples")
        metrics = {**self.metrics, **metrics}
        if self.scheduler is not None:
            metrics |= {"loss": loss, "learning_rate": float(self.scheduler.get_last_lr()[0])}
        self.metrics = {}  # facts are logged once
        if self.world.device.type == "cuda":
            metrics[DEVICE_MEMORY] = torch.cuda.max_memory_allocated(self.world.device) / 1e9
        if p.best is None or (value > p.best if self.mode == "max" else value < p.best):
            p.best, p.best_at = value, p.examples
            if self.world.rank == 0:
                weights = Snapshot(self.network.state_dict(), self.world.device)
                at = {"examples": p.examples, "value": value, "metrics": metrics}
                kind = "bf16" if self.bf16 else "fp32"
                self.best = _Best(weights, similarities, {**self.about, "precision": kind, "best": at})
        return Evaluation(
            rung=rung,
            examples=p.examples,
            value=value,
            metrics=metrics,
            best=p.best,
            best_at=p.best_at,
            seconds=p.seconds,
            resumed_from=self.resumed_from,
            planned=self.planned,
        )

    def _save_best(self) -> None:
        self._write_best(self.best)
        self.best = _Best()

    def _write_best(self, best: _Best) -> None:
        if best.weights is not None:  # None: written in an earlier save and not beaten since
            self.files.save_best(best.weights.read(), best.trial, best.similarities)

    def _save_due(self) -> bool:
        every = self.config.checkpoint_seconds
        if every == 0:
            return True
        every = max(every, SAVE_EVERY * (self.save_seconds + self.writer.seconds))
        return not self.writer.busy and time.monotonic() - self.saved_at >= every

    def _save_last(self) -> None:
        """Copy the state, then write it while training goes on (with checkpoint_seconds 0: before it goes on)."""
        began = time.monotonic()
        cuda = torch.cuda.get_rng_state(self.world.device) if self.world.device.type == "cuda" else None
        state = Snapshot(
            {
                "network": self.network.state_dict(),
                "optimiser": self.optimiser.state_dict() if self.optimiser else None,
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "progress": vars(self.progress),
                "losses": self.losses,
                "metrics": self.metrics,
                "rng": torch.get_rng_state(),
                "cuda_rng": cuda,
            },
            self.world.device,
        )
        best, self.best = self.best, _Best()

        def write() -> None:
            self._write_best(best)
            self.files.save_last(state.read())

        self.save_seconds = time.monotonic() - began
        self.writer.start(write)
        if self.config.checkpoint_seconds == 0:
            self.writer.wait()
        self.saved_at = time.monotonic()

    def _state(self) -> dict[str, Any] | None:
        """What an earlier life left to go on from; nothing where the best it had reached is gone: a trial's value is
        that of weights that are there."""
        state = self.files.load_last()
        best_is_gone = state is not None and state["progress"]["best"] is not None and not self.files.has_best()
        return None if best_is_gone else state

    def _resume(self) -> int:
        state = self.world.agree(self._state() if self.world.rank == 0 else None)
        if state is None:
            return 0
        self.network.load_state_dict(state["network"])
        if self.optimiser is not None and self.scheduler is not None:
            self.optimiser.load_state_dict(state["optimiser"])
            self.scheduler.load_state_dict(state["scheduler"])
        self.progress = Progress(**state["progress"])
        self.losses = [loss.to(self.world.device) for loss in state["losses"]]
        self.metrics = state["metrics"]
        if self.world.rank == 0:  # other workers go on with new dropout masks
            torch.set_rng_state(state["rng"])
            if state["cuda_rng"] is not None and self.world.device.type == "cuda":
                torch.cuda.set_rng_state(state["cuda_rng"], self.world.device)
        return self.progress.examples


def train(
    setup: TrainingSetup,
    report: Report,
    world: World | None = None,
    pausing: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train the network by the method, evaluated now and then, keeping the best evaluation (methods 1.8).

    Args:
        report: gets every evaluation, answers "go", "prune" (end now) or "pause" (save and end, to be resumed).
        pausing: asked between evaluations too, now and then: whether to save and end, to be resumed.

    Returns: how it ended; value = best evaluation.
    Raises: Broken on a NaN loss or collapsed vectors.
    """
    return Training(setup, world or World(), pausing).run(report)


def cut(batches: Iterable[Batch], max_examples: int | None) -> list[Batch]:
    """The batches up to `max_examples` training examples in all (the batch that reaches it is the last)."""
    kept, seen = [], 0
    for batch in batches:
        if max_examples is not None and seen >= max_examples:
            break
        kept.append(batch)
        seen += len(batch)
    if not kept:
        raise ValueError("no batch of at least 2 training examples: the training data or sample_size is too small")
    return kept
