"""The Python API: what the `search` command does, as functions. Ray, Optuna and MLflow are imported when they are used.

A study is named by its folder's name; None means the newest one of the storage.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search.schema import DEFAULT_STORAGE

if TYPE_CHECKING:
    from search.console.display import Phases
    from search.console.status import StudyStatus
    from search.running.result import StudyResult
    from search.running.session import Options
    from search.space import Space

Given = str | os.PathLike[str] | Mapping[str, Any]
"""A space: the path of a file, the name of a ready one (`edacse`), or what a file holds as plain data."""


def run(
    space: Space | Given,
    storage: str | os.PathLike[str] = DEFAULT_STORAGE,
    *,
    name: str | None = None,
    address: str | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> StudyResult:
    """Start a study over a space and run it to its end. Ctrl-C pauses it.

    Args:
        storage: folder or fsspec URI where studies and mlflow.db lie.
        name: of the study; the space's name with the first free number by default.
        address: of a running Ray cluster; else the Ray that this process is connected to (`ray.init()`), or RAY_ADDRESS
            where that is set, or a private Ray that ends with the study.
        quiet: print nothing; verbose: print a line for every evaluation, too.
    Returns: how it ended; `.best` is the best trial, `.exit_code` 0 when all is well.
    Raises: SpaceError for a wrong space; DataError or EncoderError when something that it names is missing; UserError
        when the storage cannot be written, the name is taken, a trial needs more than the machine has, or this process
        is connected to another Ray than `address`.
    """
    from search.space import Space
    from search.space import load_space as load

    with _phases(quiet) as phases:
        phases.begin("checking data and encoder")
        from search.running.preflight import preflight

        loaded = space if isinstance(space, Space) else load(space, find_data=True)
        for note in preflight(loaded):
            phases.console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
        phases.begin("loading the search")
        from search.running.runner import run_study

        return run_study(loaded, os.fspath(storage), name=name, options=_options(address, phases, verbose))


def resume(
    study: str | None = None,
    storage: str | os.PathLike[str] = DEFAULT_STORAGE,
    *,
    overrides: Sequence[str] = (),
    retry_failed: str | None = None,
    salvage_journal: bool = False,
    address: str | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> StudyResult:
    """Go on with a study after an interruption, a crash, or with a larger budget (`overrides=["search.trials=100"]`).

    Args:
        retry_failed: kind of failed trials that are run again, "outside" for all whose cause lies outside the point.
        salvage_journal: set damaged lines of the journal aside and go on from what is left.
    Raises: UserError when there is no such study, another driver runs it, its files are damaged, data files or encoders
        that it began with have changed or are gone, or an override changes what is searched.
    """
    with _phases(quiet) as phases:
        phases.begin("loading the search")
        from search.running.runner import resume_study

        return resume_study(
            os.fspath(storage),
            study,
            overrides=overrides,
            retry_failed=retry_failed,
            salvage_journal=salvage_journal,
            options=_options(address, phases, verbose),
        )


def confirm(
    study: str | None = None,
    storage: str | os.PathLike[str] = DEFAULT_STORAGE,
    *,
    trials: int | None = None,
    top: int | None = None,
    seeds: int | None = None,
    address: str | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> StudyResult:
    """Run the best points and the baseline on fresh seeds, each for the point whose result is most likely to
    change the answer.

    Args:
        trials: at most so many (20) in all, those of earlier confirmations included; it ends before when the choice and
            the gain over the baseline are decided.
        top: with `top` or `seeds`, a fixed plan instead: so many (3) best points, and the baseline.
        seeds: of the fixed plan: fresh seeds of each point (5).
    Raises: UserError when there is no such study, none of its points is complete, another driver runs it, data files or
        encoders that it began with have changed or are gone, a number is below 1, or `trials` is given beside `top` or
        `seeds`.
    """
    with _phases(quiet) as phases:
        phases.begin("loading the search")
        from search.running.runner import confirm_study

        return confirm_study(
            os.fspath(storage), study, trials=trials, top=top, seeds=seeds, options=_options(address, phases, verbose)
        )


def status(study: str | None = None, storage: str | os.PathLike[str] = DEFAULT_STORAGE) -> StudyStatus:
    """Where a study stands. Where its driver is gone, MLflow is brought up to date on the way.

    Raises: UserError when there is no such study.
    """
    from search.console.status import status_now

    return status_now(os.fspath(storage), study)[0]


def _phases(quiet: bool) -> Phases:
    # In a notebook without ipywidgets tqdm and Ray ask for it, with which nothing here would be drawn.
    warnings.filterwarnings("ignore", "IProgress not found")
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    from rich.console import Console

    from search.console.display import Output, Phases

    if Console().is_jupyter:  # lines of text in a cell: rich would give each a box of its own
        return Phases(Output(quiet=quiet, force_jupyter=False, force_terminal=False))
    return Phases(Output(quiet=quiet))


def _options(address: str | None, phases: Phases, verbose: bool) -> Options:
    from search.running.session import Options

    return Options(console=phases.console, phases=phases, address=address, verbose=verbose)
