"""What the figures of the parameters show, as plain data. Values as printed (correlations x 100)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from analysis.plots.collect_search import seed_error, valued
from analysis.tables.axes import Axis
from analysis.tables.study import Study
from analysis.tables.trials import PARAM

Floats = NDArray[np.float64]
GRID = 60
REACH = 0.2  # of an axis: beyond it a fitted surface is a guess that no trial carries


@dataclass(frozen=True)
class Params:
    """Completed and pruned search trials over the searched axes.

    positions: (n, d) places on the axes, NaN where a parameter did not exist; values: (n,); pruned: (n,).
    error: one standard deviation over seeds, None where no seed was repeated.
    """

    axes: tuple[Axis, ...]
    positions: Floats
    values: Floats
    pruned: NDArray[np.bool_]
    trials: tuple[str, ...]
    sign: float
    error: float | None = None


@dataclass(frozen=True)
class Contour:
    """Completed trials over two axes and a forest's fit on a grid.

    surface: (len(grid_y), len(grid_x)), NaN further than REACH from every trial. sign: 1 if larger values are better,
    else -1.
    """

    x: Axis
    y: Axis
    points: Floats
    values: Floats
    grid_x: Floats
    grid_y: Floats
    surface: Floats
    sign: float


def params(study: Study, axes: Sequence[Axis]) -> Params:
    """The search's trials over the axes (completed and pruned ones)."""
    table = valued(
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
        seed_error(study),
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
    surface = np.where(_near(mesh, points[keep], (x, y)), forest.predict(mesh), np.nan)
    surface = surface.reshape(len(grid_y), len(grid_x))
    return Contour(x, y, points[keep], found.values[keep], grid_x, grid_y, surface, found.sign)


def _grid(axis: Axis) -> Floats:
    return np.linspace(*axis.bounds, GRID) if axis.numeric else np.arange(len(axis.values), dtype=float)


def _near(mesh: Floats, points: Floats, axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """(m,) whether a point lies within REACH of each place on every axis; other categories are never near."""
    near = np.ones((len(mesh), len(points)), dtype=bool)
    for k, axis in enumerate(axes):
        low, high = axis.bounds
        width = (high - low) or 1.0
        gap = np.abs(mesh[:, k][:, None] - points[:, k][None, :])
        near &= gap <= REACH * width if axis.numeric else gap < 0.5
    return np.asarray(near.any(axis=1))
