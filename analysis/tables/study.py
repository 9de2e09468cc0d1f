"""One study as tables: what every command starts from."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import AnalysisError, unknown
from analysis.rank import Metric, Mode, parse_metric
from analysis.store import Run, Store, study_name
from analysis.tables import PARAM, add_values, parameter, points_table, trials_table, values_at_best
from search import record
from search.record import BEST_AT_EXAMPLES, best_key

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Study:
    """A study's trials, valued by one metric.

    trials: `tables.trials_table` with `value`; searched: names of the searched parameters; planned: trials the space
    asked for, None if its end is another.
    """

    store: Store
    run: Run
    runs: Sequence[Run]
    metric: Metric
    trials: pd.DataFrame
    searched: tuple[str, ...]
    planned: int | None

    @property
    def name(self) -> str:
        return study_name(self.run)

    @cached_property
    def points(self) -> pd.DataFrame:
        return points_table(self.trials)

    @property
    def finished(self) -> bool:
        """Whether the study has come to its end: neither running nor interrupted."""
        return self.run.status in ("FINISHED", "FAILED") and not (self.trials["stop"] == "running").any()

    def counts(self) -> dict[str, int]:
        """Trials per way to end; all failures together."""
        kinds = self.trials["stop"].str.split(":").str[0]
        return {str(kind): int(n) for kind, n in kinds.value_counts().items()}

    def similarities(self, run_id: str) -> Arrays | None:
        """Per dev set, cosines and gold scores (n,) of the trial's best checkpoint (`stsb_dev`, `stsb_gold`).

        None if they were not stored or are out of reach.
        """
        content = self.store.artifact(self._by_id[run_id], record.SIMILARITIES)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    @cached_property
    def _by_id(self) -> dict[str, Run]:
        return {run.run_id: run for run in self.runs}


def read_study(store: Store, run: Run, metric: str | None = None, runs: Sequence[Run] | None = None) -> Study:
    """Read a study, valuing its trials by `metric` (default: the one that selected) at each trial's best evaluation.

    runs: the study's trials, if they have been read already.

    Raises: InputError for an unknown metric, AnalysisError if the study has no trials.
    """
    runs = store.trials(run) if runs is None else runs
    if not runs:
        raise AnalysisError(f"study {study_name(run)} has no trials yet ({run.status.lower()})")
    selecting = run.tags.get(record.METRIC)
    mode = cast(Mode, run.tags.get(record.MODE, "max"))
    wanted = metric or selecting
    if wanted is None:
        raise AnalysisError(f"study {study_name(run)} does not say what selected; give --metric")
    parsed = parse_metric(wanted, mode if wanted == selecting else "max")
    trials = trials_table(runs)
    return Study(
        store=store,
        run=run,
        runs=runs,
        metric=parsed,
        trials=add_values(trials, _values(store, run, runs, trials, parsed)),
        searched=_searched(run, trials),
        planned=_planned(run),
    )


def dev_metrics(run: Run, runs: Sequence[Run]) -> list[str]:
    """What the study's trials can be ranked by: the selecting metric first."""
    logged = {name for r in runs for name in r.metrics if record.is_dev(name)}
    selecting = run.tags.get(record.METRIC)
    if selecting is None:
        return sorted(logged)
    return [selecting, *sorted(logged - {selecting, record.stored(selecting)})]


def _values(store: Store, run: Run, runs: Sequence[Run], trials: pd.DataFrame, metric: Metric) -> dict[str, float]:
    """Dev metrics stand in each ended run as `best_<metric>`; those that do not are looked up in the history."""
    key = best_key(metric.name)
    if metric.name == run.tags.get(record.METRIC) and any(key in r.metrics for r in runs):
        return {r.run_id: r.metrics[key] for r in runs if key in r.metrics}
    allowed = dev_metrics(run, runs)
    for part in metric.parts:
        if part not in allowed:
            raise unknown("metric", part, allowed)
    ended = [r for r in runs if BEST_AT_EXAMPLES in r.metrics]
    keys = [best_key(part) for part in metric.parts]
    told = {
        r.run_id: sum(r.metrics[key] for key in keys) / len(keys)
        for r in ended
        if all(key in r.metrics for key in keys)
    }
    rest = [r.run_id for r in ended if r.run_id not in told]
    return told | (values_at_best(trials, store.history(rest, metric.parts), metric.parts) if rest else {})


def _searched(run: Run, trials: pd.DataFrame) -> tuple[str, ...]:
    """Searched parameters by the study's tag, else those that vary."""
    told = [name for name in run.tags.get(record.SEARCHED, "").split(",") if name]
    columns = [c for c in map(str, trials.columns) if c.startswith(PARAM)]
    return tuple(told) or tuple(c.removeprefix(PARAM) for c in columns if trials[c].astype(str).nunique() > 1)


def _planned(run: Run) -> int | None:
    trials = parameter(run.params.get("search.trials"))
    return trials if isinstance(trials, int) else None
