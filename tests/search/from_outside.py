"""For the tests of methods and evaluations from outside: one of each, and a trial without their plugins."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from search.space import SpaceError, load_space
from trainables.contract import registry
from trainables.contract.trial import TrialSpec
from trainables.training.trial import run_trial

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
METHOD = (EXAMPLES / "dcl.py").read_text(encoding="utf-8")
EVALUATION = '''
"""The spread of the cosines between four texts, and a number read from the folder."""
import numpy as np

from trainables.contract.declaration import DevEvaluation

TEXTS = ["a b", "a b c", "a b c d e f", "the dog runs in the park"]


def evaluate(embed, folder):
    vectors = embed(TEXTS)
    assert vectors.dtype == np.float32 and len(vectors) == len(TEXTS)
    spread = float(np.std(vectors @ vectors.T))
    return {"spread": spread, "given": float((folder / "number.txt").read_text())}


EVALUATION = DevEvaluation(name="lengths", metrics=("spread", "given"), evaluate=evaluate)
'''


def changed_space(outside: Path, *changes: tuple[str, str], evaluation: str = EVALUATION) -> Path:
    """The example's space, changed, with this evaluation beside its method."""
    (outside / "lengths.py").write_text(evaluation)
    path = outside / "dcl.yaml"
    text = path.read_text()
    for old, new in (("[dcl.py]", "[dcl.py, lengths.py]"), *changes):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def errors(path: Path, **how: Any) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        load_space(path, **how)
    return str(caught.value).splitlines()


def trained(space: Any, folder: Path) -> tuple[Any, list[Any]]:
    """A trial of the space in a process that has not imported its plugins, like a Ray worker."""
    spec = TrialSpec(
        method=space.method,
        encoder=space.encoder,
        data=yaml.safe_load(space.to_yaml())["data"],
        metric=space.metric.name,
        params={**space.base, "max_examples": 64, "batch_size": 16, "eval_examples": 32},
        folder=str(folder),
        plugins=space.plugins,
    )
    spec = TrialSpec.from_dict(copy.deepcopy(spec.to_dict()))
    registry._methods.clear()
    registry._evaluations.clear()
    seen: list[Any] = []
    return run_trial(spec, lambda e: seen.append(e) or "go"), seen  # type: ignore[func-returns-value]
