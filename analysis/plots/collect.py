"""What the figures show, as plain data: pure functions of a study. Values as printed (correlations x 100)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from analysis.axes import Axis
from analysis.published import PaperTable
from analysis.stats import expected_best
from analysis.study import Arrays, Study
from analysis.tables import PARAM
from search.record import GOLD_SUFFIX, stored

Floats = NDArray[np.float64]
MAX_CURVES = 150  # more lines are a grey block: the best, and evenly chosen others
GRID = 60
CURVE_POINTS = 100


@dataclass(frozen=True)
class History:
    """numbers: 1.. in the order trials started; best: best completed value so far (NaN before the first).

    reference: expected best after `reference_at` trials, pruned ones counted with the value they reached.
    """

    numbers: Floats
    values: Floats
    stops: tuple[str, ...]
    trials: tuple[str, ...]
    best: Floats
    reference_at: Floats
    reference: Floats
    reference_name: str
    baseline: float | None


@dataclass(frozen=True)
class Curve:
    trial: str
    stop: str
    steps: Floats
    values: Floats


@dataclass(frozen=True)
class Curves:
    """Learning curves, the best one first. rungs: training examples at which trials were pruned."""

    curves: tuple[Curve, ...]
    rungs: Floats
    left_out: int


@dataclass(frozen=True)
class Params:
    """Completed and pruned search trials over the searched axes.

    positions: (n, d) places on the axes, NaN where a parameter did not exist; values: (n,); pruned: (n,).
    """

    axes: tuple[Axis, ...]
    positions: Floats
    values: Floats
    pruned: NDArray[np.bool_]
    trials: tuple[str, ...]
    sign: float


@dataclass(frozen=True)
class Contour:
    """Completed trials over two axes and a forest's fit on a grid.

    surface: (len(grid_y), len(grid_x)). sign: 1 if larger values are better, else -1.
    """

    x: Axis
    y: Axis
    points: Floats
    values: Floats
    grid_x: Floats
    grid_y: Floats
    surface: Floats
    sign: float


@dataclass(frozen=True)
class Pareto:
    """Quality against training seconds. front: nothing else is both better and faster."""

    seconds: Floats
    values: Floats
    front: NDArray[np.bool_]
    trials: tuple[str, ...]


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


def label_of(study: Study) -> str:
    """The value axis's label."""
    unit = " x 100" if study.metric.scale == 100 else ""
    return f"{study.metric.name}{unit}"


def history(study: Study, random_search: Study | None = None) -> History:
    """Values in the order of the search, and what random search would have reached.

    The reference is the expected best of n trials (`stats.expected_best`) of a random search over the same space, if
    one is given or the study is one; else of the study's own trials in random order, which says what the order added.
    """
    table = _valued(study.trials[study.trials["stage"] == "search"])
    scale, sign = study.metric.scale, study.metric.sign
    values = scale * table["value"].to_numpy(dtype=float)
    completed = (table["stop"] == "completed").to_numpy(dtype=bool)
    so_far: Floats = sign * np.fmax.accumulate(np.where(completed, sign * values, np.nan)) if len(values) else values
    own = study.run.params.get("search.sampler") == "random"
    source = random_search or study
    pool = _valued(source.trials[source.trials["stage"] == "search"])
    pool_values = scale * sign * pool["value"].to_numpy(dtype=float)
    name = "random search, expected" if own or random_search else "same trials in random order, expected"
    most = min(len(pool_values), len(values))
    counts = np.unique(np.linspace(1, most, min(most, CURVE_POINTS)).astype(int)) if most else np.array([], dtype=int)
    reference: Floats = sign * expected_best(pool_values, counts) if len(counts) else np.array([])
    return History(
        np.arange(1.0, len(values) + 1),
        values,
        tuple(table["stop"]),
        tuple(table["trial"]),
        so_far,
        counts.astype(float),
        reference,
        name,
        _baseline(study),
    )


def curves(study: Study) -> Curves:
    """Every evaluation of every trial with at least one, the best trials first."""
    metric = stored(study.metric.name)
    table = study.trials.assign(order=-study.metric.sign * study.trials["value"].fillna(np.inf)).sort_values("order")
    ids = list(table["run_id"])
    shown = ids if len(ids) <= MAX_CURVES else ids[:10] + ids[10 :: len(ids) // MAX_CURVES + 1]
    found: dict[str, list[tuple[float, float]]] = {}
    for run, _, step, value in study.store.history(shown, [metric]):
        found.setdefault(run, []).append((step, study.metric.scale * value))
    rows = {row["run_id"]: row for _, row in table.iterrows()}
    lines = tuple(
        Curve(
            str(rows[i]["trial"]),
            str(rows[i]["stop"]),
            *(np.array(v, dtype=float) for v in zip(*found[i], strict=True)),
        )
        for i in shown
        if i in found
    )
    rungs = sorted({float(line.steps[-1]) for line in lines if line.stop == "pruned"})
    return Curves(lines, np.array(rungs), len(ids) - len(shown))


def params(study: Study, axes: Sequence[Axis]) -> Params:
    """The search's trials over the axes (completed and pruned ones)."""
    table = _valued(
        study.trials[(study.trials["stage"] == "search") & study.trials["stop"].isin(["completed", "pruned"])]
    )
    missing = pd.Series([None] * len(table), index=table.index, dtype=object)
    columns = [axis.positions(table.get(PARAM + axis.name, missing)) for axis in axes]
    return Params(
        tuple(axes),
        np.column_stack(columns) if columns else np.zeros((len(table), 0)),
        study.metric.scale * table["value"].to_numpy(dtype=float),
        (table["stop"] == "pruned").to_numpy(dtype=bool),
        tuple(table["trial"]),
        study.metric.sign,
    )


def contour(found: Params, first: str, second: str) -> Contour | None:
    """The two named axes; None with fewer than six completed trials that have both."""
    names = [axis.name for axis in found.axes]
    i, j = names.index(first), names.index(second)
    points = found.positions[:, [i, j]]
    keep = ~np.isnan(points).any(axis=1) & ~found.pruned
    if keep.sum() < 6:
        return None
    x, y = found.axes[i], found.axes[j]
    forest = RandomForestRegressor(n_estimators=100, min_samples_leaf=2, random_state=0)
    forest.fit(points[keep], found.values[keep])
    grid_x, grid_y = (_grid(axis) for axis in (x, y))
    mesh = np.stack(np.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
    surface = forest.predict(mesh).reshape(len(grid_y), len(grid_x))
    return Contour(x, y, points[keep], found.values[keep], grid_x, grid_y, surface, found.sign)


def _grid(axis: Axis) -> Floats:
    return np.linspace(*axis.bounds, GRID) if axis.numeric else np.arange(len(axis.values), dtype=float)


def pareto(study: Study) -> Pareto:
    """Completed trials of the search by value and training seconds."""
    table = _valued(study.trials[(study.trials["stop"] == "completed") & (study.trials["stage"] == "search")])
    table = table[table["seconds"].notna()]
    values, seconds = study.metric.scale * table["value"].to_numpy(dtype=float), table["seconds"].to_numpy(dtype=float)
    return Pareto(seconds, values, front(study.metric.sign * values, seconds), tuple(table["trial"]))


def front(quality: Floats, cost: Floats) -> NDArray[np.bool_]:
    """(n,) whether no other point has at least this quality at no more cost, and one of the two strictly better."""
    order = np.lexsort((-quality, cost))
    best, kept = -np.inf, np.zeros(len(quality), dtype=bool)
    for i in order:
        kept[i] = quality[i] > best
        best = max(best, quality[i])
    return kept


def scatters(arrays: Arrays, data: Mapping[str, Any]) -> list[Scatter]:
    """One scatter per set of a `similarities.npz` that holds gold scores.

    Args: data: the `data` part of the resolved space, for the labels of pairs.
    """
    from analysis.labels import pair_labels
    from analysis.stats import spearman

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
    table = _valued(study.trials)
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
    """One metric of a comparison (`compare.compare`) along the rows of its table."""
    mine = cells[cells["metric"] == metric]
    values = [row.params.get(table.parameter) if table.parameter else None for row in table.rows]
    labels = tuple(row.label for row in table.rows if row.label in set(mine["row"]))
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


def _valued(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["value"].notna()].reset_index(drop=True)


def _baseline(study: Study) -> float | None:
    rows = study.trials[
        study.trials["baseline"] & (study.trials["stop"] == "completed") & study.trials["value"].notna()
    ]
    return float(rows["value"].mean()) * study.metric.scale if len(rows) else None
