"""A trial as a Ray Train job: the class trainable that Tune runs, its process reused from one trial to the next.

One worker: Ray Train's local mode (`num_workers=0`) in a thread of the trial's own process (`InProcess`); a trial costs
its training and about 0.02 s. Several workers: a Ray Train worker group that stays up and takes trial after trial from
a mailbox (`worker_group`). Either way the trial's thread hands over one message per evaluation and waits for the
decision, so that a pruned trial stops exactly where it was judged.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Any

import ray
import ray.train
from ray import tune

from trainables.contract.trial import Decision, Outcome, TrialSpec
from trainables.on_ray.messages import (
    PHASE,
    DeviceFault,
    Host,
    Message,
    outcome_message,
    pause_requested,
    run_and_send,
    study_pausing,
)
from trainables.training.machine import check_cuda, use_large_pages

POLL_S = 1.0  # how often a waiting process checks that its trial's thread is alive
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TrialJob(tune.Trainable):  # type: ignore[misc]  # ray has no types
    """Tune's view of a trial; use with `reuse_actors=True`.

    `config`: {"spec": TrialSpec.to_dict(), "pauses": whether the driver may mark it to pause, "avoid": nodes where it
    may not run, "resources": workers, and CPUs and GPUs of each, to reserve}. Raises: DeviceFault in `step`, so that
    Tune replaces the process.
    """

    _host: Host
    _running: bool
    _unanswered: bool  # an evaluation waits for its decision

    def setup(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        if spec.workers == 1:
            self._host = InProcess(spec)
        else:
            from trainables.on_ray.worker_group import WorkerGroup

            self._host = WorkerGroup(spec)
        self._begin(spec, config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial in the same process; True means success to Tune."""
        self._end()
        self._begin(TrialSpec.from_dict(new_config["spec"]), new_config)
        return True

    def step(self) -> Message:
        if not self._running:
            self._host.begin(self._spec)
        elif self._unanswered:
            self._host.answer("pause" if self._pauses and pause_requested(self._spec.folder) else "go")
        self._running = False  # if the host has crashed, there is nothing left to stop
        message = self._host.receive()
        self._running = not message["done"]
        self._unanswered = self._running and PHASE not in message
        if message.get("stop") == "failed:device":
            node = message.get("node") or ray.get_runtime_context().get_node_id()
            raise DeviceFault(message["reason"], node, message["traceback"])
        return message

    def cleanup(self) -> None:
        self._end()
        self._host.close()

    def _begin(self, spec: TrialSpec, config: dict[str, Any]) -> None:
        self._spec = spec
        self._pauses = bool(config.get("pauses"))
        self._running = self._unanswered = False

    def _end(self) -> None:
        """Tune has stopped the trial: it was pruned, or the whole study pauses."""
        if self._running:
            # a storage out of reach gives no answer: a saved state costs nothing, a lost one the training
            decision: Decision = "pause" if study_pausing(self._spec, unknown=True) else "prune"
            if self._unanswered:
                self._host.answer(decision)
            while not (message := self._host.receive())["done"]:
                if PHASE not in message:  # an answer that is not awaited would be the next trial's
                    self._host.answer(decision)
            self._running = self._unanswered = False


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
        self._cache = ProcessCache()
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._decisions: SimpleQueue[Decision] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, spec: TrialSpec) -> None:
        self._thread = threading.Thread(target=self._fit, args=(spec,), daemon=True)
        self._thread.start()

    def receive(self) -> Message:
        """The trial's next message; a failed outcome if its thread ended without one."""
        assert self._thread is not None
        while True:
            alive = self._thread.is_alive()  # before the queue: a message is never overlooked
            try:
                message = self._messages.get(timeout=POLL_S if alive else 0)
            except Empty:
                if alive:
                    continue
                reason = "the trial's thread ended without a result"
                message = outcome_message(Outcome("failed:error", None, 0, 0, 0.0, reason))
            if message["done"]:
                self._thread.join()
            return message

    def answer(self, decision: Decision) -> None:
        self._decisions.put(decision)

    def close(self) -> None:
        """Nothing is left running between trials."""

    def _fit(self, spec: TrialSpec) -> None:
        """The trial's thread. Every fault becomes a message; whatever prevents that is reported by `receive`."""
        try:
            from ray.train.torch import TorchTrainer  # with torch, which the driver does without

            TorchTrainer(
                lambda: self._run(spec),
                scaling_config=ray.train.ScalingConfig(num_workers=0, use_gpu=spec.gpus > 0),
                run_config=ray.train.RunConfig(name="trial", storage_path=tempfile.gettempdir()),  # stays empty
            ).fit()
        except BaseException as fault:  # of Ray Train or the device; the trial's own faults are outcomes already
            from trainables.training.trial import failed

            self._messages.put(outcome_message(failed(fault)))

    def _run(self, spec: TrialSpec) -> None:
        import torch

        from trainables.training.distributed import World

        if spec.gpus > 0:
            check_cuda()
        if (share := min(1.0, spec.gpus or 1.0)) != self._share:  # of trials on one GPU a too large one fails alone
            torch.cuda.set_per_process_memory_fraction(share)
            self._share = share
        world = World(device=torch.device("cuda" if spec.gpus > 0 else "cpu"))  # the GPU that Ray made visible
        run_and_send(spec, self._messages.put, self._decisions.get, world, self._cache)


def placement(workers: int, cpus: float, gpus: float, avoid: Collection[str] = ()) -> tune.PlacementGroupFactory:
    """What a trial reserves: its workers' resources, a bundle each.

    A multi-worker trial's process only waits, and takes none of them (Tune's "empty head"). It runs on the first
    worker's node all the same: never on one that trains nothing, such as a cluster's small head, whose memory it would
    fill. Args: avoid: ids of nodes where nothing of the trial may run.
    """
    worker = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    other_nodes = {"ray.io/node-id": f"!in({','.join(sorted(avoid))})"}
    where = {"bundle_label_selector": [other_nodes] * workers} if avoid else {}
    return tune.PlacementGroupFactory([*([{}] if workers > 1 else []), *[worker] * workers], **where)
