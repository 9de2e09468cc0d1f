"""Data-parallel trials: a Ray Train worker group that stays up and takes trial after trial from a mailbox.

Ray Train takes seconds to start a group and would do so for every trial; here only the first trial of a trial process
pays. The mailbox is a small actor between the trial's process (which speaks for Tune) and rank 0 of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

from trainables.ray_job import Message, outcome_message
from trainables.spec import Evaluation, Outcome, TrialSpec, Verdict

POLL_S = 1.0  # how often a waiting trial process looks whether its group still lives


class Mailbox:
    """An asyncio actor: specs and verdicts one way, messages the other. All waiting happens here."""

    def __init__(self) -> None:
        self._specs: list[Message | None] = []
        self._posted = asyncio.Condition()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._verdicts: asyncio.Queue[Verdict] = asyncio.Queue()

    async def post(self, spec: Message | None) -> None:
        """The next trial for every worker; None ends the group."""
        async with self._posted:
            self._specs.append(spec)
            self._posted.notify_all()

    async def spec(self, number: int) -> Message | None:
        """Trial `number` of this group, as soon as it is posted."""
        async with self._posted:
            await self._posted.wait_for(lambda: len(self._specs) > number)
            return self._specs[number]

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    async def receive(self, timeout_s: float) -> Message | None:
        """The next message of the group, or None after `timeout_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._messages.get(), timeout_s)
        return None

    async def answer(self, verdict: Verdict) -> None:
        await self._verdicts.put(verdict)

    async def verdict(self) -> Verdict:
        return await self._verdicts.get()


class WorkerGroup:
    """Runs trials on `spec.workers` Ray Train workers (a `Host` of ray_job)."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def begin(self, spec: TrialSpec) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._start()
        ray.get(self._mailbox.post.remote(spec.to_dict()))

    def receive(self) -> Message:
        """The group's next message.

        Raises: the group's own error when it died without a word (a killed worker): Tune then retries the trial.
        """
        assert self._thread is not None
        while True:
            alive = self._thread.is_alive()
            message: Message | None = ray.get(self._mailbox.receive.remote(POLL_S if alive else 0.1))
            if message is not None:
                return message
            if not alive:
                raise RuntimeError("the trial's worker group died") from self._fault

    def answer(self, verdict: Verdict) -> None:
        self._mailbox.answer.remote(verdict)

    def close(self) -> None:
        """End the group; its workers and their reserved resources are free afterwards."""
        if self._thread is None:
            return
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(self._mailbox.post.remote(None))
        self._thread.join(timeout=30)
        ray.kill(self._mailbox)
        self._thread = None

    def _start(self) -> None:
        self._mailbox: Any = ray.remote(num_cpus=0)(Mailbox).remote()
        self._fault = None
        spec = self._spec
        resources = {"CPU": spec.cpus, **({"GPU": spec.gpus} if spec.gpus else {})}
        trainer = TorchTrainer(
            serve,
            train_loop_config={"mailbox": self._mailbox},
            scaling_config=ray.train.ScalingConfig(
                num_workers=spec.workers, use_gpu=spec.gpus > 0, resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(name="group", storage_path=os.getcwd()),
        )
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self._thread.start()

    def _fit(self, trainer: TorchTrainer) -> None:
        try:
            trainer.fit()
        except BaseException as fault:  # kept for receive(), which raises in Tune's sight
            self._fault = fault


def serve(config: dict[str, Any]) -> None:
    """What every worker of a group runs: trial after trial until the mailbox says None."""
    import torch

    from trainables.distributed import World
    from trainables.trial import Warm, classify, run_trial

    mailbox, context, warm = config["mailbox"], ray.train.get_context(), Warm()
    rank, number = context.get_world_rank(), 0

    def report(evaluation: Evaluation) -> Verdict:
        ray.get(mailbox.send.remote({**vars(evaluation), "done": False}))
        verdict: Verdict = ray.get(mailbox.verdict.remote())
        return verdict

    while (posted := ray.get(mailbox.spec.remote(number))) is not None:
        number += 1
        spec = TrialSpec.from_dict(posted)
        torch.set_num_threads(max(1, int(spec.cpus)))
        place = ray.train.torch.get_device() if spec.gpus else torch.device("cpu")
        world = World(rank, context.get_world_size(), place)
        try:
            outcome = run_trial(spec, report, world, warm)
        except Exception as fault:  # one worker's fault: say so, then end the group, since the others wait for this one
            kind, reason = classify(fault)
            ray.get(mailbox.send.remote(outcome_message(Outcome(f"failed:{kind}", None, 0, 0, 0.0, reason))))
            raise
        if rank == 0:
            ray.get(mailbox.send.remote(outcome_message(outcome)))
