"""What a trial's process speaks with: the host that runs the trial, and the messages between them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec

from trainables.contract.trial import PAUSE_FILE, Evaluation, Outcome, TrialSpec, Verdict, study_folder

Message = dict[str, Any]
PHASE = "phase"  # key of the messages that want no answer


class DeviceFault(RuntimeError):
    """The device of a trial, or what speaks with it, is broken, and with it the process: no trial can run in it."""

    def __init__(self, reason: str, node: str, text: str) -> None:
        super().__init__(reason, node, text)
        self.reason, self.node, self.text = reason, node, text


class Host(Protocol):
    """Where trials run. Messages are Evaluation dicts with done False, and one Outcome dict with done True; between
    them `phase_message`s, which want no answer.

    The outcome has "node", Ray's id of where the trial ran, where that may be another node than this process's.
    """

    def begin(self, spec: TrialSpec) -> None: ...

    def receive(self) -> Message: ...

    def answer(self, verdict: Verdict) -> None: ...

    def close(self) -> None: ...


def evaluation_message(evaluation: Evaluation, place: str, usage: Mapping[str, float]) -> Message:
    """usage: of the machine since the last evaluation, logged as metrics of this one."""
    metrics = {**evaluation.metrics, **usage}
    return {**vars(evaluation), "metrics": metrics, "place": place, "done": False}


def outcome_message(outcome: Outcome) -> Message:
    return {**dataclasses.asdict(outcome), "done": True}


def phase_message(what: str, done: int, of: int) -> Message:
    """What a trial is busy with before its first evaluation."""
    return {PHASE: what, "phase_done": done, "phase_of": of, "done": False}


def elsewhere(avoid: Collection[str]) -> dict[str, str]:
    """Ray's label selector for any node but these."""
    return {"ray.io/node-id": f"!in({','.join(sorted(avoid))})"}


def pausing(spec: TrialSpec) -> bool:
    """Whether the study of this trial is being interrupted (the driver has put its marker into the study's folder)."""
    return marked(study_folder(spec.folder))


def marked(folder: str) -> bool:
    """Whether the driver's marker is in a folder: a study's, or that of a trial which is to save its state and end at
    the evaluation that it has just reported."""
    if "://" not in folder:
        return (Path(folder) / PAUSE_FILE).exists()
    with contextlib.suppress(Exception):  # a remote storage in trouble ends no trial: the next look will tell
        filesystem, path = fsspec.core.url_to_fs(f"{folder}/{PAUSE_FILE}")
        return bool(filesystem.exists(path))
    return False
