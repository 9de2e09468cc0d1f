"""Trials of one worker, in the trial's own process."""

from __future__ import annotations

import os
import tempfile
import threading
import traceback
from functools import partial
from queue import SimpleQueue
from typing import Any

import ray.train

from trainables.contract.errors import first_line
from trainables.contract.trial import Evaluation, Outcome, TrialSpec, Verdict, phases_to
from trainables.on_ray.host import Message, evaluation_message, outcome_message, pausing, phase_message
from trainables.on_ray.place import place_of
from trainables.on_ray.usage import Usage
from trainables.training.memory import use_large_pages

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class InProcess:
    """Trials of one worker, one after another, each as a local-mode Ray Train job in a thread of this process."""

    def __init__(self, spec: TrialSpec) -> None:
        use_large_pages()
        for name in TORCHRUN:  # of whoever started us: Ray Train's local mode would join that group and wait for it
            os.environ.pop(name, None)
        import torch

        from trainables.training.trial import ProcessCache

        torch.set_num_threads(max(1, int(spec.cpus)))
        self._share = 1.0
        self._kept = ProcessCache()
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._verdicts: SimpleQueue[Verdict] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, spec: TrialSpec) -> None:
        self._take_share(min(1.0, spec.gpus or 1.0))
        self._thread = threading.Thread(target=self._fit, args=(spec,), daemon=True)
        self._thread.start()

    def receive(self) -> Message:
        message = self._messages.get()
        if message["done"] and self._thread is not None:
            self._thread.join()
        return message

    def answer(self, verdict: Verdict) -> None:
        self._verdicts.put(verdict)

    def close(self) -> None:
        """Nothing is left running between trials."""

    def _take_share(self, share: float) -> None:
        """Trials that share a GPU: one that wants too much fails alone, and gets all of it when it runs alone."""
        if share != self._share:
            import torch

            torch.cuda.set_per_process_memory_fraction(share)
            self._share = share

    def _fit(self, spec: TrialSpec) -> None:
        from ray.train.torch import TorchTrainer  # with torch, which the driver has no need of

        where, usage = place_of(device(spec)), Usage(device(spec))

        def report(evaluation: Evaluation) -> Verdict:
            nonlocal where
            self._messages.put(evaluation_message(evaluation, where, usage.read()))
            where = ""
            return self._verdicts.get()

        def loop() -> None:
            from trainables.training.distributed import World
            from trainables.training.trial import run_trial
            from trainables.training.trial_log import kept_log

            world = World(device=device(spec))
            tell = phases_to(lambda what, done, of: self._messages.put(phase_message(what, done, of)))
            with kept_log(spec.folder), tell, usage:
                outcome = run_trial(spec, report, world, self._kept, partial(pausing, spec))
            self._messages.put(outcome_message(outcome))

        try:
            TorchTrainer(
                loop,
                scaling_config=ray.train.ScalingConfig(num_workers=0, use_gpu=spec.gpus > 0),
                run_config=ray.train.RunConfig(name="trial", storage_path=tempfile.gettempdir()),  # stays empty
            ).fit()
        except BaseException as fault:  # Ray Train itself failed; the trial's own faults are outcomes already
            reason = f"Ray Train: {type(fault).__name__}: {first_line(fault)}"
            outcome = Outcome("failed:error", None, 0, 0, 0.0, reason, traceback.format_exc())
            self._messages.put(outcome_message(outcome))


def device(spec: TrialSpec) -> Any:
    """The GPU that Ray made visible to this process where the spec asks for one, else the CPU."""
    import torch

    return torch.device("cuda") if spec.gpus > 0 else torch.device("cpu")
