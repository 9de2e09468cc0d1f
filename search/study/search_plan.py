"""The plan of a search: an Optuna study in memory, built from the journal, proposes points and stops trials.

A trial of Optuna's is a point here; our trials are its seeds. No Ray here.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState, create_trial

from search.space import Space, paper_point
from search.space.optuna_class import PRUNER
from search.store.ledger import Event, Ledger, Trial, TrialRecord
from search.study.ahead import Ahead
from search.study.plan import make_trial, seed_values
from search.study.pruners import earliest, first_rung, make_pruner, non_negative, warmup_examples
from search.study.rungs import BudgetEnd, Promotion
from search.study.sampler_view import FAILURE, distribution, label, value_of
from search.study.samplers import Point, PointSampler, first_enqueued, key, named_error, rows
from search.study.seeds import ENDLESS, Seeds
from trainables.contract.trial import Decision, Evaluation

AHEAD_FROM = 32  # slots: below, a point depends on every result before it, so that sessions can be repeated exactly
MODELS = ("tpe", "gp")  # samplers that take their time
OWN_FAULTS = ("oom", "nan", "collapse")  # failures that are the point's own fault: the sampler is to avoid its like


class SearchPlan:
    """Points of the Optuna study, one or more seeds each (a `Plan`).

    Args:
        study: its name, from which Optuna's hyperband assigns points to brackets.
        ledger: the folded journal.
        events: the journal's events, from which the Optuna study is built.
        note: writes an event of the plan's own into the journal: "point" (complete) or "rung", and its fields.
    """

    def __init__(
        self, space: Space, study: str, ledger: Ledger, events: Iterable[Event], note: Callable[..., object]
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.ledger, self._note = space, ledger, note
        self._paper = paper_point(space) if space.search.baseline == "paper" else None
        self.maximise = space.metric.mode == "max"
        self._seen: set[str] = set()
        self._limit = self._most_points()
        self._grid = rows(space) if space.is_grid else None  # the points in the order in which they run
        self._seeds = Seeds(space, ledger, self._limit, self._complete_point)
        self._storage = InMemoryStorage()
        self.study = optuna.create_study(
            storage=self._storage,
            study_name=study,
            direction="maximize" if self.maximise else "minimize",
            sampler=PointSampler(space, self._seen, self._storage, self._seeds.mean, ledger.memory),
            pruner=optuna.pruners.NopPruner(),
        )
        self._open: dict[int, optuna.Trial] = {}  # Optuna's trials of the points that are not complete
        self._reported: dict[int, set[int]] = {}  # their steps whose values Optuna has
        self._points: dict[int, Point] = {}
        self._missing: deque[int] = deque()  # points that a salvaged journal has lost
        self._proposed = 0
        self._ahead: Ahead | None = None  # from the first proposal for many slots on
        self.rungs: tuple[int, int] | None = None  # (first, last) rung that the pruner was made for, in examples
        self._promotion: Promotion | None = None  # of pruner asha, from the first evaluation on
        self._end = BudgetEnd(space, ledger)
        self._replaying = True
        self._replay(events)
        self._replaying = False

    def next(self, slots: int = 1) -> Trial | None:
        if self._promotion and (kept := self._end.reserved()):
            records = [self.ledger.trials[name] for name in kept]
            return next((record.trial for record in records if record.waits), None)
        if self._promotion and (promoted := self._promotion.next()):
            return promoted.trial
        if self._missing:
            asked = self._asked(self._missing.popleft())
            return self._started(asked, self._point_of(asked))
        if (number := self._seeds.due(self._open)) is not None:
            return self._further(number)
        if self._proposed >= self._limit:
            number = self._seeds.last(list(self._open), ahead=True)
            return self._leader() if number is None else self._further(number)
        if self._ahead is None and slots >= AHEAD_FROM and self.space.search.sampler in MODELS and not self._grid:
            self._ahead = Ahead(self.study.ask, self._point_of, self._limit - self._proposed)
        if self._ahead is None:
            asked = self.study.ask()
            point = self._point_of(asked)
        elif (proposal := self._ahead.take(wait=not self._open)) is None:
            return None
        else:
            asked, point = proposal
        self._proposed += 1
        return self._started(asked, point)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def exhausted(self) -> bool:
        if self._proposed < self._limit:
            return False
        if self._promotion and (self._end.reserved() or self._promotion.next() or self._leader()):
            return False
        return all(self._waits(number) for number in self._open)

    def on_evaluation(self, trial: Trial, evaluation: Evaluation) -> Decision:
        kind = self.space.pruner.kind
        if kind == "asha" and trial.repeat:
            return self._at_rung(trial, evaluation)
        if trial.repeat or kind == "wilcoxon":
            return "go"  # the point's first seed shows its curve; wilcoxon compares seeds
        asked = self._open[trial.number]
        known = not self._report(asked, evaluation.rung, evaluation.value)
        if kind == "asha":
            return self._at_rung(trial, evaluation)
        if self._replaying and kind not in ("successive_halving", "hyperband") and PRUNER not in self.space.classes:
            self._ready_pruner(trial.params, evaluation)
            return "go"  # only those two, and perhaps custom classes, store state at each call
        if not known and kind != "none":
            warmup = warmup_examples(self.space.pruner, trial.params, evaluation.planned)
            self._ready_pruner(trial.params, evaluation)
            whole = evaluation.planned and evaluation.examples >= evaluation.planned
            if evaluation.examples >= earliest(self.space.pruner, warmup, evaluation.planned) and not whole:
                with named_error(self.space, PRUNER):  # called for the baseline too: other trials are compared with it
                    stop = bool(asked.should_prune())
                return "prune" if stop and not trial.baseline else "go"
        return "go"

    def _at_rung(self, trial: Trial, evaluation: Evaluation) -> Decision:
        """Pruner asha: write down that a trial has reached a rung, once, and whether it pauses there.

        It also pauses, at the rung that it has passed, when the rest of the budget is reserved for others.
        """
        record = self.ledger.trials[trial.id]
        warmup = warmup_examples(self.space.pruner, trial.params, evaluation.planned)
        self._ready_pruner(trial.params, evaluation)
        assert self._promotion is not None
        if evaluation.planned and evaluation.examples >= evaluation.planned:
            return "go"
        passed, kept = max(record.rungs, default=-1), [] if self._replaying else self._end.reserved(trial.id)
        if kept and trial.id not in kept:
            if record.waiting is None:
                value = record.rungs.get(passed, evaluation.value)
                self._note("rung", id=trial.id, level=passed, value=value, go=False, kept=kept)
            return "pause"
        level = self._promotion.level(evaluation.rung)
        early = evaluation.examples < earliest(self.space.pruner, warmup, evaluation.planned)
        if trial.repeat or early or level < 0:
            return "go"
        if level > passed:
            # its value here, not its best so far, which an earlier evaluation may owe to noise
            go = bool(trial.baseline) or trial.id in kept or self._promotion.goes_on(record, level, evaluation.value)
            self._note("rung", id=trial.id, level=level, value=evaluation.value, go=go)
        return "go" if record.waiting is None else "pause"

    def _leader(self) -> Trial | None:
        """With pruner asha, when no new point will come and nothing runs: the most promising paused trial."""
        if self._promotion is None or not all(self._waits(number) for number in self._open):
            return None
        leader = self._promotion.leader()
        return leader.trial if leader else None

    def _waits(self, number: int) -> bool:
        """Whether a point's trial is paused at its rung."""
        return any(record.waits for record in self.ledger.by_point.get(("search", number), []))

    def on_trial_end(self, record: TrialRecord) -> None:
        if self._decide(record.trial.number):
            self._complete_point(record.trial.number)

    def _point_of(self, asked: optuna.Trial) -> Point:
        """The point of a trial proposed by Optuna: all its parameters, or those still open after a crash."""
        point: Point = {}
        grid = self._grid
        named = self.space.params if grid is None else grid[asked.number]  # a listed row may leave parameters out
        for name, param in self.space.params.items():
            if name in named and self.space.active(name, point):
                point[name] = value_of(param, _suggest(asked, name, distribution(param)))
        self._seen.add(key(point))
        return point

    def _started(self, asked: optuna.Trial, point: Point) -> Trial:
        self._open[asked.number], self._points[asked.number] = asked, point
        return self._trial(asked.number, 0)

    def _trial(self, number: int, repeat: int) -> Trial:
        search = self.space.search
        point = self._points[number]
        baseline = "paper" if point == self._paper else ""
        return make_trial(
            self.space,
            point,
            number=number,
            repeat=repeat,
            seed=search.seed + repeat,
            stage="search",
            baseline=baseline,
            origin=self._origin(number),
        )

    def _origin(self, number: int) -> str:
        """Where a point of `search.start` comes from; "" for one that the sampler proposed."""
        place = number - first_enqueued(self.space)
        return str(self.ledger.memory[place]["origin"]) if 0 <= place < len(self.ledger.memory) else ""

    def _further(self, number: int) -> Trial:
        return self._trial(number, len(self.ledger.by_point["search", number]))

    def _decide(self, number: int) -> bool:
        """After a seed of a point has ended: whether the point is complete, or has further seeds to come."""
        records = self.ledger.by_point[("search", number)]
        if any(record.open for record in records):
            return False  # started ahead: the last one to end decides
        if any(record.state != "completed" for record in records):
            return True
        last = records[-1]
        assert last.best is not None
        if self.space.pruner.kind == "wilcoxon":
            asked = self._open[number]
            self._report(asked, last.trial.repeat, last.best)
            self._ready_pruner({}, None)
            if asked.should_prune() and not last.trial.baseline:
                return True
        return len(records) >= self.space.search.repeats

    def _complete_point(self, number: int) -> None:
        """Write down how a point ended, in the journal, then in Optuna.

        Completed: the mean of its seeds. Pruned: PRUNED at its last value. Failed: FAIL, whatever other seeds gave.
        """
        records = self.ledger.by_point[("search", number)]
        last, seeds = next((record for record in records if record.state != "completed"), records[-1]), len(records)
        values = seed_values(records)
        value = statistics.fmean(values) if values else last.best
        early = last.state == "pruned" or (self.space.pruner.kind == "wilcoxon" and seeds < self.space.search.repeats)
        state = "fail" if last.failed else "pruned" if early else "complete"
        if number not in self.ledger.points:
            self._note("point", number=number, state=state, value=value, seeds=seeds)
        asked = self._open.pop(number)
        self._points.pop(number)
        self._reported.pop(number, None)
        if last.failed and (kind := last.state.removeprefix("failed:")) in OWN_FAULTS:
            asked.set_user_attr(FAILURE, kind)
        stored = {"fail": TrialState.FAIL, "pruned": TrialState.PRUNED, "complete": TrialState.COMPLETE}[state]
        self.study.tell(asked, value if state == "complete" else None, state=stored)

    def _report(self, asked: optuna.Trial, step: int, value: float) -> bool:
        """Report an intermediate value; False when it is known already (a resumed trial repeats itself)."""
        known = self._reported.setdefault(asked.number, set())
        if step in known:
            return False
        known.add(step)
        asked.report(value, step)
        return True

    def _ready_pruner(self, params: Mapping[str, Any], evaluation: Evaluation | None) -> None:
        """Make the pruner at the first evaluation, which shows how long a trial is."""
        if self.rungs is not None:
            return
        first, longest = 1, 1
        if evaluation is not None:
            every = non_negative(params, "eval_steps") * non_negative(params, "batch_size")
            every = every or non_negative(params, "eval_examples")
            warmup = warmup_examples(self.space.pruner, params, evaluation.planned)
            first = first_rung(self.space.pruner, warmup, evaluation.planned, int(every) or evaluation.rung)
            longest = evaluation.planned or first
        self.rungs = (first, longest)
        if self.space.pruner.kind == "asha":
            self._promotion = Promotion(self.ledger, self.space.pruner.reduction, first, longest)
        self.study.pruner = make_pruner(
            self.space.pruner, self.space.classes.get(PRUNER), maximise=self.maximise, first=first, longest=longest
        )

    def _asked(self, number: int) -> optuna.Trial:
        """The handle of a trial that Optuna has."""
        study_id = self._storage.get_study_id_from_name(self.study.study_name)
        return optuna.Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _replay(self, events: Iterable[Event]) -> None:
        """Show the new Optuna study what the journal holds, in the same order, since pruners keep notes; then complete
        what a crashed driver left."""
        first = {n: records[0].trial for (stage, n), records in self.ledger.by_point.items() if stage == "search"}
        for number in range(max(first, default=-1) + 1):
            self._proposed += 1
            point = dict(first[number].point) if number in first else {}
            known = {name: self.space.params[name] for name in point if name in self.space.params}
            self.study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params={name: label(point[name]) for name in known},
                    distributions={name: distribution(param) for name, param in known.items()},
                )
            )
            if number in first:
                self._seen.add(key(point))
                self._open[number], self._points[number] = self._asked(number), point
            else:
                self._missing.append(number)
        for event in events:
            if event["e"] == "point" and self.ledger.points.get(event["number"]) == event:
                self._complete_point(event["number"])
                continue
            record = self.ledger.trials.get(event.get("id", ""))
            if record is None or record.trial.stage != "search" or record.trial.number not in self._open:
                continue
            if event["e"] == "eval":
                fields = {k: v for k, v in event.items() if k not in ("e", "t", "id")}
                self.on_evaluation(record.trial, Evaluation(**fields))
            elif event["e"] == "end" and event["stop"] == "completed" and self.space.pruner.kind == "wilcoxon":
                self._report(self._open[record.trial.number], record.trial.repeat, event["best"])
        for number in list(self._open):
            if number in self.ledger.points or self._decide(number):
                self._complete_point(number)

    def _most_points(self) -> int:
        count = self.space.cardinality()
        return min(n for n in (count, self.space.search.trials, ENDLESS) if n is not None)


def _suggest(asked: optuna.Trial, name: str, wanted: optuna.distributions.BaseDistribution) -> Any:
    match wanted:
        case optuna.distributions.CategoricalDistribution(choices=choices):
            return asked.suggest_categorical(name, choices)
        case optuna.distributions.IntDistribution(low=low, high=high, log=log, step=step):
            return asked.suggest_int(name, low, high, step=step, log=log)
        case optuna.distributions.FloatDistribution(low=low, high=high, log=log, step=step):
            return asked.suggest_float(name, low, high, step=step, log=log)
    raise AssertionError(wanted)
