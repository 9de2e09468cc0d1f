"""What is done for speed changes no result: the fast path against the plain one, loss by loss.

Fast is what trials run: packed batches, the trunk's own forward pass, its dropout noise, the fused optimiser. Plain is
padded batches through the library's forward pass and torch's ordinary loop over parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.optim import Optimizer

from trainables.contract.config import build
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.registry import declared, method_names
from trainables.contract.trial import TrialSpec
from trainables.methods.method import Method, load_method
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World
from trainables.training.loop import Training
from trainables.training.method_trial import TrialInputs, load_inputs

pytestmark = pytest.mark.costly

STEPS, BATCH, SEEDS = 8, 8, 20
ENCODER_METHODS = [
    name for name in method_names() if declared(name).encoders == TRANSFORMER and load_method(name).loss is not None
]


def spec_of(method: str) -> TrialSpec:
    data = {"train": "builtin", "dev": ["builtin"], "language": "en", "parser": "builtin"}
    return TrialSpec(method=method, encoder="builtin:tiny", data=data, metric="builtin_dev", folder="unused")


@pytest.fixture(scope="module")
def inputs() -> dict[str, TrialInputs]:
    return {name: load_inputs(spec_of(name), World().device) for name in ENCODER_METHODS}


def plain_optimiser(method: Method) -> Any:
    def make(*given: Any) -> tuple[Optimizer, Any]:
        optimiser, scheduler = method.optimiser(*given)
        for group in optimiser.param_groups:
            group["fused"], group["foreach"] = False, False
        return optimiser, scheduler

    return make


def losses(name: str, own: TrialInputs, folder: Path, *, fast: bool, seed: int = 0, **params: Any) -> list[float]:
    """The loss of every step of a short run."""
    method = load_method(name)
    shape = {"batch_size": BATCH, "max_examples": STEPS * BATCH, "eval_steps": 1, "precision": "fp32"}
    if name == "diffcse":
        params["head"] = "linear_tanh"  # behind its batch-norm equal views have no loss, a constant
    config = build(method.config, {**shape, "learning_rate": 1e-4, **params})
    source: Any = own.source
    if not fast:
        source = replace(source, packing_note="for comparison")
        method = replace(method, optimiser=plain_optimiser(method))
    examples = method.prepare(own.corpus.columns, config, seed, own.tools)
    network = method.network(config, source, seed)
    assert (network._packed_encoder is not None) is fast
    seen: list[float] = []

    def report(evaluation: Any) -> Any:
        seen.append(evaluation.metrics["loss"])
        return "go"

    def evaluate(embed: Any) -> Any:
        del embed
        return 0.5, {}, {}

    files = TrialFiles(str(folder))
    training = Training(
        method=method,
        config=config,
        network=network,
        examples=examples,
        evaluate=evaluate,
        seed=seed,
        files=files,
    )
    training.run(report)
    assert len(seen) == STEPS
    return seen


@pytest.mark.parametrize("name", ENCODER_METHODS)
def test_without_dropout_every_loss_is_the_same(name: str, inputs: dict[str, TrialInputs], tmp_path: Path) -> None:
    fast, plain = (losses(name, inputs[name], tmp_path, fast=fast, dropout=0.0) for fast in (True, False))
    assert fast == pytest.approx(plain, abs=1e-5, rel=0)
    assert len(set(fast)) == STEPS


def paired(fast: Sequence[float], plain: Sequence[float]) -> tuple[float, float]:
    """(t of the mean difference of pairs, ratio of variances fast / plain)."""
    difference = np.subtract(fast, plain)
    t = difference.mean() / (difference.std(ddof=1) / math.sqrt(len(difference)))
    return float(t), float(np.var(fast) / np.var(plain))


def test_with_dropout_the_losses_have_the_same_distribution(inputs: dict[str, TrialInputs], tmp_path: Path) -> None:
    """Over 20 seeds, each of which fixes weights and batches, so that pairs differ in dropout masks only.

    |t| < 5.5 at 19 degrees of freedom fails by chance once in 38,000 sets of seeds, a ratio of variances beyond 8 at
    (19, 19) once in 30,000; the seeds are fixed, so a pass stays one. A wrong rate of dropout is found.
    """

    def mean_losses(fast: bool, dropout: float) -> list[float]:
        runs = (
            losses("simcse", inputs["simcse"], tmp_path, fast=fast, seed=seed, dropout=dropout) for seed in range(SEEDS)
        )
        return [float(np.mean(run)) for run in runs]

    plain = mean_losses(False, 0.3)
    t, ratio = paired(mean_losses(True, 0.3), plain)
    assert abs(t) < 5.5
    assert 1 / 8 < ratio < 8
    t, _ = paired(mean_losses(True, 0.2), plain)
    assert abs(t) > 5.5
