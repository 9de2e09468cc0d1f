"""A trial as a Ray Train job: the class trainable that Tune runs, warm from one trial to the next.

One worker: Ray Train's local mode (`num_workers=0`) in a thread of the trial's own, reused process; a trial costs its
training and about 0.02 s. Several workers: a Ray Train worker group that stays up and takes trial after trial from a
mailbox (`ray_group.py`). Either way the trial's thread hands over one message per evaluation and waits for the verdict,
so that a pruned trial stops exactly where it was judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import fsspec
import ray.train
from ray import tune

from trainables.spec import Evaluation, Outcome, TrialSpec, Verdict

PAUSE_FILE = "PAUSE"  # in the study's folder: stopping trials save their state, they will be resumed
Message = dict[str, Any]


class Host(Protocol):
    """Where trials run. Messages are Evaluation dicts with done False, and one Outcome dict with done True."""

    def begin(self, spec: TrialSpec) -> None: ...

    def receive(self) -> Message: ...

    def answer(self, verdict: Verdict) -> None: ...

    def close(self) -> None: ...


class TrialJob(tune.Trainable):  # type: ignore[misc]  # ray has no types
    """Tune's view of a trial. `config` is {"spec": TrialSpec.to_dict()}; use with `reuse_actors=True`."""

    def setup(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        self._host: Host = _make_host(spec)
        self._running = self._unanswered = False
        self._begin(spec)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial in the same warm process; True tells Tune that this worked."""
        self._end()
        self._begin(TrialSpec.from_dict(new_config["spec"]))
        return True

    def step(self) -> Message:
        if not self._running:
            self._host.begin(self._spec)
            self._running = True
        elif self._unanswered:
            self._host.answer("go")
        self._running = False  # should the host have died, there is nothing left to stop
        message = self._host.receive()
        self._unanswered = self._running = not message["done"]
        return message

    def cleanup(self) -> None:
        self._end()
        self._host.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the trial keeps its own state in its folder, found again by any process that runs it."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing, see save_checkpoint."""

    def _begin(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._running = self._unanswered = False

    def _end(self) -> None:
        """Tune has stopped the trial: it was pruned, or the whole study pauses."""
        if self._running:
            self._host.answer("pause" if pausing(self._spec) else "prune")
            while not self._host.receive()["done"]:
                self._host.answer("prune")
            self._running = False


class InProcess:
    """Trials of one worker, one after another, each as a local-mode Ray Train job in a thread of this process."""

    def __init__(self, spec: TrialSpec) -> None:
        import torch

        from trainables.trial import Warm

        torch.set_num_threads(max(1, int(spec.cpus)))
        self._warm = Warm()
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._verdicts: SimpleQueue[Verdict] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, spec: TrialSpec) -> None:
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

    def _fit(self, spec: TrialSpec) -> None:
        from ray.train.torch import TorchTrainer  # with torch, which the driver has no need of

        def report(evaluation: Evaluation) -> Verdict:
            self._messages.put({**vars(evaluation), "done": False})
            return self._verdicts.get()

        def loop() -> None:
            from trainables.distributed import World
            from trainables.trial import run_trial

            world = World(device=device(spec))
            self._messages.put(outcome_message(run_trial(spec, report, world, self._warm, partial(pausing, spec))))

        try:
            TorchTrainer(
                loop,
                scaling_config=ray.train.ScalingConfig(num_workers=0, use_gpu=spec.gpus > 0),
                run_config=ray.train.RunConfig(name="trial", storage_path=tempfile.gettempdir()),  # stays empty
            ).fit()
        except BaseException as fault:  # Ray Train itself failed; the trial's own faults are outcomes already
            self._messages.put(outcome_message(Outcome("failed:error", None, 0, 0, 0.0, f"Ray Train: {fault}")))


def placement(workers: int, cpus: float, gpus: float) -> tune.PlacementGroupFactory:
    """What a trial process reserves: the worker's resources, or next to nothing where a worker group reserves its own.

    A multi-worker trial's process only waits. Tune needs some resource and every node has memory; a sliver of a CPU
    could wait for ever behind the group's own workers.
    """
    if workers > 1:
        return tune.PlacementGroupFactory([{"memory": 2**20}])
    return tune.PlacementGroupFactory([{"CPU": cpus, **({"GPU": gpus} if gpus else {})}])


def outcome_message(outcome: Outcome) -> Message:
    return {**dataclasses.asdict(outcome), "done": True}


def device(spec: TrialSpec) -> Any:
    """The GPU that Ray made visible to this process where the spec asks for one, else the CPU."""
    import torch

    return torch.device("cuda") if spec.gpus > 0 else torch.device("cpu")


def study_folder(spec: TrialSpec) -> str:
    """The folder (or URI) of the study that a trial belongs to; every node of a cluster reaches it."""
    return spec.folder.rsplit("/trials/", 1)[0]


def pausing(spec: TrialSpec) -> bool:
    """Whether the study of this trial is being interrupted (the driver has put its marker into the study's folder)."""
    study = study_folder(spec)
    if "://" not in study:
        return (Path(study) / PAUSE_FILE).exists()
    with contextlib.suppress(Exception):  # a remote storage in trouble ends no trial: the next look will tell
        filesystem, path = fsspec.core.url_to_fs(f"{study}/{PAUSE_FILE}")
        return bool(filesystem.exists(path))
    return False


def _make_host(spec: TrialSpec) -> Host:
    if spec.workers == 1:
        return InProcess(spec)
    from trainables.ray_group import WorkerGroup

    return WorkerGroup(spec)
