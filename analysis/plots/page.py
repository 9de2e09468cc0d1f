"""The interactive page: one HTML file with everything in it, no request to any host.

plotly.js, 4.8 MB, and the figures lie in it compressed: 1.9 MB. The browser unpacks them, then draws.
"""

from __future__ import annotations

import base64
import gzip
import html
import math

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from analysis.plots import collect_models, collect_params, collect_search
from analysis.plots.style import BLUE, GREEN, GREY, ORANGE, RED, SKY
from analysis.tables.axes import Axis, study_axes
from analysis.tables.study import Study

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="icon" href="data:,">
<style>body {{ font: 16px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 64rem; padding: 0 .75rem }}
h2 {{ font-size: 1.05rem; margin: 1.5rem 0 0 }}
.wide {{ overflow-x: auto }}</style>
</head><body><h1>{title}</h1>
<p id="said"><noscript>The figures are drawn by JavaScript.</noscript></p>
{body}
{packed}
<script>{script}</script>
</body></html>
"""
FIGURE = """<h2>{title}</h2>
<div class="wide"><div class="figure" style="min-width: {width}px; height: {height}px"></div></div>"""
# Base 85, 6 % shorter than base 64, in Python's alphabet; a comma is its "<", so that nothing looks like markup.
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~"
# The library is text until it is unpacked: nothing can be drawn before. Its logo would be a link to another host.
SCRIPT = """
const ALPHABET = "@@";
async function unpacked(id) {
  const {textContent: text, dataset} = document.getElementById(id);
  const value = new Uint8Array(128), bytes = new DataView(new ArrayBuffer(text.length / 5 * 4));
  for (let i = 0; i < 85; i++) value[ALPHABET.charCodeAt(i)] = i;
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (let k = i; k < i + 5; k++) word = word * 85 + value[text.charCodeAt(k)];
    bytes.setUint32(i / 5 * 4, word);
  }
  const packed = new Blob([bytes.buffer.slice(0, dataset.size)]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
async function draw() {
  const library = document.createElement("script");
  library.textContent = await unpacked("library");
  document.head.append(library);
  const figures = JSON.parse(await unpacked("figures")), places = document.querySelectorAll(".figure");
  for (const [i, {data, layout}] of figures.entries())
    await Plotly.newPlot(places[i], data, layout, {displaylogo: false, responsive: true});
}
draw().catch((fault) => { document.getElementById("said").textContent = `The figures could not be drawn: ${fault}`; });
""".replace("@@", ALPHABET)
HEIGHT = 420  # pixels, of figures that set none


def page(study: Study) -> str:
    """History, learning curves, parallel coordinates, slices, Pareto front, alignment against uniformity."""
    axes, label = study_axes(study), collect_search.label_of(study)
    figures = [  # title, figure, pixels that it needs: on a smaller screen it is scrolled
        ("History", _history(collect_search.history(study), label), 0),
        ("Learning curves", _curves(collect_search.curves(study), label), 0),
        ("Parameters together", _parallel(collect_params.params(study, axes), label), 110 * (len(axes) + 1)),
        ("Each parameter", _slices(collect_params.params(study, axes), label), 640),
        ("Quality and time", _pareto(collect_search.pareto(study), label), 0),
        ("Alignment and uniformity", _geometry(collect_models.geometry(study), label), 0),
    ]
    parts, contents = [], []
    for title, figure, width in figures:
        if figure is not None:
            height = figure.layout.height or HEIGHT
            figure.update_layout(template="plotly_white", margin=_margins(figure), height=height)
            figure.update_layout(legend={"orientation": "h", "y": -0.2})
            parts.append(FIGURE.format(title=title, width=width, height=height))
            contents.append(figure.to_json())
    return PAGE.format(
        title=html.escape(f"{study.name}: {study.metric.name}"),
        body="\n".join(parts),
        packed=_packed("library", get_plotlyjs()) + "\n" + _packed("figures", f"[{','.join(contents)}]"),
        script=SCRIPT,
    )


def _packed(name: str, text: str) -> str:
    """An element that holds a text for `unpacked(name)`."""
    packed = gzip.compress(text.encode(), mtime=0)
    written = base64.b85encode(packed, pad=True).decode().replace("<", ",")
    return f'<script type="text/plain" id="{name}" data-size="{len(packed)}">{written}</script>'


def _history(data: collect_search.History, label: str) -> go.Figure | None:
    if not len(data.numbers):
        return None
    figure = go.Figure()
    for stop, colour, symbol in (("completed", BLUE, "circle"), ("pruned", GREY, "x")):
        hit = [i for i, s in enumerate(data.stops) if s == stop]
        figure.add_scatter(
            x=data.numbers[hit], y=data.values[hit], text=[data.trials[i] for i in hit], mode="markers", name=stop,
            marker={"color": colour, "symbol": symbol},
        )  # fmt: skip
    figure.add_scatter(
        x=data.numbers, y=data.best, name="best so far", mode="lines", line={"color": RED, "shape": "hv"}
    )
    if data.baseline is not None:
        figure.add_hline(data.baseline, line_color=ORANGE, line_dash="dot", annotation_text=data.baseline_name)
    return figure.update_layout(xaxis_title="trial", yaxis_title=label)


def _curves(data: collect_search.Curves, label: str) -> go.Figure | None:
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


def _parallel(data: collect_params.Params, label: str) -> go.Figure | None:
    done = ~data.pruned
    if len(data.axes) < 2 or done.sum() < 2:
        return None
    places = [_dimension(axis, data.positions[done, k]) for k, axis in enumerate(data.axes)]
    line = {"color": data.values[done], "colorscale": "Viridis", "reversescale": data.sign > 0, "showscale": False}
    return go.Figure(go.Parcoords(line=line, dimensions=[*places, {"label": label, "values": data.values[done]}]))


def _margins(figure: go.Figure) -> dict[str, int]:
    """Parallel coordinates write the names above the axes, under the buttons."""
    parallel = any(trace.type == "parcoords" for trace in figure.data)
    return {"l": 55, "r": 40 if parallel else 15, "t": 75 if parallel else 20, "b": 45}


def _dimension(axis: Axis, positions: np.ndarray) -> dict[str, object]:
    low, high = axis.bounds
    below = low - 0.12 * ((high - low) or 1)  # where a conditional parameter did not exist
    absent = np.isnan(positions)
    ticks = _ticks(axis)
    if absent.any():
        ticks = [(below, "none"), *ticks]
    return {
        "label": axis.name,
        "values": np.where(absent, below, positions),
        "range": [below if absent.any() else low, high if high > low else low + 1],
        "tickvals": [at for at, _ in ticks],
        "ticktext": [text for _, text in ticks],
    }


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if not axis.numeric:
        return [(float(i), value) for i, value in enumerate(axis.values)]
    places = np.linspace(*axis.bounds, 5)
    return [(float(at), f"{10**at if axis.log else at:.3g}") for at in places]


def _slices(data: collect_params.Params, label: str) -> go.Figure | None:
    if not data.axes or not len(data.values):
        return None
    rows = math.ceil(len(data.axes) / 2)
    figure = make_subplots(
        rows=rows, cols=2, shared_yaxes=True, horizontal_spacing=0.06, vertical_spacing=min(0.12, 0.4 / rows)
    )
    for k, axis in enumerate(data.axes):
        place = {"row": k // 2 + 1, "col": k % 2 + 1}
        kinds = (("pruned", data.pruned, GREY, "x"), ("completed", ~data.pruned, BLUE, "circle"))
        for kind, hit, colour, symbol in kinds:
            names = [t for t, kept in zip(data.trials, hit, strict=True) if kept]
            figure.add_scatter(
                x=data.positions[hit, k], y=data.values[hit], text=names, mode="markers", name=kind,
                showlegend=not k and bool(names), marker={"color": colour, "symbol": symbol, "size": 6}, **place,
            )  # fmt: skip
        ticks = _ticks(axis)
        figure.update_xaxes(
            title_text=axis.name, tickvals=[at for at, _ in ticks], ticktext=[text for _, text in ticks], **place
        )
    return figure.update_yaxes(title_text=label, col=1).update_layout(height=60 + 260 * rows)


def _pareto(data: collect_search.Pareto, label: str) -> go.Figure | None:
    if len(data.values) < 2:
        return None
    figure = go.Figure()
    along = np.argsort(data.seconds)
    for name, kept, marker, line in (
        ("completed", ~data.front, GREY, None),
        ("front", data.front, BLUE, {"shape": "hv"}),
    ):
        order = [i for i in along if kept[i]]
        figure.add_scatter(
            x=data.seconds[order], y=data.values[order], text=[data.trials[i] for i in order], name=name, line=line,
            mode="lines+markers" if line else "markers", marker_color=marker,
        )  # fmt: skip
    return figure.update_layout(xaxis_title="training seconds", yaxis_title=label)


def _geometry(data: collect_models.Geometry, label: str) -> go.Figure | None:
    if len(data.values) < 2:
        return None
    marker = {
        "color": data.values,
        "colorscale": "Viridis",
        "reversescale": data.sign > 0,
        "colorbar": {"title": label},
    }
    figure = go.Figure(go.Scatter(x=data.uniformity, y=data.alignment, text=data.trials, mode="markers", marker=marker))
    return figure.update_layout(xaxis_title="uniformity", yaxis_title="alignment")
