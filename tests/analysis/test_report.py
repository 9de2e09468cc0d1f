"""The report and the interactive page: what stands in them, and how a browser shows them."""

from __future__ import annotations

import html
import os
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMEDRIVER, browser
from memory_study import memory_study
from small_store import SmallStore

from analysis.plots.page import page
from analysis.reading.store import find_study, open_store
from analysis.tables.metric import Metric
from analysis.tables.record import commands, cost, hours
from analysis.tables.study import Study, read_study
from analysis.tables.trials import failures
from analysis.writing.report import report

pytestmark = pytest.mark.costly

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def study(read_only_store: SmallStore) -> Study:
    opened = open_store(read_only_store.uri)
    return read_study(opened, find_study(opened, "small-1"))


@pytest.fixture(scope="module")
def pages(study: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.statistics.importance.BOOTSTRAP_TREES", 4)
        made = {"report": report(study, np.random.default_rng(0), NOW), "interactive": page(study)}
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def test_report_has_every_part(pages: dict[str, Path]) -> None:
    text = html.unescape(pages["report"].read_text(encoding="utf-8"))
    for part in ("Answer", "Best configurations", "Test sets", "Figures", "Importance", "Failures", "Cost",
                 "Environment", "Run it again"):  # fmt: skip
        assert f"<h2>{part}</h2>" in text
    for part in ("Sealed: no test set has been opened", "the loss is nan after 500 training examples",
                 "Made 2026-03-01 12:00 UTC"):  # fmt: skip
        assert part in text
    assert re.search(r"\d+ more: <code>analysis table small-1</code>", text)
    assert text.count("data:image/svg+xml;base64,") == 9
    headings = re.findall(r'<th scope="col">([^<]*)</th>', text.split("<h2>Best configurations</h2>")[1])
    assert headings[:3] == ["stage", "rank", "trial"]  # a narrow window cuts what comes last


@pytest.mark.parametrize("name", ["report", "interactive"])
def test_pages_load_nothing_from_other_hosts(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text(encoding="utf-8")
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.S)  # plotly's own code names hosts, unused here
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", outside)
    assert "@import" not in outside
    assert "url(" not in outside


def test_study_without_results_gets_a_report() -> None:
    study = memory_study([{"a": 0.1}], [float("nan")], {"a": {"float": [0, 1]}}, stops=["failed:oom"])
    text = html.unescape(report(study, np.random.default_rng(0), NOW))
    assert "no trial has been completed" in text
    assert "Not measured" in text


@pytest.mark.parametrize("space", [{"data": None}, {"data": {"dev": None}}, {"params": None, "metric": None}])
def test_empty_sections_of_a_space_break_no_report(space: dict[str, Any]) -> None:
    study = memory_study([{"a": 0.1}, {"a": 0.2}], [0.1, 0.2], {"a": {"float": [0, 1]}}, space=space)
    assert "Values are" in report(study, np.random.default_rng(0), NOW)


def test_names_cannot_inject_markup() -> None:
    study = memory_study([{"a": "<script>alert(1)</script>"}] * 2, [0.1, 0.2], {"a": {"choice": ["<b>", "c"]}})
    assert "<script>alert" not in report(study, np.random.default_rng(0), NOW)


def test_failures_cost_and_commands(study: Study) -> None:
    assert failures(study.trials).to_dict("records") == [
        {"trial": "t0005", "kind": "nan", "reason": "the loss is nan after 500 training examples"}
    ]
    spent = cost(study)
    assert spent.trial_seconds == pytest.approx(study.trials["seconds"].sum())
    assert spent.lines()[0].endswith("of training and evaluation")  # of an unknown device
    assert commands(study)[-1] == "analysis best --study small-1"
    assert [hours(s) for s in (12.4, 200, 7500)] == ["12 s", "3 min 20 s", "2 h 05 min"]


@pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="no Chromium with chromedriver here")
def test_every_interactive_figure_is_drawn(pages: dict[str, Path], tmp_path: Path) -> None:
    pictures = Path(os.environ.get("PICTURES", tmp_path))
    with browser() as window:
        for width in (400, 800, 1400):
            window.width(width, 3000)
            window.open("about:blank")
            window.open(pages["interactive"].as_uri())
            drawn = "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 6"
            window.until(f"return window.Plotly && {drawn}", 60)
            assert window.run("return document.querySelectorAll('.js-plotly-plot').length") == 6
            assert window.run("return document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
            window.picture(pictures / f"interactive-{width}.png")
        alike = window.run(ALIKE)
        assert alike == [], "told apart by colour alone"
        assert window.hosts() == set()
        assert [line for line in window.console() if line.startswith("SEVERE")] == []


@pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="no Chromium with chromedriver here")
def test_any_text_stands_in_the_page_as_it_is(tmp_path: Path) -> None:
    odd = "$_$ <b>b</b> &amp; <x>"
    space = {odd: {"choice": [odd, "other"]}, "x": {"float": [0, 1]}}
    study = memory_study(
        [{odd: [odd, "other"][i % 2], "x": i / 6} for i in range(6)], [i / 10 for i in range(6)], space
    )
    study = replace(study, metric=Metric(f"{odd}_dev", (f"{odd}_dev",)))
    (tmp_path / "page.html").write_text(page(study), encoding="utf-8")
    with browser() as window:
        window.open((tmp_path / "page.html").as_uri())
        drawn = "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4"
        window.until(f"return window.Plotly && {drawn}", 60)
        texts = window.run("return [...document.querySelectorAll('svg text')].map(e => e.textContent)")
    shown = [text for text in texts if "$_$" in text]
    assert len(shown) >= 6
    assert {*shown} == {odd, f"{odd}_dev x 100"}


ALIKE = """
    const kind = t => [t.mode, t.line && t.line.dash, t.line && t.line.shape, t.marker && t.marker.symbol].join();
    const alike = [];
    for (const figure of document.querySelectorAll('.js-plotly-plot')) {
      const of = end => (figure.data || []).find(t => t.showlegend !== false && (t.name || '').endsWith(end));
      for (const other of ['pruned', 'front', 'defaults'])
        if (of(other) && kind(of('completed')) === kind(of(other))) alike.push(other);
    }
    return alike"""


@pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="no Chromium with chromedriver here")
def test_report_cuts_no_figure_on_wide_screens(pages: dict[str, Path]) -> None:
    with browser() as window:
        window.width(1400)
        window.open(pages["report"].as_uri())
        places = "[...document.querySelectorAll('figure .wide')]"
        assert window.run(f"return {places}.length") > 5
        assert window.run(f"return {places}.filter(e => e.scrollWidth > e.clientWidth).length") == 0


@pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="no Chromium with chromedriver here")
def test_report_fits_a_screen_of_400_pixels(pages: dict[str, Path]) -> None:
    """No console error, no request to another host, nothing wider than the screen, letters of at least 9 pixels."""
    small = """return [...document.querySelectorAll("p, td, th, li, figcaption, pre")]
        .filter(e => parseFloat(getComputedStyle(e).fontSize) < 9).length"""
    with browser() as window:
        window.width(400, 5000)
        window.open(pages["report"].as_uri())
        assert window.run("return document.documentElement.scrollWidth") <= 400
        assert window.run(small) == 0
        assert window.run("return [...document.images].filter(i => i.naturalWidth === 0).length") == 0
        assert window.hosts() == set()
        assert [line for line in window.console() if line.startswith("SEVERE")] == []
