"""Tables of trials, written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
from simulate import METRIC

from analysis.statistics.pairs import Lookup, pair_noise
from analysis.statistics.picked import EvaluatedPoints
from analysis.statistics.seed_noise import SeedValues
from analysis.statistics.verdict import Verdict, judged
from analysis.tables.metric import Metric
from analysis.tables.study import Study
from analysis.tables.trials import points_table


def table(values: Mapping[str, list[float]], confirmed: Mapping[str, list[float]] | None = None) -> pd.DataFrame:
    """Trials of points by name, seeds 0, 1, ... in the search, 10, 11, ... afresh; the first is the baseline."""
    rows = [(p, "search", seed, v) for p, vs in values.items() for seed, v in enumerate(vs)]
    rows += [(p, "confirm", 10 + seed, v) for p, vs in (confirmed or {}).items() for seed, v in enumerate(vs)]
    frame = pd.DataFrame(rows, columns=["point", "stage", "seed", "value"])
    frame["run_id"] = frame["trial"] = [f"t{i}" for i in range(len(frame))]
    frame["stop"], frame["baseline"] = "completed", frame["point"] == next(iter(values))
    return frame


def judge(
    trials: pd.DataFrame, metric: Metric = METRIC, similarities: Lookup = lambda _: None, **options: Any
) -> Verdict:
    """The verdict over a table of trials."""
    pool, seeds = EvaluatedPoints.of(points_table(trials), metric.sign), SeedValues.of(trials, metric.sign)
    return judged(pool, seeds, metric, lambda *runs: pair_noise(*runs, metric.parts, similarities), **options)


def table_study(trials: pd.DataFrame, tags: Mapping[str, str] | None = None, runs: Sequence[Any] = ()) -> Study:
    """A study of these trials in a store that holds no other; no space, no similarities."""
    stored = SimpleNamespace(run_id="s", tags=dict(tags or {}), params={}, experiment="space", name="s")
    store = SimpleNamespace(studies=list)
    found = Study(cast(Any, store), cast(Any, stored), list(runs), METRIC, trials, ("x",), None)
    object.__setattr__(found, "similarities", lambda _: None)
    object.__setattr__(found, "space", {})
    return found
