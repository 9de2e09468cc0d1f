"""`resources: auto`: how many trials share a GPU or a machine's cores, decided from what the first trial measured.

The first trial runs alone. Its first evaluation carries the facts (`trainables.contract.trial`), `Sharing` decides, and
the decision is an event of the journal: a resume on the same kind of machine takes it over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from search.space import Resources, Space
from search.store.ledger import Event, Ledger
from search.wording import wanted_points
from trainables.contract.config import AUTO
from trainables.contract.trial import CARD_MEMORY, DEVICE_MEMORY, GPU_BUSY, MODEL_MEMORY, PROCESS_MEMORY, STEP_SECONDS

MAX_TRIALS_PER_GPU = 8
MEMORY_SHARE = 0.9  # of a GPU or a machine that trials may fill
MAX_BUSY_PERCENT = 95.0  # of the time in which a GPU computes
CONTEXT_GB = 0.6  # what CUDA itself takes for a process
MEASURING_SHARE = 1 / MAX_TRIALS_PER_GPU  # of a GPU: reserved by the first trial, so that others can join it on its GPU
Nodes = Callable[[], list[Mapping[str, float]]]
NEAR_BEST_SHARE = 0.95  # of the best throughput: then fewer trials of more threads are taken


@dataclass(frozen=True)
class Share:
    """gpus, cpus: of each trial; trials: at once on a GPU, or on a machine without one; reason: one line."""

    gpus: float
    cpus: float
    trials: int
    reason: str


def share_gpu(peak_gb: float, gpu_gb: float, busy: float | None, cores: int) -> Share:
    """How many trials run on a GPU.

    Args:
        peak_gb: memory of a trial at the space's largest batch; gpu_gb: of the GPU; both in 1e9 bytes, 0 = unknown.
        busy: percent of the time that one trial keeps the GPU busy, None where it cannot be read.
        cores: CPU cores for a GPU's trials, at least 1; a trial takes one.
    """
    limits = {f"{cores} CPU cores": cores}
    if gpu_gb and peak_gb:
        limits[f"{peak_gb:.3g} of {gpu_gb:.3g} GB each"] = math.floor(MEMORY_SHARE * gpu_gb / (peak_gb + CONTEXT_GB))
    if busy:
        limits[f"{busy:.0f} % busy with one"] = math.floor(MAX_BUSY_PERCENT / busy)
    trials = max(1, min(MAX_TRIALS_PER_GPU, *limits.values())) if gpu_gb else 1
    known = ", ".join(f"{what} allow {count}" for what, count in limits.items())
    why = f"{known}; at most {MAX_TRIALS_PER_GPU}" if gpu_gb else "the first trial measured no GPU memory"
    unread = "" if busy is not None else "; utilisation unknown"
    return Share(math.floor(1e4 / trials) / 1e4, 1.0, trials, f"{trials_text(trials)} a GPU ({why}{unread})")


def share_cores(step_s: Mapping[int, float], cores: int, most: int, memory: int) -> Share:
    """Threads of a trial and trials at once on a machine without a GPU: the most steps a second.

    Args:
        step_s: threads -> seconds of a step, measured alone; empty = unknown.
        cores: of the smallest machine; most: trials that are wanted at once; memory: trials that its memory holds.
    """
    if not step_s:
        trials = max(1, min(cores, most, memory))
        return Share(0.0, 1.0, trials, f"{trials_text(trials)} at once (a step was not timed)")
    fitting = {k: max(1, min(cores // k, most, memory)) for k in step_s if k <= cores} or {1: 1}
    rate = {k: trials / step_s[k] for k, trials in fitting.items()}
    threads = max(k for k in rate if rate[k] >= NEAR_BEST_SHARE * max(rate.values()))
    times = {k: f"{s:.2f} s" if s >= 1 else f"{1000 * s:.3g} ms" for k, s in sorted(step_s.items())}
    steps = ", ".join(f"{time} on {k}" for k, time in times.items())
    reason = f"{trials_text(fitting[threads])} at once on {threads} of {cores} cores each (a step takes {steps})"
    return Share(0.0, float(threads), fitting[threads], reason)


def trials_text(trials: int) -> str:
    return f"{trials} trial{'s' if trials > 1 else ''}"


def peak_at_largest(peak_gb: float, model_gb: float, batch: float, largest: float) -> float:
    """Memory at the space's largest batch: what a batch adds to weights, gradients and moments grows with it."""
    return model_gb + max(0.0, peak_gb - model_gb) * max(1.0, largest / batch)


class Sharing:
    """What a session's trials get.

    resources: of the next trial, with numbers only; measuring: whether it runs alone, to be measured.

    Args:
        space: as written; known: its resources with `gpus` as a number, 1 or 0 for auto.
        nodes: gives the resources of each live node (CPU, GPU, accelerator_type:*), as Ray reports them; a cluster may
            grow before the first trial has measured.
    """

    def __init__(self, space: Space, known: Resources, nodes: Nodes, ledger: Ledger) -> None:
        self._space, self._nodes, self._ledger = space, nodes, ledger
        self.resources, self.measuring, self.line = known, False, ""
        self._of_gpus = space.resources.gpus == AUTO and bool(known.gpus)
        self._of_cpus = space.resources.cpus == AUTO and not known.gpus
        if known.workers > 1 or not (self._of_gpus or self._of_cpus):
            return  # several workers take a whole GPU each (NCCL)
        earlier = ledger.share
        if earlier is not None and earlier["machine"] == self.machine():
            self._take(Share(**{name: earlier[name] for name in Share.__dataclass_fields__}))
            self.line += ", as measured before"
            return
        self.measuring = True
        self.resources = replace(known, gpus=MEASURING_SHARE if self._of_gpus else known.gpus)

    def machine(self) -> str:
        """What a decision holds for: the GPUs, or the cores of the smallest node that trains."""
        if self._of_gpus:
            return f"{', '.join(self._gpu_kinds()) or 'GPU'}, {self._cores()} cores each"
        return f"{self._cores()} cores"

    def observe(self, event: Event) -> dict[str, Any] | None:
        """The fields of a `share` event when this event of the journal has what is needed to decide."""
        if not self.measuring or event["e"] != "eval":
            return None
        share = self._decide(event["metrics"], self._ledger.trials[event["id"]].trial.params)
        self._take(share)
        return {**vars(share), "machine": self.machine()}

    def _take(self, share: Share) -> None:
        self.measuring, self.line = False, f"resources: {share.reason}"
        self.resources = replace(self.resources, gpus=share.gpus, cpus=share.cpus)

    def _decide(self, facts: Mapping[str, float], params: Mapping[str, Any]) -> Share:
        if len(kinds := self._gpu_kinds()) > 1:  # only one of them was measured
            return Share(1.0, 1.0, 1, f"1 trial a GPU (nodes have {', '.join(kinds)}; a number in the space wins)")
        if self._of_gpus:
            peak, busy = facts.get(DEVICE_MEMORY, 0.0), facts.get(GPU_BUSY)
            batch = params.get("batch_size")
            if batch and params.get("micro_batch") != AUTO:  # else a trial keeps to its share by itself
                peak = peak_at_largest(peak, facts.get(MODEL_MEMORY, 0.0), batch, max([batch, *self._batches()]))
            return share_gpu(peak, facts.get(CARD_MEMORY, 0.0), busy, self._cores())
        step_s = {int(k.removeprefix(STEP_SECONDS)): s for k, s in facts.items() if k.startswith(STEP_SECONDS)}
        most = [n for n in (self._space.search.concurrent, wanted_points(self._space)) if n is not None]
        gigabytes = min((node.get("memory", math.inf) for node in self._nodes()), default=math.inf) / 1e9
        used = facts.get(PROCESS_MEMORY, 0.0) / 1e3
        memory = MEMORY_SHARE * gigabytes / used if used else math.inf
        cores = self._cores()
        return share_cores(step_s, cores, min(most, default=cores), int(min(memory, cores)))

    def _batches(self) -> list[float]:
        """The ends of what is searched as batch_size."""
        param = self._space.params.get("batch_size")
        values = [] if param is None else param.values if param.values is not None else [param.low, param.high]
        listed = [row.get("batch_size") for row in self._space.rows]
        return [v for v in (*values, *listed) if isinstance(v, (int, float))]

    def _gpu_kinds(self) -> list[str]:
        """The kinds of the nodes' GPUs, where Ray reports them."""
        names = {name for node in self._nodes() for name in node if self._of_gpus}
        return sorted(name.partition(":")[2] for name in names if name.startswith("accelerator_type:"))

    def _cores(self) -> int:
        """Of the smallest node that trains: for each of its GPUs, or in all."""
        own = [n for n in self._nodes() if n.get("CPU") and (n.get("GPU") or not self._of_gpus)]
        return max(1, int(min((n["CPU"] / (n["GPU"] if self._of_gpus else 1) for n in own), default=1)))
