"""One trial from its spec: what a warm process keeps between trials, and `run_trial`. No Ray here."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from trainables.checkpoint import TrialFiles
from trainables.configs import NEEDS
from trainables.distributed import World
from trainables.encoder_path import EncoderError
from trainables.evaluate import evaluate
from trainables.knobs import build
from trainables.loop import Broken, train
from trainables.memory import give_back
from trainables.methods import METHODS
from trainables.metrics import selecting_value
from trainables.sources import DataError
from trainables.spec import Outcome, Report, TrialSpec
from trainables.workbench import bench_key, make_bench

T = TypeVar("T")
KEPT = 4  # prepared things of each kind that a warm process holds: the encoder, corpora, dev sets of recent trials


class Warm:
    """What a trial process holds so that the next trial costs its training only."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The thing made before for this key, or `make()`; the least recently used of a kind goes first."""
        kept = self._kept.setdefault(kind, {})
        thing = kept.pop(key) if key in kept else make()
        kept[key] = thing
        while len(kept) > KEPT:
            kept.pop(next(iter(kept)))
        return thing


def run_trial(
    spec: TrialSpec,
    report: Report,
    world: World | None = None,
    warm: Warm | None = None,
    pausing: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run (or go on with) a trial to its end. Never raises for a fault of the trial: the outcome says what happened.

    In a group of workers a fault that only one of them met is raised there, since the others wait for it.
    """
    world, warm = world or World(), warm or Warm()
    last: list[Any] = []

    def remember(evaluation: Any) -> Any:
        last[:] = [evaluation]
        return report(evaluation)

    try:
        return _run(spec, remember, world, warm, pausing)
    except Exception as fault:
        kind, reason = classify(fault)
        if world.size > 1 and not isinstance(fault, Broken):
            raise
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        best, best_at, examples, seconds = (
            (last[0].best, last[0].best_at, last[0].examples, last[0].seconds) if last else (None, 0, 0, 0.0)
        )
        text = "" if kind in ("nan", "collapse") else traceback.format_exc()
        return Outcome(f"failed:{kind}", best, best_at, examples, seconds, reason, text)


def classify(fault: BaseException) -> tuple[str, str]:
    """(kind, one line) of a fault: nan, collapse, oom, disk, data or error."""
    line = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
    if isinstance(fault, Broken):
        return fault.kind, line
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(fault):
        return "oom", line
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk", line
    if isinstance(fault, (DataError, EncoderError)):
        return "data", line
    return "error", f"{type(fault).__name__}: {line}"


def _run(spec: TrialSpec, report: Report, world: World, warm: Warm, pausing: Callable[[], bool]) -> Outcome:
    method = METHODS[spec.method]
    config = build(method.config, spec.params)
    key = bench_key(spec)
    bench = warm.get("bench", key, lambda: make_bench(spec, NEEDS[spec.method], world.device))
    read = [spec.seed if name == "seed" else getattr(config, name) for name in method.prepared_from]
    examples = warm.get(
        "examples",
        (key, *read),
        lambda: method.prepare(bench.corpus.columns, config, spec.seed, bench.workshop),
    )
    torch.manual_seed(spec.seed)
    network = method.network(config, bench.source, spec.seed)

    gold = {f"{pairs.name}_gold": pairs.gold.astype(np.float32) for pairs in bench.sets.sets}

    def evaluated(embed: Any) -> tuple[float, dict[str, float], dict[str, Any]]:
        result = evaluate(embed, bench.sets)
        give_back()
        return selecting_value(spec.metric, result.metrics), result.metrics, {**result.similarities, **gold}

    untrained = bench.untrained(method, config, spec.seed, lambda embed: evaluated(embed)[0])
    return train(
        method,
        config,
        network,
        replace(examples, facts={**examples.facts, f"untrained_{spec.metric}": untrained}),
        evaluated,
        report,
        seed=spec.seed,
        files=TrialFiles(spec.folder),
        mode=spec.mode,
        world=world,
        about={"spec": spec.to_dict(), "revisions": bench.revisions, "packing_note": bench.packing_note},
        pausing=pausing,
    )
