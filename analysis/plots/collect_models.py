"""What the figures of the models show, as plain data. Values as printed (correlations x 100)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.papers.compare import RUN
from analysis.papers.published import PaperTable
from analysis.plots.collect_search import valued
from analysis.tables.study import Arrays, Study
from search.schema import GOLD_SUFFIX

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scatter:
    """Cosine against gold score of one set, as SelfCCL's Figure 4. labels: (n,) of the pairs, or None."""

    name: str
    gold: Floats
    cosine: Floats
    rho: float
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Geometry:
    """Alignment and uniformity (lower is better, methods 7.5) at each trial's best evaluation."""

    alignment: Floats
    uniformity: Floats
    values: Floats
    trials: tuple[str, ...]
    sign: float


@dataclass(frozen=True)
class Ablation:
    """A published column and ours along the rows of a table. x: numbers if the rows are numbers, else 0, 1, 2, ..."""

    title: str
    metric: str
    labels: tuple[str, ...]
    x: Floats
    numeric: bool
    published: Floats
    ours: Floats
    sd: Floats
    name: str = field(default="")


def scatters(arrays: Arrays, data: Mapping[str, Any]) -> list[Scatter]:
    """One scatter per set of a `similarities.npz` that holds gold scores.

    Args: data: the `data` part of the resolved space, for the labels of pairs.
    """
    from analysis.tables.axes import pair_labels
    from trainables.evaluation.metrics import spearman

    found = []
    for key, cosine in arrays.items():
        name = key.rsplit("_", 1)[0]
        gold = arrays.get(f"{name}{GOLD_SUFFIX}")
        if key.endswith(GOLD_SUFFIX) or gold is None or len(gold) != len(cosine):
            continue
        labels = pair_labels(data, name, gold)
        found.append(
            Scatter(
                key, gold.astype(float), cosine.astype(float), spearman(cosine, gold), tuple(labels) if labels else None
            )
        )
    return found


def geometry(study: Study) -> Geometry:
    """Trials whose best evaluation has alignment and uniformity."""
    table = valued(study.trials)
    at = dict(zip(table["run_id"], table["examples"], strict=True))
    found: dict[str, dict[str, float]] = {}
    for run, metric, step, value in study.store.history(list(at), ["alignment", "uniformity"]):
        if at[run] == step:
            found.setdefault(run, {})[metric] = value
    rows: list[tuple[float, float, float, str]] = [
        (found[r["run_id"]]["alignment"], found[r["run_id"]]["uniformity"], r["value"], str(r["trial"]))
        for _, r in table.iterrows()
        if len(found.get(r["run_id"], {})) == 2
    ]
    columns: list[Any] = list(zip(*rows, strict=True)) or [(), (), (), ()]
    a, u, v = (np.array(c, dtype=float) for c in columns[:3])
    return Geometry(a, u, study.metric.scale * v, tuple(columns[3]), study.metric.sign)


def ablation(table: PaperTable, cells: pd.DataFrame, metric: str) -> Ablation:
    """One metric of a comparison (`compare.compare`) along the rows that the space runs, in the paper's setting."""
    mine = cells[(cells["metric"] == metric) & (cells["from"] == RUN) & (cells["departs"] == "")]
    run = [row for row in table.rows if row.params is not None and row.label in set(mine["row"])]
    values = [(row.params or {}).get(table.parameter) if table.parameter else None for row in run]
    labels = tuple(row.label for row in run)
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    numeric = len(numbers) == len(labels) and len(numbers) > 2
    return Ablation(
        f"{table.source} {table.table.replace('_', ' ')}: {table.what}",
        metric,
        labels,
        np.array(numbers if numeric else range(len(labels)), dtype=float),
        numeric,
        mine["published"].to_numpy(dtype=float),
        mine["ours"].to_numpy(dtype=float),
        mine["sd"].to_numpy(dtype=float),
        table.parameter or "",
    )
