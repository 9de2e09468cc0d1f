"""How long trials take on this machine, from a few seconds of training and of evaluation. For estimates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainables.contract.config import build
from trainables.contract.registry import use_plugins
from trainables.contract.trial import TrialSpec
from trainables.methods.method import load_method
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World
from trainables.training.loop import Training
from trainables.training.method_trial import load_inputs

SECONDS = 3.0  # of training steps at each point
EVALUATED = 256  # dev texts that are encoded


@dataclass(frozen=True)
class Pace:
    """seconds: of a full-length trial, evaluations included; examples: it trains on."""

    seconds: float
    examples: int


def paces(specs: Sequence[TrialSpec], world: World) -> list[Pace]:
    """The pace of each of these trials, which share encoder and data.

    The dev sets' evaluation is scaled up from a sample of their texts, by tokens.
    """
    use_plugins(specs[0].plugins)
    method, inputs = load_method(specs[0].method), load_inputs(specs[0], world.device)
    found = []
    for spec in specs:
        config = build(method.config, spec.params)
        prepared = inputs.prepared(method, config, spec.seed)
        network = method.network(config, inputs.source, spec.seed)
        with tempfile.TemporaryDirectory() as folder:
            training = Training(
                method=method, config=config, network=network, examples=prepared.examples,
                evaluate=lambda _: (0.0, {}, {}), seed=spec.seed, files=TrialFiles(folder), world=world,
            )  # fmt: skip
            training._step(training.batches[0])  # warms up
            began, steps = time.perf_counter(), 0
            for batch in training.batches[1:]:
                training._step(batch)
                steps += 1
                if time.perf_counter() - began > SECONDS:
                    break
            step = (time.perf_counter() - began) / max(1, steps)
            training.writer.shutdown()
        sentences = inputs.sets.sentences
        sample = sentences[:: -(-len(sentences) // EVALUATED)]
        network.eval()
        began = time.perf_counter()
        with training._autocast():  # as a trial evaluates
            network.embed(sample)
        evaluation = (time.perf_counter() - began) * sum(map(len, sentences)) / sum(map(len, sample))
        evaluations = -(-training.planned // training.rung_size)
        found.append(Pace(len(training.batches) * step + evaluations * evaluation, training.planned))
    return found
