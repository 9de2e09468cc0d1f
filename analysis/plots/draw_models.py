"""What the models are like: similarity against gold, alignment against uniformity, the papers' ablations and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.plots.collect_models import Ablation, Geometry, Scatter
from analysis.plots.style import BLUE, GREEN, GREY, MANY, ORANGE, RED, SKY, colours, figure, style

ENTAILMENT = {"ENTAILMENT": GREEN, "NEUTRAL": BLUE, "CONTRADICTION": RED}


def scatter(data: Sequence[Scatter], title: str = "") -> Figure:
    """Cosine against gold score per set, coloured by the pairs' labels where there are any (SelfCCL's Figure 4).

    The diagonal is the gold score divided by the highest: where cosines would lie that mean the same.
    """
    with style():
        columns = min(2, len(data))
        rows = math.ceil(len(data) / columns)
        fig, panels = figure(height=2.6 * rows + 0.2, columns=columns, rows=rows)
        for ax, one in zip(panels, data, strict=False):
            size = 3 if len(one.gold) > 500 else 8
            for label, hit, colour in _parts(one):
                ax.scatter(one.gold[hit], one.cosine[hit], s=size, c=colour, alpha=0.35 if one.labels is None else 0.6,
                           linewidths=0, rasterized=len(one.gold) > MANY, label=label)  # fmt: skip
            ends = np.array([one.gold.min(), one.gold.max()])
            ax.plot(ends, ends / ends[1], color=GREY, linewidth=0.9, linestyle="--")
            ax.set(xlabel="gold score", ylabel="cosine", title=f"{one.name}: {100 * one.rho:.2f}")
        for ax in panels[len(data) :]:
            ax.set_axis_off()
        if title:
            fig.suptitle(title, fontsize=9)
        entries = {
            label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        if entries:
            fig.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=3, markerscale=3)
        return fig


def _parts(data: Scatter) -> list[tuple[str | None, NDArray[np.bool_], str]]:
    """(label, its pairs, colour): entailment labels have colours of their own, others the next free one."""
    if data.labels is None:
        return [(None, np.ones(len(data.gold), dtype=bool), BLUE)]
    free = iter((SKY, ORANGE, GREY, GREEN, BLUE, RED))
    labels = np.array(data.labels)
    return [
        (label.lower(), labels == label, ENTAILMENT.get(label.upper()) or next(free)) for label in dict.fromkeys(labels)
    ]


def geometry(data: Geometry, label: str) -> Figure:
    """Alignment against uniformity at each trial's best evaluation, the better its value the darker."""
    with style():
        fig, (ax,) = figure(height=3.1)
        many = len(data.values) > MANY
        dots = ax.scatter(
            data.uniformity, data.alignment, c=data.values, cmap=colours(data.sign), s=22, rasterized=many
        )
        best = int(np.argmax(data.sign * data.values))
        ax.annotate(data.trials[best], (data.uniformity[best], data.alignment[best]), textcoords="offset points",
                    xytext=(5, 5), fontsize=8)  # fmt: skip
        ax.locator_params(nbins=5)  # values near each other have long labels
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
