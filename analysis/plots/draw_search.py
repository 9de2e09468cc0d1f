"""How the search went: history, learning curves, quality against time."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.plots.collect_search import Curves, History, Pareto
from analysis.plots.style import BLUE, GREEN, GREY, MANY, ORANGE, RED, SKY, error_bars, figure, style
from analysis.statistics.worth import Worth


def history(data: History, label: str) -> Figure:
    """Each trial's value and the best so far."""
    with style():
        fig, (ax,) = figure()
        for stop, colour, marker, name in (("completed", BLUE, "o", "completed"), ("pruned", GREY, "x", "pruned")):
            hit = np.array([s == stop for s in data.stops], dtype=bool)
            if hit.any():
                ax.scatter(data.numbers[hit], data.values[hit], s=16, c=colour, marker=marker, linewidths=1, label=name,
                           alpha=0.8, rasterized=len(data.numbers) > MANY)  # fmt: skip
        error_bars(ax, data.numbers, data.values, data.error)
        ax.step(data.numbers, data.best, where="post", color=RED, linewidth=1.6, label="best so far")
        if data.baseline is not None:
            ax.axhline(data.baseline, color=ORANGE, linewidth=1.2, linestyle=":", label=data.baseline_name)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="trial, in the order they started", ylabel=label)
        _legend_below(fig, ax)
        return fig


def worth(data: Worth, random: Worth | None, scale: float, label: str) -> Figure:
    """Expected best against the number of trials, with its interval; training time above."""
    with style():
        fig, (ax,) = figure()
        of_random = ((random, SKY, "a random search of the same space"),) if random else ()
        for one, colour, name in ((data, BLUE, "this search's trials"), *of_random):
            ax.plot(one.counts, scale * one.best, color=colour, linewidth=1.6, label=f"{name}, expected best")
            ax.fill_between(one.counts, scale * one.low, scale * one.high, color=colour, alpha=0.2, linewidth=0,
                            label="95 % over other searches")  # fmt: skip
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="trials", ylabel=label)
        if data.seconds > 0:
            minutes = data.seconds / 60
            above = ax.secondary_xaxis(
                "top", functions=(lambda n: np.asarray(n) * minutes, lambda m: np.asarray(m) / minutes)
            )
            above.set_xlabel("training, minutes")
        _legend_below(fig, ax)
        return fig


def curves(data: Curves, label: str) -> Figure:
    """Value against training examples; the best three and the baseline in colour, pruned ones end in a cross."""
    with style():
        fig, (ax,) = figure()
        for rung in data.rungs:
            ax.axvline(rung, color="#CCCCCC", linewidth=0.8, linestyle=":")
        named = False  # the baseline, once in the legend however many seeds it has
        for i, line in enumerate(data.curves):
            first = i < 3 and line.stop == "completed"
            colour, width = ((BLUE, GREEN, SKY)[i], 1.8) if first else (GREY, 0.7)
            name = line.trial if first else None
            if line.baseline:
                colour, width, name = ORANGE, 1.8, None if named else data.baseline_name
                named = True
            dot = "o" if len(line.steps) == 1 else ""
            ax.plot(
                line.steps,
                line.values,
                color=colour,
                linewidth=width,
                alpha=1 if first or line.baseline else 0.5,
                linestyle=":" if line.baseline else "-",
                label=name,
                marker=dot,
                markersize=3,
                zorder=3 if first or line.baseline else 2,
            )
            if line.stop == "pruned":
                ax.plot(line.steps[-1:], line.values[-1:], "x", color=colour, markersize=4)
        ax.set(xlabel="training examples", ylabel=label)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        ax.tick_params(axis="x", labelrotation=20)
        if data.rungs.size:
            ax.plot([], [], "x", color=GREY, label="pruned")
        _legend_below(fig, ax)
        if data.left_out:
            ax.set_title(f"{data.left_out:,} of the trials are not drawn", loc="left")
        return fig


def pareto(data: Pareto, label: str) -> Figure:
    """Quality against training seconds, with the front."""
    with style():
        fig, (ax,) = figure()
        ax.scatter(data.seconds, data.values, s=16, c=GREY, label="completed", rasterized=len(data.values) > MANY)
        error_bars(ax, data.seconds, data.values, data.error)
        order = np.argsort(data.seconds[data.front])
        ax.plot(data.seconds[data.front][order], data.values[data.front][order], "o-", color=BLUE, label="front",
                markersize=4.5, drawstyle="steps-post")  # fmt: skip
        if data.seconds.size and data.seconds.min() > 0 and data.seconds.max() / data.seconds.min() > 30:
            ax.set_xscale("log")
        ax.set(xlabel="training seconds", ylabel=label)
        names = [t for t, kept in zip(data.trials, data.front, strict=True) if kept]
        places = zip(data.seconds[data.front][order], data.values[data.front][order], strict=True)
        named = list(zip(places, [names[i] for i in order], strict=True))
        ax.margins(y=0.12)  # room for a name above the best
        low, high = ax.get_xlim()
        middle = np.sqrt(low * high) if ax.get_xscale() == "log" else (low + high) / 2
        for (x, y), name in named[-3:]:  # the best ends of the front: more labels would overlap
            left = x > middle
            ax.annotate(name, (x, y), textcoords="offset points", xytext=(-4 if left else 4, 5),
                        ha="right" if left else "left", fontsize=8)  # fmt: skip
        _legend_below(fig, ax)
        return fig


def _legend_below(fig: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside lower center", ncols=min(3, len(handles)))
