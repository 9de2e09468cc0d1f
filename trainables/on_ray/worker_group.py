"""Data-parallel trials: a Ray Train worker group that stays up and takes trial after trial from a mailbox.

Ray Train takes seconds to start a group and would do so for every trial; here only the first trial of a trial process
does. The mailbox is a small actor between the trial's process, which Tune steps, and rank 0 of the group.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any

import fsspec
import ray
import ray.exceptions
import ray.train
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import WorkerGroup as TrainWorkerGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.util.placement_group import PlacementGroup

from trainables.contract.errors import last_line
from trainables.contract.trial import Decision, TrialSpec, study_folder
from trainables.on_ray.messages import Mailbox, Message, doubt, node_lost, outcome_message, run_and_send
from trainables.training.machine import use_large_pages

POLL_S = 1.0  # how often a waiting trial process checks that its group is alive
GONE_S = 60.0  # longest wait for a group that ends
PATIENCE = timedelta(days=30)  # of workers for one that prepares data: Ray Train ends the group if one of them crashes
SIOCGIFADDR = 0x8915  # Linux: the address of an interface
# How often Ray Train checks its workers; start, end and faults of a group wait for that.
HEALTH_CHECK = ("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")


class WorkerGroup:
    """Runs trials on `spec.workers` Ray Train workers (a `Host`)."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def begin(self, spec: TrialSpec) -> None:
        if self._thread is None or not self._thread.is_alive():
            self.close()
            self._start()
        ray.get(self._mailbox.post.remote(spec.to_dict()))

    def receive(self) -> Message:
        """The group's next message.

        Raises: RayActorError when the group ended without a message (a killed worker), NodeDiedError when it lost a
            node: the trial is then retried.
        """
        assert self._thread is not None
        while True:
            alive = self._thread.is_alive()
            message: Message | None = ray.get(self._mailbox.receive.remote(POLL_S if alive else 0.1))
            if message is not None:
                if message.pop("group_over", False):
                    self._thread.join(timeout=GONE_S)
                    self._clear()
                return message
            if not alive:
                reason = last_line(self._fault or "it ended by itself")
                if self._fault and (how := self._node_lost(self._fault)):
                    raise ray.exceptions.NodeDiedError(f"a node of the trial's worker group {how}: {reason}")
                raise ray.exceptions.RayActorError(error_msg=f"the trial's worker group crashed: {reason}")

    def _node_lost(self, fault: BaseException) -> str:
        until = time.monotonic() + doubt(fault)
        while not (how := node_lost(fault)) and time.monotonic() < until:
            time.sleep(POLL_S)
        return how

    def answer(self, decision: Decision) -> None:
        self._mailbox.answer.remote(decision)

    def close(self) -> None:
        """End the group."""
        if self._thread is None:
            return
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(self._mailbox.post.remote(None))
        self._thread.join(timeout=GONE_S)
        self._clear()

    def _clear(self) -> None:
        ray.kill(self._mailbox)
        self._thread = None
        with contextlib.suppress(FileNotFoundError):  # Ray Train's own; trials save their files themselves
            filesystem, path = fsspec.core.url_to_fs(self._folder)
            filesystem.rm(path, recursive=True)

    def _start(self) -> None:
        os.environ.setdefault(*HEALTH_CHECK)
        spec = self._spec
        storage, name = f"{study_folder(spec.folder)}/ray", secrets.token_hex(4)
        self._folder = f"{storage}/{name}"
        clear_orphans(storage)
        self._mailbox: Any = ray.remote(num_cpus=0)(Mailbox).options(name=name).remote()
        self._fault = None
        resources = {"CPU": spec.cpus, **({"GPU": spec.gpus} if spec.gpus else {})}
        scaling = ray.train.ScalingConfig(
            num_workers=spec.workers, use_gpu=spec.gpus > 0, resources_per_worker=resources
        )
        trainer = GroupTrainer(
            run_trials,
            train_loop_config={"mailbox": self._mailbox},
            scaling_config=scaling,
            run_config=ray.train.RunConfig(name=name, storage_path=storage),
        )
        self._thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self._thread.start()

    def _fit(self, trainer: TorchTrainer) -> None:
        try:
            trainer.fit()
        except BaseException as fault:
            self._fault = fault  # receive() raises it, in Tune's thread


class ReservedSlots(DefaultPlacementGroupHandle):  # type: ignore[misc]
    """What Tune has reserved for the trial. Tune frees it, at the trial's end or its process's death."""

    def shutdown(self) -> None:
        """Nothing: the trial's own process has its slot there."""


class UseReservedSlots(WorkerGroupCallback):  # type: ignore[misc]
    """A group's workers take the slots that the trial has already. Ray Train would reserve others for them."""

    def __init__(self, slots: PlacementGroup) -> None:
        self._slots = slots

    def before_worker_group_start(self, worker_group_context: Any) -> None:  # noqa: ARG002
        """Called in the group's controller, a process of its own."""
        TrainWorkerGroup._create_placement_group = lambda *_: ReservedSlots(self._slots)


class GroupTrainer(TorchTrainer):  # type: ignore[misc]
    """A worker group in the slots of the trial whose process this is."""

    def _create_default_callbacks(self) -> list[Any]:
        """Without the process that Ray Train would keep on the head for each group, to free what Tune frees here."""
        plain = [
            one for one in super()._create_default_callbacks() if not isinstance(one, PlacementGroupCleanerCallback)
        ]
        return [*plain, UseReservedSlots(ray.util.get_current_placement_group())]


def clear_orphans(storage: str) -> None:
    """Remove the folders that groups of this study's killed trial processes have left."""
    with contextlib.suppress(OSError):  # unreachable storage, or another process was faster
        filesystem, path = fsspec.core.url_to_fs(storage)
        for folder in filesystem.ls(path, detail=False) if filesystem.exists(path) else []:
            try:
                ray.get_actor(folder.rstrip("/").rsplit("/", 1)[1])  # the mailbox of a group that is alive
            except ValueError:
                filesystem.rm(folder, recursive=True)


def interface(address: str) -> str:
    """The network interface of this machine with an IPv4 address, "" without one."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket() as any_socket:
            found = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def run_trials(config: dict[str, Any]) -> None:
    """What every worker of a group runs: trial after trial until the mailbox returns None."""
    use_large_pages()
    import torch
    from torch.distributed import DistError

    from trainables.training.distributed import World
    from trainables.training.trial import ProcessCache, failed, run_trial

    mailbox, context, cache, number = config["mailbox"], ray.train.get_context(), ProcessCache(), 0
    if name := interface(ray.util.get_node_ip_address()):  # else gloo takes what the host's name resolves to
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    patient = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def send(message: Message) -> None:
        ray.get(mailbox.send.remote(message))

    def decision() -> Decision:
        return ray.get(mailbox.decision.remote())  # type: ignore[no-any-return]

    while (posted := ray.get(mailbox.spec.remote(number))) is not None:
        number += 1
        spec = TrialSpec.from_dict(posted)
        torch.set_num_threads(max(1, int(spec.cpus)))
        device = ray.train.torch.get_device() if spec.gpus else torch.device("cpu")
        world = World(context.get_world_rank(), context.get_world_size(), device, patient)
        try:
            if world.rank == 0:
                run_and_send(spec, send, decision, world, cache)
            else:
                run_trial(spec, lambda _: "go", world, cache)  # rank 0 reports, and its decision is every worker's
        except BaseException as fault:  # one worker's fault ends the group, since other workers wait for this one
            lost_peer = isinstance(fault, DistError) or (isinstance(fault, RuntimeError) and "gloo" in str(fault))
            if not lost_peer:  # else another worker is gone, whose own fault is the one to report
                node = ray.get_runtime_context().get_node_id()
                send({**outcome_message(failed(fault)), "node": node, "group_over": True})
            raise
