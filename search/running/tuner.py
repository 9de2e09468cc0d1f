"""The study inside Ray Tune: one driver that is both Tune's search algorithm and Tune's trial scheduler."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Before ray is imported: Tune's own output, loggers, snapshots and signal handler are off; ours take their place.
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial's last result has no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # the journal is what a study is resumed from
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
}
os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})

import ray.exceptions  # noqa: E402  # see QUIET
from ray import cloudpickle, tune  # noqa: E402
from ray.tune.experiment import Trial  # noqa: E402
from ray.tune.progress_reporter import TrialProgressCallback  # noqa: E402
from ray.tune.schedulers import FIFOScheduler, TrialScheduler  # noqa: E402
from ray.tune.search import Searcher  # noqa: E402

from search.driver import Driver  # noqa: E402
from search.journal import Run  # noqa: E402
from search.space import Resources  # noqa: E402
from trainables.ray_job import placement  # noqa: E402
from trainables.spec import Evaluation, Outcome  # noqa: E402

EVALUATION_FIELDS = tuple(Evaluation.__dataclass_fields__)
OUTCOME_FIELDS = tuple(Outcome.__dataclass_fields__)
KEPT_FIELDS = {*OUTCOME_FIELDS, "done", "trial_id", "training_iteration"}


class StudyTune:
    """What the searcher and the scheduler share: which of our runs a Tune trial is."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.runs: dict[str, Run] = {}  # by Tune's trial id
        self.faults: dict[str, tuple[str, str, str]] = {}  # (kind, reason, traceback) of a Tune trial's last error

    def take(self, tune_id: str) -> Run | None:
        run = self.driver.next_run()
        if run is not None:
            self.runs[tune_id] = run
        return run


class StudySearcher(Searcher):  # type: ignore[misc]  # ray has no types
    """Tune's search algorithm: asks the study for runs, tells it their ends."""

    def __init__(self, shared: StudyTune) -> None:
        super().__init__()
        self._shared = shared

    def suggest(self, trial_id: str) -> Any:
        driver = self._shared.driver
        if (run := self._shared.take(trial_id)) is not None:
            return {"spec": driver.spec(run).to_dict()}
        # With nothing running and nothing to start Tune would wait for ever: a plan never gets there unfinished.
        return Searcher.FINISHED if driver.finished() or driver.idle() else None

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        run = self._shared.runs.pop(trial_id, None)
        if run is None:
            return
        fault = self._shared.faults.pop(trial_id, None)
        driver = self._shared.driver
        if error:
            kind, reason, text = fault or ("error", "the trial process failed", "")
            state = driver.ledger.runs[run.id]
            outcome = Outcome(f"failed:{kind}", state.best, state.best_at, state.examples, state.seconds, reason, text)
            driver.ended(run.id, outcome)
        elif result and "stop" in result:
            driver.ended(run.id, Outcome(**{name: result[name] for name in OUTCOME_FIELDS}))
        else:
            driver.stopped(run.id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study folder is the truth."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("studies are resumed from their folder, not by Tune")


class StudyScheduler(FIFOScheduler):  # type: ignore[misc]
    """Tune's trial scheduler: first come, first served; stops what the study prunes or pauses."""

    def __init__(self, shared: StudyTune) -> None:
        super().__init__()
        self._shared = shared

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:  # noqa: ARG002
        run = self._shared.runs[trial.trial_id]
        verdict = self._shared.driver.evaluated(run.id, evaluation_from(result))
        return str(TrialScheduler.CONTINUE if verdict == "go" else TrialScheduler.STOP)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002
        """Called for the last error of a trial and for those after which it is tried again."""
        self._shared.faults[trial.trial_id] = describe(error_of(trial))

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """None: Tune starts pending trials in order by itself. Called in every step, so budgets are looked at here."""
        driver = self._shared.driver
        driver.tick()
        if driver.pausing:
            for trial in list(tune_controller.get_live_trials()):
                if trial.status == Trial.PENDING:
                    tune_controller.stop_trial(trial)
        return None


class Silence(TrialProgressCallback):  # type: ignore[misc]
    """In place of Tune's own, which prints a line for a trial that is dropped before it started and remembers the
    last text of every trial."""

    def log_result(self, trial: Trial, result: dict[str, Any], error: bool = False) -> None:
        """Nothing."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Nothing."""


class Housekeeping(tune.Callback):  # type: ignore[misc]
    """Writes down that Tune starts a trial again, and keeps Tune's memory of ended trials small."""

    def __init__(self, shared: StudyTune) -> None:
        self._shared = shared

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002  # Tune's interface
        trials: list[Trial],  # noqa: ARG002
        trial: Trial,  # noqa: ARG002
        result: dict[str, Any],
        **info: Any,  # noqa: ARG002
    ) -> None:
        """Called after the study has judged a result and before Tune keeps it: Tune would keep statistics of every
        number in it, hyperparameters included (75 kB per trial)."""
        for name in result.keys() - KEPT_FIELDS:
            del result[name]

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        """Tune keeps every trial to the end of the study; without these it is 11 kB lighter."""
        trial.config, trial.evaluated_params = {}, {}
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ARG002
        kind, reason, _ = self._shared.faults.get(trial.trial_id, ("process", "", ""))
        if run := self._shared.runs.get(trial.trial_id):
            self._shared.driver.retried(run.id, f"{kind}: {reason}")


def evaluation_from(result: Mapping[str, Any]) -> Evaluation:
    """The evaluation in a (flattened) Tune result."""
    metrics = {name.removeprefix("metrics/"): v for name, v in result.items() if name.startswith("metrics/")}
    plain = {name: result[name] for name in EVALUATION_FIELDS if name in result}
    return Evaluation(**{**plain, "metrics": metrics})


def error_of(trial: Trial) -> BaseException | None:
    """The last error of a Tune trial, from the file where Tune has put it."""
    if not trial.pickled_error_file:
        return None
    try:
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:  # whatever it was, it cannot be brought back here
        text = Path(trial.error_file).read_text(errors="replace") if trial.error_file else "unknown"
        return RuntimeError(text)
    return error if isinstance(error, BaseException) else None


def describe(error: BaseException | None) -> tuple[str, str, str]:
    """(kind, one line, traceback) of the error that killed a trial's process."""
    if error is None:
        return "process", "the trial's process died", ""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "oom", "the host ran out of memory and Ray ended the trial's process", text
    if isinstance(error, (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError)):
        return "process", f"the trial's process died ({type(error).__name__})", text
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return "error", f"{type(cause).__name__}: {lines[-1].strip()}", text


def run_tune(driver: Driver, trainable: type[tune.Trainable], resources: Resources, max_retries: int) -> None:
    """Run a life of a study to its end. Ray is initialised; Tune's own files go to a temporary folder.

    Args: resources: of one trial; max_retries: new starts of a trial whose process died.
    """
    shared = StudyTune(driver)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failed trials have their line and traceback from us
    with tempfile.TemporaryDirectory(prefix="search-tune-", ignore_cleanup_errors=True) as scratch:
        tune.run(
            tune.with_resources(trainable, placement(resources.workers, resources.cpus, resources.gpus or 0.0)),
            name="study",
            storage_path=scratch,
            search_alg=StudySearcher(shared),
            scheduler=StudyScheduler(shared),
            callbacks=[Housekeeping(shared), Silence()],
            num_samples=-1,
            max_failures=max_retries,
            reuse_actors=True,
            verbose=0,
            raise_on_failed_trial=False,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            trial_dirname_creator=lambda trial: trial.trial_id,
        )
