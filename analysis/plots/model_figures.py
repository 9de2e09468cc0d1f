"""What the models are like: similarity against gold, score against width, alignment against uniformity, the papers'
ablations and ours.

Values as printed (correlations x 100).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.papers.compare import RUN, PaperTable
from analysis.plots.search_figures import valued
from analysis.plots.style import BLUE, GREEN, GREY, MANY, ORANGE, RED, SKY, colours, figure, log_scale, style
from analysis.statistics.empirical_bayes import Flags, Floats
from analysis.tables.axes import pair_labels
from analysis.tables.study import Arrays, Study
from search.schema import GOLD_SUFFIX, best_key
from trainables.contract.trial import at_width

ENTAILMENT = {"ENTAILMENT": GREEN, "NEUTRAL": BLUE, "CONTRADICTION": RED}


@dataclass(frozen=True)
class Scatter:
    """Cosine against gold score of one set, as SelfCCL's Figure 4. labels: (n,) of the pairs, or None."""

    name: str
    gold: Floats
    cosine: Floats
    rho: float
    labels: tuple[str, ...] | None = None


def scatters(arrays: Arrays, data: Mapping[str, Any]) -> list[Scatter]:
    """One scatter per set of a `similarities.npz` that holds gold scores.

    Args: data: the `data` part of the resolved space, for the labels of pairs.
    """
    from trainables.evaluation.metrics import spearman

    found = []
    for key, cosine in arrays.items():
        name = key.rsplit("_", 1)[0]
        gold = arrays.get(f"{name}{GOLD_SUFFIX}")
        if at_width(key)[1] or key.endswith(GOLD_SUFFIX) or gold is None or len(gold) != len(cosine):
            continue
        labels = pair_labels(data, name, gold)
        rho = spearman(cosine, gold)
        found.append(Scatter(key, gold.astype(float), cosine.astype(float), rho, tuple(labels) if labels else None))
    return found


@dataclass(frozen=True)
class Widths:
    """Scores of vectors that are cut to some widths, of each trial that measured several.

    metric: a part of the study's, of whole vectors. lines: (trial, (w,) rising widths, (w,) values), best trial first.
    """

    metric: str
    lines: tuple[tuple[str, Floats, Floats], ...]

    @staticmethod
    def of(study: Study) -> list[Widths]:
        """One for each part of the metric that was measured so."""
        table = valued(study.trials)
        table = table[table["stop"] == "completed"].sort_values("value", ascending=study.metric.sign < 0)
        runs, found = {run.run_id: run for run in study.stored_trials}, []
        for metric in dict.fromkeys(at_width(part)[0] for part in study.metric.parts):
            lines = []
            for run_id, trial in zip(table["run_id"], table["trial"], strict=True):
                measured = {at_width(name): value for name, value in runs[run_id].metrics.items()}
                own = sorted((w, v) for (name, w), v in measured.items() if w and name == best_key(metric))
                if len(own) > 1:
                    widths, values = np.array(own, dtype=float).T
                    lines.append((str(trial), widths, study.metric.scale * values))
            found += [Widths(metric, tuple(lines))] if lines else []
        return found


@dataclass(frozen=True)
class Geometry:
    """Alignment and uniformity (lower is better, methods 7.5) of trials that have both at their best evaluation."""

    alignment: Floats
    uniformity: Floats
    values: Floats
    trials: tuple[str, ...]
    sign: float

    @staticmethod
    def of(study: Study) -> Geometry:
        table = valued(study.trials)
        at = dict(zip(table["run_id"], table["examples"], strict=True))
        names = ["alignment", "uniformity"]
        found: dict[str, dict[str, float]] = {run: {} for run in at}
        for run, metric, step, value in study.store.history(list(at), names):
            if at[run] == step:
                found[run][metric] = value
        measured = pd.DataFrame([found[run] for run in table["run_id"]], columns=names, dtype=float)
        kept = measured.notna().all(axis=1)
        a, u, v = (column[kept].to_numpy(dtype=float) for column in (*(measured[n] for n in names), table["value"]))
        return Geometry(a, u, study.metric.scale * v, tuple(map(str, table["trial"][kept])), study.metric.sign)


@dataclass(frozen=True)
class Ablation:
    """A published column and ours along the rows of a table. x: numbers if the rows are numbers, else 0, 1, 2, ..."""

    title: str
    metric: str
    name: str
    labels: tuple[str, ...]
    x: Floats
    numeric: bool
    published: Floats
    ours: Floats
    sd: Floats

    @staticmethod
    def of(table: PaperTable, cells: pd.DataFrame) -> Ablation | None:
        """The last published metric of a comparison (`compare.compare`) that is a target, along the rows that the space
        runs, in the paper's setting; None if no published metric is a target."""
        targets = cells.loc[cells["target"] & cells["published"].notna(), "metric"].unique()
        if not len(targets):
            return None
        metric = str(targets[-1])
        mine = cells[(cells["metric"] == metric) & (cells["from"] == RUN) & (cells["departs"] == "")]
        run = [row for row in table.rows if row.params is not None and row.label in set(mine["row"])]
        values = [(row.params or {}).get(table.parameter) if table.parameter else None for row in run]
        numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        numeric = len(numbers) == len(run) and len(numbers) > 2
        published, ours, sd = (mine[name].to_numpy(dtype=float) for name in ("published", "ours", "sd"))
        return Ablation(
            title=f"{table.source} {table.table.replace('_', ' ')}: {table.what}",
            metric=metric,
            name=table.parameter or "",
            labels=tuple(row.label for row in run),
            x=np.array(numbers if numeric else range(len(run)), dtype=float),
            numeric=numeric,
            published=published,
            ours=ours,
            sd=sd,
        )


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


def _parts(data: Scatter) -> list[tuple[str | None, Flags, str]]:
    """(label, its pairs, colour): entailment labels have colours of their own, others the next free one."""
    if data.labels is None:
        return [(None, np.ones(len(data.gold), dtype=bool), BLUE)]
    free = iter((SKY, ORANGE, GREY, GREEN, BLUE, RED))
    labels = np.array(data.labels)
    return [
        (label.lower(), labels == label, ENTAILMENT.get(label.upper()) or next(free)) for label in dict.fromkeys(labels)
    ]


def widths(data: Sequence[Widths]) -> Figure:
    """Score against the width that vectors are cut to; the study's best trial in colour."""
    with style():
        fig, panels = figure(height=2.6 * len(data) + 0.2, rows=len(data))
        for ax, one in zip(panels, data, strict=True):
            for i, (trial, x, y) in reversed([*enumerate(one.lines)]):
                ax.plot(x, y, "o-", color=GREY if i else BLUE, linewidth=0.7 if i else 1.8, markersize=3,
                        alpha=0.5 if i else 1, label=None if i else trial)  # fmt: skip
            ticks = sorted({width for _, x, _ in one.lines for width in x.tolist()})
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, [f"{width:g}" for width in ticks])
            ax.minorticks_off()
            ax.set(xlabel="dimensions used", ylabel=one.metric)
            ax.legend(loc="lower right")
        return fig


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
        if data.numeric and data.x.min() > 0 and data.x.max() / data.x.min() > 30:
            log_scale(ax)
        if not data.numeric:
            ax.set_xticks(data.x, data.labels, rotation=30, ha="right")
            ax.set_xlim(-0.5, len(data.x) - 0.5)
        ax.set(xlabel=data.name, ylabel=f"{data.metric} x 100")
        ax.set_title(fill(data.title, 60), loc="left")  # matplotlib's own wrapping fails on texts with a `$`
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return fig
