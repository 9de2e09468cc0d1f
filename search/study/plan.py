"""What a plan of trials is, and what every plan makes its trials of."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from search.space import Space
from search.store.ledger import Ledger, Trial, TrialRecord
from search.study.samplers import key
from trainables.contract.trial import Decision, Evaluation


class Plan(Protocol):
    """What runs next, when a trial is stopped early, and what an ended one means."""

    def next(self, slots: int = 1) -> Trial | None:
        """A new trial or a waiting one to be taken up again, or None when there is none now.

        Args: slots: how many trials can run at once.
        """

    def close(self) -> None:
        """The session ends."""

    def exhausted(self) -> bool:
        """Whether no new trial can come, whatever the running ones do."""

    def on_evaluation(self, trial: Trial, evaluation: Evaluation) -> Decision:
        """Take note of an evaluation: go on, stop for good (prune), or save the state and wait (pause)."""

    def on_trial_end(self, record: TrialRecord) -> None:
        """Take note of an ended trial."""


def make_trial(
    space: Space,
    point: Mapping[str, Any],
    *,
    number: int,
    repeat: int,
    seed: int,
    stage: str,
    baseline: str,
    origin: str = "",
) -> Trial:
    """A trial with its names; `point_id` is a hash of all hyperparameters, so that studies can be compared."""
    params = space.values(point)
    script = {"script": os.path.basename(space.script.file)} if space.script else {}
    identity = key({"method": space.method, "encoder": space.encoder, **script, **params})
    base = f"{'t' if stage == 'search' else 'c'}{number:04d}"
    return Trial(
        id=base if stage == "search" and repeat == 0 else f"{base}.{repeat}",
        number=number,
        repeat=repeat,
        seed=seed,
        stage=stage,
        point=dict(point),
        params=params,
        point_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        baseline=baseline,
        origin=origin,
    )


def seed_values(records: Iterable[TrialRecord]) -> list[float]:
    """The values of a point's completed seeds."""
    return [record.best for record in records if record.state == "completed" and record.best is not None]


def mean_so_far(records: Sequence[TrialRecord]) -> float | None:
    """A point's value over its completed seeds; None before the first, or where one did not complete."""
    if any(not record.open and record.state != "completed" for record in records):
        return None
    values = seed_values(records)
    return statistics.fmean(values) if values else None


def point_means(ledger: Ledger) -> dict[int, float]:
    """Number -> mean of every point that is neither pruned nor failed, over the seeds that it has so far: a search that
    ran out of its budget has not completed its best points."""
    means = {number: event["value"] for number, event in ledger.points.items() if event["state"] == "complete"}
    for (stage, number), records in ledger.by_point.items():
        if stage == "search" and number not in ledger.points and (values := seed_values(records)):
            means[number] = statistics.fmean(values)
    return means
