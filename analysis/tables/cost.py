"""What a study has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.reading.runs import StoredRun
from analysis.tables.study import Study
from search.schema import PLACE


@dataclass(frozen=True)
class Cost:
    """trial_seconds: training and evaluation of all trials; wall_seconds: None while running.

    gpus: of one trial, None where nothing tells; gpu_seconds: of the trials that had them; devices: names of the GPUs,
    as far as they are on record.
    """

    trials: int
    trial_seconds: float
    wall_seconds: float | None
    gpus: float | None
    gpu_seconds: float
    devices: tuple[str, ...]

    def lines(self) -> list[str]:
        wall = [f"{hours(self.wall_seconds)} from first to last"] if self.wall_seconds else []
        return [f"{self.trials} trials, {hours(self.trial_seconds)} of training and evaluation{self._gpu()}", *wall]

    def _gpu(self) -> str:
        if self.gpus is None:
            return ""
        named = f" ({', '.join(self.devices)})" if self.devices else ""
        return f", {self.gpus * self.gpu_seconds / 3600:.2f} GPU-hours{named}" if self.gpus else ", no GPU"


def cost(study: Study) -> Cost:
    """Of all trials, failed and pruned ones included as far as they told their time.

    Whether trials had GPUs, their devices tell: a space may leave that open (one for each worker where there are any),
    and a resume may change it. A trial that ended before it told its device had what the others had.
    """
    resources: Mapping[str, Any] = study.space.get("resources") or {}
    gpus, workers = resources.get("gpus"), float(resources.get("workers") or 1)
    told = study.trials["run_id"].map({run.run_id: _device(run) for run in study.stored_trials}).fillna("")
    cpu = told.str.startswith("CPU ")
    devices = tuple(told[~cpu & (told != "")].unique())
    if told.any():
        gpus = (gpus or 1.0) if devices else 0.0
    seconds = study.trials["seconds"]
    ends = [run.end for run in study.stored_trials if run.end] + ([study.stored.end] if study.stored.end else [])
    starts = [run.start for run in study.stored_trials]
    return Cost(
        trials=len(study.trials),
        trial_seconds=float(seconds.sum()),
        wall_seconds=(max(ends) - min(starts)) / 1000 if ends and starts and study.finished else None,
        gpus=None if gpus is None else float(gpus) * workers,
        gpu_seconds=float(seconds[~cpu].sum()),
        devices=devices,
    )


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


def _device(run: StoredRun) -> str:
    """`NVIDIA H100 80GB HBM3` of a trial's place `node7, NVIDIA H100 80GB HBM3, driver 550.54.15`; a CPU's begins with
    `CPU `; "" where it is not on record."""
    return (run.tags.get(PLACE, "").split(", ") + [""])[1]
