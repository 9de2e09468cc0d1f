"""The interactive page: one HTML file with plotly.js in it, no request to any host."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.plots.model_figures import Geometry
from analysis.plots.param_figures import Params
from analysis.plots.search_figures import Curves, History, Pareto, label_of
from analysis.plots.style import BLUE, GREEN, GREY, ORANGE, RED, SKY
from analysis.statistics.empirical_bayes import Flags, Floats
from analysis.tables.axes import Axis, study_axes
from analysis.tables.study import Study

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="icon" href="data:,">
<style>body {{ font: 16px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 64rem; padding: 0 .75rem }}
h2 {{ font-size: 1.05rem; margin: 1.5rem 0 0 }}
.wide {{ overflow-x: auto }}</style>
</head><body><h1>{title}</h1>
<noscript>The figures are drawn by JavaScript.</noscript>
{body}
</body></html>
"""
FIGURE = '<h2>{title}</h2>\n<div class="wide"><div style="min-width: {width}px">{figure}</div></div>'
HEIGHT = 420  # pixels, of figures that set none


def page(study: Study) -> str:
    """History, learning curves, parallel coordinates, slices, Pareto front, alignment against uniformity."""
    label, params = _literal(label_of(study)), Params.of(study, study_axes(study))
    figures = [  # title, figure, pixels that it needs: on a smaller screen it is scrolled
        ("History", _history(History.of(study), label), 0),
        ("Learning curves", _curves(Curves.of(study), label), 0),
        ("Parameters together", _parallel(params, label), 110 * (len(params.axes) + 1)),
        ("Each parameter", _slices(params, label), 640),
        ("Quality and time", _pareto(Pareto.of(study), label), 0),
        ("Alignment and uniformity", _geometry(Geometry.of(study), label), 0),
    ]
    parts: list[str] = []
    for title, figure, width in figures:
        if figure is not None:
            names_above = title == "Parameters together"  # under the buttons
            margin = {"l": 55, "r": 40 if names_above else 15, "t": 75 if names_above else 20, "b": 45}
            figure.update_layout(template="plotly_white", margin=margin, height=figure.layout.height or HEIGHT)
            figure.update_layout(legend={"orientation": "h", "y": -0.2})
            drawn = figure.to_html(  # the logo would be a link to another host
                config={"displaylogo": False, "responsive": True}, full_html=False, include_plotlyjs=not parts
            )
            parts.append(FIGURE.format(title=title, width=width, figure=drawn))
    return PAGE.format(title=html.escape(f"{study.name}: {study.metric.name}"), body="\n".join(parts))


def _literal(text: str) -> str:
    """Plotly reads tags and entities in most texts."""
    return html.escape(text, quote=False)


def _dots(
    figure: go.Figure, x: Floats, y: Floats, trials: tuple[str, ...], hit: Flags, name: str, colour: str, **more: Any
) -> None:
    """The points of some trials, each with its trial's name."""
    names = [trial for trial, shown in zip(trials, hit, strict=True) if shown]
    symbol = "x" if name == "pruned" else "circle"
    figure.add_scatter(
        x=x[hit], y=y[hit], text=names, mode="markers", name=name, marker={"color": colour, "symbol": symbol}, **more
    )


def _history(data: History, label: str) -> go.Figure | None:
    if not len(data.values):
        return None
    figure = go.Figure()
    _dots(figure, data.numbers, data.values, data.trials, data.completed, "completed", BLUE)
    _dots(figure, data.numbers, data.values, data.trials, data.pruned, "pruned", GREY)
    line = {"color": RED, "shape": "hv"}
    figure.add_scatter(x=data.numbers, y=data.best, name="best so far", mode="lines", line=line)
    if data.baseline is not None:
        figure.add_hline(data.baseline, line_color=ORANGE, line_dash="dot", annotation_text=data.baseline_name)
    return figure.update_layout(xaxis_title="trial", yaxis_title=label)


def _curves(data: Curves, label: str) -> go.Figure | None:
    if not data.curves:
        return None
    figure = go.Figure()
    colours = (BLUE, GREEN, SKY)
    for i, line in enumerate(data.curves):
        first = i < len(colours) and line.stop == "completed"
        colour, width = (colours[i], 2.5) if first else (GREY, 1)
        name, dash = f"{line.trial} {line.stop}", "solid"
        if line.baseline:
            colour, width, name, dash = ORANGE, 2.5, f"{line.trial}, {data.baseline_name}", "dot"
        figure.add_scatter(
            x=line.steps, y=line.values, name=name, mode="lines+markers", showlegend=first or line.baseline,
            line={"color": colour, "width": width, "dash": dash}, marker={"size": 3},
        )  # fmt: skip
    for rung in data.rungs:
        figure.add_vline(rung, line_color="#CCCCCC", line_dash="dot", line_width=1)
    return figure.update_layout(xaxis_title="training examples", yaxis_title=label)


def _parallel(data: Params, label: str) -> go.Figure | None:
    done = ~data.pruned
    if len(data.axes) < 2 or done.sum() < 2:
        return None
    places = [_dimension(axis, data.positions[done, k]) for k, axis in enumerate(data.axes)]
    line = {"color": data.values[done], "colorscale": "Viridis", "reversescale": data.sign > 0, "showscale": False}
    return go.Figure(go.Parcoords(line=line, dimensions=[*places, {"label": label, "values": data.values[done]}]))


def _dimension(axis: Axis, positions: Floats) -> dict[str, Any]:
    low, high = axis.bounds
    absent = np.isnan(positions)
    ticks = _ticks(axis, str)  # parallel coordinates read no markup here
    if absent.any():  # a conditional parameter that did not exist has its place below
        low -= 0.12 * ((high - low) or 1)
        ticks = {"tickvals": [low, *ticks["tickvals"]], "ticktext": ["none", *ticks["ticktext"]]}
    ends = [low, high if high > low else low + 1]
    return {"label": _literal(axis.name), "values": np.where(absent, low, positions), "range": ends, **ticks}


def _ticks(axis: Axis, shown: Callable[[str], str] = _literal) -> dict[str, Any]:
    if not axis.numeric:
        return {"tickvals": list(range(len(axis.values))), "ticktext": [shown(value) for value in axis.values]}
    places = np.linspace(*axis.bounds, 5)
    return {"tickvals": places.tolist(), "ticktext": [f"{10**at if axis.log else at:.3g}" for at in places]}


def _slices(data: Params, label: str) -> go.Figure | None:
    if not data.axes or not len(data.values):
        return None
    rows = math.ceil(len(data.axes) / 2)
    gap = min(0.12, 0.4 / rows)
    figure = make_subplots(rows=rows, cols=2, shared_yaxes=True, horizontal_spacing=0.06, vertical_spacing=gap)
    for k, axis in enumerate(data.axes):
        place = {"row": k // 2 + 1, "col": k % 2 + 1}
        for name, hit, colour in (("pruned", data.pruned, GREY), ("completed", ~data.pruned, BLUE)):
            legend = not k and bool(hit.any())
            _dots(figure, data.positions[:, k], data.values, data.trials, hit, name, colour, showlegend=legend, **place)
        figure.update_xaxes(title_text=_literal(axis.name), **_ticks(axis), **place)
    return figure.update_yaxes(title_text=label, col=1).update_layout(height=60 + 260 * rows)


def _pareto(data: Pareto, label: str) -> go.Figure | None:
    if len(data.values) < 2:
        return None
    figure = go.Figure()
    _dots(figure, data.seconds, data.values, data.trials, ~data.front, "completed", GREY)
    best = sorted(np.flatnonzero(data.front), key=data.seconds.__getitem__)
    names = [data.trials[i] for i in best]
    figure.add_scatter(
        x=data.seconds[best], y=data.values[best], text=names, name="front", mode="lines+markers", marker_color=BLUE,
        line={"shape": "hv"},
    )  # fmt: skip
    return figure.update_layout(xaxis_title="training seconds", yaxis_title=label)


def _geometry(data: Geometry, label: str) -> go.Figure | None:
    if len(data.values) < 2:
        return None
    marker = {"color": data.values, "colorscale": "Viridis", "reversescale": data.sign > 0, "colorbar_title": label}
    figure = go.Figure(go.Scatter(x=data.uniformity, y=data.alignment, text=data.trials, mode="markers"))
    figure.update_traces(marker=marker)
    return figure.update_layout(xaxis_title="uniformity", yaxis_title="alignment")
