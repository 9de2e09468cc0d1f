"""A trial as a Ray Train job: the class trainable that Tune runs, warm from one trial to the next.

One worker: Ray Train's local mode (`num_workers=0`) in a thread of the trial's own, reused process; a trial costs its
training and about 0.02 s (`in_process`). Several workers: a Ray Train worker group that stays up and takes trial after
trial from a mailbox (`worker_group`). Either way the trial's thread hands over one message per evaluation and waits for
the verdict, so that a pruned trial stops exactly where it was judged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ray
from ray import tune

from trainables.contract.trial import TrialSpec, Verdict
from trainables.on_ray.host import PHASE, DeviceFault, Host, Message, elsewhere, marked, pausing
from trainables.on_ray.in_process import InProcess


class TrialJob(tune.Trainable):  # type: ignore[misc]  # ray has no types
    """Tune's view of a trial; use with `reuse_actors=True`.

    `config`: {"spec": TrialSpec.to_dict(), "pauses": whether the driver may mark it to pause, "avoid": nodes where it
    may not run}. Raises: DeviceFault in `step`, so that Tune replaces the process.
    """

    def setup(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        self._host: Host = _make_host(spec)
        self._running = self._unanswered = False
        self._begin(spec, config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial in the same warm process; True tells Tune that this worked."""
        self._end()
        self._begin(TrialSpec.from_dict(new_config["spec"]), new_config)
        return True

    def step(self) -> Message:
        if not self._running:
            self._host.begin(self._spec)
            self._running = True
        elif self._unanswered:
            self._host.answer("pause" if self._pauses and marked(self._spec.folder) else "go")
        self._running = False  # should the host have died, there is nothing left to stop
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

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the trial keeps its own state in its folder, found again by any process that runs it."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing, see save_checkpoint."""

    def _begin(self, spec: TrialSpec, config: dict[str, Any]) -> None:
        self._spec = spec
        self._pauses = bool(config.get("pauses"))  # whether it may be told to pause at a rung
        self._running = self._unanswered = False

    def _end(self) -> None:
        """Tune has stopped the trial: it was pruned, or the whole study pauses."""
        if self._running:
            verdict: Verdict = "pause" if pausing(self._spec) else "prune"
            if self._unanswered:
                self._host.answer(verdict)
            while not (message := self._host.receive())["done"]:
                if PHASE not in message:  # an answer that nobody awaits would be the next trial's
                    self._host.answer(verdict)
            self._running = self._unanswered = False


def placement(workers: int, cpus: float, gpus: float, avoid: Collection[str] = ()) -> tune.PlacementGroupFactory:
    """What a trial reserves: its workers' resources, a bundle each.

    A multi-worker trial's process only waits, and takes none of them (Tune's "empty head"). It runs on the first
    worker's node all the same: never on one that trains nothing, such as a cluster's small head, whose memory it would
    fill. Args: avoid: ids of nodes where nothing of the trial may run.
    """
    worker = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    where = {"bundle_label_selector": [elsewhere(avoid)] * workers} if avoid else {}
    return tune.PlacementGroupFactory([*([{}] if workers > 1 else []), *[worker] * workers], **where)


def _make_host(spec: TrialSpec) -> Host:
    if spec.workers == 1:
        return InProcess(spec)
    from trainables.on_ray.worker_group import WorkerGroup

    return WorkerGroup(spec)
