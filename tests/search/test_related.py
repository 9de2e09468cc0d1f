"""What is tried first: best and different points of related studies, the paper's settings for other encoders."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness import Death, World, make_space

from search.cli.main import main
from search.space import SpaceError, paper_point
from search.space.load import load_space
from search.store.journal import Journal
from search.store.layout import UserError
from search.store.ledger import Ledger
from search.study.plan import make_trial
from search.study.related import MOST, differ, related_points
from search.wording import trial_line


def related(root: Path, name: str = "older", seed: int = 3, **changes: Any) -> World:
    """A finished study on the same two hyperparameters, whose journal contains the space."""
    space = make_space({"trials": 20, "seed": seed}, **changes)
    world = World(space, root, study=name)
    world.folder.local.mkdir(parents=True)
    journal = Journal(world.folder.journal, Ledger())
    journal.append("space", 0, space=space.resolved())
    journal.close()
    world.session()
    return world


def starting(*names: str, **changes: Any) -> Any:
    params: Any = {"learning_rate": {"float": [1e-5, 1e-4], "log": True}, "batch_size": {"choice": [32, 128]},
                   "dropout": {"float": [0.0, 0.3]}}  # fmt: skip
    return make_space({"start": list(names), "trials": 14}, **({"params": params} | changes))


def test_the_best_and_different_points_come_first_at_legal_values(tmp_path: Path) -> None:
    world = related(tmp_path)
    space = starting("older")
    found = related_points(space, str(tmp_path))
    ledger = world.session().ledger
    best = max(range(1, 20), key=lambda n: ledger.points[n]["value"])  # 0 is the published setting, tried anyway
    assert 1 < len(found) <= MOST
    assert found[0].origin == f"older t{best:04d}"
    ranks = [ledger.points[int(one.origin[-4:])]["value"] for one in found]
    assert ranks == sorted(ranks, reverse=True)
    for one in found:
        theirs = ledger.trials[one.origin.split()[1]].trial.point
        assert one.point["learning_rate"] == pytest.approx(min(max(theirs["learning_rate"], 1e-5), 1e-4))
        assert one.point["batch_size"] == (32 if theirs["batch_size"] < 64 else one.point["batch_size"])
        assert one.point["dropout"] == 0.1  # not searched there: what that trial had
    points = [paper_point(space), *(one.point for one in found)]
    assert all(differ(space, a, b) for a, b in itertools.combinations(points, 2))


def test_of_many_different_points_eight_are_tried(tmp_path: Path) -> None:
    params = {"learning_rate": {"float": [1e-5, 1e-4], "log": True}, "dropout": {"float": [0.0, 0.3]}}
    related(tmp_path, params=params)  # twenty points, of which random ones seldom lie near one another
    assert len(related_points(starting("older", params=params), str(tmp_path))) == 8


def test_several_studies_take_turns_and_the_paper_is_one(tmp_path: Path) -> None:
    related(tmp_path, "first")
    related(tmp_path, "second", seed=4)
    wide = {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"choice": [16, 32, 64]}}
    found = related_points(starting("paper", "first", "second", params=wide), str(tmp_path))
    assert len(found) == MOST
    sources = [one.origin.split()[0] for one in found]
    assert set(sources) == {"paper", "first", "second"}  # the setting for large encoders, a third of the rate
    assert abs(sources.count("first") - sources.count("second")) <= 2


def test_points_of_older_studies_follow_the_baseline_with_their_origin(tmp_path: Path) -> None:
    related(tmp_path)
    space = starting("older")
    memory = [asdict(one) for one in related_points(space, str(tmp_path))]
    world = World(space, tmp_path, study="newer", memory=memory)
    ledger = world.session().ledger
    trials = [record.trial for record in ledger.trials.values()]
    assert trials[0].baseline == "paper"
    assert [(t.point, t.origin) for t in trials[1 : len(memory) + 1]] == [(m["point"], m["origin"]) for m in memory]
    assert not any(trial.origin for trial in [trials[0], *trials[len(memory) + 1 :]])
    assert f" from {memory[0]['origin']}  " in trial_line(ledger.trials["t0001"], space)


def test_deaths_change_nothing_even_where_the_related_study_is_gone(tmp_path: Path) -> None:
    related(tmp_path)
    space = starting("older")
    memory = [asdict(one) for one in related_points(space, str(tmp_path))]
    whole = World(space, tmp_path / "whole", memory=memory).session(concurrency=1).ledger
    killed = World(space, tmp_path / "killed", memory=memory)
    rng = random.Random(0)
    for session in range(12):
        try:
            killed.session(concurrency=1, seed=session, die_at=rng.randint(3, 40))
        except Death:
            killed.memory = []  # it is in the journal
    assert not killed.memory, "it never crashed"
    again = killed.session(concurrency=1).ledger
    assert {i: (r.trial.point, r.trial.origin) for i, r in again.trials.items()} == {
        i: (r.trial.point, r.trial.origin) for i, r in whole.trials.items()
    }


def test_what_cannot_be_remembered_is_refused_in_one_line(tmp_path: Path) -> None:
    related(tmp_path)
    World(make_space(), tmp_path, study="nothing", fault=lambda trial, k: "nan").session()  # noqa: ARG005
    other = {"params": {"temperature": {"float": [0.01, 0.1]}}}
    cases = [
        (starting("missing"), "search.start: no study 'missing' in"),
        (starting("nothing"), "search.start: study nothing has no completed point"),
        (starting("older", **other), "older searched learning_rate, batch_size, of which this space searches nothing"),
        (starting("paper", method="consert", preset="consert"), "method consert has no setting for another encoder"),
    ]
    for space, message in cases:
        with pytest.raises(UserError, match=message) as raised:
            related_points(space, str(tmp_path))
        assert "\n" not in str(raised.value)


def test_a_grid_has_no_memory() -> None:
    with pytest.raises(SpaceError, match=r"search\.start: a grid runs its own points only"):
        make_space({"sampler": "grid", "trials": None, "start": ["older"]}, params={"batch_size": {"grid": [16, 32]}})
    with pytest.raises(SpaceError, match=r"search\.start: expected a list of names, got 'older'"):
        make_space({"start": "older"})


def test_an_unknown_study_on_the_command_line_starts_nothing(tmp_path: Path) -> None:
    arguments = ["run", "quickstart", "--from", "older", "--storage", str(tmp_path / "runs"), "--quiet"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "search.start: no study" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_space_without_memory_resolves_as_before() -> None:
    assert "start" not in make_space().resolved()["search"]
    space = starting("paper", "older")
    assert load_space(json.loads(json.dumps(space.resolved()))).search.start == ("paper", "older")


def test_points_of_different_branches_differ() -> None:
    assert differ(starting("a"), {"learning_rate": 1e-5}, {"learning_rate": 1e-5, "dropout": 0.1})


@pytest.mark.parametrize(("mode", "order"), [("max", [1, 2, 0]), ("min", [0, 2, 1])])
def test_points_are_ordered_by_mean_and_named_by_first_seed(mode: str, order: list[int], tmp_path: Path) -> None:
    """Three points 0.2 of a range apart with two seeds each; a single seed would order them otherwise."""
    rates = [1e-5, 1e-5 * 10**0.2, 1e-5 * 10**0.4]
    world = World(
        make_space(
            {"sampler": "grid", "trials": None, "repeats": 2, "baseline": "none"},
            params={"learning_rate": {"grid": rates}, "batch_size": 32},
            metric={"name": "stsb_dev", "mode": mode},
        ),
        tmp_path,
        study="older",
    )
    world.folder.local.mkdir(parents=True)
    journal = Journal(world.folder.journal, Ledger())
    journal.append("space", 0, space=world.space.resolved())
    journal.append("session", 0)
    values = [[0.50, 0.52], [0.56, 0.60], [0.57, 0.55]]
    for number, ours in enumerate(values):
        for repeat, value in enumerate(ours):
            point = {"learning_rate": rates[number]}
            trial = make_trial(
                world.space, point, number=number, repeat=repeat, seed=repeat, stage="search", baseline=""
            )
            journal.append("start", 0, **vars(trial))
            journal.append("end", 0, id=trial.id, stop="completed", best=value, best_at=1, examples=1, seconds=1.0,
                           reason="")  # fmt: skip
    journal.close()
    params = {"learning_rate": {"float": [1e-5, 1e-4], "log": True}, "batch_size": 32}
    space = make_space({"start": ["older"], "baseline": "none"}, params=params)
    found = related_points(space, str(tmp_path))
    assert [one.origin for one in found] == [f"older t{number:04d}" for number in order]


def test_points_differ_by_more_than_a_tenth_of_a_range() -> None:
    space = make_space(params={"dropout": {"float": [0.2, 0.7]}, "learning_rate": {"float": [1e-5, 1e-3], "log": True}})

    def apart(dropout: float, rate: float) -> bool:
        there = {"dropout": 0.5 + dropout, "learning_rate": 1e-4 * rate}
        here = {"dropout": 0.5, "learning_rate": 1e-4}
        assert differ(space, here, there) is differ(space, there, here)
        return differ(space, here, there)

    assert not apart(0.049, 100**0.099)  # tenths: 0.05, and the tenth root of a hundred
    assert apart(0.051, 1)
    assert apart(0, 100**0.101)
    assert apart(0, 100**-0.101)
    whole = make_space(params={"epochs": {"int": [1, 11]}})
    assert not differ(whole, {"epochs": 4}, {"epochs": 5})  # just a tenth
    assert differ(whole, {"epochs": 4}, {"epochs": 6})
