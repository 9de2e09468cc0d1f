"""A list of numbers has an order, and samplers learn from it; Optuna's categories have none."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from search.space.params import Param
from search.study.sampler_view import by_position, distribution, sampled_value, sampler_distribution


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
