"""What the search hands to a trial and what a trial reports back. Plain data, standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainables.contract.plugins import Plugin

Verdict = Literal["go", "prune", "pause"]  # pause = save the state and end; the trial will be resumed


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial: a configuration with a seed, and where its files go.

    Attributes:
        method: a name in `contract.registry`.
        encoder: hub id (`id@revision`), local folder, `builtin:tiny`; or a word-vector file, `builtin:vectors`.
        data: {"train": name or file, "dev": [names, files, folders of retrieval sets], "language": code,
            "parser": ..., "columns": ..., "evaluations": {name: folder or None},
            "prompts": {"query": text, "document": text}}.
        metric: dev metric that selects: `stsb_dev` (Spearman in [-1, 1]), or `mean(stsb_dev,nfcorpus_ndcg10_dev)`.
        holdout: share of the dev pairs that do not select and are reported beside (`<set>_held_dev`), in [0, 1).
        params: YAML-named hyperparameters (searched, constant and preset values together).
        seed: drives initialisation, dropout, batches and augmentation.
        folder: absolute path or fsspec URI of the trial's own folder; holds `last/` while running, `best/` at the end.
        workers: 1 = in the (warm) trial process; more = data-parallel Ray Train workers.
        gpus, cpus: resources of each worker (fractions of a GPU allowed).
        plugins: files that bring the method or evaluations; a fresh process knows none.
        script: what trains, where the method is a script.
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

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> TrialSpec:
        """What `to_dict` gave, also of earlier versions, which knew no plugins."""
        script = Plugin(**d["script"]) if d.get("script") else None
        return TrialSpec(
            **{**d, "plugins": tuple(Plugin(**plugin) for plugin in d.get("plugins", ())), "script": script}
        )


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a running trial.

    Attributes:
        rung: nominal training examples (k * eval_examples, or k * eval_steps * batch_size): equal across trials, what
            pruning compares.
        examples: training examples really consumed; the step of every logged metric.
        value: the selecting metric; metrics: it and all others (Spearman in [-1, 1], loss, alignment, uniformity).
        best, best_at: best value so far and the examples at which it was reached.
        seconds: training and evaluation time of this trial so far, earlier lives of a resumed trial included.
        resumed_from: examples at which this life of the trial started (0 = from scratch).
        planned: training examples of the whole trial; 0 = unknown. Warm-up, hyperband's brackets and progress need it.
        place: host and device, in the first evaluation of a trial's life in a process; else "".
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

    stop: "completed", "pruned", "paused", or "failed:<kind>" with kind nan, collapse, oom, device, disk, data or error.
    reason: one line for people, empty unless failed; traceback: full text of an exception.
    """

    stop: str
    best: float | None
    best_at: int
    examples: int
    seconds: float
    reason: str = ""
    traceback: str = ""


Report = Callable[[Evaluation], Verdict]
# Keys of the dict that the Tune trainable returns from each step: the fields of Evaluation, and on the trial's last
# result those of Outcome with "done": True. A failure inside the trial is reported this way, never raised, so that the
# warm process lives on; only a dead process, or one whose device is broken (`on_ray.host.DeviceFault`), is an error to
# Tune.
