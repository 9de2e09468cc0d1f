"""What figures show (collect) and that every figure is drawn, from a real store."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from memory_study import MemoryStore, memory_study
from small_store import SmallStore

from analysis.papers.compare import compare, comparisons, paper_table
from analysis.plots import model_figures, search_figures
from analysis.plots.gallery import NAMES, gallery
from analysis.plots.model_figures import Ablation, Widths, scatters
from analysis.plots.param_figures import Contour, Params
from analysis.plots.search_figures import Curves, History, Pareto, front, seed_error
from analysis.plots.style import save
from analysis.reading.store import find_study, open_store
from analysis.statistics.importance import importance
from analysis.tables.axes import study_axes
from analysis.tables.metric import Metric
from analysis.tables.study import Study, read_study
from search.schema import SEED_SD, best_key, stored

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def study(read_only_store: SmallStore) -> Study:
    opened = open_store(read_only_store.uri)
    return with_widths(read_study(opened, find_study(opened, "small-1")))


def with_widths(study: Study) -> Study:
    """The study as if its trials had measured two widths, trial i (i, i + 1) / 100."""
    key = best_key(study.metric.name)
    runs = [
        dataclasses.replace(run, metrics={**run.metrics, f"{key}:16": i / 100, f"{key}:64": (i + 1) / 100})
        for i, run in enumerate(study.stored_trials)
    ]
    return dataclasses.replace(study, stored_trials=runs)


def test_widths_are_of_completed_trials_best_first(study: Study) -> None:
    (drawn,) = Widths.of(study)
    best = study.trials[study.trials["stop"] == "completed"].sort_values("value", ascending=False)
    assert drawn.metric == study.metric.name == "builtin_dev"
    assert [trial for trial, *_ in drawn.lines] == list(best["trial"])
    at = [run.run_id for run in study.stored_trials].index(best["run_id"].iloc[0])
    assert [values.tolist() for values in drawn.lines[0][1:]] == [[16, 64], pytest.approx([at, at + 1])]
    one_width = [dataclasses.replace(run, metrics={"best_builtin_dev:16": 0.1}) for run in study.stored_trials]
    assert Widths.of(dataclasses.replace(study, stored_trials=one_width)) == []


@pytest.mark.usefixtures("few_shuffles")
def test_every_figure_is_drawn_as_png_and_svg(study: Study, tmp_path: Path) -> None:
    pictures = gallery(study, importance(study, np.random.default_rng(0), draws=2))
    assert tuple(p.name for p in pictures) == NAMES
    for picture in pictures:
        png, svg = save(picture.figure, tmp_path, picture.name)
        pixels = imread(png)
        assert pixels.shape[1] > 600
        assert len(np.unique((pixels[..., :3] * 255).round() @ [65536, 256, 1])) > 10  # something is drawn: colours
        root = ElementTree.parse(svg).getroot()
        assert root.tag.endswith("svg")
        assert not [e for e in root.iter() for name in e.attrib if name.endswith("href") and "http" in e.attrib[name]]


def test_some_figures_by_name_and_none_without_data(study: Study) -> None:
    assert [p.name for p in gallery(study, None, ("pareto", "importance"))] == ["pareto"]
    empty = memory_study([{"a": 1}], [float("nan")], {"a": {"float": [0, 1]}}, stops=["failed:nan"])
    assert gallery(empty, None) == []


ODD = ["$_$", "$_$ <b>b</b> &amp; <x>", "$ 100 % {}", r"a$x^2$b \$\frac{"]


def odd_study(odd: str) -> Study:
    """Named by `odd` wherever a user may choose a text."""
    rng = np.random.default_rng(0)
    space = {odd: {"choice": [odd, "other"]}, "x": {"float": [0, 1]}, "lr": {"float": [1e-6, 1e-2], "log": True}}
    points = [{odd: [odd, "other"][i % 2], "x": rng.random(), "lr": 10 ** rng.uniform(-6, -2)} for i in range(12)]
    made = memory_study(points, list(rng.random(12)), space)
    metric = Metric(f"{odd}_dev", (f"{odd}_dev",))
    rows = [
        (f"r{i}", name, 1000, rng.random())
        for i in range(12)
        for name in (stored(metric.name), "alignment", "uniformity")
    ]
    run = dataclasses.replace(made.stored, tags={**made.stored.tags, "study_id": odd})
    trials = made.trials.assign(seconds=10.0 ** np.arange(12), trial=odd)  # on a logarithm
    made = dataclasses.replace(
        made, stored=run, trials=trials, metric=metric, store=MemoryStore({"params": space}, rows)
    )
    arrays = {f"{odd}_{end}": rng.random(20).astype(np.float32) for end in ("dev", "gold")}
    made = with_widths(made)
    object.__setattr__(made, "similarities", lambda _: arrays)
    return made


@pytest.mark.usefixtures("few_shuffles")
@pytest.mark.parametrize("odd", ODD)
def test_any_text_in_any_figure_is_drawn_as_it_is(odd: str, tmp_path: Path) -> None:
    study = odd_study(odd)
    pictures = gallery(study, importance(study, np.random.default_rng(0), draws=2))
    assert tuple(p.name for p in pictures) == NAMES
    table = compare(paper_table("gclsr_table10"), [])
    data = Ablation.of(paper_table("gclsr_table10"), table)
    assert data is not None
    named = dataclasses.replace(data, title=odd, metric=odd, name=odd, labels=(odd,) * len(data.labels), numeric=False)
    for figure in [*(picture.figure for picture in pictures), model_figures.ablation(named)]:
        save(figure, tmp_path, "figure")
        figure.savefig(tmp_path / "notebook.svg")  # as a notebook's user does, outside of our style
        texts = [text for text in figure.findobj(Text) if text.get_text()]
        assert not any(text.get_parse_math() for text in texts)
        assert not any("mathdefault" in text.get_text() for text in texts)


def test_history_counts_completed_trials_only_as_best(study: Study) -> None:
    data = History.of(study)
    assert (data.completed ^ data.pruned).all()
    assert data.best[-1] == data.values[data.completed].max()
    assert (np.diff(data.best[~np.isnan(data.best)]) >= 0).all()
    assert data.baseline is not None


def test_curves_say_where_trials_were_pruned(study: Study) -> None:
    data = Curves.of(study)
    assert data.rungs.tolist() == [1000.0]
    assert data.left_out == 0
    assert [line.baseline for line in data.curves].count(True) == 4  # one of the search, three confirmed
    assert max(line.values.max() for line in data.curves) == data.curves[0].values.max()


def test_parameters_that_did_not_exist_have_no_place(study: Study) -> None:
    axes = study_axes(study)
    data = Params.of(study, axes)
    marks, alphabet = ([a.name for a in axes].index(n) for n in ("max_marks", "alphabet"))
    absent = np.isnan(data.positions[:, alphabet])
    assert absent.any()
    np.testing.assert_array_equal(absent, data.positions[:, marks] == 0)
    assert Contour.of(data, "learning_rate", "batch_size") is not None


def test_front_is_what_nothing_else_beats() -> None:
    rng = np.random.default_rng(0)
    quality, cost = rng.integers(0, 8, 60).astype(float), rng.integers(0, 8, 60).astype(float)
    kept = front(quality, cost)
    for i in range(60):
        beaten = (quality >= quality[i]) & (cost <= cost[i]) & ((quality > quality[i]) | (cost < cost[i]))
        if kept[i]:
            assert not beaten.any()
        else:
            same = (quality == quality[i]) & (cost == cost[i]) & kept
            assert beaten.any() or same.any()


def test_scatter_has_the_score_of_the_set(study: Study) -> None:
    row = study.trials[study.trials["stop"] == "completed"].iloc[0]
    arrays = study.similarities(row["run_id"])
    assert arrays is not None
    (one,) = scatters(arrays, {})
    ranks = pd.Series(one.cosine).rank(), pd.Series(one.gold).rank()
    assert one.rho == pytest.approx(ranks[0].corr(ranks[1]))
    assert one.labels is None
    assert scatters({"a_dev": np.zeros(3, dtype=np.float32)}, {}) == []  # no gold, no figure


def test_scatter_is_coloured_by_the_labels_of_its_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with other scores is not the one that was evaluated."""
    labels, gold = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"), np.arange(3, dtype=np.float32)
    rows = [f"a {i}\tb {i}\t{i}\t{label}\n" for i, label in enumerate(labels)]
    (tmp_path / "en_sickr_dev.tsv").write_text("sentence1\tsentence2\tscore\tsubset\n" + "".join(rows))
    monkeypatch.setenv("SEARCH_DATA_DIR", str(tmp_path))
    arrays, data = {"sickr_dev": gold / 3, "sickr_gold": gold}, {"dev": ["stsb", "sickr"], "language": "en"}
    (labelled,) = scatters(arrays, data)
    assert labelled.labels == labels
    figure = model_figures.scatter([labelled])
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"entailment", "neutral", "contradiction"}
    assert scatters({**arrays, "sickr_gold": gold[::-1]}, data)[0].labels is None


def test_ablation_of_a_published_table(tmp_path: Path) -> None:
    table = paper_table("edacse_table09_bert")
    study = memory_study([{"max_marks": v} for v in (1, 3, 3)], [0.3, 0.4, 0.5], {"max_marks": {"grid": [1, 2, 3]}},
                         metrics=[{"avg_without_stsb_test": v} for v in (0.36, 0.37, 0.38)])  # fmt: skip
    data = Ablation.of(table, compare(table, [study]))
    assert data is not None
    assert data.numeric
    assert data.x.tolist()[:3] == [1, 2, 3]
    assert data.published[2] == pytest.approx(np.mean([34.23, 50.67, 64.9, 10.15]), abs=0.005)
    assert data.ours[2] == pytest.approx(37.5)
    assert np.isnan(data.ours[1])
    assert save(model_figures.ablation(data), tmp_path, "ablation")[0].stat().st_size > 5000


@pytest.mark.parametrize("name", comparisons())
def test_only_columns_that_are_targets_are_drawn(name: str) -> None:
    table = paper_table(name)
    data = Ablation.of(table, compare(table, []))
    printed = {metric for row in table.rows for metric in row.cells}
    if data is None:
        assert printed <= table.unfit
    else:
        last = list(table.rows[0].cells)[-1]
        assert data.metric == ("avg_without_stsb_test" if last in table.unfit else last)
        assert np.isfinite(data.published).any()


def test_trial_without_a_value_is_not_drawn_as_best() -> None:
    """A killed trial has evaluations, but no value; so has a trial that was pruned at a high value."""
    study = memory_study(
        [{"a": v} for v in (0.1, 0.2, 0.3, 0.4)], [0.2, float("nan"), 0.9, 0.5], {"a": {"float": [0, 1]}},
        stops=["completed", "killed", "pruned", "completed"],
    )  # fmt: skip
    rows = [(run, "stsb_dev", step, 0.1) for run in ("r0", "r1", "r2", "r3") for step in (10, 20)]
    study = dataclasses.replace(study, store=MemoryStore({}, rows))
    assert [line.trial for line in Curves.of(study).curves] == ["t0003", "t0000", "t0002", "t0001"]


def test_bars_are_one_standard_deviation_over_seeds() -> None:
    points = [{"a": 0.1}, {"a": 0.1}, {"a": 0.2}, {"a": 0.2}, {"a": 0.2}, {"a": 0.3}]
    values = [0.10, 0.12, 0.30, 0.33, 0.36, 0.5]
    study = memory_study(points, values, {"a": {"float": [0, 1]}})
    # squares about the means .11 and .33, 1 + 2 degrees of freedom, and the prior's 3: the verdict's noise
    by_hand = 100 * ((3 * SEED_SD**2 + 2 * 0.01**2 + 2 * 0.03**2) / 6) ** 0.5
    assert seed_error(study) == pytest.approx(by_hand)
    (ax,) = search_figures.pareto(Pareto.of(study), "x").axes
    (bars,) = ax.containers
    half = [(segment[1, 1] - segment[0, 1]) / 2 for segment in bars.lines[2][0].get_segments()]
    assert half == pytest.approx([by_hand] * 6)
    once = memory_study(points[1::2], values[1::2], {"a": {"float": [0, 1]}})
    assert seed_error(once) is None
    (ax,) = search_figures.pareto(Pareto.of(once), "x").axes
    assert not ax.containers


def test_the_scatter_is_of_the_configuration_that_is_named_best() -> None:
    """Not of its best seed; the caption names the trial."""
    points = [{"a": 0.1}, {"a": 0.1}, {"a": 0.2}, {"a": 0.2}]
    found = memory_study(points, [0.50, 0.90, 0.72, 0.74], {"a": {"float": [0, 1]}})
    arrays = {name: np.arange(5, dtype=np.float32) for name in ("stsb_dev", "stsb_gold")}
    object.__setattr__(found, "similarities", lambda _: arrays)
    (picture,) = gallery(found, None, ("scatter",))
    assert "trial t0003" in picture.caption
