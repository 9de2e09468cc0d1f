"""The study inside Ray Tune: one driver that is both Tune's search algorithm and Tune's trial scheduler."""

from __future__ import annotations

import errno
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.exceptions
from ray import cloudpickle, tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from search.store.ledger import Trial
from search.study.driver import Driver, Fault
from trainables.contract.errors import last_line, storage_line
from trainables.contract.trial import Evaluation, Outcome
from trainables.on_ray.messages import PHASE, DeviceFault, doubt, node_lost
from trainables.on_ray.trainable import placement

EVALUATION_FIELDS = tuple(Evaluation.__dataclass_fields__)
OUTCOME_FIELDS = tuple(Outcome.__dataclass_fields__)
RESOLVE_S = 0.5  # seconds between two checks whether a process ended with its node
RETAINED_FIELDS = {*OUTCOME_FIELDS, "done", "trial_id", "training_iteration"}


class StudyLost(BaseException):
    """Another driver has taken the study: Tune is left at once, without stopping trials, which would write more."""


class TuneTrials:
    """What searcher, scheduler and callbacks share: which of our trials a Tune trial is, and how it failed."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.ours: dict[str, Trial] = {}  # by Tune's trial id
        self.errors: dict[str, BaseException | None] = {}  # the last one of a Tune trial
        # (trial, its error, until when Ray may report that its node was lost)
        self._doubtful: list[tuple[Trial, BaseException | None, float]] = []
        self._resolved = 0.0

    def take(self, tune_id: str) -> Trial | None:
        self.resolve()  # where nothing runs Tune calls nothing else
        ours = self.driver.next_trial()
        if ours is not None:
            self.ours[tune_id] = ours
        return ours

    def on_failure(self, ours: Trial, error: BaseException | None) -> None:
        """Report to the driver why a trial's process has ended, as soon as it is known."""
        wait = doubt(error) if error else 0.0
        self._doubtful.append((ours, error, time.monotonic() + wait))
        self.resolve(at_once=not wait)

    def resolve(self, at_once: bool = False) -> None:
        """Report each ended process to the driver once it is clear whether its node was lost."""
        if not (at_once or time.monotonic() - self._resolved > RESOLVE_S):
            return
        self._resolved, waiting = time.monotonic(), self._doubtful
        self._doubtful = []
        for ours, error, until in waiting:
            if not self.driver.pausing and self._resolved < until and error and not node_lost(error):
                self._doubtful.append((ours, error, until))
                continue
            fault = describe(error)
            self.driver.on_failure(ours.id, fault)
            if fault.kind == "device" and not usable(self.driver.avoided()):
                self.driver.fail(f"device: {fault.reason} (met by several trials on every node)")


class StudySearcher(Searcher):  # type: ignore[misc]  # ray has no types
    """Tune's search algorithm: gets trials from the study, reports their ends."""

    def __init__(self, shared: TuneTrials) -> None:
        super().__init__()
        self._shared = shared

    def suggest(self, trial_id: str) -> Any:
        driver = self._shared.driver
        if (ours := self._shared.take(trial_id)) is not None:
            pauses = driver.space.pruner.kind == "asha"
            own = driver.reserved(ours.id)
            return {
                "spec": driver.spec(ours).to_dict(),
                "pauses": pauses,
                "avoid": sorted(avoided(driver, ours)),
                "resources": (own.workers, own.cpus, own.gpus or 0.0),
            }
        # Return None while a trial runs: it may crash and be retried, and after FINISHED Tune requests no further
        # trial. With nothing running and nothing to start Tune would wait for ever, so the search is finished.
        return Searcher.FINISHED if driver.idle() else None

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        ours = self._shared.ours.pop(trial_id, None)
        if ours is None:
            return
        driver = self._shared.driver
        if error:
            self._shared.on_failure(ours, self._shared.errors.pop(trial_id, None))
        elif result and "stop" in result:
            driver.on_trial_end(ours.id, Outcome(**{name: result[name] for name in OUTCOME_FIELDS}))
        else:
            driver.on_trial_stop(ours.id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a study is resumed from its folder."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("studies are resumed from their folder, not by Tune")


class StudyScheduler(FIFOScheduler):  # type: ignore[misc]
    """Tune's trial scheduler: first come, first served; stops what the study prunes or pauses."""

    def __init__(self, shared: TuneTrials) -> None:
        super().__init__()
        self._shared = shared
        self._waiting: list[tuple[TuneTrial, str]] = []  # trials with their actions, until their markers are there

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:  # noqa: ARG002
        ours = self._shared.ours[trial.trial_id]
        if not self._shared.driver.owns():  # else a driver that was suspended would let a trial go on
            raise StudyLost
        if PHASE in result:
            self._shared.driver.busy(ours.id, result[PHASE], result["phase_done"], result["phase_of"])
            return str(TrialScheduler.CONTINUE)
        decision = self._shared.driver.on_evaluation(ours.id, evaluation_from(result))
        # one that is to pause at its rung finds its marker, saves its state and ends by itself
        goes_on = decision == "go" or (decision == "pause" and not self._shared.driver.pausing)
        action = str(TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)
        if not self._shared.driver.waits(ours.id):
            return action
        self._waiting.append((trial, action))
        return str(TrialScheduler.NOOP)

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:  # noqa: ARG002
        """Called before the searcher is notified of a trial's error."""
        self._shared.errors[trial.trial_id] = error_of(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """None: Tune starts pending trials in order by itself. Called in every step, so budgets are checked here."""
        driver = self._shared.driver
        if not driver.owns():
            raise StudyLost
        driver.tick()
        self._shared.resolve()
        held, self._waiting = self._waiting, []
        for trial, action in held:
            ours = self._shared.ours.get(trial.trial_id)
            if ours is None or trial.status != TuneTrial.RUNNING:
                continue  # its process crashed
            if driver.waits(ours.id):
                self._waiting.append((trial, action))
            elif action == TrialScheduler.STOP:
                tune_controller.stop_trial(trial)
            else:
                tune_controller._schedule_trial_train(trial)
        if driver.pausing:
            for trial in list(tune_controller.get_live_trials()):
                if trial.status == TuneTrial.PENDING:
                    tune_controller.stop_trial(trial)
        return None


class NoProgress(TrialProgressCallback):  # type: ignore[misc]
    """In place of Tune's own, which prints a line for a trial that is dropped before it started and remembers the
    last text of every trial."""

    def log_result(self, trial: TuneTrial, result: dict[str, Any], error: bool = False) -> None:
        """Nothing."""

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Nothing."""


class ResultTrimmer(tune.Callback):  # type: ignore[misc]
    """Keeps Tune's memory of trials small."""

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002
        trials: list[TuneTrial],  # noqa: ARG002
        trial: TuneTrial,  # noqa: ARG002
        result: dict[str, Any],
        **info: Any,  # noqa: ARG002
    ) -> None:
        """Called after the study has judged a result and before Tune keeps it: Tune would keep statistics of every
        number in it, hyperparameters included (75 kB per trial)."""
        for name in result.keys() - RETAINED_FIELDS:
            del result[name]

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:  # noqa: ARG002
        """Tune keeps every trial to the end of the study; without these it is 11 kB lighter."""
        trial.config, trial.evaluated_params = {}, {}
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()


def evaluation_from(result: Mapping[str, Any]) -> Evaluation:
    """The evaluation in a (flattened) Tune result."""
    metrics = {name.removeprefix("metrics/"): v for name, v in result.items() if name.startswith("metrics/")}
    plain = {name: result[name] for name in EVALUATION_FIELDS if name in result}
    return Evaluation(**{**plain, "metrics": metrics})


def error_of(trial: TuneTrial) -> BaseException | None:
    """The last error of a Tune trial, from the file where Tune has put it."""
    if not trial.pickled_error_file:
        return None
    try:
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:  # whatever it was, it cannot be brought back here
        text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else "unknown"
        return RuntimeError(text)
    return error if isinstance(error, BaseException) else None


def describe(error: BaseException | None) -> Fault:
    """The fault behind the error that ended a trial's process."""
    if error is None:
        return Fault("process", "the trial's process crashed")
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return Fault("oom", "the host ran out of memory and Ray ended the trial's process", text)
    if isinstance(error, ray.exceptions.RayActorError) and "in its creation task" in text:
        return Fault("process", f"the trial's process does not start: {last_line(error)}", text)  # a node without us
    if how := node_lost(error):
        return Fault("node", f"a node of the trial {how}", text)
    if isinstance(error, ray.exceptions.RayActorError):
        return Fault("process", f"the trial's process crashed ({type(error).__name__})", text)
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, DeviceFault):
        return Fault("device", cause.reason, cause.text, cause.node)
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fault("disk", last_line(cause), text)
    if line := storage_line(cause):
        return Fault("disk", line, text)
    return Fault("error", f"{type(cause).__name__}: {last_line(cause)}", text)


def usable(avoid: set[str]) -> set[str]:
    """Ids of the cluster's live nodes without these, of those that have what trials run on."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    kind = "GPU" if any("GPU" in node["Resources"] for node in alive) else "CPU"
    return {node["NodeID"] for node in alive if node["Resources"].get(kind)} - avoid


def avoided(driver: Driver, trial: Trial) -> set[str]:
    """Nodes where a trial may not start: as long as there are others, also those where it met a device fault."""
    own = driver.avoided(trial)
    return own if own and usable(own) else driver.avoided()


def run_tune(driver: Driver, trainable: type[tune.Trainable]) -> None:
    """Run one stage of a session to its end. Ray is initialised; Tune's own files go to a temporary folder.

    Trials are started again by the driver, not by Tune, which would take the same node. Tune reuses a process for
    trials that reserve the same.
    """

    def place(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        workers, cpus, gpus = config["resources"]
        return placement(workers, cpus, gpus, config["avoid"])

    shared = TuneTrials(driver)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failed trials have their line and traceback from us
    with tempfile.TemporaryDirectory(prefix="search-tune-", ignore_cleanup_errors=True) as scratch:
        tune.run(
            tune.with_resources(trainable, place),
            name="study",
            storage_path=scratch,
            search_alg=StudySearcher(shared),
            scheduler=StudyScheduler(shared),
            callbacks=[ResultTrimmer(), NoProgress()],
            num_samples=-1,
            max_failures=0,
            reuse_actors=True,
            verbose=0,
            progress_reporter=tune.CLIReporter(),  # silent like this; the one of notebooks clears their cell first
            raise_on_failed_trial=False,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            trial_dirname_creator=lambda trial: trial.trial_id,
        )
