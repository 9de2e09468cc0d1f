"""Decisions on evaluations, example by example: which trials are judged when, and by which pruner."""

from __future__ import annotations

from typing import Any

import pytest
from harness import make_space

from search.store.ledger import Ledger, Trial
from search.study.search_plan import SearchPlan
from trainables.contract.trial import Evaluation


class Study:
    """A plan, its ledger and what it wrote down."""

    def __init__(self, pruner: dict[str, Any], **changes: Any) -> None:
        self.ledger, self.notes = Ledger(), list[tuple[str, Any]]()
        self.plan = SearchPlan(
            make_space({"repeats": 2}, pruner=pruner, **changes), "fake-1", self.ledger, [], self.note
        )

    def note(self, kind: str, **fields: Any) -> None:
        self.notes.append((kind, fields))
        self.ledger.apply({"e": kind, "t": 0, **fields})

    def started(self) -> Trial:
        trial = self.plan.next()
        assert trial is not None
        self.ledger.apply({"e": "start", "t": 0, **vars(trial)})
        return trial

    def says(self, trial: Trial, examples: int, value: float, planned: int = 600) -> str:
        return self.plan.on_evaluation(
            trial,
            Evaluation(
                rung=examples, examples=examples, value=value, metrics={}, best=value, best_at=examples, seconds=1.0,
                planned=planned,
            ),
        )  # fmt: skip


def test_pruner_judges_from_the_first_rung_but_not_the_end() -> None:
    study = Study({"kind": "threshold", "lower": 0.5, "min_rung": 200, "warmup": 0})
    baseline, trial, other = study.started(), study.started(), study.started()
    assert [study.says(trial, examples, 0.4) for examples in (100, 199, 200, 300)] == ["go", "go", "prune", "prune"]
    assert study.says(trial, 300, 0.4) == "go"  # it was judged there in an earlier session
    assert [study.says(other, examples, value) for examples, value in ((200, 0.6), (599, 0.4), (600, 0.4))] == [
        "go", "prune", "go",
    ]  # fmt: skip
    assert study.says(baseline, 200, 0.4) == "go"


@pytest.mark.parametrize(
    ("train", "planned", "resources"),
    [({"eval_examples": 100}, 600, (200, 600)), ({"eval_steps": 5}, 600, (320, 600)),
     ({"eval_examples": 100}, 0, (200, 200))],
)  # fmt: skip
def test_the_pruner_is_made_once_at_the_first_evaluation(
    train: dict[str, Any], planned: int, resources: tuple[int, int]
) -> None:
    params = {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": 32}
    study = Study({"kind": "hyperband", "min_rung": 200, "warmup": 0}, train=train, params=params)
    trial = study.started()
    assert study.plan.rungs is None
    study.says(trial, 50, 0.4, planned)
    made: Any = study.plan.study.pruner
    assert study.plan.rungs == resources == (made._min_resource, made._max_resource)
    study.says(trial, 100, 0.4, planned)
    assert study.plan.study.pruner is made


def test_rung_is_recorded_once_and_only_the_best_go_on() -> None:
    study = Study({"kind": "asha", "min_rung": 100, "reduction": 2, "warmup": 0})
    baseline, first, second = study.started(), study.started(), study.started()
    assert [study.says(baseline, examples, 0.4) for examples in (99, 100, 150)] == ["go", "go", "go"]
    assert study.says(first, 100, 0.3) == "pause"
    assert study.says(first, 100, 0.3) == "pause"  # after a crash again, noted once
    assert study.says(second, 100, 0.6) == "go"
    assert study.says(second, 200, 0.7) == "pause"  # alone on its rung
    assert study.says(second, 600, 0.7) == "go"  # to its end
    rungs = [(fields["id"], fields["level"], fields["go"]) for kind, fields in study.notes if kind == "rung"]
    assert rungs == [("t0000", 0, True), ("t0001", 0, False), ("t0002", 0, True), ("t0002", 1, False)]
