"""What a trial hands to the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trainables.contract.config import RunConfig
from trainables.data.tokens import Tokens
from trainables.encoders.network import Network
from trainables.methods.method import Examples, Method
from trainables.training.checkpoint import TrialFiles

Evaluate = Callable[[Callable[[Sequence[Tokens]], Tensor]], tuple[float, dict[str, float], dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """One trial, ready to be trained.

    Attributes:
        network: freshly initialised from `seed`; trained in place.
        evaluate: embed -> (selecting value, all dev metrics, similarities per dev set).
        mode: "max" or "min" of the selecting value.
        files: where `last/` is found (then training goes on from it) and `last/` and `best/` are written.
        about: what `best/trial.json` says besides the evaluation (the trial's spec).
    """

    method: Method
    config: RunConfig
    network: Network
    examples: Examples
    evaluate: Evaluate
    seed: int
    files: TrialFiles
    mode: str = "max"
    about: Mapping[str, Any] = field(default_factory=dict)
