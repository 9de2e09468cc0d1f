"""The body of a trial that one of the methods trains: data, encoder, network, dev evaluations, then the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trainables.contract.knobs import build
from trainables.contract.metric_names import ROWS_LEFT_OUT
from trainables.contract.phases import phase
from trainables.contract.spec import Outcome, Report, TrialSpec
from trainables.encoders.load import revision
from trainables.encoders.network import SentenceNetwork
from trainables.evaluation.metrics import selecting_value
from trainables.evaluation.scoring import evaluate
from trainables.methods.method import load_method
from trainables.methods.shared import adamw
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World
from trainables.training.inputs import Prepared, TrialInputs, inputs_key, load_inputs, read_by
from trainables.training.loop import train
from trainables.training.memory import give_back
from trainables.training.setup import TrainingSetup
from trainables.training.trial import ProcessCache, seed_generators

log = logging.getLogger(__name__)


def train_by_method(
    spec: TrialSpec, report: Report, world: World, kept: ProcessCache, pausing: Callable[[], bool]
) -> Outcome:
    """The body (`trial.Body`) of every trial that a `Method` trains."""
    method = load_method(spec.method)
    config = build(method.config, spec.params)
    key = inputs_key(spec)
    inputs: TrialInputs = kept.get("inputs", key, lambda: load_inputs(spec, world.device))
    inputs.check_prompts(config)
    phase("preparing the examples")

    def make_examples() -> Prepared:
        seed_generators(spec.seed)
        return inputs.prepared(method, config, spec.seed)

    prepared = kept.get("examples", (key, repr(read_by(config, spec.seed, method.prepared_from))), make_examples)
    examples = prepared.examples
    if config.sample_size is not None and config.sample_size > len(examples):
        log.warning("sample_size %d: there are %d examples, all of them are used", config.sample_size, len(examples))

    gold = {f"{pairs.name}_gold": pairs.gold.astype(np.float32) for pairs in inputs.sets.sets}

    def evaluated(embed: Any) -> tuple[float, dict[str, float], dict[str, Any]]:
        result = evaluate(embed, inputs.sets)
        metrics = result.metrics | inputs.outside_scores(embed)
        give_back()
        return selecting_value(spec.metric, metrics), metrics, {**result.similarities, **gold}

    untrained = inputs.untrained(method, config, spec.seed, spec.metric, lambda embed: evaluated(embed)[0])
    facts = {**examples.facts, f"untrained_{spec.metric}": untrained}
    if inputs.corpus.left_out:
        facts[ROWS_LEFT_OUT] = float(inputs.corpus.left_out)
    seed_generators(spec.seed)  # after all that an earlier trial may have done already
    network = method.network(config, inputs.source, spec.seed)
    if method.optimiser is adamw:  # under which a row without gradient stays
        for part in network.modules():
            if isinstance(part, SentenceNetwork):
                part.keep_words([prepared.tokens, *inputs.sets.sentences])
    setup = TrainingSetup(
        method=method,
        config=config,
        network=network,
        examples=replace(examples, facts=facts),
        evaluate=evaluated,
        seed=spec.seed,
        files=TrialFiles(spec.folder),
        mode=spec.mode,
        about={
            "spec": spec.to_dict(),
            "revisions": inputs.revisions,
            "encoder": revision(inputs.source),
            "packing_note": inputs.packing_note,
        },
    )
    return train(setup, report, world, pausing)
