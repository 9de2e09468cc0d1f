"""Verdicts off the beaten path: who may be named, metrics of which nothing is known, and where less is better."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from memory_study import memory_study
from simulate import METRIC
from small_store import SPACE, SmallStore
from small_tables import table

from analysis.papers.compare import compare
from analysis.papers.links import LINKS
from analysis.papers.published import paper_table
from analysis.plots.gallery import random_counterpart
from analysis.reading.store import find_study, open_store
from analysis.statistics.evaluated import SeedValues
from analysis.statistics.league import same_data
from analysis.statistics.seed_noise import Prior, learned, seed_noise, unknown_metric
from analysis.statistics.study_verdict import study_prior, study_verdict
from analysis.statistics.verdict import Verdict, judge
from analysis.tables.metric import Metric
from analysis.tables.study import read_study
from analysis.tables.trials import points_table
from analysis.writing.comparison_text import comparison_text
from analysis.writing.verdict_text import verdict_lines
from search.schema import SEED_SD

LOSS = Metric("eval_loss_dev", ("eval_loss_dev",), "min")


def verdict(trials: pd.DataFrame, metric: Metric = METRIC, **options: Any) -> Verdict:
    return judge(trials, points_table(trials), metric, lambda _: None, looks=1, **options)


@pytest.mark.parametrize(
    ("searched", "fresh"),
    [
        ({"p0": [0.70], "p1": [0.72], "p2": [0.80]}, {"p0": [0.701, 0.702]}),  # the best failed on its fresh seeds
        ({"p0": [0.70, 0.702, 0.698], "p1": [0.80]}, None),  # a search that is under way
        ({"p0": [0.70], "p1": [0.80]}, {"p0": [0.70] * 5, "p1": [0.79, 0.80]}),
    ],
)
def test_the_baseline_s_seeds_do_not_make_it_the_best(
    searched: dict[str, list[float]], fresh: dict[str, list[float]] | None
) -> None:
    found = verdict(table(searched, fresh))
    assert found.best != "p0"
    assert found.gain is not None
    assert not any("came out above" in line for line in verdict_lines(found, "s"))


def test_who_has_too_few_seeds_to_be_named_is_not_denied() -> None:
    searched = {"p0": [0.70], "p1": [0.69], "p2": [0.80]}
    found = verdict(table(searched, {"p0": [0.70] * 5, "p1": [0.69] * 5, "p2": [0.8]}))
    assert found.baseline_is_best
    assert "of those that have the seeds to be named none came out above" in " ".join(verdict_lines(found, "s"))


def test_where_less_is_better_the_correction_goes_up() -> None:
    searched = {"p0": [0.50], "p1": [0.48], "p2": [0.49], "p3": [0.485], "p4": [0.51]}
    fresh = {
        "p0": [0.505, 0.50, 0.50], "p1": [0.498, 0.495, 0.50], "p2": [0.499, 0.5, 0.497], "p3": [0.5, 0.502, 0.499],
    }  # fmt: skip
    found = verdict(table(searched, fresh), LOSS)
    assert found.expected > found.value
    line = verdict_lines(found, "s")[1]
    assert f"{100 * (found.expected - found.value):.2f} above the {100 * found.value:.2f} measured" in line


@pytest.mark.parametrize("points", [3, 12])
def test_what_is_believed_of_a_metric_that_nobody_published_is_its_points_spread(points: int) -> None:
    """Equal points of a perplexity about 30, seeds move it by 1: with SimCSE's noise no interval held the truth."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(60):
        trials = table({f"p{i}": [30 + rng.normal()] for i in range(points)})
        prior = unknown_metric(SeedValues.of(trials, LOSS.sign).firsts())
        found = verdict(trials, LOSS, prior=prior)
        held += found.low <= 30 <= found.high
    assert held >= 55
    lines = " ".join(verdict_lines(found, "s"))
    assert f"as much as the {points} points differ by, since nothing is known of this metric" in lines


def test_repeats_are_worth_more_than_a_spread_and_collapsed_points_do_not_count() -> None:
    values = np.array([30.0, 31, 29, 30.5, 29.5, 30.2, 29.8, 900])
    assert unknown_metric(values).sd < 1
    assert unknown_metric(np.array([30.0])) == Prior(30.0, points=1)
    assert unknown_metric(np.array([30.0, 32.0])).sd == pytest.approx(2**0.5)
    prior = Prior(5.0, points=8)
    repeated = SeedValues.of(table({"p0": [30.0, 30.2], "p1": [31.0]}), 1.0)
    assert seed_noise(repeated, prior=prior).sd == pytest.approx(0.02**0.5)
    assert seed_noise(repeated, prior=prior).df == 1
    assert learned([repeated], prior) is prior
    six = SeedValues.of(table({"p0": [0.0, 0.2] * 3}), 1.0)
    assert learned([six], prior) == Prior(pytest.approx(0.012**0.5), 1, 5)
    once = SeedValues.of(table({"p0": [30.0], "p1": [31.0]}), 1.0)
    assert (seed_noise(once, prior=prior).sd, seed_noise(once, prior=prior).df) == (5.0, 3.0)


def test_a_script_s_own_metric_is_none_of_simcse_s(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    script = copy.deepcopy(SPACE) | {"name": "own", "method": "script", "data": {}, "preset": {}}
    script["metric"] = {"name": "accuracy_dev", "mode": "max"}
    for name, space, metric in (("own-1", script, "accuracy_dev"), ("small-1", SPACE, "builtin_dev")):
        run = made.study(name, space)
        for i in range(4):
            made.trial(run, name, f"t{i:04}", {"learning_rate": 0.1 * i}, [0.5 + 0.1 * i], metric=metric)
    store = open_store(made.uri)
    own, known = (read_study(store, find_study(store, name)) for name in ("own-1", "small-1"))
    assert (own.known_metric, known.known_metric) == (False, True)
    assert study_prior(own) == Prior(pytest.approx(0.1291, abs=1e-4), points=4)
    assert study_prior(known) == Prior(SEED_SD)
    assert study_verdict(own).noise.sd == pytest.approx(0.1291, abs=1e-4)


def test_another_study_that_has_nothing_yet_costs_no_picture(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    tpe = copy.deepcopy(SPACE)
    tpe["search"]["sampler"] = "tpe"
    run = made.study("small-1", tpe)
    made.trial(run, "small-1", "t0000", {"learning_rate": 0.1}, [0.5])
    old = made.study("small-2")
    made.trial(old, "small-2", "t0000", {"learning_rate": 0.1}, [0.5])
    made.study("small-3", status=None)
    store = open_store(made.uri)
    other = random_counterpart(read_study(store, find_study(store, "small-1")))
    assert other is not None
    assert other.name == "small-2"


def test_studies_of_other_dev_sets_are_not_of_one_league() -> None:
    def study(dev: list[str], holdout: float = 0.0, metric: str = "ours_dev", gold: tuple[float, ...] = ()) -> Any:
        made = memory_study([{"a": 1}], [0.5], {"a": {"float": [0, 1]}})
        space = {"data": {"dev": dev}, "metric": {"name": metric, "holdout": holdout}}
        own = dataclasses.replace(made, metric=Metric(metric, (metric,)))
        own.__dict__["space"] = space
        stored = {"ours_gold": np.array(gold, dtype=np.float32)} if gold else None
        object.__setattr__(own, "similarities", lambda _: stored)
        return own

    easy = study(["/data/easy/ours_dev.tsv"])
    assert same_data(easy, study(["/data/easy/ours_dev.tsv"]))
    assert same_data(easy, study(["/data/easy/ours_dev.tsv", "stsb"]))  # whatever else it measured
    assert not same_data(easy, study(["/data/hard/ours_dev.tsv"]))
    assert not same_data(easy, study(["/data/easy/ours_dev.tsv"], 0.2))
    assert same_data(study(["a", "a_b"], metric="a_b_dev"), study(["c", "a_b"], metric="a_b_dev"))  # not measured on a
    bare = study([])
    bare.__dict__["space"] = {}
    assert same_data(easy, bare)  # out of reach
    stored = study(["ours_dev.tsv"], gold=(1, 2, 5))
    assert same_data(stored, study(["/data/easy/ours_dev.tsv"], gold=(1, 2, 5)))  # one file, typed in two ways
    assert not same_data(stored, study(["ours_dev.tsv"], gold=(1, 2)))  # written over between the studies


def test_a_cell_of_fewer_runs_says_how_many() -> None:
    table, row = next(
        (table, row)
        for table in map(paper_table, LINKS)
        for row in table.rows
        if row.params and {"stsb_test", "stsb_dev"} <= set(row.cells) and not row.untrained
    )
    told = {"best_at_examples": 1e3}
    study = memory_study(
        [row.params] * 3, [0.80, 0.81, 0.82], {name: {"grid": [value]} for name, value in row.params.items()},
        seeds=[0, 1, 2], metrics=[{**told, "stsb_test": 0.70}, told, told],
    )  # fmt: skip
    cells = compare(table, [study])
    text = comparison_text(cells[cells.row == row.label])
    assert "ours, n 3" in text
    assert "70.00 (n 1)" in text
