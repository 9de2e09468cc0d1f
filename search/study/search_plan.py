"""The study: one Optuna study that proposes points and stops trials. No Ray here.

An Optuna trial is a point; its runs differ in seed. Order of writing: journal first, Optuna second, so that `Study`
can bring an Optuna study up to date from the ledger after a death at any moment.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import optuna
from optuna.trial import TrialState

from search.journal import Ledger, Run, RunState
from search.layout import StudyFolder
from search.optuna_log import open_storage
from search.pruners import earliest, first_rung, make_pruner, warmup_examples
from search.samplers import LESSON, Lessons, Point, PointSampler, distribution, key, value_of
from search.space import Space, paper_point
from trainables.spec import Evaluation

SEED_SD = 0.005  # prior of a metric's standard deviation over seeds, Spearman (half a point: D08)
HOPELESS_Z = 1.64  # one-sided 5 %
LESSONS = ("oom", "nan", "collapse")  # failures that are the point's own fault: the sampler is to avoid its like
BLIND = ("grid", "random", "qmc")  # samplers that learn nothing from what has ended
BY_ENDED = ("median", "percentile", "wilcoxon")  # pruners that compare with points that have ended
ENDLESS = 2**31  # points of a space without an end
PRUNER_RESOURCES = "pruner_resources"  # user attribute of the Optuna study: [first, longest] examples


class Plan(Protocol):
    """What runs next, when a run is stopped early, and what an ended run means."""

    def next(self) -> Run | None:
        """A new run, or None when there is none now."""

    def exhausted(self) -> bool:
        """Whether no new run can come, whatever the running ones do."""

    def evaluated(self, run: Run, evaluation: Evaluation) -> bool:
        """Take note of an evaluation; True = stop the run."""

    def ended(self, state: RunState) -> None:
        """Take note of an ended run."""


def make_run(
    space: Space, point: Mapping[str, Any], *, number: int, repeat: int, seed: int, stage: str, baseline: str
) -> Run:
    """A run with its names; `point_id` is a hash of all hyperparameters, so that studies can be compared."""
    params = space.values(point)
    identity = key({"method": space.method, "encoder": space.encoder, **params})
    base = f"{'t' if stage == 'search' else 'c'}{number:04d}"
    return Run(
        id=base if stage == "search" and repeat == 0 else f"{base}.{repeat}",
        number=number,
        repeat=repeat,
        seed=seed,
        stage=stage,
        point=dict(point),
        params=params,
        point_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        baseline=baseline,
    )


class SearchPlan:
    """Points of the Optuna study, one or more seeds each (a `Plan`).

    Args:
        folder: where `optuna.log` lies; its lock file, if any, is stale, since the caller holds the study's own lock.
        ledger: the folded journal; Optuna is brought up to date from it.
        note: writes a settled point into the journal (the fields of its `point` event).
    """

    def __init__(self, space: Space, folder: StudyFolder, ledger: Ledger, note: Callable[..., object]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.ledger, self._note = space, ledger, note
        self._paper = paper_point(space) if space.search.baseline == "paper" else None
        self.maximise = space.metric.mode == "max"
        self._seen: set[str] = set()
        self._sampler = PointSampler(space, self._seen)
        self.study = optuna.create_study(
            storage=open_storage(folder),
            study_name=folder.study,
            direction="maximize" if self.maximise else "minimize",
            sampler=self._sampler,
            pruner=optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        self._sampler.view = Lessons(folder.study, self.study._storage, sampler=self._sampler)
        self._trials: dict[int, optuna.Trial] = {}  # of the points that are not settled
        self._points: dict[int, Point] = {}
        self._queue: deque[Run] = deque()  # points proposed but not started before a death
        self._limit = self._most_points()
        self._asked = 0
        self._pruner_ready = False
        self._reconcile()

    def next(self) -> Run | None:
        if self._queue:
            return self._queue.popleft()
        if not self._points_first() and (run := self._further(ahead=False)):
            return run
        if self._asked >= self._limit:
            return self._further(ahead=True)
        trial = self.study.ask()
        self._asked += 1
        return self._propose(trial)

    def exhausted(self) -> bool:
        return self._asked >= self._limit and not self._trials

    def evaluated(self, run: Run, evaluation: Evaluation) -> bool:
        kind = self.space.pruner.kind
        if run.repeat or kind == "wilcoxon":
            return False  # the point's first seed shows its curve; wilcoxon compares seeds
        trial = self._trials[run.number]
        if self._record(trial, evaluation.rung, evaluation.value) and kind != "none":
            warmup = warmup_examples(self.space.pruner, run.params, evaluation.planned)
            self._ready_pruner(run.params, evaluation, warmup)
            whole = evaluation.planned and evaluation.examples >= evaluation.planned
            if evaluation.examples >= earliest(self.space.pruner, warmup, evaluation.planned) and not whole:
                return bool(trial.should_prune())
        return False

    def ended(self, state: RunState) -> None:
        if self._decide(state.run.number):
            self._settle(state.run.number)

    def _propose(self, trial: optuna.Trial) -> Run:
        """Complete the point of an asked trial (the whole of it, or what a death left open)."""
        point: Point = {}
        for name, param in self.space.params.items():
            if self.space.active(name, point):
                point[name] = value_of(param, _suggest(trial, name, distribution(param)))
        self._seen.add(key(point))
        self._trials[trial.number], self._points[trial.number] = trial, point
        return self._run(trial.number, 0)

    def _run(self, number: int, repeat: int) -> Run:
        search = self.space.search
        point = self._points[number]
        baseline = "paper" if point == self._paper else ""
        return make_run(
            self.space,
            point,
            number=number,
            repeat=repeat,
            seed=search.seed + repeat,
            stage="search",
            baseline=baseline,
        )

    def _points_first(self) -> bool:
        """Whether every point has a first seed before any has a second, so that seeds go to the best of all points.

        Not where sampler, pruner or patience go by points that have ended, or where new points never end.
        """
        search = self.space.search
        blind = search.sampler in BLIND and self.space.pruner.kind not in BY_ENDED and search.patience is None
        return blind and self._limit < ENDLESS

    def _further(self, ahead: bool) -> Run | None:
        """The next seed of the most promising point that is to have one; ahead: while its earlier ones run, too.

        Points that have become hopeless are settled.
        """
        sign = 1.0 if self.maximise else -1.0
        found: list[tuple[float, int]] = []
        for number in self._trials:
            runs = self.ledger.by_point.get(("search", number), [])
            if self._may_go_on(runs, ahead):
                values = seed_values(runs)
                found.append((-sign * statistics.fmean(values) if values else math.inf, number))
        for _, number in sorted(found):
            runs = self.ledger.by_point["search", number]
            if self.space.pruner.kind == "wilcoxon" or not self._hopeless(number):
                return self._run(number, len(runs))
            if not any(state.open for state in runs):
                self._settle(number)
        return None

    def _may_go_on(self, runs: list[RunState], ahead: bool) -> bool:
        """Whether a point that has had these seeds can have a further one now."""
        kind = self.space.pruner.kind
        sound = all(state.open or state.state == "completed" for state in runs)
        if not runs or not sound or len(runs) >= self.space.search.repeats:
            return False
        if not any(state.open for state in runs):
            return True
        judged = kind == "none" or runs[0].state == "completed"  # a pruner may still stop the first seed
        return ahead and judged and kind != "wilcoxon"  # which decides after every seed

    def _decide(self, number: int) -> bool:
        """After a seed of a point has ended: whether the point is to be settled, or has further seeds to come."""
        runs = self.ledger.by_point[("search", number)]
        if any(state.open for state in runs):
            return False  # started ahead: the last one to end decides
        if any(state.state != "completed" for state in runs):
            return True
        assert runs[-1].best is not None
        if self.space.pruner.kind == "wilcoxon":
            trial = self._trials[number]
            self._record(trial, runs[-1].run.repeat, runs[-1].best)
            self._ready_pruner({}, None, 0)
            if trial.should_prune():
                return True
        return len(runs) >= self.space.search.repeats

    def _settle(self, number: int) -> None:
        """Write down how a point ended, in the journal, then in Optuna.

        Completed: the mean of its seeds. Pruned: PRUNED at its last value. Failed: FAIL, whatever other seeds gave.
        """
        runs = self.ledger.by_point[("search", number)]
        last, seeds = next((state for state in runs if state.state != "completed"), runs[-1]), len(runs)
        values = seed_values(runs)
        value = statistics.fmean(values) if values else last.best
        early = last.state == "pruned" or (self.space.pruner.kind == "wilcoxon" and seeds < self.space.search.repeats)
        state = "fail" if last.failed else "pruned" if early else "complete"
        if number not in self.ledger.points:
            self._note(number=number, state=state, value=value, seeds=seeds)
        trial = self._trials.pop(number)
        self._points.pop(number)
        trial.set_user_attr("stop", last.state)
        trial.set_user_attr("seeds", seeds)
        if value is not None:
            trial.set_user_attr("best", value)
        if last.failed:
            if (kind := last.state.removeprefix("failed:")) in LESSONS:
                trial.set_user_attr(LESSON, kind)
            trial.set_user_attr("reason", last.reason)
        told = {"fail": TrialState.FAIL, "pruned": TrialState.PRUNED, "complete": TrialState.COMPLETE}[state]
        self.study.tell(trial, value if state == "complete" else None, state=told)

    def _hopeless(self, number: int) -> bool:
        """Whether more seeds of a point are not worth their cost: its mean lies below the best point's by more than
        seeds explain, `HOPELESS_Z` standard errors of the difference, with the seeds' standard deviation pooled over
        all points that have several, else the prior `SEED_SD`.
        """
        rivals = [
            event for event in self.ledger.points.values() if event["state"] == "complete" and event["number"] != number
        ]
        values = seed_values(self.ledger.by_point["search", number])
        if not rivals or not values:
            return False
        sign = 1.0 if self.maximise else -1.0
        best = max(rivals, key=lambda event: sign * event["value"])
        gap: float = sign * (best["value"] - statistics.fmean(values))
        error: float = self._seed_sd() * math.sqrt(1 / len(values) + 1 / best["seeds"])
        return gap > HOPELESS_Z * error

    def _seed_sd(self) -> float:
        squares, freedom = 0.0, 0
        for (stage, _), runs in self.ledger.by_point.items():
            values = seed_values(runs)
            if stage == "search" and len(values) > 1:
                squares += statistics.variance(values) * (len(values) - 1)
                freedom += len(values) - 1
        return math.sqrt(squares / freedom) if freedom >= 4 and squares > 0 else SEED_SD

    def _record(self, trial: optuna.Trial, step: int, value: float) -> bool:
        """Report an intermediate value; False when it is known already (a resumed trial repeats itself)."""
        if step in self.study._storage.get_trial(trial._trial_id).intermediate_values:
            return False
        trial.report(value, step)
        return True

    def _ready_pruner(self, params: Mapping[str, Any], evaluation: Evaluation | None, warmup: int) -> None:
        """The pruner is made at the first evaluation, which knows how long a trial is; later lives use the same."""
        if self._pruner_ready:
            return
        first, longest = self.study.user_attrs.get(PRUNER_RESOURCES) or (1, 1)
        if PRUNER_RESOURCES not in self.study.user_attrs and evaluation is not None:
            steps = params.get("eval_steps")
            rung = steps * params["batch_size"] if steps else params.get("eval_examples", evaluation.rung)
            first = first_rung(self.space.pruner, warmup, evaluation.planned, rung)
            longest = evaluation.planned or first
            self.study.set_user_attr(PRUNER_RESOURCES, [first, longest])
        self.study.pruner = make_pruner(self.space.pruner, maximise=self.maximise, first=first, longest=longest)
        self._pruner_ready = True

    def _most_points(self) -> int:
        count = self.space.cardinality()
        return min(n for n in (count, self.space.search.trials, ENDLESS) if n is not None)

    def _reconcile(self) -> None:
        """Bring Optuna up to date with the journal: settle what has ended, take up what has not."""
        for frozen in self.study.get_trials(deepcopy=False):
            self._asked += 1
            number = frozen.number
            runs = self.ledger.by_point.get(("search", number), [])
            if runs:
                self._seen.add(key(runs[0].run.point))
            if frozen.state != TrialState.RUNNING:
                continue
            trial = optuna.Trial(self.study, frozen._trial_id)
            if not runs:
                self._queue.append(self._propose(trial))
                continue
            self._trials[number], self._points[number] = trial, dict(runs[0].run.point)
            if number in self.ledger.points or self._decide(number):
                self._settle(number)


def seed_values(runs: Iterable[RunState]) -> list[float]:
    """The values of a point's completed seeds."""
    return [state.best for state in runs if state.state == "completed" and state.best is not None]


def _suggest(trial: optuna.Trial, name: str, wanted: optuna.distributions.BaseDistribution) -> Any:
    match wanted:
        case optuna.distributions.CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
        case optuna.distributions.IntDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case optuna.distributions.FloatDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_float(name, low, high, step=step, log=log)
    raise AssertionError(wanted)
