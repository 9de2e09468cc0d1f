"""Messages between a trial's process and the host that trains in it, and where both check for a pause request.

Free of torch and Ray Train: the driver imports this module, and so does the process of a `Mailbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import fsspec

from trainables.contract.trial import PAUSE_FILE, Decision, Evaluation, Outcome, TrialSpec, phases_to, study_folder

if TYPE_CHECKING:
    from trainables.training.distributed import World
    from trainables.training.trial import ProcessCache

Message = dict[str, Any]
PHASE = "phase"  # key of the messages that get no answer
MANY = 2  # nodes from which on a process may have ended with its own
UNAVAILABLE_S, DIED_S = 60.0, 5.0  # Ray counts a node as lost that has not answered for half a minute


class DeviceFault(RuntimeError):
    """The device of a trial or its driver is broken, and with it the process: no trial can run in it."""

    def __init__(self, reason: str, node: str, text: str) -> None:
        super().__init__(reason, node, text)
        self.reason, self.node, self.text = reason, node, text


def deaths(error: BaseException) -> list[Any]:
    """The RayActorErrors (processes that ended or do not answer) and NodeDiedErrors in an error of Ray or Ray Train."""
    from ray.exceptions import NodeDiedError, RayActorError

    inner = [getattr(error, name, None) for name in ("cause", "health_check_failure")]
    inner += getattr(error, "worker_failures", {}).values()  # of a Ray Train group
    found = [death for one in inner if isinstance(one, BaseException) and one is not error for death in deaths(one)]
    return found or ([error] if isinstance(error, (RayActorError, NodeDiedError)) else [])


def node_lost(error: BaseException) -> str:
    """How the node of a process that this error reports dead was lost: "was preempted" or "was lost"; "" where, as far
    as Ray has recorded, only the process ended."""
    import ray
    from ray._private.state import actors  # the public State API needs Ray's dashboard; guarded by a test

    for death in deaths(error):
        if isinstance(death, ray.exceptions.NodeDiedError):
            return "was lost"
        if death.preempted:
            return "was preempted"
        node = actors(death.actor_id).get("Address", {}).get("NodeID") if death.actor_id else None
        if node and any(n["NodeID"] == node and not n["Alive"] for n in ray.nodes()):
            return "was lost"
    return ""


def doubt(error: BaseException) -> float:
    """Seconds within which Ray may still report the node lost of a process that this error reports dead.

    A machine that is switched off takes its processes down before Ray misses it. A machine that is cut off only stops
    answering. 0 where another cause is certain, or there is one node.
    """
    import ray

    found = [death for death in deaths(error) if isinstance(death, ray.exceptions.RayActorError)]
    if not any(death.actor_id and not death.actor_init_failed for death in found) or node_lost(error):
        return 0.0
    if sum(node["Alive"] for node in ray.nodes()) < MANY:
        return 0.0
    return UNAVAILABLE_S if any(isinstance(d, ray.exceptions.ActorUnavailableError) for d in found) else DIED_S


class Host(Protocol):
    """Where trials train. Messages are Evaluation dicts with done False, and one Outcome dict with done True; before
    the first evaluation those of phases (what the trial is busy with), which get no answer.

    The outcome has "node", Ray's id of where the trial ran, where that may be another node than this process's.
    """

    def begin(self, spec: TrialSpec) -> None: ...

    def receive(self) -> Message: ...

    def answer(self, decision: Decision) -> None: ...

    def close(self) -> None: ...


class Mailbox:
    """An asyncio actor between a worker group and a trial's process: specs and decisions one way, messages the other.
    All waiting happens here."""

    def __init__(self) -> None:
        self._specs: list[Message | None] = []
        self._posted = asyncio.Condition()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._decisions: asyncio.Queue[Decision] = asyncio.Queue()

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

    async def answer(self, decision: Decision) -> None:
        await self._decisions.put(decision)

    async def decision(self) -> Decision:
        return await self._decisions.get()


def run_and_send(
    spec: TrialSpec,
    send: Callable[[Message], None],
    decision: Callable[[], Decision],
    world: World,
    cache: ProcessCache,
) -> None:
    """Run a trial in this process: send its phases, evaluations and outcome, take a decision after each evaluation."""
    from trainables.training.machine import Usage, card_memory, describe
    from trainables.training.trial import run_trial, saved_log

    place = describe(world.device) + (f", {world.size} workers" if world.size > 1 else "")
    usage = Usage(world.device)
    facts = card_memory(world.device) if spec.measure else {}
    trains = False

    def busy(what: str, done: int, of: int) -> None:
        nonlocal trains
        if what == "training" and not trains and spec.measure:
            usage.read()  # how busy the card is while a trial trains decides, not while it is read and tokenised
        trains = trains or what == "training"
        send({PHASE: what, "phase_done": done, "phase_of": of, "done": False})

    def report(evaluation: Evaluation) -> Decision:
        nonlocal place
        metrics = {
            **evaluation.metrics,
            **usage.read(),
            **facts,
        }  # of the machine since the last evaluation, logged with this one
        send({**vars(evaluation), "metrics": metrics, "place": place, "done": False})
        place = ""  # once in a session
        return decision()

    with saved_log(spec.folder), phases_to(busy), contextlib.closing(usage):
        outcome = run_trial(spec, report, world, cache, partial(study_pausing, spec))
    send(outcome_message(outcome))


def outcome_message(outcome: Outcome) -> Message:
    return {**dataclasses.asdict(outcome), "done": True}


def study_pausing(spec: TrialSpec, unknown: bool = False) -> bool:
    """Whether the study of this trial is being interrupted (the driver has put its marker into the study's folder).

    Args: unknown: the answer where the storage cannot be reached.
    """
    return pause_requested(study_folder(spec.folder), unknown)


def pause_requested(folder: str, unknown: bool = False) -> bool:
    """Whether the driver's marker is in a folder: a study's, or that of a trial which is to save its state and end at
    the evaluation that it has just reported."""
    if "://" not in folder:
        return (Path(folder) / PAUSE_FILE).exists()
    try:
        filesystem, path = fsspec.core.url_to_fs(f"{folder}/{PAUSE_FILE}")
        return bool(filesystem.exists(path))
    except Exception:  # stores raise what they like; between evaluations the next check finds the marker
        return unknown
