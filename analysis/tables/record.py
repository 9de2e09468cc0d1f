"""Beside the ranking: what a study cost, how to run it again, and what its opened test sets gave."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from analysis.reading.store import StoredRun
from analysis.tables.study import Study
from search.schema import (
    BASELINE,
    CONFIRMATION,
    ENVIRONMENT_FILE,
    OPENING,
    PLACE,
    POINT_ID,
    SHARED_GPUS,
    TEST_SUFFIX,
    TRIAL_ID,
    UNTRAINED_PREFIX,
)


@dataclass(frozen=True)
class Cost:
    """trial_seconds: training and evaluation of all trials; wall_seconds: None while running.

    gpus: of one trial, None where unknown; gpu_seconds: of the trials that had them; devices: names of the GPUs,
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
    """Of all trials, failed and pruned ones included as far as they reported their time.

    Whether trials had GPUs, their devices tell: a space may leave that open (one for each worker where there are any),
    and a resume may change it. A trial that ended before it reported its device had the same as other trials.
    """
    resources: Mapping[str, Any] = study.space.get("resources") or {}
    # gpus: null or auto are numbers only once trials run
    gpus, workers = study.stored.tags.get(SHARED_GPUS, resources.get("gpus")), float(resources.get("workers") or 1)
    device_names = study.trials["run_id"].map({run.run_id: _device(run) for run in study.stored_trials}).fillna("")
    cpu = device_names.str.startswith("CPU ")
    devices = tuple(device_names[~cpu & (device_names != "")].unique())
    gpus = None if gpus in (None, "auto") else float(gpus)
    if device_names.any():
        gpus = (gpus or 1.0) if devices else 0.0
    seconds = study.trials["seconds"]
    ends = [run.end for run in study.stored_trials if run.end] + ([study.stored.end] if study.stored.end else [])
    starts = [run.start for run in study.stored_trials]
    return Cost(
        trials=len(study.trials),
        trial_seconds=float(seconds.sum()),
        wall_seconds=(max(ends) - min(starts)) / 1000 if ends and starts and study.finished else None,
        gpus=None if gpus is None else gpus * workers,
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


def environment(study: Study) -> dict[str, str]:
    """Versions, commit and machine of the study, flat; {} if they were not stored."""
    content = study.store.artifact(study.stored, ENVIRONMENT_FILE)
    stored = json.loads(content) if content else {}
    flat: dict[str, str] = {}
    for name, value in stored.items():
        if isinstance(value, Mapping):
            flat |= {str(k): str(v) for k, v in value.items() if v is not None}
        elif value:
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat


def space_text(study: Study) -> str:
    """The resolved space as a space file."""
    return yaml.safe_dump(dict(study.space), sort_keys=False, allow_unicode=True, width=100)


def commands(study: Study) -> list[str]:
    """What to type to run the study again, given its space file and the commit in `environment`."""
    name = shlex.quote(study.stored.space)
    commit, changed, _ = environment(study).get("commit", "").partition("+changes")
    also = "  # and the changes that were not committed then" if changed else ""
    checkout = [f"git checkout {commit} && pip install .{also}"] if commit else []
    again = [f"search run {name}.yaml --name {shlex.quote(study.name)}"]
    again += [f"search confirm {shlex.quote(study.name)} {options}" for options in _confirmations(study)]
    return [*checkout, *again, f"analysis best --study {shlex.quote(study.name)}"]


def _confirmations(study: Study) -> list[str]:
    """The options of each `search confirm` that was run, in order; one that a resume took up again stands once."""
    tags = [tag for tag in study.stored.tags if tag.startswith(CONFIRMATION)]
    plans = [study.stored.tags[tag] for tag in sorted(tags, key=lambda tag: int(tag.removeprefix(CONFIRMATION)))]
    found = [re.findall(r"(\w+) (\d+)", plan) for plan, _ in itertools.groupby(plans)]  # "trials 20", "top 3, seeds 5"
    return [" ".join(f"--{name} {number}" for name, number in plan) for plan in found if plan]


ENDS = ("_low", "_high")


def openings(run: StoredRun) -> list[str]:
    """What the study's run records about openings of the test sets, oldest first."""
    found = {tag: text for tag, text in run.tags.items() if tag.startswith(OPENING)}
    return [found[tag] for tag in sorted(found, key=lambda tag: int(tag.removeprefix(OPENING)))]


UNTRAINED = "the start of "  # before the trials' names in the record of an opening that scored what they started from


def of_untrained(opening: str) -> bool:
    """Whether an opening scored the encoder before training, which no configuration changes."""
    return opening.partition(": ")[2].startswith(UNTRAINED)


def scores_by_configuration(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Test metrics of these trials' runs, one row per configuration and metric; empty if there is none.

    Columns: trials (their names), baseline, metric, n, mean, sd, low, high in the metrics' unit. Configurations stay
    apart: a mean over two of them is a mean of nothing.
    low, high: mean of the trials' 95 % intervals over pairs, NaN for averages.
    """
    points: dict[str, list[StoredRun]] = {}
    for run in runs:
        points.setdefault(run.tags.get(POINT_ID, run.run_id), []).append(run)
    rows = []
    for mine in points.values():
        trials = ", ".join(run.tags.get(TRIAL_ID, run.name) for run in mine)
        names = {n for run in mine for n in run.metrics if n.endswith(TEST_SUFFIX)}
        for name in sorted(n for n in names if not n.startswith(UNTRAINED_PREFIX)):
            values = pd.Series([run.metrics[name] for run in mine if name in run.metrics])
            ends = [pd.Series([run.metrics.get(name + end, float("nan")) for run in mine]).mean() for end in ENDS]
            spread = values.std(ddof=1)
            rows.append((trials, BASELINE in mine[0].tags, name, len(values), values.mean(), spread, *ends))
    return pd.DataFrame(rows, columns=["trials", "baseline", "metric", "n", "mean", "sd", "low", "high"])


@dataclass(frozen=True)
class TrainingGain:
    """Means of the trained trials and the value before training on one test metric, in its unit.

    low, high: 95 % interval of the difference, paired over pairs or queries; NaN where their values are not stored.
    """

    metric: str
    trained: float
    untrained: float
    low: float
    high: float
