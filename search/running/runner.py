"""Running studies: start, resume, confirm. The library behind `search run | resume | confirm`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import index
from typing import Any, SupportsIndex

from search.running.result import StudyResult, address_option
from search.running.session import SEARCH, Options, Session, Stage, as_recorded, write_space
from search.schema import CONFIRMATION_TRIALS, DEFAULT_STORAGE
from search.space import Space, load_space, space_from
from search.space.checks import encoder_notes
from search.store.bucket import held, pull
from search.store.environment import environment
from search.store.journal import Journal, StudyHeldError, exclusive, fold, identity, new_identity, salvage
from search.store.layout import StudyFolder, UserError, absolute, find_study, new_study, storage_option
from search.store.ledger import Ledger
from search.study.related import related_points
from search.study.search_plan import OWN_FAULTS
from trainables.contract.errors import close_to
from trainables.contract.origin import origin
from trainables.contract.remote_code import this_user

__all__ = ["Options", "StudyResult", "confirm_study", "resume_study", "run_study"]
# What `resume --set` may change: how much is searched and on what, never what a point means.
CHANGEABLE = {
    "search": {
        "trials", "time", "device_hours", "budget", "examples", "patience",
        "max_failed_share", "max_retries", "keep_best", "concurrent",
    },
    "resources": {"gpus", "cpus", "workers"},
}  # fmt: skip
EXTERNAL = ("data", "disk", "process", "device")  # failures that the point did not cause; a retry may succeed
TOP, SEEDS = 3, 5  # defaults of a confirmation with a fixed plan
ANY_EXTERNAL = "outside"  # all of them, as a kind of `--retry-failed`
RETRYABLE_KINDS = (ANY_EXTERNAL, *EXTERNAL, *OWN_FAULTS, "error")


def run_study(
    space: Space, storage: str = DEFAULT_STORAGE, *, name: str | None = None, options: Options | None = None
) -> StudyResult:
    """Start a study and run it to its end.

    Raises: UserError when the storage cannot be written, the name is taken, a trial needs more than the machine has, or
        `search.start` names what cannot be tried.
    """

    def write(folder: StudyFolder) -> None:
        folder.space.write_text(space.to_yaml(), encoding="utf-8")
        folder.environment.write_text(json.dumps(environment(encoder_notes(space)), indent=1), encoding="utf-8")
        journal = Journal(folder.journal, Ledger())
        write_space(journal, space, **new_identity(), **origin(folder.storage))
        if memory:
            journal.append("memory", points=[asdict(one) for one in memory])
        journal.close()

    memory = related_points(space, absolute(storage)) if space.search.start else []
    folder = new_study(absolute(storage), space.name, name, write=write)
    try:
        return _run_session(folder, Session(space, folder, options or Options(), [SEARCH]))
    except StudyHeldError:  # another process was first to run it
        raise
    except Exception:  # whatever Ray raises that does not start
        if not fold(folder.journal, Ledger()).sessions:  # nothing has run: no study is left behind
            with contextlib.suppress(Exception):  # a storage in trouble; the first error is the one to report
                folder.delete(str(folder.local))
                folder.delete(folder.uri)
        raise


def resume_study(
    storage: str = DEFAULT_STORAGE,
    study: str | None = None,
    *,
    overrides: Sequence[str] = (),
    retry_failed: str | None = None,
    salvage_journal: bool = False,
    options: Options | None = None,
) -> StudyResult:
    """Resume a study (the newest one by default): what is open or newly allowed of its search, then its confirmation.

    Args:
        overrides: `KEY.PATH=VALUE` of what may change (`CHANGEABLE`), such as larger budgets.
        retry_failed: kind of failed trials that are run again, "outside" for all kinds whose cause lies outside the
            point. A paper baseline that failed so is always run again.
        salvage_journal: set damaged lines of the journal aside and go on from what is left.
    Raises: UserError when there is no such study or kind, another driver runs it, its files were edited or damaged, or
        an override changes what is searched.
    """
    if retry_failed is not None and retry_failed not in RETRYABLE_KINDS:
        raise UserError(
            f"--retry-failed: expected a kind of failure ({', '.join(RETRYABLE_KINDS)}), got {retry_failed!r}"
            f"{close_to(retry_failed, RETRYABLE_KINDS)}; a study is named before it:"
            " `search resume STUDY --retry-failed`"
        )
    folder = find_study(absolute(storage), study)
    pull(folder)
    options = options or Options()
    if salvage_journal:
        with exclusive(folder), held(folder, options.console.print) as hold:
            for line in salvage(folder.journal):
                options.console.print(f"salvaged: {line}", markup=False)
            hold.replace()
            folder.tracked.unlink(missing_ok=True)  # an offset into the old file; what MLflow has is found by its tags
    ledger = fold(folder.journal, Ledger())
    _print_foreign_code(folder, options)
    recorded = _recorded_space(folder, ledger)
    space = load_space(folder.space, overrides)
    if overrides:
        _check_changes(recorded, space)

    def before(journal: Journal) -> None:
        for trial_id in _to_retry(journal.ledger, retry_failed):
            folder.delete(f"{folder.trial(trial_id)}/last")
            journal.append("reopen", id=trial_id)

    stages: list[Stage] = [SEARCH, *([ledger.confirming] if ledger.confirming else [])]
    return _run_session(folder, Session(space, folder, options, stages), before)


def confirm_study(
    storage: str = DEFAULT_STORAGE,
    study: str | None = None,
    *,
    trials: int | None = None,
    top: int | None = None,
    seeds: int | None = None,
    options: Options | None = None,
) -> StudyResult:
    """Run the best points and the baseline on fresh seeds, `trials` (20) at most in all, each for the point whose
    result is most likely to change the answer; with `top` or `seeds` the `top` best points (3) and the baseline on
    `seeds` each (5).

    Raises: UserError when there is no such study, none of its points is complete, its files were edited or damaged,
        another driver runs it, a number is below 1, or `trials` is given beside `top` or `seeds`.
    """
    stage = confirming(trials, top, seeds)
    folder = find_study(absolute(storage), study)
    pull(folder)
    options = options or Options()
    _print_foreign_code(folder, options)
    space = _recorded_space(folder, fold(folder.journal, Ledger()))
    return _run_session(folder, Session(space, folder, options, [stage]))


def confirming(trials: int | None, top: int | None, seeds: int | None) -> Stage:
    """The settings of a confirmation.

    Raises: UserError when a number is below 1, or `trials` is combined with `top` or `seeds`.
    """
    for name, number in (("trials", trials), ("top", top), ("seeds", seeds)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, SupportsIndex) or number < 1):
            raise UserError(f"confirm: {name}: expected a whole number of at least 1, got {number!r}")
    if top is None and seeds is None:
        return {"stage": "confirm", "trials": index(trials or CONFIRMATION_TRIALS)}  # NumPy's as Python's
    if trials is not None:
        raise UserError("confirm: trials: a fixed plan (top, seeds) has its own number of trials; give one of the two")
    return {"stage": "confirm", "top": index(top or TOP), "seeds": index(seeds or SEEDS)}


def _run_session(folder: StudyFolder, session: Session, before: Any = lambda _: None) -> StudyResult:
    """Run a session. An interruption, even before the first trial, names the command that resumes the study."""
    try:
        return session.run(before)
    except KeyboardInterrupt as stop:
        options = f"{storage_option(folder.storage)}{address_option(session.options.address)}"
        stop.add_note(f"go on with `search resume {folder.study}{options}`")
        raise


def _print_foreign_code(folder: StudyFolder, options: Options) -> None:
    """Print a line before this user runs code of a study that another user began."""
    space, which = load_space(folder.space, run_code=False), identity(folder.journal)
    if space.code and which is not None and which.user not in ("", this_user()):
        files = ", ".join(one.file for one in space.code)
        line = f"{files}: code of a study that {which.user} began; it runs as {this_user() or 'you'}"
        options.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _recorded_space(folder: StudyFolder, ledger: Ledger) -> Space:
    """The study's space, equal in its file and in the journal.

    Raises: UserError naming every key in which the file differs, since results of two spaces cannot be compared.
    """
    space = load_space(folder.space)
    if ledger.space is None:  # made by an older version
        return space
    before = space_from(ledger.space)  # with what this version adds to it, as to the file
    if changed := list(_differences(as_recorded(before), as_recorded(space))):
        raise UserError(
            f"{folder.space}: edited since the study began: {'; '.join(changed)}. Nothing was run. Undo that, use"
            f" `search resume --set` for what may change, or start another study from your own space file"
        )
    return space


def _differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """`metric.mode: max is now min` for every leaf that differs."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield f"{path}: {_shown(before)} is now {_shown(after)}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _to_retry(ledger: Ledger, kind: str | None) -> list[str]:
    """Ids of the failed trials that are to be run again."""
    kinds = EXTERNAL if kind == ANY_EXTERNAL else (kind,)
    found = []
    for trial_id, record in ledger.trials.items():
        failed = record.state.removeprefix("failed:") if record.failed else ""
        if failed and (failed in kinds or (record.trial.baseline and failed in EXTERNAL)):
            found.append(trial_id)
    return found


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
