"""The training loop of every method: plain torch, no Ray. `Training(...).run(report)`; its state is `Progress`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.contract.config import AUTO, RunConfig
from trainables.contract.trial import (
    AUGMENT,
    DEVICE_MEMORY,
    MICRO_BATCH,
    MODEL_MEMORY,
    STEP_SECONDS,
    Decision,
    Evaluation,
    Outcome,
    Report,
    phase,
)
from trainables.data.tokens import Tokens
from trainables.encoders.network import Network, Views
from trainables.encoders.words_in_use import WordsInUse, follow_decay
from trainables.methods.method import Batch, Examples, Method, loss_of
from trainables.training.checkpoint import Snapshot, TrialFiles
from trainables.training.distributed import World, encode_in_pieces, largest_piece, random_state, set_random_state
from trainables.training.machine import in_bf16, in_fp16, model_memory, release_memory, room_for_graphs
from trainables.training.trial import TrainingFailure

LOSS_CHECK_STEPS = 16  # between evaluations: each check for NaN waits for the device, each pause check for the workers
FIRST_SCALE = 2.0**16  # of an fp16 loss: halved when gradients overflow, doubled after 2,000 steps without
MEASURED = 2  # batches at each number of threads, the fastest counts
SAVE_EVERY = 20  # times what a save takes: the least time from one save to the next
Embed = Callable[[Sequence[Tokens]], Tensor]
Evaluate = Callable[[Embed], tuple[float, dict[str, float], dict[str, Any]]]


@dataclass
class Progress:
    """Position of a trial; what `last/` holds besides weights and optimiser."""

    step: int = 0
    examples: int = 0
    best: float | None = None
    best_at: int = 0
    seconds: float = 0.0
    piece: int | None = None  # found by `micro_batch: auto`


@dataclass(kw_only=True, eq=False)
class Training:
    """One session of a trial: trains the network by the method and keeps the best evaluation (methods 1.8).

    Attributes:
        network: freshly initialised from `seed`; trained in place.
        evaluate: embed -> (selecting value, all dev metrics, similarities per dev set).
        mode: "max" or "min" of the selecting value.
        files: `last/` is loaded and training resumes from it; `last/` and `best/` are written.
        about: what `best/trial.json` holds besides the evaluation (the trial's spec).
        pausing: called between evaluations: whether to save the state and end.
    """

    method: Method
    config: RunConfig
    network: Network
    examples: Examples
    evaluate: Evaluate
    seed: int
    files: TrialFiles
    mode: str = "max"
    about: Mapping[str, Any] = field(default_factory=dict)
    world: World = field(default_factory=World)
    pausing: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        method, config, network, self.device = self.method, self.config, self.network, self.world.device
        self.words = [part for part in network.modules() if isinstance(part, WordsInUse)]
        self.bf16 = in_bf16(config.precision, network, self.device)
        self.fp16 = in_fp16(config.precision, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, FIRST_SCALE, enabled=self.fp16)
        network.move_to_device(self.device, self.bf16)
        if config.batch_size < self.world.size:
            raise ValueError(
                f"batch_size: expected at least {self.world.size}, one example for each of the workers, "
                f"got {config.batch_size}"
            )
        # a last batch smaller than the group would leave a worker without an example
        batches = (batch for batch in method.plan(self.examples, config, self.seed) if len(batch) >= self.world.size)
        self.batches = first_batches(batches, config.max_examples)
        self.planned = sum(len(batch) for batch in self.batches)
        self.optimiser, self.scheduler = None, None
        if method.optimiser is not None:
            steps = len(self.batches)
            self.optimiser, self.scheduler = method.optimiser(network, config, steps, max(1, steps // config.epochs))
            follow_decay(network, self.optimiser)
            if self.fp16:  # a fused step would run its hooks (clipping, decay) although it is skipped
                self.optimiser._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        if self.device.type == "cuda":  # an earlier trial of this process had a peak of its own
            torch.cuda.reset_peak_memory_stats(self.device)
        # cuDNN plans its attention again for every length of padded batches, 60 ms each, and is no faster afterwards
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.rung_size = config.eval_steps * config.batch_size if config.eval_steps else config.eval_examples
        self.progress = Progress()
        self.write_best: Callable[[], None] = lambda: None  # of the best evaluation, if no save has written it yet
        self.losses: list[Tensor] = []
        self.metrics: dict[str, float] = dict(self.examples.facts)
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None
        self.saved_at, self.copy_seconds, self.write_seconds = time.monotonic(), 0.0, 0.0
        torch.manual_seed(self.seed * 1000 + self.world.rank)  # dropout masks: from here on each worker draws its own
        self.resumed_from = self._resume()

    def run(self, report: Report) -> Outcome:
        """Train to the end of the plan, or to a decision that ends this session.

        Args: report: gets every evaluation, returns "go", "prune" (end now) or "pause" (save and end, to be resumed).
        Returns: the outcome; `best` and `best_at` are those of the best evaluation.
        Raises: TrainingFailure on a NaN loss or collapsed vectors.
        """
        p, world = self.progress, self.world
        decision: Decision = "go"
        try:
            clock = time.monotonic()
            while p.step < len(self.batches) and decision == "go":
                if world.rank == 0 and p.best is None:  # from the first evaluation on those are shown
                    phase("training", p.examples, self.planned)
                before = self._rungs()
                self._step(self.batches[p.step])
                rung = self._rungs()
                if rung > before or p.step == len(self.batches):
                    p.seconds += time.monotonic() - clock
                    clock = time.monotonic()
                    evaluation = self._evaluate(max(rung, before + 1) * self.rung_size)
                    p.seconds += time.monotonic() - clock
                    decision = world.broadcast(report(evaluation) if world.rank == 0 else None)
                    clock = time.monotonic()  # waiting for the decision is not the trial's time
                elif self._pause_requested():
                    decision = "pause"
                p.seconds += time.monotonic() - clock
                clock = time.monotonic()
                if world.rank == 0 and self._save_due():
                    self._save_last()
            done = p.step >= len(self.batches)
            stop = "completed" if done else {"prune": "pruned", "pause": "paused", "go": "completed"}[decision]
            if world.rank == 0:
                if stop == "paused":
                    self._save_last()
                self._finish_writing()
                if stop != "paused":
                    self.write_best()
                    self.files.drop_last()
        finally:
            self.writer.shutdown()  # after a failure too, nothing writes into the folder any more
        return Outcome(stop=stop, best=p.best, best_at=p.best_at, examples=p.examples, seconds=p.seconds)

    def _rungs(self) -> int:
        """Rungs that the trial has reached: by steps with `eval_steps`, so that small batches delay none."""
        every, p = self.config.eval_steps, self.progress
        return p.step // every if every else p.examples // self.rung_size

    def measure(self, threads: int) -> None:
        """Add what decides how many trials share this device to the next evaluation's metrics; nothing else changes.

        On a CPU those are the seconds of a batch through the encoder and back with 1, 2, 4, ... and `threads` threads;
        with `micro_batch` of one piece of it.
        """
        self.metrics[MODEL_MEMORY] = model_memory(self.network) / 1e9
        if self.device.type != "cpu" or self.method.loss is None:
            return
        batch = self.batches[self.progress.step]
        share = {role: rows[self.world.share(len(batch))] for role, rows in self._views(batch)[0].items()}
        before, own = random_state(self.device), torch.get_num_threads()
        self.network.train()
        size = self._piece_size(share)
        piece = {role: rows[:size] for role, rows in share.items()}
        for count in sorted({threads, *(2**k for k in range(threads.bit_length()) if 2**k <= threads)}):
            torch.set_num_threads(count)
            taken = []
            for _ in range(MEASURED + 1):
                began = time.perf_counter()
                vectors = self._encode(piece)
                torch.stack([v.float().sum() for v in vectors.values()]).sum().backward()  # type: ignore[no-untyped-call]
                taken.append(time.perf_counter() - began)
            self.metrics[f"{STEP_SECONDS}{count}"] = min(taken[1:])
        torch.set_num_threads(own)
        self.network.zero_grad(set_to_none=True)
        set_random_state(before, self.device)

    def _views(self, batch: Batch) -> tuple[Views, np.random.Generator]:
        """The views of the whole next batch, the same on any world, and the generator that they were drawn from."""
        rng = np.random.default_rng([self.seed, AUGMENT, self.progress.step])
        views = self.method.views(self.examples, batch, self.config, rng)
        if self.words and not self.words[0].covers(tokens for rows in views.values() for tokens in rows):
            for words in self.words:  # a method's views have tokens that its examples have not
                words.widen(self.optimiser)
            self.words = []
        return views, rng

    def _step(self, batch: Batch) -> None:
        """One optimiser step (or, of a method without a loss, one batch through the network)."""
        config, world, network, trains = self.config, self.world, self.network, self.method.loss is not None
        views, rng = self._views(batch)
        part = world.share(len(batch))
        share = {role: rows[part] for role, rows in views.items()}
        network.train()
        with torch.set_grad_enabled(trains):
            pooled, accumulate = self._vectors(share)
            with self._autocast():
                gathered = {role: world.gather(v.float(), world.shares(len(batch))) for role, v in pooled.items()}
                z = network.project(gathered)
        if self.method.loss is not None:
            known = batch.numbers_by_name(self.examples, self.device)
            loss = loss_of(self.method, {role: v.float() for role, v in z.items()}, known, config)
            with self._autocast():
                own = network.own_loss(share, pooled, rng)
            total = loss if own is None else loss + own / world.size
            self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
            accumulate()
            assert self.optimiser is not None
            assert self.scheduler is not None
            world.reduce_gradients(network)
            scale = self.scaler.get_scale()
            self.scaler.unscale_(self.optimiser)  # before the optimiser's own clipping
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.optimiser.zero_grad(set_to_none=True)
            if self.scaler.get_scale() >= scale:  # else gradients overflowed and the step was skipped
                self.scheduler.step()
            self.losses.append(loss.detach())
        network.after_step()
        self.progress.step += 1
        self.progress.examples += len(batch)
        if self.progress.step % LOSS_CHECK_STEPS == 0:
            self._mean_loss()

    def _vectors(self, share: Views) -> tuple[dict[str, Tensor], Callable[[], None]]:
        """This worker's vectors, and what to call after backward, see `encode_in_pieces`."""
        size = self._piece_size(share)
        if size >= max(map(len, share.values())):
            return self._encode(share), lambda: None
        return encode_in_pieces(self._encode, share, size, self.device)

    def _encode(self, views: Views) -> dict[str, Tensor]:
        with self._autocast():  # one for each piece: it caches casts, also those made without a graph
            return self.network.encode(views)

    def _piece_size(self, share: Views) -> int:
        """How many examples of this worker's share are encoded at a time (`micro_batch`)."""
        size, examples = self.config.micro_batch, max(map(len, share.values()))
        if size == AUTO:
            if self.progress.piece is None:
                room = room_for_graphs(self.network, self.device)
                self.progress.piece = min(examples, largest_piece(self._encode, share, room, self.device))
                self.metrics[MICRO_BATCH] = float(self.progress.piece)
            size = self.progress.piece
        return min(size, examples) if isinstance(size, int) else examples

    def _pause_requested(self) -> bool:
        """Whether to end here, between evaluations. Workers check it together, every few steps."""
        if self.world.size > 1 and self.progress.step % LOSS_CHECK_STEPS:
            return False
        return bool(self.world.broadcast(self.pausing() if self.world.rank == 0 else None))

    def _autocast(self) -> AbstractContextManager[Any]:
        lower = torch.float16 if self.fp16 else torch.bfloat16
        return torch.autocast(self.device.type, lower, enabled=self.fp16 or self.bf16)

    @property
    def precision(self) -> str:
        """Of matrix products: fp32, bf16 or fp16."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    def _mean_loss(self) -> float:
        if self.method.loss is None:
            return 0.0
        mean = float(torch.stack(self.losses).mean()) if self.losses else math.nan
        if not math.isfinite(mean):
            raise TrainingFailure("nan", f"the loss is {mean} after {self.progress.examples} training examples")
        return mean

    def _evaluate(self, rung: int) -> Evaluation:
        """Evaluate on all dev sets; of a new best, copy the weights."""
        p = self.progress
        loss = self._mean_loss()
        self.losses.clear()
        self.network.eval()
        with self._autocast():
            value, metrics, similarities, finite = self.world.by_one(self._evaluated, self.network.embed)
        release_memory()
        if not math.isfinite(value):
            kind, what = ("nan", "vectors are NaN or infinite")
            if finite:
                kind, what = "collapse", "all sentences have the same vector"
            raise TrainingFailure(kind, f"{what} after {p.examples} training examples")
        metrics = {**self.metrics, **metrics}
        self.metrics = {}  # facts are logged once
        if self.scheduler is not None:
            metrics |= {"loss": loss, "learning_rate": float(self.scheduler.get_last_lr()[0])}
        if self.device.type == "cuda":
            metrics[DEVICE_MEMORY] = torch.cuda.max_memory_allocated(self.device) / 1e9
        if p.best is None or (value > p.best if self.mode == "max" else value < p.best):
            p.best, p.best_at = value, p.examples
            if self.world.rank == 0:
                at = {"examples": p.examples, "value": value, "metrics": metrics}
                about = {**self.about, "precision": self.precision, "best": at}
                weights = Snapshot(self.network.state_dict(), self.device)
                self.write_best = lambda: self.files.save_best(weights.read(), about, similarities)
        return Evaluation(
            rung=rung, examples=p.examples, value=value, metrics=metrics, best=p.best, best_at=p.best_at,
            seconds=p.seconds, resumed_from=self.resumed_from, planned=self.planned,
        )  # fmt: skip

    def _evaluated(self, embed: Embed) -> tuple[float, dict[str, float], dict[str, Any], bool]:
        """What `evaluate` returns, and whether an unusable value comes of finite vectors."""
        finite: list[Tensor] = []

        def checked(sequences: Sequence[Tokens]) -> Tensor:
            vectors = embed(sequences)
            finite.append(torch.isfinite(vectors).all())  # read only after a failure: nothing waits for the device
            return vectors

        value, metrics, similarities = self.evaluate(checked)
        return value, metrics, similarities, math.isfinite(value) or all(map(bool, finite))

    def _save_due(self) -> bool:
        if self.config.checkpoint_seconds == 0:
            return True
        every = max(self.config.checkpoint_seconds, SAVE_EVERY * (self.copy_seconds + self.write_seconds))
        return (self.writing is None or self.writing.done()) and time.monotonic() - self.saved_at >= every

    def _save_last(self) -> None:
        """Copy the state, then write it while training goes on (with checkpoint_seconds 0: before it goes on)."""
        began = time.monotonic()
        cpu, cuda = random_state(self.device)
        state = Snapshot(
            {
                "network": self.network.state_dict(),
                "optimiser": self.optimiser.state_dict() if self.optimiser else None,
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "scaler": self.scaler.state_dict(),  # empty but for fp16
                "progress": vars(self.progress),
                "losses": self.losses,
                "metrics": self.metrics,
                "rng": cpu,
                "cuda_rng": cuda,
            },
            self.device,
        )
        write_best, self.write_best = self.write_best, lambda: None
        self.copy_seconds = time.monotonic() - began

        def write() -> None:
            began = time.monotonic()
            write_best()
            self.files.save_last(state.read())
            self.write_seconds = time.monotonic() - began

        self._finish_writing()
        self.writing = self.writer.submit(write)
        if self.config.checkpoint_seconds == 0:
            self._finish_writing()
        self.saved_at = time.monotonic()

    def _finish_writing(self) -> None:
        """Wait until nothing is being written. Raises: what the last write raised."""
        if self.writing is not None:
            self.writing.result()

    def _resume(self) -> int:
        """Load what an earlier session saved; the examples that it had trained on, 0 without any."""
        state = self.files.load_last() if self.world.rank == 0 else None
        if state is not None and state["progress"]["best"] is not None and not self.files.has_best():
            state = None  # a trial's value is that of weights that exist
        if state is not None:  # after a crash between two writes `best` may be newer than this state
            state["best"] = self.files.best_value()
        if (state := self.world.broadcast(state)) is None:
            return 0
        self.network.load_state_dict(state["network"])
        if self.optimiser is not None and self.scheduler is not None:
            self.optimiser.load_state_dict(state["optimiser"])
            self.scheduler.load_state_dict(state["scheduler"])
        if self.fp16 and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        if state["best"] is not None:
            self.progress.best, self.progress.best_at = state["best"]
        self.losses = [loss.to(self.device) for loss in state["losses"]]
        self.metrics = state["metrics"]
        if self.world.rank == 0:
            cuda = state["cuda_rng"] if self.device.type == "cuda" else None
            set_random_state((state["rng"], cuda), self.device)
        else:  # whose state is not stored: new dropout masks, not those of its first steps again
            draws = np.random.SeedSequence([self.seed, self.world.rank, self.progress.step])
            torch.manual_seed(int(draws.generate_state(1, np.uint64)[0]))
        return self.progress.examples


def first_batches(batches: Iterable[Batch], max_examples: int | None) -> list[Batch]:
    """The batches up to `max_examples` training examples in all (the batch that reaches it is the last)."""
    taken, seen = [], 0
    for batch in batches:
        if max_examples is not None and seen >= max_examples:
            break
        taken.append(batch)
        seen += len(batch)
    if not taken:
        raise ValueError("no batch of at least 2 training examples: the training data or sample_size is too small")
    return taken
