"""What the parameters did: parallel coordinates, slices, contour, importance.

Values as printed (correlations x 100).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from sklearn.ensemble import RandomForestRegressor

from analysis.plots.search_figures import seed_error, valued
from analysis.plots.style import BLUE, GREY, MANY, ORANGE, WIDTH, colours, error_bars, figure, put_axis, style
from analysis.statistics.empirical_bayes import Flags, Floats
from analysis.statistics.importance import Importance
from analysis.tables.axes import Axis
from analysis.tables.study import Study
from analysis.tables.trials import PARAM

GRID = 60
REACH = 0.2  # of an axis: further from all trials a fitted surface is an extrapolation


@dataclass(frozen=True)
class Params:
    """Completed and pruned search trials over the searched axes.

    positions: (n, d) places on the axes, NaN where a parameter did not exist; values: (n,); pruned: (n,).
    error: one standard deviation over seeds, None where no seed was repeated.
    """

    axes: tuple[Axis, ...]
    positions: Floats
    values: Floats
    pruned: Flags
    trials: tuple[str, ...]
    sign: float
    error: float | None = None

    @staticmethod
    def of(study: Study, axes: Sequence[Axis]) -> Params:
        searched = study.trials[
            (study.trials["stage"] == "search") & study.trials["stop"].isin(["completed", "pruned"])
        ]
        table = valued(searched)
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

    @staticmethod
    def of(found: Params, first: str, second: str) -> Contour | None:
        """The two named axes; None with fewer than six completed trials that have both."""
        names = [axis.name for axis in found.axes]
        pair = [names.index(first), names.index(second)]
        points = found.positions[:, pair]
        keep = ~np.isnan(points).any(axis=1) & ~found.pruned
        if keep.sum() < 6:
            return None
        points, values = points[keep], found.values[keep]
        x, y = (found.axes[k] for k in pair)
        forest = RandomForestRegressor(n_estimators=100, min_samples_leaf=2, random_state=0).fit(points, values)
        grid_x, grid_y = (
            np.linspace(*axis.bounds, GRID) if axis.numeric else np.arange(len(axis.values), dtype=float)
            for axis in (x, y)
        )
        mesh = np.stack(np.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
        near = np.ones((len(mesh), len(points)), dtype=bool)  # other categories never are
        for k, axis in enumerate((x, y)):
            reach = REACH * ((axis.bounds[1] - axis.bounds[0]) or 1.0) if axis.numeric else 0.0
            near &= np.abs(mesh[:, k][:, None] - points[:, k][None, :]) <= reach
        surface = np.where(near.any(axis=1), forest.predict(mesh), np.nan).reshape(len(grid_y), len(grid_x))
        return Contour(x, y, points, values, grid_x, grid_y, surface, found.sign)


def parallel(data: Params, label: str) -> Figure:
    """One line per completed trial over all axes and its value, the better the darker and the later drawn.

    Pruned ones are left out. The worst tenth has one colour, marked on the bar: it would take most of the colours.
    A conditional parameter that did not exist has its own place below the axis.
    """
    with style():
        done = ~data.pruned
        fig, (ax,) = figure(height=3.2, width=max(WIDTH, 0.95 * len(data.axes) + 2.5))
        values = data.values[done]
        low_high = np.array([*(axis.bounds for axis in data.axes), (values.min(), values.max())], dtype=float)
        width = np.where(low_high[:, 1] > low_high[:, 0], low_high[:, 1] - low_high[:, 0], 1.0)
        heights = np.clip((np.column_stack([data.positions[done], values]) - low_high[:, 0]) / width, 0, 1)
        absent = np.isnan(heights)
        heights = np.where(absent, -0.12, heights)
        norm = Normalize(*np.quantile(values, (0.1, 1.0) if data.sign > 0 else (0.0, 0.9)))
        shades = ScalarMappable(norm, colours(data.sign))
        for i in np.argsort(data.sign * values):
            colour = shades.to_rgba(values[i])
            ax.plot(range(len(data.axes) + 1), heights[i], color=colour, linewidth=1, alpha=0.8,
                    rasterized=len(values) > MANY)  # fmt: skip
        for k, axis in enumerate(data.axes):
            ax.axvline(k, color="black", linewidth=0.8)
            low, high = axis.bounds
            if axis.numeric:
                ends = (10**low, 10**high) if axis.log else (low, high)
                marks = [(0.0, f"{ends[0]:g}"), (1.0, f"{ends[1]:g}")]
            else:
                marks = [(j / max(len(axis.values) - 1, 1), value) for j, value in enumerate(axis.values)]
            if absent[:, k].any():
                marks.append((-0.12, "none"))
            for y, text in marks:
                ax.annotate(text, (k, y), textcoords="offset points", xytext=(3, 2), fontsize=7, zorder=4,
                            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6})  # fmt: skip
        ax.axvline(len(data.axes), color="black", linewidth=0.8)
        for y, value in ((0.0, values.min()), (1.0, values.max())):
            ax.annotate(f"{value:.2f}", (len(data.axes), y), textcoords="offset points", xytext=(3, 2), fontsize=7)
        names = [*(a.name for a in data.axes), label]
        ax.set_xticks(range(len(names)), names, rotation=20, ha="right")
        ax.set(yticks=[], ylim=(-0.2, 1.12), xlim=(-0.15, len(data.axes) + 0.6))
        ax.grid(visible=False)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        worst = "min" if data.sign > 0 else "max"
        fig.colorbar(shades, ax=ax, pad=0.02, extend=worst).set_label(f"{label}\n(the worst tenth in one colour)")
        return fig


def slices(data: Params, label: str) -> Figure:
    """Value against each parameter; pruned trials as crosses."""
    with style():
        columns = 2
        rows = max(1, math.ceil(len(data.axes) / columns))
        fig, panels = figure(height=1.9 * rows + 0.3, columns=columns, rows=rows)
        for k, axis in enumerate(data.axes):
            ax = panels[k]
            x = data.positions[:, k]
            error_bars(ax, x[~data.pruned], data.values[~data.pruned], data.error)
            for hit, colour, marker, name in (
                (data.pruned, GREY, "x", "pruned"),
                (~data.pruned, BLUE, "o", "completed"),
            ):
                ax.scatter(x[hit], data.values[hit], s=12, c=colour, marker=marker, linewidths=0.9, alpha=0.75,
                           label=name, rasterized=len(x) > MANY)  # fmt: skip
            put_axis(ax, axis)
            if k % columns == 0:
                ax.set_ylabel(label)
        for ax in panels[len(data.axes) :]:
            ax.set_axis_off()
        handles, names = panels[0].get_legend_handles_labels()
        if (data.pruned.any() or data.error is not None) and handles:
            fig.legend(handles, names, loc="outside lower center", ncols=3)
        return fig


def contour(data: Contour, label: str) -> Figure:
    """Completed trials over two parameters on a random forest's fit, the better the darker; blank far from all."""
    with style():
        fig, (ax,) = figure(height=3.2)
        seen = np.concatenate([data.values, data.surface[~np.isnan(data.surface)]])
        ground, shades = Normalize(seen.min(), seen.max()), colours(data.sign)
        filled = ax.pcolormesh(
            data.grid_x, data.grid_y, data.surface, cmap=shades, norm=ground, shading="nearest", rasterized=True
        )
        ax.scatter(data.points[:, 0], data.points[:, 1], c=data.values,
                   cmap=shades, norm=ground, edgecolors="white", linewidths=0.8, s=28)  # fmt: skip
        put_axis(ax, data.x, "x")
        put_axis(ax, data.y, "y")
        ax.grid(visible=False)
        fig.colorbar(filled, ax=ax, pad=0.02).set_label(f"{label}, fitted")
        return fig


def importance(data: Importance) -> Figure:
    """fANOVA and PED-ANOVA per parameter, and the seed; 90 % intervals."""
    with style():
        names = [p.name + (" (conditional)" if p.conditional else "") for p in data.params]
        names += ["seed"] if data.seed else []
        some = any(p.ped_anova for p in data.params)
        offset = 0.18 if some else 0.0
        bars = [(at - offset, p.fanova, BLUE) for at, p in enumerate(data.params)]
        bars += [(at + offset, p.ped_anova, ORANGE) for at, p in enumerate(data.params) if p.ped_anova]
        bars += [(len(data.params), data.seed, BLUE)] if data.seed else []
        fig, (ax,) = figure(height=0.42 * len(names) + 1.0)
        for at, share, colour in bars:
            ax.barh(at, share.value, 0.34, color=colour)
            ax.plot([share.low, share.high], [at, at], color="black", linewidth=1)
        ax.barh([0], [0], color=BLUE, label="share of the variance (fANOVA)")
        if some:
            ax.barh([0], [0], color=ORANGE, label="share in being among the best (PED-ANOVA)")
        ax.set_yticks(range(len(names)), names)
        ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
        ax.grid(visible=False, axis="y")
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=1)
        return fig
