"""The planned of a confirmation: what it counts, and that it is the power of that plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_tables import table_study

from analysis.errors import AnalysisError
from analysis.statistics.seed_noise import SeedValues, seed_noise
from analysis.statistics.selection import Power, planned, spent
from analysis.statistics.verdict import confirm_forecast
from analysis.tables.study import Study
from analysis.writing.answer import forecast_lines
from search.schema import CONFIRMATION


def study(confirmed: dict[str, int], tags: dict[str, str], **changes: Any) -> Study:
    """Twelve points, p0 the baseline, p11 best; `confirmed` of them on so many fresh seeds."""
    rows = [(f"p{i}", "search", 0, 0.70 + 0.001 * i) for i in range(12)]
    rows += [(p, "confirm", 1 + s, 0.70 + 0.002 * s) for p, n in confirmed.items() for s in range(n)]
    trials = pd.DataFrame(rows, columns=["point", "stage", "seed", "value"])
    trials = trials.assign(stop="completed", baseline=trials["point"] == "p0", seconds=90.0)
    trials["run_id"] = trials["trial"] = [f"t{i}" for i in range(len(trials))]
    return table_study(trials.assign(**changes), tags)


def test_before_anything_is_confirmed() -> None:
    found = confirm_forecast(study({}, {}), top=3, seeds=5)
    assert (found.points, found.seeds, found.trials, found.seconds, found.look) == (4, 5, 20, 90.0, 1)
    assert found.noise.repeats == 0
    assert found.pairs is None
    error = planned(sd=found.noise.sd, between=0.0, tried=12, in_search=1.0, rivals=3, seeds=5)
    assert found.power == Power.of(error, 5, spent(1))
    lines = forecast_lines(found, study({}, {"study_id": "s"}))
    assert "4 points on 5 fresh seeds, 20 trials to run, about 30 minutes of training at 90 s a trial" in lines[0]
    assert lines[1].startswith("With this dev data and 5 seeds a gain below ")
    assert "assumed, no seed was repeated" in lines[2]


def test_existing_seeds_are_not_run_again() -> None:
    found = confirm_forecast(study({"p0": 5, "p11": 5, "p10": 2}, {f"{CONFIRMATION}1": "x"}), top=3, seeds=6)
    assert (found.points, found.trials, found.look) == (4, 4 * 6 - 12, 2)
    assert found.noise.repeats == 4 + 4 + 1
    assert found.power is not None
    assert found.power.seeds == 6
    assert confirm_forecast(study({"p0": 5}, {}), top=1, seeds=3).trials == 3  # no fewer than none for the baseline


def test_without_a_baseline_nothing_can_be_claimed() -> None:
    none = study({}, {}, baseline=False)
    found = confirm_forecast(none, top=3, seeds=5)
    assert (found.points, found.power) == (3, None)
    assert "can claim no gain" in forecast_lines(found, none)[1]
    alone = confirm_forecast(study({}, {}, value=np.append(1.0, np.zeros(11))), top=1, seeds=5)
    assert (alone.points, alone.power) == (1, None)
    with pytest.raises(AnalysisError, match="no trial of the search has been completed"):
        confirm_forecast(study({}, {}, stop="pruned"), top=3, seeds=5)


def test_noise_is_the_study_s() -> None:
    found = study({"p0": 5, "p11": 5}, {})
    assert confirm_forecast(found, 3, 5).noise == seed_noise(SeedValues.of(found.trials, 1.0))
