"""What a study has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.tables.study import Study


@dataclass(frozen=True)
class Cost:
    """trial_seconds: training and evaluation of all trials; wall_seconds: None while running; gpus: of one trial."""

    trials: int
    trial_seconds: float
    wall_seconds: float | None
    gpus: float

    def lines(self) -> list[str]:
        wall = [f"{hours(self.wall_seconds)} from first to last"] if self.wall_seconds else []
        gpu = f", {self.gpus * self.trial_seconds / 3600:.2f} GPU-hours" if self.gpus else ", no GPU"
        return [f"{self.trials} trials, {hours(self.trial_seconds)} of training and evaluation{gpu}", *wall]


def cost(study: Study) -> Cost:
    """Of all trials, failed and pruned ones included as far as they told their time."""
    resources: Mapping[str, Any] = study.space.get("resources") or {}
    gpus = float(resources.get("gpus", 0) or 0) * float(resources.get("workers", 1) or 1)
    ends = [run.end for run in study.stored_trials if run.end] + ([study.stored.end] if study.stored.end else [])
    starts = [run.start for run in study.stored_trials]
    wall = (max(ends) - min(starts)) / 1000 if ends and starts and study.finished else None
    return Cost(len(study.trials), float(study.trials["seconds"].sum()), wall, gpus)


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
