"""A list of numbers has an order, and samplers learn from it; Optuna's categories have none."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from harness import make_space
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from search.space import Space
from search.space.params import Param
from search.study.sampler_view import by_position, distribution, sampled_value, sampler_distribution
from search.study.samplers import PointSampler

SIZES = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]


def choice(*values: Any) -> Param:
    return Param(name="batch_size", kind="choice", values=values)


@pytest.mark.parametrize(
    "values", [(16, 32), ("cls", "avg", "avg_first_last"), (0, 1, True), (0.1, 0.2, "none"), ([1], [2], [3])]
)
def test_only_lists_of_numbers_have_an_order(values: tuple[Any, ...]) -> None:
    param = choice(*values)
    assert param.rising() is None
    assert sampler_distribution(param) == distribution(param)


def test_a_list_of_numbers_is_sampled_by_position() -> None:
    param = choice(64, 16, 0.5)  # in whatever order it is written
    assert sampler_distribution(param) == IntDistribution(0, 2)
    assert [sampled_value(param, place) for place in range(3)] == [0.5, 16, 64]
    assert Param(name="batch_size", kind="int", low=1, high=9).rising() is None


def test_the_sampler_view_leaves_the_study_unchanged() -> None:
    params = {"batch_size": choice(64, 16, 32), "pooling": Param(name="pooling", kind="choice", values=("cls", "avg"))}
    stored = create_trial(
        value=0.5,
        params={"batch_size": 64, "pooling": "avg"},
        distributions={name: distribution(param) for name, param in params.items()},
    )
    conditional = create_trial(
        value=0.5, params={"pooling": "cls"}, distributions={"pooling": distribution(params["pooling"])}
    )
    failed = create_trial(state=TrialState.FAIL)
    shown = by_position([stored, conditional, failed], params)
    assert [trial.params for trial in shown] == [{"batch_size": 2, "pooling": "avg"}, {"pooling": "cls"}, {}]
    assert shown[0].distributions == {"batch_size": IntDistribution(0, 2), "pooling": distribution(params["pooling"])}
    assert shown[0].value == 0.5
    assert stored.params["batch_size"] == 64
    assert by_position([stored], {"pooling": params["pooling"]}) == [stored]


def list_space(sampler: str, seed: int) -> Space:
    return make_space(
        {"sampler": sampler, "trials": 40, "seed": seed, "baseline": "none"},
        params={"batch_size": {"choice": SIZES}, "dropout": {"float": [0.0, 0.3]}},
    )


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_sizes_beyond_the_best_are_tried_first(sampler: str) -> None:
    """Only the middle half of the sizes has been tried, and the larger, the better."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    above = below = 0
    for seed in range(12):
        space, storage = list_space(sampler, seed), optuna.storages.InMemoryStorage()
        study = optuna.create_study(
            storage=storage, direction="maximize", sampler=PointSampler(space, set(), storage, lambda _: None)
        )
        wanted = {name: distribution(param) for name, param in space.params.items()}
        for i in range(24):
            point = {"batch_size": SIZES[3 + i % 6], "dropout": 0.3 * (i * 0.618 % 1)}
            study.add_trial(create_trial(value=i % 6 / 10, params=point, distributions=wanted))
        place = SIZES.index(study.ask(wanted).params["batch_size"])
        above, below = above + (place > 8), below + (place < 3)
    assert above >= 6
    assert above > 2 * below
