"""What the parameters did: parallel coordinates, slices, contour, importance."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis.importance import Importance
from analysis.plots.collect import Contour, Params
from analysis.plots.style import BLUE, GREY, MANY, ORANGE, WIDTH, colours, figure, put_axis, spread, style


def parallel(data: Params, label: str) -> Figure:
    """One line per completed trial over all axes, the better the darker and the later drawn. Pruned ones are left out.

    A conditional parameter that did not exist has its own place below the axis.
    """
    with style():
        done = ~data.pruned
        fig, (ax,) = figure(height=3.2, width=max(WIDTH, 0.95 * len(data.axes) + 1.6))
        low_high = np.array([axis.bounds for axis in data.axes], dtype=float).reshape(-1, 2)
        width = np.where(low_high[:, 1] > low_high[:, 0], low_high[:, 1] - low_high[:, 0], 1.0)
        heights = np.clip((data.positions[done] - low_high[:, 0]) / width, 0, 1)
        absent = np.isnan(heights)
        heights = np.where(absent, -0.12, heights)
        values = data.values[done]
        span = (0.1, 1.0) if data.sign > 0 else (0.0, 0.9)  # the worst tenth would take most of the colours
        norm = Normalize(*np.quantile(values, span)) if len(values) else Normalize(0, 1)
        shades = ScalarMappable(norm, colours(data.sign))
        shift = np.column_stack(
            [np.zeros(len(heights)) if a.numeric else 0.1 * (spread(np.zeros(len(heights)), a)) for a in data.axes]
        )
        for i in np.argsort(data.sign * values):
            colour = shades.to_rgba(values[i])
            ax.plot(range(len(data.axes)), heights[i] + shift[i], color=colour, linewidth=1, alpha=0.8,
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
        ax.set_xticks(range(len(data.axes)), [a.name for a in data.axes], rotation=20, ha="right")
        ax.set(yticks=[], ylim=(-0.2, 1.12), xlim=(-0.15, len(data.axes) - 0.4))
        ax.grid(visible=False)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        fig.colorbar(shades, ax=ax, pad=0.02).set_label(label)
        return fig


def slices(data: Params, label: str) -> Figure:
    """Value against each parameter; pruned trials as crosses."""
    with style():
        columns = 2
        rows = max(1, math.ceil(len(data.axes) / columns))
        fig, panels = figure(height=1.9 * rows + 0.3, columns=columns, rows=rows)
        for k, axis in enumerate(data.axes):
            ax = panels[k]
            x = spread(data.positions[:, k], axis)
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
        if data.pruned.any() and handles:
            fig.legend(handles, names, loc="outside lower center", ncols=2)
        return fig


def contour(data: Contour, label: str) -> Figure:
    """Completed trials over two parameters on a random forest's fit, the better the darker."""
    with style():
        fig, (ax,) = figure(height=3.2)
        ground, shades = Normalize(data.surface.min(), data.surface.max()), colours(data.sign)
        filled = ax.pcolormesh(
            data.grid_x, data.grid_y, data.surface, cmap=shades, norm=ground, shading="nearest", rasterized=True
        )
        ax.scatter(spread(data.points[:, 0], data.x), spread(data.points[:, 1], data.y), c=data.values,
                   cmap=shades, norm=ground, edgecolors="white", linewidths=0.8, s=28)  # fmt: skip
        put_axis(ax, data.x, "x")
        put_axis(ax, data.y, "y")
        ax.grid(visible=False)
        fig.colorbar(filled, ax=ax, pad=0.02).set_label(f"{label}, fitted")
        return fig


def importance(data: Importance) -> Figure:
    """fANOVA and PED-ANOVA per parameter, the largest interactions, the seed; 90 % intervals."""
    with style():
        pairs = [i for i in data.interactions[:3] if i.share.value >= 0.005]
        names = [p.name + (" (conditional)" if p.conditional else "") for p in data.params]
        names += [f"{i.first} and\n{i.second}" for i in pairs] + (["seed"] if data.seed else [])
        fanova = [p.fanova for p in data.params] + [i.share for i in pairs] + ([data.seed] if data.seed else [])
        fig, (ax,) = figure(height=0.42 * len(names) + 1.0)
        y = np.arange(len(names), dtype=float)
        some = any(p.ped_anova for p in data.params)
        offset = 0.18 if some else 0.0
        for at, share in zip(y, fanova, strict=True):
            here = at - offset if at < len(data.params) else at
            ax.barh(here, share.value, 0.34, color=BLUE)
            ax.plot([share.low, share.high], [here, here], color="black", linewidth=1)
        for at, p in zip(y, data.params, strict=False):
            if p.ped_anova:
                ax.barh(at + offset, p.ped_anova.value, 0.34, color=ORANGE)
                ax.plot([p.ped_anova.low, p.ped_anova.high], [at + offset] * 2, color="black", linewidth=1)
        ax.barh([0], [0], color=BLUE, label="share of the variance (fANOVA)")
        if some:
            ax.barh([0], [0], color=ORANGE, label="share in being among the best (PED-ANOVA)")
        ax.set_yticks(y, names)
        ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
        ax.grid(visible=False, axis="y")
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=1)
        return fig
