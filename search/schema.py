"""The tracking schema: the words that `search` writes to MLflow and `analysis` reads.

Experiment = space name. Parent run = study, child run = trial. The tag keys and metric names below, and where
the store is, are a contract between the two packages.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from trainables.contract import formats
from trainables.contract.origin import TRACKED
from trainables.contract.trial import DEV_SUFFIX as DEV_SUFFIX
from trainables.contract.trial import at_width

# Tags. `mlflow.parentRunId` links a trial to its study.
ROLE: Final = "role"  # "study" | "trial"
STUDY_ID: Final = "study_id"  # name of the study's folder: unique in a storage, not in a tracking server
STUDY_UUID: Final = "study_uuid"  # which study it is, on all of its runs
USER: Final = "mlflow.user"  # who began the study
FORMAT: Final = "search_format"  # on the study run, once all of it is there: format of what is written here
VERSION: Final = "search_version"  # on the study run: that wrote it
POINT_ID: Final = "point_id"  # hash of the parameters: equal for trials that differ in seed only
SEED: Final = "seed"
STAGE: Final = "stage"  # "search" | "confirm"
STOP: Final = "stop"  # "completed" | "pruned" | "paused" | "failed:<kind>"; absent or empty while running
REASON: Final = "reason"  # one line why a failed trial failed
TRIAL_ID: Final = "trial_id"  # "t0007", or "t0007.1" for the second seed of a point; "c0007.3" in stage confirm
OPTUNA_NUMBER: Final = "optuna_number"  # number of the point in the Optuna study
METHOD: Final = "method"
METRIC: Final = "metric"  # on the study run: what selects, such as "stsb_dev"
MODE: Final = "mode"  # on the study run: "max" | "min"
BASELINE: Final = "baseline"  # "paper" on trials of the enqueued default point
MOVED: Final = "baseline_moved"  # study run: comma-separated parameters of the baseline that the space has changed
ORIGIN: Final = "origin"  # on trials of a point of `search.start`: the study and trial that it comes from
PLACE: Final = "place"  # on trials: host and device that ran it last
FOLDER: Final = "folder"  # study run: folder or URI of the study; trial run: of the trial, relative to it
SEARCHED: Final = "searched"  # study run: comma-separated names of the searched parameters
CONFIRMATION: Final = "confirmation."  # confirmation.<ms since 1970> on the study run: one per start of a confirmation
SHARING: Final = "sharing"  # study run: "4 trials a GPU (...)", where `resources: auto` was decided
SHARED_GPUS: Final = "shared_gpus"  # ... and the GPUs of each trial then
OPENING: Final = "test_opening."  # test_opening.1, ...: one per opening of the test sets; study run and tested trials
OPENINGS: Final = "openings"  # in a study's folder: <number>.txt for each opening, its text as in the tag
OPENED_METRICS: Final = "metrics.json"  # in openings/<number>/<trial>: what was measured, name -> value
OPENED_FILES: Final = "files"  # in openings/<number>/<trial>: folder of what else was logged
TRIALS_TAG: Final = "trials_file"  # study run: path of the artifact TRIALS_FILE, once there is one
PARENT: Final = "mlflow.parentRunId"

# Metrics: dev metrics per evaluation (step = training examples seen), and at the end:
TRAIN_SECONDS: Final = "train_seconds"
EXAMPLES_PER_SECOND: Final = "examples_per_second"
BEST_AT_EXAMPLES: Final = "best_at_examples"
BEST_PREFIX: Final = "best_"  # best_stsb_dev, best_sickr_dev: dev metrics at the selecting one's best evaluation

# On the study's run, so that MLflow's compare page and table set studies beside each other: BEST_PREFIX + metric, and
TRIALS: Final = "trials"  # ended ones
POINTS: Final = "points"  # of which a seed has ended or reached a rung
HOURS: Final = "hours"  # that drivers have been at work
FAILED: Final = "failed"  # trials

# Artifacts.
SIMILARITIES: Final = "similarities.npz"  # trial: per dev set, float32 [n] cosines of the best checkpoint
# Of retrieval sets it holds the measures of each query: trainables.contract.trial.QUERIES_SUFFIX.
GOLD_SUFFIX: Final = "_gold"  # in the same file, float32 [n] gold scores of the same pairs: stsb_dev, stsb_gold
SPACE_FILE: Final = "space.yaml"  # study: the resolved space
ENVIRONMENT_FILE: Final = "environment.json"  # study: versions, commit, machine
TRACEBACK_FILE: Final = "traceback.txt"  # failed trial
TRIALS_FILE: Final = "trials.jsonl.gz"  # study: its ended trials as MLflow has them (`search.tracking.tracker`)

# 50 seeds of unsupervised SimCSE on BERT-base ranged over 76.70 - 73.16 = 3.54 points (D08); the expected range of 50
# normal values is 4.498 standard deviations (Tippett 1925). The prior of a metric's standard deviation over
# seeds, in [-1, 1], before any seed has been repeated.
SEED_SD: Final = 0.0079

CONFIRMATION_TRIALS: Final = 20  # default maximum of `search confirm`
# Stored in [-1, 1], shown to people times 100, as papers print them: by `search` and by `analysis` alike.
SHOWN_SCALE: Final = 100.0

TEST_SUFFIX: Final = "_test"
UNTRAINED_PREFIX: Final = "untrained_"  # untrained_stsb_dev: of the encoder before training


def check_format(tags: Mapping[str, str]) -> None:
    """Raises: NewerFormatError where a newer version wrote the study with these tags."""
    formats.check_format({formats.FORMAT: tags.get(FORMAT, 1), formats.VERSION: tags.get(VERSION)}, formats.TRACKING)


def stored(metric: str) -> str:
    """A metric's name as MLflow takes it, of letters, digits and `_-. :/`: `mean(a_dev,b_dev)` -> `mean_a_dev_b_dev`,
    `stsb_dev@128` -> `stsb_dev:128`, `ndcg@10` -> `ndcg_10`, others as they are."""
    return re.sub(r"[^\w.\-:/ ]", "_", re.sub(rf"{DEV_SUFFIX}@(\d)", rf"{DEV_SUFFIX}:\1", metric).replace(")", ""))


def named(metric: str) -> str:
    """A stored dev metric as people write it: `stsb_dev:128` -> `stsb_dev@128`."""
    name, width = at_width(metric)
    return metric if width is None else f"{name}@{width}"


def is_dev(metric: str) -> bool:
    """Whether a stored metric is a dev metric as logged per evaluation, no summary of one."""
    return at_width(metric)[0].endswith(DEV_SUFFIX) and not metric.startswith((BEST_PREFIX, UNTRAINED_PREFIX))


def best_key(metric: str) -> str:
    """`stsb_dev` -> `best_stsb_dev`."""
    return BEST_PREFIX + stored(metric)


SQLITE: Final = "sqlite:///"
DATABASE: Final = "mlflow.db"
ARTIFACTS: Final = "artifacts"  # beside the database
DEFAULT_STORAGE: Final = "runs"
ANSWER_S: Final = 4.0  # how long a tracking server may take to accept a connection


def tracking_uri(option: str | None = None, storage: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The MLflow store: `option`, else MLFLOW_TRACKING_URI, else `<storage>/mlflow.db` (storage ./runs by default).

    What is given without a scheme is the path of an SQLite file. A storage behind a URI keeps its database in ./runs.
    User and password in a server's address go into the variables that MLflow's client reads: nothing prints or stores
    them then.
    """
    given = option or environ.get("MLFLOW_TRACKING_URI")
    if given:
        return _without_login(given) if "://" in given or given == "databricks" else f"{SQLITE}{given}"
    folder = (storage or DEFAULT_STORAGE).removeprefix("file://")
    if "://" in folder:
        folder = DEFAULT_STORAGE
    return f"{SQLITE}{os.path.join(os.path.abspath(os.path.expanduser(folder)), DATABASE)}"


def _without_login(uri: str) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError:  # no address, which is reported where it is used
        return uri
    if parts.scheme not in ("http", "https") or parts.username is None:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def masked(text: str) -> str:
    """A text without the passwords of addresses in it.

    >>> masked("cannot reach postgresql://me:secret@host/db")
    'cannot reach postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^\s/@:]*):[^\s/]*@", r"\1:***@", text)


def recorded_uri(storage: str, study: str) -> str:
    """The tracking store that a study in a folder was last written to, without passwords; "" where none is recorded."""
    try:
        recorded = json.loads((Path(storage) / study / TRACKED).read_text(encoding="utf-8"))
        return str(recorded.get("uri", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def database(uri: str) -> Path | None:
    """The file of an SQLite store, None of other stores."""
    return Path(unquote(uri[len(SQLITE) :].split("?")[0])).absolute() if uri.lower().startswith(SQLITE) else None


def moved_artifacts(uri: str, stored: str) -> Path | None:
    """Where the artifacts of a run or an experiment lie if they were moved or copied together with the SQLite store.

    Args: stored: their address in the store, `file:///old/runs/artifacts/EXPERIMENT/...`.
    Returns: the same folder in the `artifacts` beside the database; None where the stored address holds.
    """
    parts, file = urlsplit(stored), database(uri)
    if file is None or parts.scheme not in ("", "file"):
        return None
    path = Path(url2pathname(parts.path))
    # of an experiment .../artifacts/NAME, of a run .../artifacts/NAME/RUN/artifacts
    length = 4 if path.parts[-4::3] == (ARTIFACTS, ARTIFACTS) else 2
    if path.parts[-length:][:1] != (ARTIFACTS,):
        return None
    here = file.parent.joinpath(*path.parts[-length:])
    is_here = (file.parent / ARTIFACTS / path.parts[1 - length]).is_dir() or not path.parents[length - 2].is_dir()
    return here if is_here and here != path else None


def unreachable(uri: str) -> str:
    """Why nothing answers at a server's address, in a few seconds; "" for other stores, and where something does."""
    if not uri.startswith(("http://", "https://")):
        return ""
    try:
        parts = urlsplit(uri)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=ANSWER_S).close()
    except (OSError, ValueError) as error:  # ValueError: no address
        return f"{uri} does not answer ({getattr(error, 'strerror', None) or error})"
    return ""
