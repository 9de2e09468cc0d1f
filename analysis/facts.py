"""What the report and the model card say besides the ranking: cost, failures, tests, how to run it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from analysis.axes import read_space
from analysis.store import Run
from analysis.study import Study
from search.record import ENVIRONMENT_FILE, OPENING, TEST_SUFFIX

ENDS = ("_low", "_high")


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
    space = read_space(study)
    resources: Mapping[str, Any] = space.get("resources") or {}
    gpus = float(resources.get("gpus", 0) or 0) * float(resources.get("workers", 1) or 1)
    ends = [run.end for run in study.runs if run.end] + ([study.run.end] if study.run.end else [])
    starts = [run.start for run in study.runs]
    wall = (max(ends) - min(starts)) / 1000 if ends and starts and study.finished else None
    return Cost(len(study.trials), float(study.trials["seconds"].sum()), wall, gpus)


def failures(study: Study) -> pd.DataFrame:
    """Failed trials: trial, kind, reason."""
    failed = study.trials[study.trials["stop"].str.startswith("failed")]
    kinds = failed["stop"].str.removeprefix("failed:")
    return pd.DataFrame({"trial": failed["trial"], "kind": kinds, "reason": failed["reason"]})


def environment(study: Study) -> dict[str, str]:
    """Versions, commit and machine of the study, flat; {} if they were not stored."""
    content = study.store.artifact(study.run, ENVIRONMENT_FILE)
    facts = json.loads(content) if content else {}
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat |= {str(k): str(v) for k, v in value.items() if v is not None}
        elif value:
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat


def space_text(study: Study) -> str:
    """The resolved space as a space file."""
    return yaml.safe_dump(read_space(study), sort_keys=False, allow_unicode=True, width=100)


def commands(study: Study) -> list[str]:
    """What to type to run the study again, given its space file and the commit in `environment`."""
    name = shlex.quote(study.run.experiment)
    commit = environment(study).get("commit", "").removesuffix("+changes")
    checkout = [f"git checkout {commit} && pip install ."] if commit else []
    again = [f"search run {name}.yaml --name {shlex.quote(study.name)}"]
    if (study.trials["stage"] == "confirm").any():
        confirmed = study.trials[study.trials["stage"] == "confirm"]
        points = confirmed["point"].nunique() - int(confirmed.loc[confirmed["baseline"], "point"].nunique())
        seeds = int(confirmed.groupby("point").size().max())
        again.append(f"search confirm {shlex.quote(study.name)} --top {max(points, 1)} --seeds {seeds}")
    return [*checkout, *again, f"analysis best --study {shlex.quote(study.name)}"]


def openings(run: Run) -> list[str]:
    """What the study's run says about openings of the test sets, oldest first."""
    found = {tag: text for tag, text in run.tags.items() if tag.startswith(OPENING)}
    return [found[tag] for tag in sorted(found, key=lambda tag: int(tag.removeprefix(OPENING)))]


def tested(runs: Sequence[Run]) -> pd.DataFrame:
    """Test metrics of these trials' runs: metric, n, mean, sd, low, high in the metrics' unit; empty if there is none.

    low, high: mean of the trials' 95 % intervals over pairs, NaN for averages.
    """
    names = sorted({n for run in runs for n in run.metrics if n.endswith(TEST_SUFFIX)})
    rows = []
    for name in names:
        values = pd.Series([run.metrics[name] for run in runs if name in run.metrics])
        ends = [pd.Series([run.metrics.get(name + end, float("nan")) for run in runs]).mean() for end in ENDS]
        rows.append((name, len(values), values.mean(), values.std(ddof=1), *ends))
    return pd.DataFrame(rows, columns=["metric", "n", "mean", "sd", "low", "high"])


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
