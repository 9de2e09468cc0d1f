"""What a search and its trials exchange: spec, evaluations, outcome, metric names, files, phases. No torch."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from filelock import FileLock, Timeout

from trainables.contract.registry import Plugin

Decision = Literal["go", "prune", "pause"]  # pause = save the state and end; the trial will be resumed
SAMPLE, SHUFFLE, AUGMENT = 1, 2, 3  # random streams of a trial's seed: a draw from one never shifts another


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial: a configuration with a seed, and where its files go.

    Attributes:
        method: a name in `contract.registry`.
        encoder: hub id (`id@revision`), local folder, `builtin:tiny`; or a word-vector file, `builtin:vectors`.
        data: {"train": name or file, "dev": [names, files, folders of retrieval sets], "language": code,
            "parser": ..., "columns": ..., "evaluations": {name: folder or None},
            "prompts": {"query": text, "document": text}, "mine": {"count": n, ...} or None}.
        metric: dev metric that selects: `stsb_dev` (Spearman in [-1, 1]), or `mean(stsb_dev,nfcorpus_ndcg10_dev)`.
        holdout: share of the dev pairs that do not select and are reported beside (`<set>_held_dev`), in [0, 1).
        params: YAML-named hyperparameters (searched, constant and preset values together).
        seed: drives initialisation, dropout, batches and augmentation.
        folder: absolute path or fsspec URI of the trial's own folder; holds `last/` while running, `best/` at the end.
        workers: 1 = in the (warm) trial process; more = data-parallel Ray Train workers.
        gpus, cpus: resources of each worker (fractions of a GPU allowed).
        plugins: files that define the method or evaluations; a fresh process has none.
        script: what trains, where the method is a script.
        measure: its first evaluation also carries what decides how many trials share a card or a machine.
    """

    method: str
    encoder: str
    data: Mapping[str, Any]
    metric: str
    mode: Literal["max", "min"] = "max"
    holdout: float = 0.0
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    folder: str
    workers: int = 1
    gpus: float = 0.0
    cpus: float = 1.0
    plugins: tuple[Plugin, ...] = ()
    script: Plugin | None = None
    measure: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> TrialSpec:
        """The inverse of `to_dict`; also reads what versions without plugins stored."""
        script = Plugin(**d["script"]) if d.get("script") else None
        return TrialSpec(**{**d, "plugins": tuple(Plugin(**p) for p in d.get("plugins", ())), "script": script})


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a running trial.

    Attributes:
        rung: nominal training examples (k * eval_examples, or k * eval_steps * batch_size): equal across trials, what
            pruning compares.
        examples: training examples really consumed; the step of every logged metric.
        value: the selecting metric; metrics: it and all others (Spearman in [-1, 1], loss, alignment, uniformity).
        best, best_at: best value so far and the examples at which it was reached.
        seconds: training and evaluation time of this trial so far, including before it was resumed.
        resumed_from: examples at which this process took the trial up (0 = from scratch).
        planned: training examples of this trial if it runs to its end; 0 = unknown. Warm-up, hyperband's brackets and
            progress need it.
        place: host and device, in a process's first evaluation of the trial; else "".
    """

    rung: int
    examples: int
    value: float
    metrics: Mapping[str, float]
    best: float
    best_at: int
    seconds: float
    resumed_from: int = 0
    planned: int = 0
    place: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        stop: "completed", "pruned", "paused", or "failed:<kind>" with kind nan, collapse, oom, device, disk, data,
            process or error.
        best, best_at: best value and the training examples at which it was reached.
        examples: training examples consumed; seconds: of training and evaluation.
        reason: one line for people, empty unless failed; traceback: full text of an exception.
    """

    stop: str
    best: float | None
    best_at: int
    examples: int
    seconds: float
    reason: str = ""
    traceback: str = ""


Report = Callable[[Evaluation], Decision]
# The Tune trainable returns a dict from each step: the fields of Evaluation, and on the trial's last result those of
# Outcome with "done": True. A failure inside the trial is reported this way, never raised, so that the warm process
# survives; only a dead process, or one whose device is broken (`on_ray.messages.DeviceFault`), is an error to Tune.

# ------------------------------------------------------------ metric names
DEV_SUFFIX = "_dev"
DEVICE_MEMORY = "device_memory_gb"  # of an evaluation: peak GPU memory of the trial so far, 1e9 bytes
# Of the first evaluation of a trial that measures (`TrialSpec.measure`), and of every one where it is known:
CARD_MEMORY = "system/card_memory_gb"  # of the whole card, 1e9 bytes
MODEL_MEMORY = "system/model_memory_gb"  # weights, gradients and moments, 1e9 bytes
STEP_SECONDS = "system/step_seconds_threads_"  # + threads: forward and backward of a batch, or piece of it, on a CPU
PROCESS_MEMORY = "system/process_memory_megabytes"
GPU_BUSY = "system/gpu_utilization_percentage"
MICRO_BATCH = "micro_batch"  # of a first evaluation: the examples that `micro_batch: auto` encodes at a time
ROWS_LEFT_OUT = "rows_left_out"  # of a first evaluation: training rows that lack a text, where there are any
HELD = "_held"  # of a set's held-out part: stsb_held_dev (`metric.holdout`)
RETRIEVAL_MEASURES = ("ndcg10", "mrr10", "recall10", "recall100")  # <set>_ndcg10_dev, ... of a retrieval set
QUERIES_SUFFIX = "_queries"  # nfcorpus_ndcg10_queries: the measure of each query, beside the cosines of the dev pairs
_NOTATION = dict(zip(RETRIEVAL_MEASURES, ("nDCG@10", "MRR@10", "recall@10", "recall@100"), strict=True))


def at_width(metric: str) -> tuple[str, int | None]:
    """A metric without the width that vectors are cut to for it, and that width; None = whole vectors.

    >>> at_width("stsb_dev@128"), at_width("stsb_dev")
    (('stsb_dev', 128), ('stsb_dev', None))
    """
    found = re.fullmatch(rf"(.+{DEV_SUFFIX})[@:]([1-9]\d*)", metric)  # `:` as MLflow has it (`search.schema.stored`)
    return (found[1], int(found[2])) if found else (metric, None)


def retrieval_measure(metric: str) -> str | None:
    """The measure of a retrieval metric in the field's notation, None of any other metric.

    >>> retrieval_measure("nfcorpus_ndcg10_dev")
    'nDCG@10'
    """
    metric = at_width(metric)[0]
    measure = metric.removesuffix(DEV_SUFFIX).rpartition("_")[2]
    return _NOTATION.get(measure) if metric.endswith(DEV_SUFFIX) else None


def metric_parts(metric: str) -> list[str]:
    """The measured names that a selecting metric is made of, in order; blanks around them do not count.

    >>> metric_parts("mean( stsb_dev, atec_dev )")
    ['stsb_dev', 'atec_dev']

    Raises: ValueError if the text is neither a name nor a mean of names.
    """
    mean = re.fullmatch(r"mean\(([^()]*)\)", metric.strip())
    parts = [part.strip() for part in mean[1].split(",")] if mean else [metric.strip()]
    if not all(re.fullmatch(r"\w[^(),]*", part) for part in parts):
        raise ValueError(f"metric: expected a name such as stsb_dev or mean(stsb_dev,atec_dev), got {metric!r}")
    return parts


def normal_metric(metric: str) -> str:
    """The one way in which a metric is written and stored: no blanks around its names.

    >>> normal_metric(" mean( stsb_dev, atec_dev )")
    'mean(stsb_dev,atec_dev)'

    Raises: ValueError as `metric_parts`.
    """
    parts = ",".join(metric_parts(metric))
    return f"mean({parts})" if "(" in metric else parts


def held_metric(metric: str) -> str:
    """The same metric of the pairs that were held out.

    >>> held_metric("mean(stsb_dev,atec_dev)")
    'mean(stsb_held_dev,atec_held_dev)'
    >>> held_metric("stsb_dev@128")
    'stsb_held_dev@128'
    """
    named = ((part, at_width(part)[0]) for part in metric_parts(metric))
    parts = ",".join(f"{of.removesuffix(DEV_SUFFIX)}{HELD}{DEV_SUFFIX}{part.removeprefix(of)}" for part, of in named)
    return f"mean({parts})" if "(" in metric else parts


# ------------------------------------------------------------ files
# In the trial's folder.
LAST = "last"  # what a trial needs to go on
STATE = f"{LAST}/state.pt"
SCRIPT_STATE = f"{LAST}/script.json"  # how far a script's trial has come
SCRIPT_FOLDER = f"{LAST}/script"  # what the script itself wrote to go on from
# Encoder and head of the best evaluation; adapters and words in use need the encoder's folder too.
WEIGHTS = "best/weights.safetensors"
MODEL = "best/model"  # of a script: the folder that it wrote at the best evaluation
CHECKPOINT = (WEIGHTS, MODEL)  # the one or the other: what an ended trial stores on disk
TRIAL = "best/trial.json"  # the trial's spec and the evaluation that the weights belong to
LOG = "log.txt"  # what the trial printed and warned, in its first and last part
# Cosines and gold scores of dev pairs, retrieval measures per query; cosines and measures of truncated vectors, too.
SIMILARITIES = "best/similarities.npz"
# In the study's folder.
TRIALS = "trials"  # holds the trials' folders
PAUSE_FILE = "PAUSE"  # while it exists, stopping trials save their state: they will be resumed


def study_folder(trial_folder: str) -> str:
    """The folder (or URI) of the study that a trial's folder belongs to; every node of a cluster reaches it."""
    return trial_folder.rsplit(f"/{TRIALS}/", 1)[0]


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into; it replaces `path` when the block ends well, and leaves nothing if it fails.

    No reader ever sees half of it, even if the process crashes. The folder must exist.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)  # a full disk must not keep the half file
        raise


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Inside, no other process of this machine makes this file. The system unlocks it when its process ends."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        phase(f"waiting for another process ({path.name.partition('-')[0]})")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# ------------------------------------------------------------ phases
Listener = Callable[[str, int, int], None]  # (what, done, of); of = 0: progress unknown
EVERY_S = 1.0  # between two reports of the same phase: each travels to the driver
_listener: Listener | None = None  # of this process, which runs one trial at a time
_last: tuple[str, float] = ("", 0.0)


def phase(what: str, done: int = 0, of: int = 0) -> None:
    """Report what a trial does before its first evaluation (`tokenising`), and how far it is: `done` of `of`."""
    global _last
    now = time.monotonic()
    if _listener is None or (what == _last[0] and now - _last[1] < EVERY_S):
        return
    _last = (what, now)
    _listener(what, done, of)


@contextmanager
def phases_to(listener: Listener) -> Iterator[None]:
    """Inside, the phases of this process are reported to `listener`."""
    global _listener, _last
    _listener, _last = listener, ("", 0.0)
    try:
        yield
    finally:
        _listener = None
