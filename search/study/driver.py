"""The driver of a life of a study: hands out runs, judges evaluations, keeps the budgets. No Ray here.

`search.tuner` asks it on Tune's behalf. Whatever happens is written to the journal first, then passed to the plan.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from search.journal import Event, Journal, Run, RunState, finite
from search.layout import StudyFolder
from search.space import Space
from search.study import Plan
from trainables.spec import Evaluation, Outcome, TrialSpec, Verdict

ENOUGH_TO_JUDGE = 5  # ended trials before the share of failing ones can end a study
Status = Literal["finished", "interrupted", "failed", "out_of_budget"]
Observer = Callable[[Event], None]


class Driver:
    """One life of a study.

    Args:
        capacity: how many trials can run at once now.
        observe: called with every event after it is written (live table).
        budgets: whether the space's time, device hours and patience end this life (they are the search's own, not
            those of confirming).
        clock: seconds since 1970.
    """

    def __init__(
        self,
        space: Space,
        folder: StudyFolder,
        journal: Journal,
        plan: Plan,
        *,
        stage: str,
        capacity: Callable[[], int],
        observe: Observer,
        budgets: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.space, self.folder, self.plan = space, folder, plan
        self.ledger = journal.ledger
        self._journal, self._capacity, self._observe, self._clock = journal, capacity, observe, clock
        self._budgets = budgets
        self._again = [s.run for s in self.ledger.live.values() if s.run.stage == stage]  # open since an earlier life
        self._active: dict[str, Run] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._ended: Counter[str] = Counter()  # of this life, by stop
        self._reasons: Counter[str] = Counter()
        self.status: Status = "finished"
        self.reason = ""  # why the life ends before the plan does
        self.pausing = False  # running trials are being stopped, to be resumed

    def next_run(self) -> Run | None:
        """The next run to start, or None when there is none now (see `finished`)."""
        self.tick()
        if self.reason or len(self._active) >= max(1, self._capacity()):
            return None
        if self._again:
            run = self._again.pop(0)
            self._write("again", id=run.id)
        else:
            planned = self.plan.next()
            if planned is None:
                return None
            run = planned
            self._write("start", **asdict(run))
        self._active[run.id] = run
        return run

    def finished(self) -> bool:
        """Whether no further run will be started in this life."""
        if self.reason:
            return True
        return not self._again and self.plan.exhausted()

    def idle(self) -> bool:
        return not self._active

    def spec(self, run: Run) -> TrialSpec:
        """What the trial process gets."""
        space = self.space
        return TrialSpec(
            method=space.method,
            encoder=space.encoder,
            data=asdict(space.data),
            metric=space.metric.name,
            mode="max" if space.metric.mode == "max" else "min",
            params=run.params,
            seed=run.seed,
            folder=self.folder.trial(run.id),
            workers=space.resources.workers,
            gpus=space.resources.gpus or 0.0,
            cpus=space.resources.cpus,
        )

    def evaluated(self, run_id: str, evaluation: Evaluation) -> Verdict:
        """Write down an evaluation and judge it."""
        run, state = self._active[run_id], self.ledger.runs[run_id]
        if evaluation.examples > state.examples:  # else a resumed trial repeats what is written already
            fields = asdict(evaluation)
            fields["metrics"] = {name: v for name, v in evaluation.metrics.items() if math.isfinite(v)}
            self._write("eval", id=run_id, **fields)
        prune = self.plan.evaluated(run, evaluation)
        self.tick()
        verdict: Verdict = "pause" if self.pausing else "prune" if prune else "go"
        self._verdicts[run_id] = verdict
        return verdict

    def stopped(self, run_id: str) -> None:
        """Tune has stopped a run at our word (or dropped it before it started)."""
        state = self.ledger.runs[run_id]
        if self._verdicts.get(run_id) == "prune":
            self.ended(run_id, Outcome("pruned", state.best, state.best_at, state.examples, state.seconds))
        else:
            self.ended(run_id, Outcome("paused", state.best, state.best_at, state.examples, state.seconds))

    def ended(self, run_id: str, outcome: Outcome) -> None:
        """A run has ended by itself, or `stopped` says how."""
        if run_id not in self._active:
            return
        del self._active[run_id]
        self._verdicts.pop(run_id, None)
        if outcome.stop == "paused":
            self._write("pause", id=run_id)
            return
        fields = asdict(outcome)
        fields["best"] = finite(outcome.best)
        if outcome.stop == "completed" and fields["best"] is None:
            fields |= {"stop": "failed:nan", "reason": "the trial gave no finite value"}
        self._write("end", id=run_id, **fields)
        state = self.ledger.runs[run_id]
        self.plan.ended(state)
        self._count(state)
        self.tick()

    def retried(self, run_id: str, reason: str) -> None:
        """A run's process died; Tune starts it again."""
        self._write("retry", id=run_id, reason=reason)

    def interrupt(self, reason: str) -> None:
        """Start nothing new, stop what runs so that it can be resumed."""
        self._end("interrupted", reason, pause=True)

    def fail(self, reason: str) -> None:
        """Ray has failed under the study: it ends, and can be resumed."""
        self._end("failed", reason, pause=True)

    def tick(self) -> None:
        """Look at the budgets."""
        search = self.space.search
        if not self._budgets or self.reason:
            return
        if search.time is not None and self.ledger.elapsed(self._now()) >= search.time:
            self._end("out_of_budget", f"the time budget of {search.time:g} s is spent", pause=True)
        elif search.device_hours is not None and self.device_hours() >= search.device_hours:
            self._end("out_of_budget", f"the budget of {search.device_hours:g} device hours is spent", pause=True)
        elif search.patience is not None and self.ledger.since_best >= search.patience:
            self._end("finished", f"no improvement over {search.patience} points", pause=False)

    def device_hours(self) -> float:
        """Hours of GPUs (of workers, where there are none) that this study's trials have used."""
        resources = self.space.resources
        return self.ledger.trial_seconds() / 3600 * resources.workers * (resources.gpus or 1.0)

    def frequent_reasons(self) -> list[tuple[str, int]]:
        """The three most frequent reasons of this life's failures."""
        return self._reasons.most_common(3)

    def close_life(self) -> None:
        """Write how this life ended: runs that are still open have been paused."""
        for run_id in list(self._active):
            self.stopped(run_id)
        self._write("close", status=self.status, reason=self.reason)
        self.folder.mark_pause(False)

    def _count(self, state: RunState) -> None:
        self._ended[state.state] += 1
        if not state.failed:
            return
        self._reasons[f"{state.state.removeprefix('failed:')}: {state.reason}"] += 1
        ended = self._ended.total()
        failed = sum(n for stop, n in self._ended.items() if stop.startswith("failed:"))
        if ended >= ENOUGH_TO_JUDGE and failed > self.space.search.max_failed_share * ended:
            self._end("failed", f"{failed} of {ended} trials failed", pause=True)

    def _end(self, status: Status, reason: str, pause: bool) -> None:
        self.status, self.reason = status, reason
        if pause and not self.pausing:
            self.pausing = True
            self.folder.mark_pause(True)

    def _write(self, kind: str, **fields: Any) -> None:
        self._observe(self._journal.append(kind, self._now(), **fields))

    def _now(self) -> int:
        return int(self._clock() * 1000)
