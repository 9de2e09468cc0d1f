"""The plots of docs/performance.md: `python -m benchmarks.plots` draws them from benchmarks/results into docs/pictures.

performance.json holds the figures of the page, each with its machine and command; outside.json, where it exists, is
what the benchmark of that name wrote. A plot stores a hash of its data: tests/test_benchmarks.py finds stale ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.style import BLUE, GREEN, GREY, ORANGE, RED, SKY, figure, style

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures" / "performance"
WIDTH = 6.4  # inches: at 800 pixels a 9-point letter has 15
OURS, PEER = "this project", "sentence-transformers"
Rows = list[dict[str, Any]]


def wall_time(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.8, width=WIDTH)
    at = np.arange(len(rows))
    for shift, key, name, colour in ((-0.2, "ours s", OURS, BLUE), (0.2, "peer s", PEER, ORANGE)):
        ax.barh(at + shift, [row[key] for row in rows], 0.4, color=colour, label=name)
    for place, row in zip(at, rows, strict=True):
        ax.text(row["ours s"] + 1, place - 0.2, f"x {row['ratio']:.2f}", va="center", fontsize=8)
    named(ax, [row["setting"] for row in rows], "time of the whole search, s")
    ratios = [row["ratio"] for row in rows]
    return fig, f"A search takes {min(ratios):.2f} to {max(ratios):.2f} times as long as with {PEER}"


def regret(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.9, width=WIDTH)
    peers = list(rows[0]["ratios"])
    for number, (row, colour) in enumerate(zip(rows, (BLUE, ORANGE, GREEN, RED), strict=True)):
        values, errors = zip(*(row["ratios"][peer] for peer in peers), strict=True)
        at = np.arange(len(peers)) + 0.16 * (number - 1.5)
        label = f"{row['workers']} worker{'s' if row['workers'] > 1 else ''}, {row['budget']} full-length trials"
        ax.errorbar(values, at, xerr=errors, fmt="o", markersize=4, color=colour, label=label)
    ax.axvline(1, color=GREY, linewidth=1)
    ax.set_xlim(0.4, 1.05)
    named(ax, peers, "regret of this project / regret of the peer (1 = equal), ± 1 standard error")
    found = [value for row in rows for value, _ in row["ratios"].values()]
    return fig, f"For equal training, the regret is {min(found):.2f} to {max(found):.2f} times that of each peer"


def step_time(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.6, width=WIDTH)
    at = np.arange(len(rows))
    for shift, key, colour in ((-0.2, "float32", BLUE), (0.2, "bf16", SKY)):
        ax.barh(at + shift, [row[key] for row in rows], 0.4, color=colour, label=f"packed, {key}")
    ax.axvline(1, color=ORANGE, linewidth=2, label="padded")
    named(ax, [row["setting"] for row in rows], "time of a training step / time of a padded step")
    return fig, "A packed training step takes about a quarter of the time of a padded one"


def start_up(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.2, width=WIDTH)
    colours = [ORANGE if "TorchTrainer" in row["what"] else BLUE for row in rows]
    ax.barh(range(len(rows)), [row["s"] for row in rows], 0.6, color=colours)
    for place, row in enumerate(rows):
        ax.text(row["s"] * 1.1, place, f"{row['s']:g} s", va="center", fontsize=8)
    ax.set_xscale("log")
    ax.set_xlim(0.01, 100)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    named(ax, [row["what"] for row in rows], "time besides training, s (logarithmic)", legend=False)
    return fig, "After the first trial, starting a trial costs less than 0.1 s"


def throughput(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.9, width=WIDTH)
    sides = (("ours", OURS, BLUE), ("peer", PEER, ORANGE), ("peer, torch.compile", f"{PEER}, torch.compile", RED))
    for card, marker, line in (("H200", "o", "-"), ("H100", "s", "none")):
        mine = [row for row in rows if row["card"] == card]
        for key, name, colour in sides:
            if points := [(row["batch"], row[key]) for row in mine if row[key] is not None]:
                x, y = zip(*points, strict=True)
                ax.plot(x, y, marker=marker, linestyle=line, markersize=5, color=colour, label=f"{name}, {card}")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set_ylim(0)
    ax.set(xlabel="batch size, sentences", ylabel="training examples / s")
    ax.legend()
    ratios = [row["ours"] / row["peer"] for row in rows if row["card"] == "H200"]
    return fig, f"On an H200 a trial trains {min(ratios):.1f} to {max(ratios):.1f} times as fast as {PEER}"


def trials_per_card(rows: Rows) -> tuple[Figure, str]:
    fig, (ax,) = figure(2.3, width=WIDTH)
    names = [f"{row['trials']}{' with NVIDIA MPS' if row['MPS'] else ''}" for row in rows]
    ax.bar(
        names, [row["examples a second"] for row in rows], 0.6, color=[GREEN if row["MPS"] else BLUE for row in rows]
    )
    for place, row in enumerate(rows):
        ax.text(place, row["examples a second"] + 80, f"{row['GB']:g} GB", ha="center", fontsize=8)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set(xlabel="trials that share one H200 (GPU memory above the bars)", ylabel="training examples / s")
    four, one = (next(row["examples a second"] for row in rows if row["trials"] == n) for n in (4, 1))
    return fig, f"Four trials on one H200 train {four / one:.1f} times as many examples as one"


def outside(rows: Rows) -> tuple[Figure, str]:
    """rows: one per family of tasks, workers, budget ("trials", full-length ones) and search, with "regret" (0 = best
    known, 1 = median of random points) and its "se" over tasks. This project's default is the search "ours"."""
    families, budgets = (list(dict.fromkeys(row[key] for row in rows)) for key in ("tasks", "trials"))
    names = list(dict.fromkeys(row["search"] for row in rows))
    height = len(families) * (0.8 + 0.2 * len(names)) + 0.5
    fig, axes = figure(height, columns=len(budgets), rows=len(families), width=WIDTH)
    ratios = []
    for ax, (family, budget) in zip(axes, product(families, budgets), strict=True):
        labels = names if budget == budgets[0] else [""] * len(names)  # on the left
        for workers, colour, shift in zip(
            sorted({row["workers"] for row in rows}), (BLUE, ORANGE), (-0.13, 0.13), strict=False
        ):
            shown = [r for r in rows if (r["tasks"], r["trials"], r["workers"]) == (family, budget, workers)]
            at = [names.index(row["search"]) + shift for row in shown]
            values, errors = ([row[key] for row in shown] for key in ("regret", "se"))
            label = f"{workers} worker{'s' if workers > 1 else ''}"
            ax.errorbar(values, at, xerr=errors, fmt="o", markersize=4, color=colour, label=label)
            peers = [row["regret"] for row in shown if not row["search"].startswith(("ours", "random"))]
            ratios += [row["regret"] / min(peers) for row in shown if row["search"] == "ours" and peers]
        ax.set_title(f"{family}, {budget} full-length trials")
        ax.set_xlim(left=0)
        named(ax, labels, "normalised regret", legend=False)
    axes[0].legend()
    return (
        fig,
        f"On outside benchmarks, the regret is {min(ratios):.2f} to {max(ratios):.2f} times that of the best peer that "
        "learns",
    )


def named(ax: Axes, names: list[str], label: str, legend: bool = True) -> None:
    """Horizontal rows with these names, the first one on top."""
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(label)
    if legend:
        ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.22), ncols=2)


DRAWN: dict[str, Callable[[Rows], tuple[Figure, str]]] = {
    one.__name__: one for one in (wall_time, regret, step_time, start_up, throughput, trials_per_card)
}


def data() -> dict[str, Mapping[str, Any]]:
    """Plot -> its record: "rows", and the machine and the command that measured them."""
    found: dict[str, Mapping[str, Any]] = json.loads((RESULTS / "performance.json").read_text(encoding="utf-8"))
    if (RESULTS / "outside.json").exists():
        found = {**found, "outside": json.loads((RESULTS / "outside.json").read_text(encoding="utf-8"))}
    return found


def fingerprint(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record["rows"], sort_keys=True).encode()).hexdigest()[:16]


def draw(folder: Path) -> list[Path]:
    """Every plot as an SVG. Returns: their files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, record in data().items():
        with style():
            fig, title = (DRAWN | {"outside": outside})[name](record["rows"])
            fig.suptitle(title, fontsize=10, fontweight="bold")
            about = {"Date": None, "Creator": None, "Title": title, "Description": f"data {fingerprint(record)}"}
            path = folder / f"{name}.svg"
            fig.savefig(path, bbox_inches="tight", metadata=about)
        paths.append(path)
    return paths


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=PICTURES, help="[docs/pictures]")
def main(out: Path) -> None:
    """Draw the plots of docs/performance.md from the committed results."""
    for path in draw(out):
        click.echo(str(path))


if __name__ == "__main__":
    main()
