"""What the models are like: similarity against gold, alignment against uniformity, the papers' ablations and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.plots.collect import Ablation, Geometry, Scatter
from analysis.plots.style import BLUE, GREY, MANY, MAP, ORANGE, figure, style


def scatter(data: Sequence[Scatter], title: str = "") -> Figure:
    """Cosine against gold score per set; the diagonal is what the scores would be if they meant the same."""
    with style():
        columns = min(2, len(data))
        rows = math.ceil(len(data) / columns)
        fig, panels = figure(height=2.6 * rows + 0.2, columns=columns, rows=rows)
        for ax, one in zip(panels, data, strict=False):
            size = 3 if len(one.gold) > 500 else 8
            ax.scatter(one.gold, one.cosine, s=size, c=BLUE, alpha=0.35, linewidths=0, rasterized=len(one.gold) > MANY)
            ends = float(one.gold.min()), float(one.gold.max())
            ax.plot(ends, (min(0.0, float(one.cosine.min())) if one.cosine.min() < 0 else 0.0, 1.0), color=GREY,
                    linewidth=0.9, linestyle="--")  # fmt: skip
            ax.set(xlabel="gold score", ylabel="cosine", title=f"{one.name}: {100 * one.rho:.2f}")
        for ax in panels[len(data) :]:
            ax.set_axis_off()
        if title:
            fig.suptitle(title, fontsize=9)
        return fig


def geometry(data: Geometry, label: str) -> Figure:
    """Alignment against uniformity at each trial's best evaluation, coloured by value."""
    with style():
        fig, (ax,) = figure(height=3.1)
        dots = ax.scatter(
            data.uniformity, data.alignment, c=data.values, cmap=MAP, s=22, rasterized=len(data.values) > MANY
        )
        best = int(np.argmax(data.sign * data.values))
        ax.annotate(data.trials[best], (data.uniformity[best], data.alignment[best]), textcoords="offset points",
                    xytext=(5, 5), fontsize=8)  # fmt: skip
        ax.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
        fig.colorbar(dots, ax=ax, pad=0.02).set_label(label)
        return fig


def ablation(data: Ablation) -> Figure:
    """A column of a published table and ours, with our standard deviation over seeds."""
    with style():
        fig, (ax,) = figure(height=3.2)
        style_of = "o-" if data.numeric else "o"
        ax.plot(data.x, data.published, style_of, color=ORANGE, label="published", markersize=4)
        if np.isfinite(data.ours).any():
            bars = np.where(np.isnan(data.sd), 0, data.sd)
            ax.errorbar(data.x, data.ours, yerr=bars, fmt=style_of.replace("o", "s"), color=BLUE, capsize=2,
                        markersize=4, label="ours (sd over seeds)")  # fmt: skip
        positive = data.numeric and data.x.min() > 0
        if positive and data.x.max() / data.x.min() > 30:
            ax.set_xscale("log")
        if not data.numeric:
            ax.set_xticks(data.x, data.labels, rotation=30, ha="right")
            ax.set_xlim(-0.5, len(data.x) - 0.5)
        ax.set(xlabel=data.name, ylabel=f"{data.metric} x 100")
        ax.set_title(data.title, loc="left", wrap=True)
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return fig
