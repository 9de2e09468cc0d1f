"""The style of every figure: sizes for one column of a paper, colours that colour-blind readers tell apart."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.tables.axes import Axis

# Okabe and Ito 2008.
BLUE, ORANGE, GREEN, RED, GREY, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8A8A", "#56B4E9"
WIDTH = 4.6  # inches: on a phone's 370 pixels the 9-point letters keep 10 pixels
MANY = 400  # points from which on an SVG holds them as a picture
DPI = 200
SCREEN_DPI = 110  # in a notebook

RC: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "figures",  # equal data, equal file
    "svg.fonttype": "path",
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.parse_math": False,  # names and values of the user's may hold a `$`
}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def colours(sign: float) -> str:
    """The colour map of a value, the better the darker; ordered in lightness, so that it survives a grey printer."""
    return "viridis_r" if sign > 0 else "viridis"


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context(RC):
        yield


class ShownFigure(Figure):
    """A figure that notebooks show: those of matplotlib they only know once pyplot is there."""

    def draw(self, renderer: Any) -> None:
        """Ticks are made as late as this, also for who saves the figure without our `style`."""
        with style():
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=SCREEN_DPI, bbox_inches="tight")
        return buffer.getvalue()


def figure(height: float = 3.0, columns: int = 1, rows: int = 1, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure without pyplot's global state, and its axes row by row."""
    fig = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, squeeze=False)
    return fig, list(np.ravel(axes))


def save(fig: Figure, folder: Path, name: str) -> list[Path]:
    """`name`.png and `name`.svg, trimmed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style():
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            extra = {"Date": None} if suffix == "svg" else None
            fig.savefig(path, dpi=DPI, bbox_inches="tight", metadata=extra)
            paths.append(path)
    return paths


def power(exponent: float) -> str:
    """`10⁻⁵`."""
    return f"10{str(int(exponent)).translate(RAISED)}"


def log_scale(ax: Axes) -> None:
    """A logarithmic x axis; matplotlib's own labels are TeX."""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: power(round(float(np.log10(value)))))


def error_bars(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], error: float | None) -> None:
    """One standard deviation over seeds on each trial, where seeds were repeated."""
    if error is not None and len(x):
        ax.errorbar(x, y, yerr=error, fmt="none", ecolor=GREY, elinewidth=0.7, alpha=0.6, zorder=1,
                    label=f"1 sd over seeds ({error:.2g})")  # fmt: skip


def put_axis(ax: Axes, axis: Axis, which: str = "x") -> None:
    """Ticks and name of a searched parameter on the x or y axis; log axes show powers, categories their labels."""
    target = ax.xaxis if which == "x" else ax.yaxis
    low, high = axis.bounds
    if axis.numeric and axis.log:
        ticks = [float(t) for t in np.arange(np.ceil(low - 1e-9), np.floor(high + 1e-9) + 1)]
        if len(ticks) >= 2:
            target.set_ticks(ticks, [power(t) for t in ticks])
        else:
            target.set_ticks([low, high], [f"{10**low:g}", f"{10**high:g}"])
    elif not axis.numeric:
        longest = max(map(len, axis.values))
        crowded = longest > 6 or longest * len(axis.values) > 16
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "fontsize": 7} if which == "x" and crowded else {}
        target.set_ticks(list(range(len(axis.values))), list(axis.values), **turned)
    margin = 0.04 * (high - low) if axis.numeric else 0.5
    (ax.set_xlim if which == "x" else ax.set_ylim)(low - margin, high + margin)
    target.set_label_text(axis.name)
