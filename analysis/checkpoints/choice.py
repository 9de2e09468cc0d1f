"""Which trials are tested or exported, whether their weights are saved, and which of their data a hub has."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd

from analysis.errors import AnalysisError, unknown
from analysis.statistics.verdict import study_verdict
from analysis.tables.record import of_untrained, openings
from analysis.tables.study import Study
from search import schema
from trainables.contract import formats
from trainables.contract.trial import CHECKPOINT, TRIAL, at_width, metric_parts
from trainables.data.catalogue import BUILTIN, HUB, SUITES, beside_dev, hub_name, is_hub, is_path
from trainables.data.retrieval import NANO

TEST_SET = "TEST_SET"  # in a command: one that the reader has to name
SHOWN = 5  # trials that are named in place of one whose weights are gone


def chosen_trials(study: Study, named: Sequence[str]) -> pd.DataFrame:
    """The trials to test: the named ones, else all counted seeds of the point that the verdict names.

    Raises: InputError for an unknown trial.
    """
    trials = study.trials
    if named:
        for trial in named:
            if trial not in set(trials["trial"]):
                raise unknown("trial", trial, trials["trial"])
        return trials[trials["trial"].isin(list(named))]
    point = study.points[study.points["point"] == study_verdict(study).best].iloc[0]
    return trials[trials["run_id"].isin(point["run_ids"])]


def baseline_trials(study: Study, tested: pd.DataFrame) -> pd.DataFrame:
    """The counted seeds of the baseline; none if it is among the tested points or was not completed."""
    points = study.points[study.points["baseline"] & (study.points["stop"] == "completed")]
    runs = [run for row in points["run_ids"] for run in row]
    return study.trials[study.trials["run_id"].isin(runs) & ~study.trials["point"].isin(tested["point"])]


def exported_trial(study: Study, named: str | None = None) -> pd.Series[Any]:
    """The row of the trial that is exported: the named one, else the seed with the best dev value of the best point.

    Raises: InputError for an unknown trial; AnalysisError if no weights are saved.
    """
    chosen, _ = with_checkpoint(study, chosen_trials(study, (named,) if named else ()))
    return chosen.sort_values("value", ascending=study.metric.sign < 0).iloc[0]


def selected_width(study: Study) -> int | None:
    """The width that all parts of the selecting metric name (`stsb_dev@128`), None where they do not name one."""
    widths = {at_width(part)[1] for part in metric_parts(study.selecting)}
    return widths.pop() if len(widths) == 1 else None


def way_to_export(study: Study, point: str) -> tuple[str | None, str]:
    """The command that exports a point's weights, None if they are not there, and then why, else "".

    A bucket is not read: that takes credentials, and `analysis export` reports what is missing. Exporting goes by the
    metric that selected: where the point is best by another, the command names its trial.
    """
    command = study.command("analysis export")
    folder = study.stored.tags.get(schema.FOLDER, "")
    (runs,) = study.points.loc[study.points["point"] == point, "run_ids"]
    trials = study.trials[study.trials["run_id"].isin(runs)]
    if writes_no_model(study, trials):
        return None, "none: the script saves no model"
    there = trials if "://" in folder else trials[have_weights(study, trials)]
    if len(there):
        return (
            command if study.metric.name == study.selecting else f"{command} --trial {_best_first(study, there)[0]}"
        ), ""
    if not Path(folder).is_dir():
        return None, f"not found: the study's folder is not there: {folder or 'unknown'}"
    others = _best_first(study, study.trials[have_weights(study, study.trials)])
    saved = f"; those of {', '.join(others[:SHOWN])} are: {command} --trial {others[0]}" if others else ""
    return None, f"not on disk any more{saved}"


def way_to_test(study: Study) -> str | None:
    """The command that opens the test sets, where none has scored a trained checkpoint and the program can.

    Of own data it names the test set beside the dev set (`pairs_dev` -> `pairs_test`), else `TEST_SET`.
    """
    if study.space.get("script") or any(not of_untrained(line) for line in openings(study.stored)):
        return None
    command = f'{study.command("analysis test")} --reason "final result"'
    dev = [str(name) for name in study.data.get("dev") or ()]
    own = [name for name in dev if is_path(name) or is_hub(name)]
    language = str(study.data.get("language", "en"))
    if not own and (language in SUITES or BUILTIN in dev):
        return command
    beside = [path for name in own if (path := beside_dev(name))]
    return f"{command} --set {shlex.quote(beside[0]) if beside else TEST_SET}"


def _best_first(study: Study, trials: pd.DataFrame) -> list[str]:
    return [str(trial) for trial in trials.sort_values("value", ascending=study.metric.sign < 0)["trial"]]


def with_checkpoint(study: Study, trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The trials whose weights are saved, and the names of the rest (a study saves those of its best trials only).

    Raises: AnalysisError if none is saved, naming trials that could be tested instead.
    """

    there = have_weights(study, trials)
    if not any(there) and writes_no_model(study, trials):
        raise AnalysisError(f"the script of {study.name} saved no model: there is nothing to export or test")
    if not any(there):
        others = study.trials[have_weights(study, study.trials)]["trial"]
        raise AnalysisError(
            f"no weights stored of {', '.join(trials['trial'])}; there are weights of: {', '.join(others) or 'none'}"
        )
    return trials[there], list(trials.loc[[not t for t in there], "trial"])


def have_weights(study: Study, trials: pd.DataFrame) -> list[bool]:
    """Of each trial, whether its weights are there."""
    paths = [trial_path(study, folder) for folder in trials["folder"]]
    return [any(exists(f"{path}/{name}") for name in CHECKPOINT) for path in paths]


def writes_no_model(study: Study, trials: pd.DataFrame) -> bool:
    """Whether a script trained these trials and wrote no model of its best evaluations, as far as can be seen."""
    if not study.space.get("script"):
        return False
    records = [read_record(trial_path(study, folder)) for folder in trials["folder"]]
    return not any(record is None or record.get("model", True) for record in records)


def trial_path(study: Study, folder: str) -> str:
    """Absolute path or URI of a trial's folder."""
    return f"{study.stored.tags.get(schema.FOLDER, '')}/{folder}"


def read_record(folder: str) -> dict[str, Any] | None:
    """A trial's record of its best evaluation (trial.json), None where it is not there.

    Raises: AnalysisError where a newer version wrote it.
    """
    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{TRIAL}")
    try:
        found = json.loads(filesystem.cat_file(path))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    try:
        formats.check_format(found, formats.CHECKPOINT)
    except formats.NewerFormatError as error:
        raise AnalysisError(f"{folder}/{TRIAL}: {error}") from None
    return found


def at_hub(name: str, language: str) -> tuple[str, str | None] | None:
    """Repository and commit of a data set that the hub has under a name of ours, None if it has none."""
    if name in NANO or is_hub(name):
        where = hub_name(f"hub:{NANO[name]}" if name in NANO else name)
        return where.repo, where.commit
    hub = HUB.get((language, name))
    return (hub.repo, hub.revision) if hub else None


def exists(path: str) -> bool:
    """Whether a file or folder (path or URI) is there."""
    if "://" not in path:  # called for 10,000 trials: a tenth of the time of fsspec
        return os.path.exists(path)
    filesystem, inner = fsspec.core.url_to_fs(path)
    return bool(filesystem.exists(inner))
