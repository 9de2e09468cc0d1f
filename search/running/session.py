"""One session of a study: from taking its lock to MLflow's last run, over the stages that have work."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from search.console.display import Display, Output, Phases, display_for, fitted, parted
from search.remote.servers import out_of_reach
from search.running.preflight import check_cards, check_files
from search.running.private_ray import Interrupted, handled
from search.running.ray_session import check_storage, connected, ever_fits, gpus_now, nodes_now, ray_session
from search.running.result import StudyResult
from search.running.sharing import Sharing
from search.schema import tracking_uri, unreachable
from search.space import Resources, Space
from search.space.checks import encoder_notes, guides
from search.space.space import changed_file_notes
from search.store.bucket import Hold, held
from search.store.environment import moved_on
from search.store.housekeeper import Housekeeper
from search.store.journal import Journal, JournalWriteError, exclusive, read, running_beside, writable
from search.store.layout import CLUSTER_FILE, StudyFolder, UserError, storage_option
from search.store.ledger import Event, Ledger
from search.store.retention import CheckpointRetention
from search.study.confirm_plan import ConfirmPlan
from search.study.driver import Driver, Status
from search.study.plan import Plan
from search.study.search_plan import SearchPlan
from search.tracking.mlflow_store import NOT_OWNED
from search.tracking.replayer import Replayer
from search.tracking.tracker import Tracker
from search.wording import wanted_points
from trainables.contract import formats
from trainables.contract.errors import last_line
from trainables.contract.formats import stamp
from trainables.contract.origin import at_origin

WORST_FIRST: tuple[Status, ...] = ("interrupted", "failed", "out_of_budget", "finished")
TRACKER_PATIENCE_S = 30.0  # how long the end of a search waits for a tracker in trouble
CALM_S = 60.0  # without trouble: a storage is back
RETENTION_S = 5.0  # seconds between two deletions of checkpoints that are no longer needed, while trials run
Stage = Mapping[str, Any]  # {"stage": "search"}; "confirm" with "trials", or with "top" and "seeds"
SEARCH: Stage = {"stage": "search"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a session is run; none of it changes what is searched.

    Attributes:
        address: of a running Ray cluster ("auto" = found by RAY_ADDRESS or on this machine); None = RAY_ADDRESS where
            set, else a private Ray that ends with the search.
        phases: what is shown of the time before the first evaluation; None = begins with the session.
        verbose: a line for every evaluation is printed, too.
        trainable: what runs a trial; None = `trainables.on_ray.trainable.TrialJob`.
        handle_signals: Ctrl-C, SIGTERM and SIGHUP pause the study instead of raising (only from the main thread).
    """

    console: Console = field(default_factory=Output)
    phases: Phases | None = None
    verbose: bool = False
    address: str | None = None
    trainable: Any = None
    handle_signals: bool = True


class Session:
    """A driver's work on a study, stage by stage; Ray starts when the first of them has something to do.

    Args: stages: what this session may do, in order.
    """

    def __init__(self, space: Space, folder: StudyFolder, options: Options, stages: Sequence[Stage]) -> None:
        self.space = replace(space, resources=space.resources.numbers())
        self.folder, self.options, self.stages = folder, options, stages
        self._given_space = space  # `self.space` has what Ray and the first trial decide, too
        self._sharing: Sharing | None = None
        self.phases = options.phases or Phases(options.console)
        self.drivers: list[Driver] = []  # of the stages that were at work
        self._capacity: Callable[[Resources], int] | None = None  # None: Ray has not been started
        self._lost = ""  # why the study is another driver's now

    def run(self, before: Callable[[Journal], None] = lambda _: None) -> StudyResult:
        """Run the stages that have work; return the result.

        Args: before: called with the open journal before anything is planned (trials to retry).
        Raises: UserError for a study that another driver runs, or when the first stage is a
            confirmation and no point is complete.
        """
        with exclusive(self.folder):
            self.folder.asked_to_stop()  # a request to an earlier driver: from the lock on this one counts as running
            with held(self.folder, self._print, self._lose) as hold, self.phases:
                journal = Journal(self.folder.journal, Ledger(maximise=self.space.metric.mode == "max"))
                hold.start()
                try:
                    with self._at_origin():
                        check_files(self.space, journal)
                    before(journal)
                    return self._run(journal, hold)
                except KeyboardInterrupt:
                    self._store_space(journal)  # the command to go on is printed without `--set`
                    raise
                finally:
                    journal.close()

    def _at_origin(self) -> AbstractContextManager[None]:
        return at_origin(str(self.folder.journal), self.space.encoder, asdict(self.space.data), guides(self.space))

    def _store_space(self, journal: Journal) -> None:
        """Store what `--set` has changed, and the format that the journal is written in from here on: not before Ray
        has what a trial needs, since a study that needs more could not be resumed."""
        ledger = journal.ledger
        if ledger.space != as_recorded(self._given_space) or ledger.stamp.get(formats.FORMAT) != formats.JOURNAL:
            self.folder.space.write_text(self._given_space.to_yaml(), encoding="utf-8")
            write_space(journal, self._given_space)

    def _print(self, line: str) -> None:
        self.options.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _lose(self, reason: str) -> None:
        """Called by the bucket's thread."""
        self._lost = reason
        for driver in self.drivers[-1:]:
            driver.lose(reason)

    def _run(self, journal: Journal, hold: Hold) -> StudyResult:
        keeper = Housekeeper(self.folder, hold.owned, hold.unsure)
        keeper.mark(None, False)
        ledger = journal.ledger
        display = display_for(self.options.console, self.space, ledger, self.options.verbose)
        tracker = Tracker(tracking_uri(storage=self.folder.storage), self.folder, self._given_space)
        replayer = Replayer(tracker, hold.owned)
        if trouble := unreachable(tracker.uri):
            display.note(f"tracker: {trouble}; the search goes on, the journal keeps everything")
        keep, states_gb = self.space.search.keep_best, self.space.pruner.states_gb
        retention = CheckpointRetention(self.folder, ledger, keep, states_gb, hold.owned)
        observe = _Observer(display, lambda: keeper.delete(retention.apply), replayer, self.phases, hold)

        def followed(event: Event) -> None:
            observe(event)
            self._share(event, journal, display)

        self._introduce(tracker)
        for line in [
            *changed_file_notes(self.space.code),
            *(moved_on(self.folder.environment) if ledger.sessions else ()),
        ]:
            display.note(line)
        with ExitStack() as stack:
            for stage in self.stages:
                plan = self._plan(stage, journal)
                if plan is None:
                    continue
                budgets = stage["stage"] == "search"
                driver = Driver(
                    self.space, self.folder, journal, plan,
                    stage=stage["stage"], capacity=self._current_capacity, fits=ever_fits, observe=followed,
                    budgets=budgets, owned=hold.owned, keeper=keeper,
                )  # fmt: skip
                if driver.spent():
                    if ledger.stages.get(stage["stage"]) not in ("finished", "out_of_budget"):
                        self._store_space(journal)
                        self._close(driver, stage, journal)
                    continue
                if self._capacity is None:
                    running = self.options.address or os.environ.get("RAY_ADDRESS") or connected()
                    self.phases.begin("connecting to Ray" if running else "starting Ray")
                    session = ray_session(self.options.address, self.space.resources, self.space.search.concurrent)
                    with self._at_origin():  # which is then the current folder of the trials' processes
                        self._capacity, known = stack.enter_context(session)
                    if running:
                        check_storage(self.folder.storage)
                    if known.gpus and self.options.trainable is None:
                        check_cards(known)
                    self._sharing = Sharing(self._given_space, known, nodes_now, ledger)
                    self.space = replace(self.space, resources=self._sharing.resources)
                    self._store_space(journal)
                    replayer.start()
                    if known.gpus and not gpus_now():
                        display.note("no node has a GPU yet: trials wait for one (resources.gpus=0 takes CPUs)")
                driver.space = self.space
                driver.measuring = self._sharing is not None and self._sharing.measuring
                if self._sharing is not None and self._sharing.line:
                    display.note(self._sharing.line)
                journal.append("session", **stage)
                self.drivers.append(driver)
                if self._lost:  # while Ray started
                    driver.lose(self._lost)
                self._drive(driver, display)
                if driver.status in ("interrupted", "failed"):
                    break
        if not self._lost:
            self._store_space(journal)  # where nothing was to do
        keeper.finish(0.0 if self._lost else TRACKER_PATIENCE_S)
        if hold.owned() and (undeleted := retention.apply(final=True)):
            display.note(f"some old checkpoints could not be deleted ({undeleted}); a later resume tries again")
        status = self._status(ledger)
        if self._capacity is None:
            replayer.start()
        patience = 0.0 if self._lost else TRACKER_PATIENCE_S / 6 if status == "interrupted" else TRACKER_PATIENCE_S
        tracked = replayer.finish(patience)
        hold.finish(TRACKER_PATIENCE_S)
        reasons = [driver.reason for driver in self.drivers if driver.status == status and driver.reason]
        if not self.drivers and ledger.closed:  # nothing was to do, for the reason of then
            reasons = [str(ledger.closed["reason"])]
        return StudyResult(
            space=self.space,
            folder=self.folder,
            status=status,
            exit_code=self._exit_code(ledger),
            reason=reasons[-1] if reasons else "",
            ledger=ledger,
            saved=retention.saved(),
            frequent_reasons=self.drivers[-1].frequent_reasons() if self.drivers else (),
            tracking_uri=tracker.uri,
            trouble=hold.trouble or ("" if tracked else replayer.trouble),
            link=None if out_of_reach(tracker.uri) else tracker.link(),
            address=self.options.address,
        )

    def _introduce(self, tracker: Tracker) -> None:
        """Print what runs, how to pause it and where the results are, before anything takes long."""
        space, metric = self.space, self.space.metric.name
        count = wanted_points(space)
        extent = f"{count} points" if count else "until its budget is spent"
        where = tracker.uri if tracker.uri.startswith("http") else f"search ui {self.folder.study}"
        where += "" if tracker.uri.startswith("http") else storage_option(self.folder.storage)
        self._print(parted(f"study {self.folder.study}: {space.what}, {extent}, by {metric} (shown x 100)"))
        pauses = "Ctrl-C pauses the search; search resume continues it\n"  # on a cluster Ctrl-C detaches
        self._print(f"{'' if CLUSTER_FILE in os.environ else pauses}MLflow: {where}")
        if not (self.options.address or os.environ.get("RAY_ADDRESS")) and (beside := running_beside(self.folder)):
            line = (
                f"{', '.join(beside)} of this storage is running, too; each search takes all CPUs and GPUs of a"
                " machine (search.concurrent limits its trials at once)"
            )
            self._print(fitted(line))
        for note in encoder_notes(space):
            self._print(fitted(f"encoder: {note}"))

    def _current_capacity(self) -> int:
        if self._sharing is not None and self._sharing.measuring:
            return 1
        return self._capacity(self.space.resources) if self._capacity is not None else 0

    def _share(self, event: Event, journal: Journal, display: Display) -> None:
        """Have trials share GPUs or cores as soon as the first one has shown how many can."""
        sharing = self._sharing
        if sharing is None or (fields := sharing.observe(event)) is None:
            return
        self.space = self.drivers[-1].space = replace(self.space, resources=sharing.resources)
        self.drivers[-1].measuring = False
        journal.append("share", event["t"], **fields)
        display.note(sharing.line)

    def _close(self, driver: Driver, stage: Stage, journal: Journal) -> None:
        """Write the end of a stage that was complete when its last driver crashed."""
        journal.append("session", **stage)
        driver.tick()
        driver.close_session()

    def _drive(self, driver: Driver, display: Display) -> None:
        from search.running.tuner import StudyLost, run_tune
        from trainables.on_ray.trainable import TrialJob

        def pause(number: signal.Signals) -> None:
            if driver.pausing or driver.pause_signal:
                raise Interrupted(number)
            driver.request_pause(number.name)
            display.note("pausing: trials save their state and stop; once more = at once")

        if not self.phases.open:  # else with the first evaluation
            display.start()
        try:
            with handled(pause) if self.options.handle_signals else nullcontext():
                run_tune(driver, self.options.trainable or TrialJob)
        except StudyLost:
            pass  # the driver's state shows it
        except Interrupted as stop:
            driver.interrupt(str(stop))
        except KeyboardInterrupt:
            driver.interrupt("SIGINT")
        except Exception as error:  # Ray itself: whatever it was, the study can be resumed
            if not driver.pausing:  # Tune raises when a starting trial is dropped; the pause goes on
                driver.fail(last_line(error))
        except BaseException as error:  # whatever ends the process: an unfinished session never counts as finished
            driver.interrupt(type(error).__name__)
            raise
        finally:
            self.phases.close()
            display.stop()
            try:
                driver.close_session()
            except JournalWriteError as error:  # what it holds is what a later session goes on from
                driver.status, driver.reason = "failed", str(error)

    def _plan(self, stage: Stage, journal: Journal) -> Plan | None:
        """The stage's plan as the journal stands now; None for a later stage that has no completed point to confirm."""
        space, ledger = self.space, journal.ledger
        if stage["stage"] == "confirm":
            try:
                return ConfirmPlan(space, ledger, **{name: n for name, n in stage.items() if name != "stage"})
            except ValueError as error:
                if stage is not self.stages[0]:
                    return None
                raise UserError(f"study {self.folder.study}: {error}") from error
        return SearchPlan(space, self.folder.study, ledger, read(self.folder.journal), journal.append)

    def _status(self, ledger: Ledger) -> Status:
        """Of the study: the worst that a stage has come to; one without a result has failed."""
        if self.drivers and self.drivers[-1].status == "failed":
            return "failed"
        return next((status for status in WORST_FIRST if status in ledger.stages.values()), "interrupted")

    def _exit_code(self, ledger: Ledger) -> int:
        """0 done, 1 too many trials of the stage failed or none came to an end, 128 + the signal that paused it."""
        last = self.drivers[-1] if self.drivers else None
        if last is not None and last.status == "interrupted":
            return 128 + signal.Signals[last.reason]
        if last is not None and last.status == "failed":
            return 1
        if last is not None and last.status == "out_of_budget":
            return 0
        stops = {record.state for record in ledger.trials.values() if last is None or record.trial.stage == last.stage}
        return 0 if stops & {"completed", "pruned"} else 1


class _Observer:
    """Handles each event while trials run: checkpoint retention, the display, a warning when the tracker has trouble.

    It is called from inside Tune, which would take an error for the trial's: none leaves it.
    """

    def __init__(
        self,
        display: Display,
        tidy: Callable[[], object],
        replayer: Replayer,
        phases: Phases,
        hold: Hold,
    ) -> None:
        self._display, self._tidy, self._replayer, self._phases, self._hold = display, tidy, replayer, phases, hold
        self._troubled = -math.inf  # when the storage was last in trouble, if that was reported
        self._applied, self._trouble, self._broken = time.monotonic(), "", False

    def __call__(self, event: Event) -> None:
        try:
            self._follow(event)
        except Exception as error:
            if not self._broken:
                log.warning("the search continues, but its output is incomplete: %s", last_line(error))
            self._broken = True

    def _follow(self, event: Event) -> None:
        if event["e"] in ("end", "pause") and time.monotonic() - self._applied > RETENTION_S:
            self._applied = time.monotonic()
            self._tidy()
        if self._phases.open and not self._phases.observe(event):
            self._display.start()
        self._display.observe(event)
        if self._hold.trouble:
            if self._troubled == -math.inf:
                self._display.note(
                    f"storage {self._hold.trouble}; the search goes on, new results wait on this machine"
                )
            self._troubled = time.monotonic()
        elif self._troubled > -math.inf and time.monotonic() - self._troubled > CALM_S:
            self._display.note("storage: back")
            self._troubled = -math.inf
        # MLflow waits while it is not known whether the study is still ours
        waits = self._troubled > -math.inf or NOT_OWNED in self._replayer.trouble
        trouble = self._trouble if waits else self._replayer.trouble
        if bool(trouble) != bool(self._trouble):
            self._display.note(f"tracker: {trouble}; the journal keeps everything" if trouble else "tracker: back")
        self._trouble = trouble


def write_space(journal: Journal, space: Space, **began: Any) -> None:
    """Journal what is searched, with the format and the version that the journal is written in from here on.

    Args: began: `new_identity`, in a study's first event.
    """
    journal.append("space", space=space.resolved(), **stamp(formats.JOURNAL), **began)


def as_recorded(space: Space) -> Any:
    """The resolved space as the journal gives it back."""
    return json.loads(json.dumps(writable(space.resolved())))
