"""`analysis plot`: figures as PNG and SVG, and the interactive page."""

from __future__ import annotations

from pathlib import Path

import click

from analysis.commands.options import METRIC, study_argument, study_of, where


@click.command(short_help="Figures as PNG and SVG, and an interactive page")
@study_argument
@METRIC
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="folder [plots/STUDY]")
@click.option("--only", "names", multiple=True, metavar="NAME", help="one figure, may be repeated; `html` for the page")
@where
def plot(
    study: str | None,
    metric: str | None,
    out: Path | None,
    names: tuple[str, ...],
    storage: str,
    tracking_uri: str | None,
) -> None:
    """Draw what the study's data allow: history, learning curves, parameters, importance, cost, similarities."""
    import numpy as np

    from analysis.errors import AnalysisError, unknown
    from analysis.plots.gallery import NAMES, gallery
    from analysis.plots.style import save
    from analysis.statistics.importance import importance

    for name in names:
        if name not in (*NAMES, "html"):
            raise unknown("figure", name, (*NAMES, "html"), shown=len(NAMES) + 1)
    found = study_of(storage, tracking_uri, study, metric)
    folder = out or Path("plots") / found.name
    folder.mkdir(parents=True, exist_ok=True)  # a place that cannot be written is said before the work
    measured = None
    if not names or {"importance", "contour"} & set(names):
        try:
            measured = importance(found, np.random.default_rng(0))
        except AnalysisError as reason:
            click.echo(f"importance: not drawn, {reason}", err=True)
    drawn = set(names) - {"html"}
    for picture in gallery(found, measured, tuple(drawn)) if drawn or not names else []:
        for path in save(picture.figure, folder, picture.name):
            click.echo(str(path))
        drawn.discard(picture.name)
    if not names or "html" in names:
        try:
            from analysis.plots.page import page
        except ModuleNotFoundError as missing:
            if missing.name != "plotly":
                raise
            lacks = 'needs plotly: pip install "contrastive-search[interactive]"'
            if names:
                raise AnalysisError(f"interactive.html {lacks}") from None
            click.echo(f"interactive.html: not drawn, it {lacks}", err=True)
        else:
            path = folder / "interactive.html"
            path.write_text(page(found), encoding="utf-8")
            click.echo(str(path))
    if drawn:
        raise AnalysisError(f"the study has no data for: {', '.join(sorted(drawn))}")
