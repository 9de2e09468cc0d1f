"""The driver of a stage of a session: hands out trials, judges evaluations, keeps the budgets. No Ray here.

`search.running.tuner` calls it on Tune's behalf. Every event is written to the journal first, then passed to the plan.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from search.space import Resources, Space
from search.store.housekeeper import Housekeeper
from search.store.journal import Journal, finite
from search.store.layout import StudyFolder
from search.store.ledger import Event, Trial, TrialRecord
from search.study.plan import Plan
from trainables.contract.trial import Decision, Evaluation, Outcome, TrialSpec

ENOUGH_TO_JUDGE = 5  # ended trials before the share of failing ones can end a study
STOP_CHECK_S = 1.0  # between two checks for a stop request
Status = Literal["finished", "interrupted", "failed", "out_of_budget"]
Observer = Callable[[Event], None]
MAX_NODE_LOSSES = 10  # nodes that a trial may lose from one evaluation to the next before the trial counts as the cause
FAULTS_TO_AVOID_NODE = 2  # of different trials; then no trial starts on that node any more


@dataclass(frozen=True)
class Fault:
    """What ended a trial's process.

    Attributes: kind: process, node, device, oom, disk or error; reason: one line; node: Ray's id, if known.
    """

    kind: str
    reason: str
    traceback: str = ""
    node: str = ""


class Driver:
    """One stage of a session.

    Args:
        capacity: how many trials can run at once now; fits: whether a trial with these resources ever can.
        observe: called with every event after it is written (live table).
        budgets: whether the space's time, device hours and patience end this session (they are the search's own, not
            those of confirming).
        owned: whether this process may write the study's folder now (`search.store.bucket.Hold.owned`).
        keeper: writes the markers; None = one of its own.
        clock: seconds since 1970; None = the journal's.
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
        fits: Callable[[Resources], bool] = lambda _: True,
        observe: Observer,
        budgets: bool = True,
        owned: Callable[[], bool] = lambda: True,
        keeper: Housekeeper | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.space, self.folder, self.plan = space, folder, plan
        self.ledger = journal.ledger
        self._journal, self._capacity, self._fits, self._observe = journal, capacity, fits, observe
        self._clock = clock or journal.clock
        self._budgets, self._owned = budgets, owned
        self._keeper = keeper or Housekeeper(folder, owned)
        self.stage = stage
        mine = [record for record in self.ledger.open_trials.values() if record.trial.stage == stage]
        self._to_restart = [record.trial for record in mine if record.waiting is None]  # open when a session ended
        self._active: dict[str, Trial] = {}
        self._decisions: dict[str, Decision] = {}
        self._end_states: dict[str, str] = {}  # trial -> how it ended, or paused at its rung, in this session
        self._reasons: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()  # of this session, by trial
        self._losses: Counter[str] = Counter()  # of nodes since its last evaluation, by trial
        self._faulty: dict[str, set[str]] = {}  # node -> trials that met a device fault there
        self._next_check = 0.0
        self.measuring = False  # the next trial is to measure what `resources: auto` needs
        self.status: Status = "finished"
        self.reason = ""  # why the session ends before the plan does
        self.pause_signal = ""  # of a request to pause the study: see `request_pause`
        self.pausing = False  # running trials are being stopped, to be resumed
        self.lost = ""  # the study is another driver's now: nothing of it may be written
        # of trials that were judged at their rungs just before a driver crashed
        self._unrecorded_pauses = [r for r in mine if r.waiting is not None and r.state == "running"]

    def next_trial(self) -> Trial | None:
        """The next trial to start, or None when there is none now (see `idle`)."""
        self._take_up()
        self.tick()
        if self.pausing or (self.reason and not self._to_restart) or self._taken() >= max(1, self._capacity()):
            return None  # when patience has run out, no new trial starts; open trials continue
        trial = self._to_restart.pop(0) if self._to_restart else self.plan.next(self._capacity())
        if trial is None:
            return None
        if trial.id in self.ledger.trials:  # it ran before, or is promoted from its rung
            self._keeper.mark(trial.id, False)  # it may have failed on the way to a pause
            self._write("again", id=trial.id)
        else:
            self._write("start", **asdict(trial))
        self._active[trial.id] = trial
        return trial

    def idle(self) -> bool:
        return not self._active

    def spec(self, trial: Trial) -> TrialSpec:
        """The trial's specification, with its reserved resources. The trial that measures how many can share a GPU runs
        alone, and may use the whole GPU's memory."""
        resources = self.reserved(trial.id)
        gpus = resources.gpus or 0.0
        return self.space.trial_spec(
            trial.params,
            self.folder.trial(trial.id),
            seed=trial.seed,
            workers=resources.workers,
            gpus=1.0 if 0 < gpus < 1 and self.measuring else gpus,
            cpus=resources.cpus,
            measure=self.measuring,
        )

    def on_evaluation(self, trial_id: str, evaluation: Evaluation) -> Decision:
        """Write down an evaluation and judge it."""
        trial, record = self._active[trial_id], self.ledger.trials[trial_id]
        planned = evaluation.planned or self.ledger.full_length  # before this evaluation is the longest so far
        self._losses.pop(trial_id, None)
        if evaluation.examples > record.examples:  # else a resumed trial repeats what is written already
            fields = asdict(evaluation)
            fields["metrics"] = {name: v for name, v in evaluation.metrics.items() if math.isfinite(v)}
            self._write("eval", id=trial_id, **fields)
        decision = self.plan.on_evaluation(trial, evaluation)
        if self.folder.asked_to_stop(trial_id):
            decision = "prune"
        if decision == "pause":
            self._keeper.mark(trial_id, True)
        self.tick()
        # a trial that spends the budget with its last evaluation completes by itself
        last = 0 < evaluation.planned <= evaluation.examples or evaluation.examples == planned
        completes = self.status == "out_of_budget" and last
        decision = "pause" if self.pausing and not completes else decision
        self._decisions[trial_id] = decision
        return decision

    def waits(self, trial_id: str) -> bool:
        """Whether a trial is to wait before it follows its decision (`Housekeeper.waiting`)."""
        return self._keeper.waiting(trial_id)

    def on_trial_stop(self, trial_id: str) -> None:
        """Tune has stopped a trial as requested (or dropped it before it started)."""
        stop = "pruned" if self._decisions.get(trial_id) == "prune" else "paused"
        self.on_trial_end(trial_id, _outcome(self.ledger.trials[trial_id], stop))

    def on_trial_end(self, trial_id: str, outcome: Outcome) -> None:
        """A trial has ended by itself, or was stopped (see `on_trial_stop`). One that ran out of memory on a shared
        device runs once more, with a larger share of it."""
        if trial_id not in self._active:
            return
        if outcome.stop == "failed:oom" and not self.ledger.trials[trial_id].larger and self._larger() is not None:
            self._retry(trial_id, "oom", outcome.reason)
            return
        trial = self._active.pop(trial_id)
        self._decisions.pop(trial_id, None)
        if outcome.stop == "paused":
            if self.ledger.trials[trial_id].waiting is None and not self.pausing:
                self._to_restart.append(trial)  # by a marker that could not be taken away
            self._pause(self.ledger.trials[trial_id])
            return
        fields = asdict(outcome)
        fields["best"] = finite(outcome.best)
        if outcome.stop == "completed" and fields["best"] is None:
            fields |= {"stop": "failed:nan", "reason": "the trial gave no finite value"}
        self._write("end", id=trial_id, **fields)
        record = self.ledger.trials[trial_id]
        self.plan.on_trial_end(record)
        self._count(record)
        self.tick()

    def busy(self, trial_id: str, phase: str, done: int, of: int) -> None:
        """What a trial does before its first evaluation: for those who watch, not for the journal."""
        self._observe({"e": "phase", "t": self._now(), "id": trial_id, "what": phase, "done": done, "of": of})

    def on_failure(self, trial_id: str, fault: Fault) -> None:
        """A trial's process crashed or cannot run anything more: the trial starts again, or fails if its retries are
        used up. A lost node costs no retry."""
        if trial_id not in self._active:
            return
        if (record := self.ledger.trials[trial_id]).waiting is not None:
            # It crashed before it paused at its rung. It still waits there; if promoted, it starts from its last state.
            # Restarted now, it would find its marker and pause between two rungs.
            del self._active[trial_id]
            self._decisions.pop(trial_id, None)
            self._pause(record)
            return
        if fault.kind == "device":
            self._faulty.setdefault(fault.node, set()).add(trial_id)
        if fault.kind == "node":
            self._losses[trial_id] += 1
            if self._losses[trial_id] <= MAX_NODE_LOSSES:
                self._retry(trial_id, fault.kind, fault.reason)
                return
            fault = replace(fault, kind="process", reason=f"{fault.reason}, as did {MAX_NODE_LOSSES} before it")
        if fault.kind != "oom" and self._retries[trial_id] < self.space.search.max_retries:
            self._retries[trial_id] += 1
            self._retry(trial_id, fault.kind, fault.reason)
            return
        self.on_trial_end(trial_id, _outcome(record, f"failed:{fault.kind}", fault.reason, fault.traceback))

    def avoided(self, trial: Trial | None = None) -> set[str]:
        """Nodes whose devices were at fault for several trials, or for this one."""
        own = trial.id if trial is not None else None
        return {n for n, met in self._faulty.items() if len(met) >= FAULTS_TO_AVOID_NODE or own in met}

    def _retry(self, trial_id: str, kind: str, reason: str) -> None:
        trial = self._active.pop(trial_id)
        self._decisions.pop(trial_id, None)
        self._to_restart.insert(0, trial)  # before the write: whoever displays the event may raise
        self._write("retry", id=trial_id, cause=kind, reason=f"{kind}: {reason}")

    def _larger(self) -> Resources | None:
        """What a trial reserves that ran out of memory; None where no share is larger: it has its devices for itself,
        or no node has more."""
        resources = self.space.resources
        gpus = resources.gpus or 0.0
        if gpus >= 1:
            return None
        larger = replace(resources, gpus=1.0) if gpus else replace(resources, cpus=2 * resources.cpus)
        return larger if self._fits(larger) else None

    def reserved(self, trial_id: str) -> Resources:
        """What a trial reserves."""
        return (self.ledger.trials[trial_id].larger and self._larger()) or self.space.resources

    def _taken(self) -> int:
        """How many of the slots that `capacity` counts the running trials take: a larger share takes those of the
        trials that do not run beside it. Else small trials would take each part of a GPU that gets free."""
        share = self.space.resources.gpus or 0.5
        larger = sum(self.ledger.trials[trial_id].larger for trial_id in self._active)
        return len(self._active) + larger * (max(1, math.floor(1 / share + 1e-9)) - 1)

    def request_pause(self, signal: str) -> None:
        """Pause the study at the next `tick`. A signal's handler runs in the middle of anything, `tick` included."""
        self.pause_signal = signal

    def interrupt(self, reason: str) -> None:
        """Start nothing new, stop what runs so that it can be resumed."""
        self._end("interrupted", reason, pause=True)

    def fail(self, reason: str) -> None:
        """Ray has failed under the study: it ends, and can be resumed."""
        self._end("failed", reason, pause=True)

    def tick(self) -> None:
        """Check the budgets and for signals and, now and then, for a request to pause the study."""
        if self.lost:
            self.status, self.reason, self.pausing = "failed", self.lost, True
        if self.pause_signal and not self.pausing:
            self.interrupt(self.pause_signal)
        if not self.pausing and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + STOP_CHECK_S
            if self.folder.asked_to_stop():
                self.interrupt("SIGINT")
        if self.pausing:
            return
        over = self._over_budget(self._now())
        if over and (over[2] or not self.reason):  # patience does not stop running trials; their cost still counts
            self._end(*over)
        elif over is None:  # one of them improved the best: patience begins anew
            self.reason = ""

    def spent(self) -> bool:
        """Whether there is nothing to do in this session: nothing is open or planned, or no budget is left."""
        over = self._over_budget(None)
        if self._to_restart:
            return over is not None and over[2]
        return over is not None or self.plan.exhausted()

    def _over_budget(self, now: int | None) -> tuple[Status, str, bool] | None:
        """(status, reason, whether running trials are to pause) when a budget is spent; now: None between sessions."""
        search = self.space.search
        if not self._budgets:
            return None
        if search.time is not None and self.ledger.elapsed(now, self.stage) >= search.time:
            return "out_of_budget", f"the time budget of {search.time:g} s is spent", True
        if search.device_hours is not None and self.device_hours() >= search.device_hours:
            return "out_of_budget", f"the budget of {search.device_hours:g} device hours is spent", True
        if search.examples is not None and self.ledger.examples >= search.examples:
            return "out_of_budget", f"the budget of {search.examples:,} examples is spent", True
        if search.budget is not None and self.ledger.full_length_trials(self.ledger.examples) >= search.budget:
            return "out_of_budget", f"the budget of {search.budget:g} full-length trials is spent", True
        if search.patience is not None and self.ledger.since_best() >= search.patience:
            return "finished", f"no improvement over the training of {search.patience:g} full-length trials", False
        return None

    def device_hours(self) -> float:
        """Hours of GPUs (of workers, where there are none) that the search's trials have used."""
        resources = self.space.resources
        return self.ledger.trial_seconds() / 3600 * resources.workers * (resources.gpus or 1.0)

    def frequent_reasons(self) -> list[tuple[str, int]]:
        """The three most frequent reasons of this session's failures."""
        return self._reasons.most_common(3)

    def close_session(self) -> None:
        """Write how this session ended, unless another driver has taken the study: trials that are still open have been
        paused. At the search's end those that wait at their rungs are pruned there."""
        self.plan.close()
        if self.lost:
            self.status, self.reason = "failed", self.lost
            return
        if self.pause_signal:  # after the last `tick`
            self.interrupt(self.pause_signal)
        self._take_up()
        for trial_id in list(self._active):
            self.on_trial_stop(trial_id)
        while self._to_restart:  # not taken up again in this session
            self._pause(self.ledger.trials[self._to_restart.pop(0).id])
        if self.status == "out_of_budget" and self.plan.exhausted():  # the last of it went into the last trial
            self.status, self.reason = "finished", ""
        if self.status == "finished" and self.stage == "search":
            for record in self.ledger.waiting():
                self._write("end", id=record.trial.id, **asdict(_outcome(record, "pruned")))
                self.plan.on_trial_end(record)
        self._write("close", status=self.status, reason=self.reason)
        self._keeper.mark(None, False)

    def _take_up(self) -> None:
        """Record the pause of trials that an earlier driver had judged at their rungs before it crashed."""
        while self._unrecorded_pauses:
            self._pause(self._unrecorded_pauses.pop())

    def _pause(self, record: TrialRecord) -> None:
        """Write that a trial is paused; one that waits at its rung has a value by which it counts meanwhile."""
        if record.waiting is not None:
            self._end_states[record.trial.id] = "paused"
        self._write(
            "pause", id=record.trial.id, rung=record.waiting, best=record.best, best_at=record.best_at,
            examples=record.examples, seconds=record.seconds,
        )  # fmt: skip

    def _count(self, record: TrialRecord) -> None:
        self._end_states[record.trial.id] = record.state
        if not record.failed:
            return
        self._reasons[f"{record.state.removeprefix('failed:')}: {record.reason}"] += 1
        ended = len(self._end_states)
        # a device that is at fault ends the study by its own rule: see `avoided`
        failed = sum(s.startswith("failed:") and s != "failed:device" for s in self._end_states.values())
        if ended >= ENOUGH_TO_JUDGE and failed > self.space.search.max_failed_share * ended:
            self._end("failed", f"{failed} of {ended} trials failed", pause=True)

    def _end(self, status: Status, reason: str, pause: bool) -> None:
        self.status, self.reason = status, reason
        if pause and not self.pausing:
            self.pausing = True
            self._keeper.mark(None, True)

    def lose(self, reason: str) -> None:
        """Another driver has taken the study: end at once, without notifying its trials. Any thread may call this."""
        self.lost = reason

    def owns(self) -> bool:
        """Whether no other driver is known to have taken the study; queries the storage after a silence."""
        self._owned()
        return not self.lost

    def _write(self, kind: str, **fields: Any) -> None:
        self._observe(self._journal.append(kind, self._now(), **fields))

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _outcome(record: TrialRecord, stop: str, reason: str = "", traceback: str = "") -> Outcome:
    """How a trial ends that cannot report it itself, by its last evaluation."""
    return Outcome(stop, record.best, record.best_at, record.examples, record.seconds, reason, traceback)
