"""Running studies: start, resume, confirm. The library behind `search run | resume | confirm`."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from rich.console import Console

from search.backup import out_of_reach
from search.cluster import gpus_now, ray_session
from search.driver import Driver, Status
from search.environment import environment
from search.errors import UserError
from search.journal import Event, Journal, Ledger, RunState, read
from search.layout import Mirror, StudyFolder, absolute, find_study, new_study, storage_option
from search.live import Display, display_for
from search.lock import exclusive
from search.replayer import Replayer
from search.space import Space, load_space
from search.store import tracking_uri
from search.study import Plan, SearchPlan
from search.sweep import Sweeper
from search.tracking import Tracker

EXIT: dict[Status, int] = {"finished": 0, "out_of_budget": 0, "failed": 1, "interrupted": 130}
# What `resume --set` may change: how much is searched and on what, never what a point means.
CHANGEABLE = {
    "search": {
        "trials", "time", "device_hours", "patience", "max_failed_share", "max_retries", "keep_best", "concurrent",
    },
    "resources": {"gpus", "cpus", "workers"},
}  # fmt: skip
TRACKER_PATIENCE_S = 30.0  # how long the end of a search waits for a tracker in trouble
SWEEP_S = 5.0  # seconds between two sweeps of checkpoints while trials run


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a life of a study ended.

    Attributes:
        exit_code: 0 done, 1 too many trials failed or none completed, 130 interrupted.
        reason: why it ended before its last point, else "".
        kept: ids of the trials whose weights are on disk, best first.
        frequent_reasons: of failures, with their counts, most frequent first.
        trouble: what keeps the tracker from being up to date, else "".
        link: the study's view in the MLflow UI, for a served store.
    """

    space: Space
    folder: StudyFolder
    status: Status
    exit_code: int
    reason: str
    ledger: Ledger
    kept: Sequence[str] = ()
    frequent_reasons: Sequence[tuple[str, int]] = ()
    tracking_uri: str = ""
    trouble: str = ""
    link: str | None = None

    @property
    def best(self) -> RunState | None:
        return self.ledger.best

    @property
    def storage_option(self) -> str:
        """` --storage ...` (on a cluster ` --cluster ...`) as the commands need it, empty for the default storage."""
        return storage_option(self.folder.storage)

    @property
    def tracking_option(self) -> str:
        """` --tracking-uri ...` as `analysis` needs it, empty for the default store."""
        default = self.tracking_uri == tracking_uri(absolute("runs"))
        return "" if default or out_of_reach(self.tracking_uri) else f" --tracking-uri {self.tracking_uri}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a life is run; none of it changes what is searched.

    Attributes:
        address: of a running Ray cluster ("auto" = found by RAY_ADDRESS or on this machine); None = RAY_ADDRESS where
            set, else a private Ray that ends with the search.
        trainable: what runs a trial; None = `trainables.ray_job.TrialJob`.
        handle_signals: Ctrl-C pauses the study instead of raising (only from the main thread).
    """

    console: Console = field(default_factory=Console)
    address: str | None = None
    trainable: Any = None
    handle_signals: bool = True


def run_study(
    space: Space, storage: str = "runs", *, name: str | None = None, options: Options | None = None
) -> StudyResult:
    """Start a study and run it to its end.

    Raises: UserError when the storage cannot be written, the name is taken or a trial needs more than the machine has.
    """
    folder = new_study(absolute(storage), space.name, name)
    folder.space.write_text(space.to_yaml(), encoding="utf-8")
    folder.environment.write_text(json.dumps(environment(), indent=1), encoding="utf-8")
    try:
        return _live(space, folder, options or Options(), {"stage": "search"})
    except UserError:
        folder.delete(str(folder.local))  # nothing has run: no study is left behind
        raise


def resume_study(
    storage: str = "runs",
    study: str | None = None,
    *,
    overrides: Sequence[str] = (),
    options: Options | None = None,
) -> StudyResult:
    """Go on with a study (the newest one by default) after any death, or with larger budgets (`overrides`).

    Raises: UserError when there is no such study, another driver runs it, or an override changes what is searched.
    """
    folder = find_study(absolute(storage), study)
    folder.pull()
    space = load_space(folder.space, overrides)
    if overrides:
        _check_changes(load_space(folder.space), space)
    return _live(space, folder, options or Options(), _last_life(folder), rewrite=bool(overrides))


def confirm_study(
    storage: str = "runs",
    study: str | None = None,
    *,
    top: int = 3,
    seeds: int = 5,
    options: Options | None = None,
) -> StudyResult:
    """Run the `top` best points and the baseline on `seeds` fresh seeds each, hopeless points on fewer.

    Raises: UserError when there is no such study, none of its points is complete, or another driver runs it.
    """
    folder = find_study(absolute(storage), study)
    folder.pull()
    space = load_space(folder.space)
    return _live(space, folder, options or Options(), {"stage": "confirm", "top": top, "seeds": seeds})


def _live(
    space: Space, folder: StudyFolder, options: Options, life: dict[str, Any], rewrite: bool = False
) -> StudyResult:
    """One life of a study, from taking its lock to the tracker's last line."""
    from search.tuner import run_tune  # after the arguments are known to be good: Ray takes a second

    with exclusive(folder):
        if rewrite:
            folder.space.write_text(space.to_yaml(), encoding="utf-8")
        folder.mark_pause(False)
        journal = Journal(folder.journal, Ledger(maximise=space.metric.mode == "max"))
        plan = _plan(space, folder, journal, life)
        display = display_for(options.console, space, journal.ledger)
        mirror = Mirror(folder)
        replayer = Replayer(Tracker(tracking_uri(folder.storage), folder, space), also=mirror.push)
        sweeper = Sweeper(folder, journal.ledger, space.search.keep_best)
        with ray_session(options.address, space.resources, space.search.concurrent) as (capacity, resources):
            space = replace(space, resources=resources)
            journal.append("life", _now(), **life)
            driver = Driver(
                space,
                folder,
                journal,
                plan,
                stage=life["stage"],
                capacity=capacity,
                observe=_Observer(display, sweeper, replayer),
                budgets=life["stage"] == "search",
            )
            replayer.start()
            display.start()
            if resources.gpus and not gpus_now():
                display.note("no node has a GPU yet: trials wait for one (--set resources.gpus=0 runs them on CPUs)")
            try:
                with _interruptible(driver, display, options.handle_signals):
                    run_tune(driver, options.trainable or _trial_job(), resources, space.search.max_retries)
            except KeyboardInterrupt:
                driver.interrupt("interrupted twice")
            except Exception as error:  # Ray itself: whatever it was, the study can be resumed
                driver.fail((str(error).strip().splitlines() or [type(error).__name__])[-1])
            finally:
                display.stop()
                driver.close_life()
        sweeper.sweep(final=True)
        tracked = replayer.finish(TRACKER_PATIENCE_S if driver.status != "interrupted" else TRACKER_PATIENCE_S / 6)
        journal.close()
        uri = replayer.tracker.uri
        completed = driver.ledger.stops["completed"] + driver.ledger.stops["pruned"]
        return StudyResult(
            space=space,
            folder=folder,
            status=driver.status,
            exit_code=EXIT[driver.status] or (0 if completed else 1),
            reason=driver.reason,
            ledger=driver.ledger,
            kept=sweeper.kept(),
            frequent_reasons=driver.frequent_reasons(),
            tracking_uri=uri,
            trouble="" if tracked else replayer.trouble,
            link=None if out_of_reach(uri) else replayer.tracker.link(),
        )


class _Observer:
    """What follows an event while trials run: the display, now and then a sweep, a word about the tracker."""

    def __init__(self, display: Display, sweeper: Sweeper, replayer: Replayer) -> None:
        self._display, self._sweeper, self._replayer = display, sweeper, replayer
        self._swept, self._trouble = time.monotonic(), ""

    def __call__(self, event: Event) -> None:
        self._display.observe(event)
        if event["e"] == "end" and time.monotonic() - self._swept > SWEEP_S:
            self._sweeper.sweep()
            self._swept = time.monotonic()
        trouble = self._replayer.trouble
        if bool(trouble) != bool(self._trouble):
            self._display.note(f"tracker: {trouble}; the journal keeps everything" if trouble else "tracker: back")
        self._trouble = trouble


@contextmanager
def _interruptible(driver: Driver, display: Display, wanted: bool) -> Iterator[None]:
    """Ctrl-C (or SIGTERM) once: pause the study. Again: at once."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal module's interface
        if driver.pausing:
            raise KeyboardInterrupt
        driver.interrupt(signal.Signals(number).name)
        display.note("pausing: trials save their state and stop; once more = at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plan(space: Space, folder: StudyFolder, journal: Journal, life: dict[str, Any]) -> Plan:
    if life["stage"] == "search":
        return SearchPlan(space, folder, journal.ledger, lambda **point: journal.append("point", _now(), **point))
    from search.confirm import ConfirmPlan

    try:
        return ConfirmPlan(space, journal.ledger, top=life["top"], seeds=life["seeds"])
    except ValueError as error:
        raise UserError(f"study {folder.study}: {error}") from error


def _check_changes(before: Space, after: Space) -> None:
    """Refuse overrides that would make a resumed study another study."""
    old, new = before.resolved(), after.resolved()
    for section in old.keys() | new.keys():
        free = CHANGEABLE.get(section, set())
        if _without(old.get(section), free) != _without(new.get(section), free):
            allowed = ", ".join(f"{s}.{key}" for s, keys in CHANGEABLE.items() for key in sorted(keys))
            raise UserError(f"--set: {section} cannot change when a study is resumed; allowed: {allowed}")


def _without(section: Any, keys: set[str]) -> Any:
    return {k: v for k, v in section.items() if k not in keys} if isinstance(section, dict) else section


def _last_life(folder: StudyFolder) -> dict[str, Any]:
    """What the last life of a study did: {"stage": "search"} or confirm with its `top` and `seeds`."""
    last: dict[str, Any] = {"stage": "search"}
    for event in read(folder.journal):
        if event["e"] == "life":
            last = {k: v for k, v in event.items() if k not in ("e", "t")}
    return last


def _trial_job() -> Any:
    from trainables.ray_job import TrialJob

    return TrialJob


def _now() -> int:
    return int(time.time() * 1000)
