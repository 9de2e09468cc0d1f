"""Sessions of a study without Ray: trials by formula, advanced in random order, with a crash at any write."""

from __future__ import annotations

import base64
import json
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from search.space import Space, space_from
from search.store.journal import Journal, read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial
from search.study.confirm_plan import ConfirmPlan, confirming_trial
from search.study.driver import Driver
from search.study.plan import make_trial
from search.study.search_plan import SearchPlan
from trainables.contract.trial import Evaluation, Outcome

RUNG, EVALUATIONS = 100, 6


class Death(BaseException):
    """The driver's process is gone: nothing after this write happens."""


def make_space(search: dict[str, Any] | None = None, **changes: Any) -> Space:
    """A small SimCSE space: learning rate (log) by batch size."""
    plain: dict[str, Any] = {
        "name": "fake",
        "method": "simcse",
        "encoder": "builtin:tiny",
        "data": {"train": "builtin", "dev": ["stsb"], "language": "en"},
        "metric": {"name": "stsb_dev", "mode": "max"},
        "params": {
            "learning_rate": {"float": [1e-6, 1e-3], "log": True},
            "batch_size": {"choice": [16, 32, 64]},
        },
        "search": {"sampler": "random", "trials": 12, "seed": 3, **(search or {})},
        "train": {"eval_examples": RUNG},
    }
    return space_from(plain | changes)


def asha_space(**search: Any) -> Space:
    return make_space({"trials": 27, "baseline": "none", **search}, pruner={"kind": "asha", "reduction": 3})


def curve(trial: Trial, k: int) -> float:
    """Value of evaluation k = 1..EVALUATIONS: best at a learning rate of 3e-5; noise from point and seed."""
    rate = trial.params["learning_rate"]
    quality = 1.0 / (1.0 + (math.log(rate / 3e-5) / 2) ** 2)
    noise = np.random.default_rng([trial.seed, int(rate * 1e9), trial.params["batch_size"]]).normal(
        0, 0.003, EVALUATIONS
    )
    return float(0.3 + 0.5 * quality * (1 - math.exp(-k / 2)) + noise[k - 1])


def no_fault(trial: Trial, k: int) -> str | None:  # noqa: ARG001  # the signature of a fault
    return None


@dataclass
class World:
    """What outlives a driver: the folder and every trial's `last/`. Counts the evaluations that were really run."""

    space: Space
    root: Path
    study: str = "fake-1"
    value: Callable[[Trial, int], float] = curve
    fault: Callable[[Trial, int], str | None] = no_fault
    last: dict[str, int] = field(default_factory=dict)
    evaluations: int = 0
    now: float = 1_000_000.0
    memory: list[dict[str, Any]] = field(default_factory=list)  # what is tried first, as at a study's creation
    planned: int = EVALUATIONS * RUNG  # what trials say of their length; 0: nothing
    lasts: float = 0.1  # seconds of an evaluation
    ends: Callable[[Trial], int] = lambda trial: EVALUATIONS  # noqa: ARG005  # after so many evaluations, by itself

    @property
    def folder(self) -> StudyFolder:
        return StudyFolder(str(self.root), self.study)

    def session(
        self,
        concurrency: int = 2,
        seed: int = 0,
        die_at: int | None = None,
        confirm: tuple[int, int] | int | None = None,
        interrupt_at: int | None = None,
    ) -> Driver:
        """One session, to its end or to a crash at journal write number `die_at`."""
        folder = self.folder
        folder.local.mkdir(parents=True, exist_ok=True)
        if not folder.space.exists():
            folder.space.write_text(self.space.to_yaml(), encoding="utf-8")
        journal = MortalJournal(folder.journal, Ledger(maximise=self.space.metric.mode == "max"))
        journal.die_at = die_at
        if self.memory and not journal.ledger.memory:
            journal.append("memory", self._tick(), points=self.memory)
        journal.append("session", self._tick(), stage="confirm" if confirm else "search")
        plan: Any
        if isinstance(confirm, int):
            plan = ConfirmPlan(self.space, journal.ledger, trials=confirm)
        elif confirm:
            plan = ConfirmPlan(self.space, journal.ledger, top=confirm[0], seeds=confirm[1])
        else:
            plan = self.plan(journal)
        driver = Driver(
            replace(self.space, resources=self.space.resources.numbers()),  # as a session has them
            folder,
            journal,
            plan,
            stage="confirm" if confirm else "search",
            capacity=lambda: concurrency,
            observe=lambda event: None,  # noqa: ARG005
            budgets=not confirm,
            clock=lambda: self._tick() / 1000,
        )
        self._work(driver, random.Random(seed), interrupt_at, concurrency)
        driver.close_session()
        journal.close()
        return driver

    def plan(self, journal: Journal) -> SearchPlan:
        def note(kind: str, **fields: Any) -> None:
            journal.append(kind, self._tick(), **fields)

        return SearchPlan(self.space, self.study, journal.ledger, read(self.folder.journal), note)

    def _work(self, driver: Driver, rng: random.Random, interrupt_at: int | None, concurrency: int) -> None:
        active: list[Trial] = []
        while True:
            while (trial := driver.next_trial()) is not None:
                active.append(trial)
            if not active:
                assert driver.reason or driver.spent(), (
                    "nothing runs, nothing is started, and the study is not finished"
                )
                return
            trial = rng.choice(active)
            k = self.last.get(trial.id, 0) + 1
            length = self.ends(trial)
            value = self.value(trial, k) if k <= length else 0.0
            values = [self.value(trial, i) for i in range(1, min(k, length) + 1)]
            best = max(values)
            at = (values.index(best) + 1) * RUNG
            if (kind := self.fault(trial, k)) is not None:
                driver.on_trial_end(
                    trial.id, Outcome(f"failed:{kind}", best, at, k * RUNG, self.lasts * k, f"{kind} happened")
                )
                active.remove(trial)
                continue
            if k > length:
                driver.on_trial_end(trial.id, Outcome("completed", best, at, length * RUNG, self.lasts * length))
                active.remove(trial)
                continue
            self.evaluations += 1
            self.now += self.lasts / concurrency  # trials run side by side
            evaluation = Evaluation(
                rung=k * RUNG,
                examples=k * RUNG,
                value=value,
                metrics={"stsb_dev": value, "loss": 1 / k},
                best=best,
                best_at=at,
                seconds=self.lasts * k,
                planned=self.planned,
            )
            decision = driver.on_evaluation(trial.id, evaluation)
            if decision in ("go", "pause"):
                self.last[trial.id] = k
            if decision != "go":
                driver.on_trial_stop(trial.id)
                active.remove(trial)
            if interrupt_at is not None and self.evaluations >= interrupt_at:
                driver.interrupt("SIGINT")

    def _tick(self) -> int:
        self.now += 0.01
        return int(self.now * 1000)


def steps(ledger: Ledger) -> dict[str, tuple[str, int, float | None]]:
    return {name: (r.state, r.examples, r.best) for name, r in ledger.trials.items()}


def optuna_study(world: World) -> optuna.Study:
    """As the next session builds it from the journal."""
    journal = Journal(world.folder.journal, Ledger(maximise=world.space.metric.mode == "max"))
    return world.plan(journal).study


def agree(world: World) -> None:
    """Optuna and the journal say the same of every point."""
    ledger = world.session().ledger  # a session with nothing to do
    trials = optuna_study(world).trials
    assert sorted(t.number for t in trials) == sorted(ledger.points)
    for trial in trials:
        records = ledger.by_point[("search", trial.number)]
        point = ledger.points[trial.number]
        expected = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}
        assert trial.state == expected[point["state"]]
        assert len(records) == point["seeds"]
        if trial.state == TrialState.COMPLETE:
            assert trial.value == pytest.approx(sum(s.best or 0 for s in records) / len(records))
        for step, value in trial.intermediate_values.items():
            assert value == pytest.approx(world.value(records[0].trial, step // RUNG))


class MortalJournal(Journal):
    """Crashes before write number `die_at` is made."""

    die_at: int | None = None
    writes = 0

    def append(self, kind: str, at: int | None = None, **fields: Any) -> dict[str, Any]:
        self.writes += 1
        if self.die_at is not None and self.writes >= self.die_at:
            raise Death
        return super().append(kind, at, **fields)


def unpacked(tag: str) -> dict[str, Any]:
    """The state in a tag that `saved_views` made."""
    packed = json.loads(tag)["state"].removeprefix("deflate;")
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return state


def recorded(space: Any, searched: dict[int, list[float]], fresh: dict[int, list[float | None]]) -> Ledger:
    """A ledger of these values by point, in the search and on fresh seeds (None: it failed); point 0 is the baseline
    where the space has one."""
    ledger = Ledger(maximise=space.metric.mode == "max")
    ledger.apply({"e": "session", "t": 0})
    first = {}
    for stage, values in (("search", searched), ("confirm", fresh)):
        for number, ours in values.items():
            for repeat, value in enumerate(ours):
                point = {"learning_rate": 1e-5 * (number + 1), "batch_size": 32}
                baseline = "paper" if number == 0 and space.search.baseline == "paper" else ""
                trial = make_trial(
                    space, point, number=number, repeat=repeat, seed=3 + repeat, stage="search", baseline=baseline
                )
                first.setdefault(number, trial)
                trial = trial if stage == "search" else confirming_trial(space, first[number], repeat)
                stop = "completed" if value is not None else "failed:nan"
                ledger.apply({"e": "start", "t": 0, **vars(trial)})
                ledger.apply({"e": "end", "t": 0, "id": trial.id, "stop": stop, "best": value, "best_at": 1,
                              "examples": 1, "seconds": 1.0, "reason": ""})  # fmt: skip
    return ledger
