"""How the search went: history, learning curves, quality against time. Values as printed (correlations x 100)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from analysis.plots.style import BLUE, GREEN, GREY, MANY, ORANGE, RED, SKY, error_bars, figure, log_scale, style
from analysis.statistics.empirical_bayes import Flags, Floats
from analysis.statistics.seed_noise import SeedValues, seed_noise
from analysis.statistics.verdict import study_prior
from analysis.tables.study import Study
from search.schema import stored

MAX_CURVES = 150  # more lines are a grey block: the best, and evenly chosen others


def label_of(study: Study) -> str:
    """The value axis's label."""
    return f"{study.metric.name}{' x 100' if study.metric.scale == 100 else ''}"


def valued(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["value"].notna()].reset_index(drop=True)


def seed_error(study: Study) -> float | None:
    """Standard deviation of one trial over seeds, as printed: the verdict's.

    None where no seed was repeated: then no error is known that could be drawn.
    """
    values = SeedValues.of(study.trials, study.metric.sign)
    if not values.within()[1]:
        return None
    return study.metric.scale * seed_noise(values, prior=study_prior(study)).sd


@dataclass(frozen=True)
class History:
    """Trials in the order they started. best: best completed value so far (NaN before the first). error: one standard
    deviation over seeds (`seed_error`), None where no seed was repeated."""

    values: Floats
    completed: Flags
    pruned: Flags
    trials: tuple[str, ...]
    best: Floats
    baseline: float | None
    baseline_name: str
    error: float | None

    @staticmethod
    def of(study: Study) -> History:
        table = valued(study.trials[study.trials["stage"] == "search"])
        scale, sign = study.metric.scale, study.metric.sign
        values = scale * table["value"].to_numpy(dtype=float)
        completed, pruned = ((table["stop"] == stop).to_numpy(dtype=bool) for stop in ("completed", "pruned"))
        so_far = sign * np.fmax.accumulate(np.where(completed, sign * values, np.nan)) if len(values) else values
        rows = valued(study.trials[study.trials["baseline"] & (study.trials["stop"] == "completed")])
        return History(
            values,
            completed,
            pruned,
            tuple(table["trial"]),
            so_far,
            float(rows["value"].mean()) * scale if len(rows) else None,
            study.baseline_name,
            seed_error(study),
        )

    @property
    def numbers(self) -> Floats:
        return np.arange(1.0, len(self.values) + 1)


@dataclass(frozen=True)
class Curve:
    """One trial's evaluations. steps: in training examples; baseline: whether it is the baseline's."""

    trial: str
    stop: str
    baseline: bool
    steps: Floats
    values: Floats


@dataclass(frozen=True)
class Curves:
    """Learning curves: completed trials from the best down, then other trials; of more than MAX_CURVES the best, the
    baseline and a choice of others. rungs: training examples at which trials were pruned."""

    curves: tuple[Curve, ...]
    rungs: Floats
    left_out: int
    baseline_name: str

    @staticmethod
    def of(study: Study) -> Curves:
        keys = study.trials.assign(
            later=study.trials["stop"] != "completed", order=-study.metric.sign * study.trials["value"]
        )
        table = keys.sort_values(["later", "order"], na_position="last", kind="stable")
        if len(table) > MAX_CURVES:
            place = np.arange(len(table))
            chosen = (place < 10) | ((place - 10) % (len(table) // MAX_CURVES + 1) == 0)
            table = table[chosen | table["baseline"].to_numpy(dtype=bool)]
        found: dict[str, list[tuple[float, float]]] = {}
        for run, _, step, value in study.store.history(list(table["run_id"]), [stored(study.metric.name)]):
            found.setdefault(run, []).append((step, study.metric.scale * value))
        lines = tuple(
            Curve(
                str(row["trial"]),
                str(row["stop"]),
                bool(row["baseline"]),
                *(np.array(v, dtype=float) for v in zip(*found[row["run_id"]], strict=True)),
            )
            for row in table.to_dict("records")
            if row["run_id"] in found
        )
        rungs = sorted({float(line.steps[-1]) for line in lines if line.stop == "pruned"})
        return Curves(lines, np.array(rungs), len(keys) - len(table), study.baseline_name)


@dataclass(frozen=True)
class Pareto:
    """Completed trials of the search: quality against training seconds. front: nothing else is both better and faster.
    error: see `seed_error`."""

    seconds: Floats
    values: Floats
    front: Flags
    trials: tuple[str, ...]
    error: float | None

    @staticmethod
    def of(study: Study) -> Pareto:
        table = valued(study.trials[(study.trials["stop"] == "completed") & (study.trials["stage"] == "search")])
        table = table[table["seconds"].notna()]
        values, seconds = (table[name].to_numpy(dtype=float) for name in ("value", "seconds"))
        kept = front(study.metric.sign * values, seconds)
        return Pareto(seconds, study.metric.scale * values, kept, tuple(table["trial"]), seed_error(study))


def front(quality: Floats, cost: Floats) -> Flags:
    """(n,) whether no other point has at least this quality at no more cost, and one of the two strictly better."""
    best, kept = -np.inf, np.zeros(len(quality), dtype=bool)
    for i in np.lexsort((-quality, cost)):
        kept[i] = quality[i] > best
        best = max(best, quality[i])
    return kept


def history(data: History, label: str) -> Figure:
    """Each trial's value and the best so far."""
    with style():
        fig, (ax,) = figure()
        for hit, colour, marker, name in ((data.completed, BLUE, "o", "completed"), (data.pruned, GREY, "x", "pruned")):
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
            shown = first or line.baseline
            ax.plot(line.steps, line.values, color=colour, linewidth=width, linestyle=":" if line.baseline else "-",
                    marker="o" if len(line.steps) == 1 else "", markersize=3, label=name, alpha=1 if shown else 0.5,
                    zorder=3 if shown else 2)  # fmt: skip
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
    """Quality against training seconds, with the front; its best three are named, more would overlap."""
    with style():
        fig, (ax,) = figure()
        ax.scatter(data.seconds, data.values, s=16, c=GREY, label="completed", rasterized=len(data.values) > MANY)
        error_bars(ax, data.seconds, data.values, data.error)
        order: NDArray[np.intp] = np.flatnonzero(data.front)
        order = order[np.argsort(data.seconds[order])]
        ax.plot(data.seconds[order], data.values[order], "o-", color=BLUE, label="front",
                markersize=4.5, drawstyle="steps-post")  # fmt: skip
        if data.seconds.size and data.seconds.min() > 0 and data.seconds.max() / data.seconds.min() > 30:
            log_scale(ax)
        ax.set(xlabel="training seconds", ylabel=label)
        ax.margins(y=0.12)  # room for a name above the best
        low, high = ax.get_xlim()
        middle = np.sqrt(low * high) if ax.get_xscale() == "log" else (low + high) / 2
        for i in order[-3:]:
            left = data.seconds[i] > middle
            ax.annotate(data.trials[i], (data.seconds[i], data.values[i]), textcoords="offset points",
                        xytext=(-4 if left else 4, 5), ha="right" if left else "left", fontsize=8)  # fmt: skip
        _legend_below(fig, ax)
        return fig


def _legend_below(fig: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside lower center", ncols=min(3, len(handles)))
