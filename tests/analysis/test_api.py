"""`analysis.read` and what it gives: the tables, the verdict, the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure
from small_store import SmallStore

import analysis
from analysis.plots.gallery import NAMES

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def results(read_only_store: SmallStore) -> analysis.StudyResults:
    return analysis.read("small-1", storage=str(read_only_store.folder))


def test_trials_are_a_table_of_every_trial_best_first(results: analysis.StudyResults) -> None:
    trials = results.trials
    assert len(trials) == 30
    done = trials[trials["stop"] == "completed"]
    assert done["value"].is_monotonic_decreasing
    assert trials["stop"].iloc[-1] == "failed:nan"
    assert pd.isna(trials["rank"].iloc[-1])
    assert set(trials["stage"]) == {"search", "confirm"}
    said = analysis.StudyResults.trials.__doc__ or ""
    for column in trials.columns:
        assert column.startswith("params.") or column in said, f"{column} is not documented"


def test_points_are_configurations_confirmed_ones_first(results: analysis.StudyResults) -> None:
    points = results.points
    assert len(points) == 24
    assert points["confirmed"].tolist()[:3] == [True, True, False]
    best = points.iloc[0]
    fresh = results.trials[results.trials["run_id"].isin(best["run_ids"])]["value"]
    assert best["n"] == 3
    assert best["value"] == pytest.approx(fresh.mean())
    assert best["sd"] == pytest.approx(fresh.std())
    said = f"{analysis.StudyResults.points.__doc__}{analysis.StudyResults.trials.__doc__}"
    for column in points.columns:
        assert column.startswith("params.") or column in said, f"{column} is not documented"


def test_best_is_the_verdict_of_the_command(results: analysis.StudyResults) -> None:
    verdict = results.best()
    assert isinstance(verdict, analysis.Verdict)
    assert verdict.trial == results.points["trial"].iloc[0]
    assert verdict.gain is not None
    assert repr(results) == "<study small-1: 30 trials (25 completed, 4 pruned, 1 failed) by builtin_dev>"


@pytest.mark.usefixtures("few_shuffles")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "widths"])  # the study has none
def test_plot_gives_every_figure(results: analysis.StudyResults, name: str) -> None:
    figure = results.plot(name)
    assert isinstance(figure, Figure)
    assert figure.axes
    shown = InteractiveShell.instance().display_formatter.format(figure)[0]
    assert shown["image/png"].startswith(b"\x89PNG"), "in a notebook"


def test_missing_names_are_reported(read_only_store: SmallStore, tmp_path: Path) -> None:
    store = read_only_store
    folder = str(store.folder)
    assert analysis.read(storage=folder).name == analysis.read(storage=store.folder).name == "small-2"  # the newest
    assert analysis.read(storage="elsewhere", tracking_uri=store.uri).name == "small-2"
    few = analysis.read("small-2", storage=folder)
    with pytest.raises(analysis.AnalysisError, match="at least 8 completed points"):
        few.plot("importance")
    with pytest.raises(analysis.InputError, match="unknown figure 'histry'; did you mean 'history'"):
        few.plot("histry")
    with pytest.raises(analysis.InputError, match="unknown study 'smal-1'"):
        analysis.read("smal-1", storage=folder)
    with pytest.raises(analysis.InputError, match="no tracking store at"):
        analysis.read(storage=str(tmp_path))
    with pytest.raises(analysis.InputError, match=r"^forecast: seeds: expected at least 1, got -1$"):
        few.forecast(seeds=-1)
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        analysis.reed  # type: ignore[attr-defined]  # noqa: B018  # that is what is tried


def test_importing_analysis_loads_nothing_heavy() -> None:
    code = (
        "import sys, analysis\n"
        "heavy = {'numpy', 'pandas', 'scipy', 'matplotlib', 'mlflow', 'torch', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert callable(analysis.read) and 'pandas' in sys.modules\n"
        "assert not {'matplotlib', 'mlflow', 'torch', 'optuna'} & set(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
