"""Searches in simulated time: workers train trials whose curves a surrogate gives. Our side is the real driver."""

from __future__ import annotations

import heapq
import tempfile
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.curves.surrogate import Floats, Surrogate
from search.space import space_from
from search.store.journal import Journal
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial
from search.study.confirm_plan import ConfirmPlan
from search.study.driver import Driver
from search.study.related import related_points
from search.study.samplers import Point
from search.study.search_plan import SearchPlan
from trainables.contract.trial import Evaluation, Outcome

SEED_OF_TRIALS = 1000  # first trials have this plus the search's seed, in every library: the same seed noise
Judged = Literal["go", "stop", "wait"]  # stop for good, or save the state and wait to be taken up


@dataclass
class Job:
    """A trial on a worker."""

    id: str
    point: Point
    curve: Floats
    done: int = 0  # evaluations


class Searcher(Protocol):
    """One study of any library, as the simulated workers see it."""

    def next(self) -> tuple[str, Point, int] | None:
        """(trial, point, seed) to train from the start or from where it waits; None: nothing now."""

    def evaluated(self, job: Job, value: float) -> Judged:
        """An evaluation, the `job.done`-th of its trial, which is not its last."""

    def ended(self, job: Job) -> None:
        """The trial has trained to its end."""


@dataclass
class Played:
    """What a simulated search came to. spent: full-length trials; answers: (spent, point that it would return then)."""

    spent: float = 0.0
    trials: int = 0
    answers: list[tuple[float, Point]] = field(default_factory=list)

    def at(self, spent: float) -> Point:
        """The point that it would have returned at this much training."""
        return next((p for at, p in reversed(self.answers) if at <= spent), self.answers[0][1])


def play(surrogate: Surrogate, make: Callable[[], Searcher], workers: int, budget: float) -> Played:
    """Run a search until `budget` full-length trials are trained.

    What a search would return is the completed point that `analysis best` names: the best mean over seeds among those
    that have at least half as many as the best covered one. While none is complete it is that of the best evaluation.
    The same for every library.
    """
    played, searcher, count = Played(), make(), surrogate.table.evaluations
    jobs: dict[str, Job] = {}
    queue: list[tuple[float, int, Job]] = []
    completed: dict[str, list[Job]] = {}  # the seeds of a point
    now, order, evaluations, best = 0.0, 0, 0, float("-inf")
    while played.spent < budget:
        while len(queue) < workers and (found := searcher.next()) is not None:
            name, point, seed = found
            if name not in jobs:
                jobs[name] = Job(name, point, surrogate.curve(point, seed))
                played.trials += 1
            order += 1
            heapq.heappush(queue, (now + 1 / count, order, jobs[name]))
        if not queue:
            break
        now, _, job = heapq.heappop(queue)
        job.done += 1
        evaluations += 1
        played.spent = evaluations / count  # no sum of fractions: that would be an evaluation late
        whole = job.done == count
        if whole:
            completed.setdefault(job.id.split(".")[0], []).append(job)
            played.answers.append((played.spent, _named(completed.values())))
            searcher.ended(job)
            continue
        if not completed and (value := float(job.curve[: job.done].max())) > best:
            best = value
            played.answers.append((played.spent, job.point))
        if searcher.evaluated(job, float(job.curve[job.done - 1])) == "go":
            order += 1
            heapq.heappush(queue, (now + 1 / count, order, job))
    return played


def _named(points: Collection[list[Job]]) -> Point:
    """The point that is returned, of those with a completed trial; of equals the first."""
    least = max(map(len, points)) / 2
    covered = [seeds for seeds in points if len(seeds) >= least]
    return max(covered, key=lambda seeds: sum(float(job.curve.max()) for job in seeds) / len(seeds))[0].point


class Ours:
    """This project's search: the journal, the driver and the plan that `search run` has, without Ray.

    Args: budget: full-length trials (`search.budget`); study: its name, in `root`; `search.start` names studies there.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        settings: dict[str, Any],
        seed: int,
        workers: int,
        root: Path,
        budget: float,
        study: str = "",
    ) -> None:
        plain = surrogate.space.resolved()
        plain["search"] |= {"trials": None, "budget": budget, "baseline": "none", "patience": None, "seed": seed}
        for section, values in settings.items():
            plain[section] |= values
        space, self._table = space_from(plain), surrogate.table
        folder = StudyFolder(str(root), study) if study else StudyFolder(tempfile.mkdtemp(dir=root), "study")
        folder.local.mkdir(parents=True)
        folder.space.write_text(space.to_yaml(), encoding="utf-8")
        journal = Journal(folder.journal, Ledger())
        self._clock = 0
        journal.append("space", 0, space=space.resolved())
        if memory := related_points(space, str(root)):
            journal.append("memory", 0, points=[asdict(one) for one in memory])
        journal.append("session", 0, stage="search")

        def note(kind: str, **fields: Any) -> None:
            journal.append(kind, self._tick(), **fields)

        plan = SearchPlan(space, folder.study, journal.ledger, [], note)
        self.journal, self._folder, self._space = journal, folder, space
        self._driver = Driver(
            space, folder, journal, plan, stage="search", capacity=lambda: workers, observe=lambda event: None,  # noqa: ARG005
            clock=lambda: self._tick() / 1000,
        )  # fmt: skip
        self._trials: dict[str, Trial] = {}

    def next(self) -> tuple[str, Point, int] | None:
        trial = self._driver.next_trial()
        if trial is None:
            return None
        self._trials[trial.id] = trial
        return trial.id, dict(trial.point), SEED_OF_TRIALS + trial.seed

    def evaluated(self, job: Job, value: float) -> Judged:
        decision = self._driver.on_evaluation(job.id, self._evaluation(job, value))
        if decision == "go":
            return "go"
        self._driver.on_trial_stop(job.id)
        return "stop" if decision == "prune" else "wait"

    def ended(self, job: Job) -> None:
        self._driver.on_evaluation(job.id, self._evaluation(job, float(job.curve[-1])))
        best, at = float(job.curve.max()), (int(job.curve.argmax()) + 1) * self._table.rung
        self._driver.on_trial_end(job.id, Outcome("completed", best, at, job.done * self._table.rung, float(job.done)))

    def confirmed(self, train: Callable[[Point, int], float], workers: int, trials: int, name: str) -> Ledger:
        """What the study's ledger becomes by `search confirm --trials`, in a copy: the search stays as it is.

        Args: train: point and seed to a trial's value; name: of the copy.
        """
        folder = StudyFolder(str(self._folder.local.parent), f"{self._folder.study}-{name}")
        folder.local.mkdir(parents=True)
        folder.journal.write_bytes(self._folder.journal.read_bytes())
        journal, running = Journal(folder.journal, Ledger()), deque[Trial]()
        journal.append("session", self._tick(), stage="confirm", trials=trials)
        plan = ConfirmPlan(self._space, journal.ledger, trials=trials)
        driver = Driver(
            self._space, folder, journal, plan, stage="confirm", capacity=lambda: workers, budgets=False,
            observe=lambda event: None, clock=lambda: self._tick() / 1000,  # noqa: ARG005
        )  # fmt: skip
        while True:
            while len(running) < workers and (trial := driver.next_trial()) is not None:
                running.append(trial)
            if not running:
                break
            ended, rung = running.popleft(), self._table.rung
            value = train(dict(ended.point), SEED_OF_TRIALS + ended.seed)
            driver.on_trial_end(ended.id, Outcome("completed", value, rung, self._table.evaluations * rung, 1.0))
        journal.close()
        return journal.ledger

    def close(self) -> None:
        """The search ends: what waits at its rung stays there or is pruned."""
        self._driver.close_session()
        self.journal.close()

    def _evaluation(self, job: Job, value: float) -> Evaluation:
        rung, best = self._table.rung, job.curve[: job.done]
        return Evaluation(
            rung=job.done * rung, examples=job.done * rung, value=value, metrics={}, best=float(best.max()),
            best_at=(int(best.argmax()) + 1) * rung, seconds=float(job.done), planned=self._table.evaluations * rung,
        )  # fmt: skip

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
