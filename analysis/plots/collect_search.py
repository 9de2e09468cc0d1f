"""What the figures of the search show, as plain data. Values as printed (correlations x 100)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.evaluated import SeedValues
from analysis.statistics.seed_noise import seed_noise
from analysis.statistics.study_verdict import study_prior
from analysis.tables.study import Study
from search.schema import stored

Floats = NDArray[np.float64]
MAX_CURVES = 150  # more lines are a grey block: the best, and evenly chosen others


@dataclass(frozen=True)
class History:
    """numbers: 1.. in the order trials started; best: best completed value so far (NaN before the first).

    error: one standard deviation over seeds (`seed_error`), None where no seed was repeated.
    """

    numbers: Floats
    values: Floats
    stops: tuple[str, ...]
    trials: tuple[str, ...]
    best: Floats
    baseline: float | None
    baseline_name: str
    error: float | None


@dataclass(frozen=True)
class Curve:
    """One trial's evaluations. baseline: of the paper's setting."""

    trial: str
    stop: str
    baseline: bool
    steps: Floats
    values: Floats


@dataclass(frozen=True)
class Curves:
    """Learning curves: completed trials from the best down, then the others.

    rungs: training examples at which trials were pruned.
    """

    curves: tuple[Curve, ...]
    rungs: Floats
    left_out: int
    baseline_name: str


@dataclass(frozen=True)
class Pareto:
    """Quality against training seconds. front: nothing else is both better and faster. error: see `seed_error`."""

    seconds: Floats
    values: Floats
    front: NDArray[np.bool_]
    trials: tuple[str, ...]
    error: float | None


def label_of(study: Study) -> str:
    """The value axis's label."""
    unit = " x 100" if study.metric.scale == 100 else ""
    return f"{study.metric.name}{unit}"


def history(study: Study) -> History:
    """Values in the order of the search."""
    table = valued(study.trials[study.trials["stage"] == "search"])
    scale, sign = study.metric.scale, study.metric.sign
    values = scale * table["value"].to_numpy(dtype=float)
    completed = (table["stop"] == "completed").to_numpy(dtype=bool)
    so_far: Floats = sign * np.fmax.accumulate(np.where(completed, sign * values, np.nan)) if len(values) else values
    return History(
        np.arange(1.0, len(values) + 1),
        values,
        tuple(table["stop"]),
        tuple(table["trial"]),
        so_far,
        _baseline(study),
        study.baseline_name,
        seed_error(study),
    )


def curves(study: Study) -> Curves:
    """Every evaluation of every trial; of more than MAX_CURVES the best, the baseline and a choice of others."""
    metric = stored(study.metric.name)
    keys = study.trials.assign(
        later=study.trials["stop"] != "completed", order=-study.metric.sign * study.trials["value"]
    )
    table = keys.sort_values(["later", "order"], na_position="last", kind="stable")
    ids = list(table["run_id"])
    kept = set(ids[:10] + ids[10 :: len(ids) // MAX_CURVES + 1]) | set(table.loc[table["baseline"], "run_id"])
    shown = ids if len(ids) <= MAX_CURVES else [run for run in ids if run in kept]
    found: dict[str, list[tuple[float, float]]] = {}
    for run, _, step, value in study.store.history(shown, [metric]):
        found.setdefault(run, []).append((step, study.metric.scale * value))
    rows = {row["run_id"]: row for _, row in table.iterrows()}
    lines = tuple(
        Curve(
            str(rows[i]["trial"]),
            str(rows[i]["stop"]),
            bool(rows[i]["baseline"]),
            *(np.array(v, dtype=float) for v in zip(*found[i], strict=True)),
        )
        for i in shown
        if i in found
    )
    rungs = sorted({float(line.steps[-1]) for line in lines if line.stop == "pruned"})
    return Curves(lines, np.array(rungs), len(ids) - len(shown), study.baseline_name)


def pareto(study: Study) -> Pareto:
    """Completed trials of the search by value and training seconds."""
    table = valued(study.trials[(study.trials["stop"] == "completed") & (study.trials["stage"] == "search")])
    table = table[table["seconds"].notna()]
    values, seconds = study.metric.scale * table["value"].to_numpy(dtype=float), table["seconds"].to_numpy(dtype=float)
    kept = front(study.metric.sign * values, seconds)
    return Pareto(seconds, values, kept, tuple(table["trial"]), seed_error(study))


def front(quality: Floats, cost: Floats) -> NDArray[np.bool_]:
    """(n,) whether no other point has at least this quality at no more cost, and one of the two strictly better."""
    order = np.lexsort((-quality, cost))
    best, kept = -np.inf, np.zeros(len(quality), dtype=bool)
    for i in order:
        kept[i] = quality[i] > best
        best = max(best, quality[i])
    return kept


def valued(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["value"].notna()].reset_index(drop=True)


def _baseline(study: Study) -> float | None:
    rows = study.trials[
        study.trials["baseline"] & (study.trials["stop"] == "completed") & study.trials["value"].notna()
    ]
    return float(rows["value"].mean()) * study.metric.scale if len(rows) else None


def seed_error(study: Study) -> float | None:
    """Standard deviation of one trial over seeds, as printed: the verdict's.

    None where no seed was repeated: then no error is known that could be drawn.
    """
    values = SeedValues.of(study.trials, study.metric.sign)
    if not values.within()[1]:
        return None
    return study.metric.scale * seed_noise(values, prior=study_prior(study)).sd
