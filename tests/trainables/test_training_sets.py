"""Several training sets, one a batch: sentence-transformers' batches with equal weights, repeatable, resumable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_tools import column
from test_methods import session, spec_of, weights

from trainables.contract.config import build
from trainables.contract.trial import TrialSpec
from trainables.methods.batches import one_set_each
from trainables.methods.method import Examples, load_method, shuffled_epochs
from trainables.methods.simcse.config import SimcseConfig
from trainables.training.distributed import World
from trainables.training.method_trial import load_inputs
from trainables.training.trial import ProcessCache

SIZES = (100, 37, 12)
SETS = np.repeat(np.arange(3), SIZES)


def drawn(how: str, weights: tuple[int, ...] | None = None, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    found = [batch.tolist() for batch in one_set_each(np.arange(149), SETS, how, weights, 8, rng)]
    assert all(len({int(SETS[i]) for i in batch}) == 1 for batch in found)
    return found


def shares(found: list[list[int]]) -> list[int]:
    """Batches of each set."""
    counts = Counter(int(SETS[batch[0]]) for batch in found)
    return [counts[number] for number in range(3)]


@pytest.mark.parametrize(
    ("how", "sampler"), [("proportional", "ProportionalBatchSampler"), ("round_robin", "RoundRobinBatchSampler")]
)
def test_batches_as_in_sentence_transformers(how: str, sampler: str) -> None:
    theirs = pytest.importorskip("sentence_transformers.base.sampler")
    data = torch.utils.data.ConcatDataset([torch.utils.data.TensorDataset(torch.arange(n)) for n in SIZES])
    each = [theirs.DefaultBatchSampler(one, 8, drop_last=False) for one in (range(n) for n in SIZES)]
    expected = list(getattr(theirs, sampler)(data, each, generator=torch.Generator(), seed=0))
    found = drawn(how)
    assert shares(found) == shares(expected)
    assert sorted(map(len, found)) == sorted(map(len, expected))
    flat = [i for batch in found for i in batch]
    assert len(flat) == len(set(flat))
    if how == "round_robin":
        assert [SETS[batch[0]] for batch in found] == [SETS[batch[0]] for batch in expected]
    else:
        assert len(flat) == sum(SIZES)
        assert [SETS[batch[0]] for batch in found] != sorted(SETS[batch[0]] for batch in found)


@pytest.mark.parametrize(
    ("how", "weights", "expected"),
    [
        ("proportional", (1, 1, 6), [9, 3, 8]),  # of 20 batches by 13 : 5 : 2 * 6, and no more examples than there are
        ("proportional", (0, 1, 0), [0, 20, 0]),
        ("round_robin", (2, 1, 1), [4, 2, 2]),
        ("round_robin", (9, 1, 0), [9, 1, 0]),
        ("round_robin", (1, 9, 0), [1, 9, 0]),  # the second has 5 batches, and begins again
    ],
)
def test_weights_scale_the_batches_of_a_set(how: str, weights: tuple[int, ...], expected: list[int]) -> None:
    found = drawn(how, weights)
    assert max(abs(a - b) for a, b in zip(shares(found), expected, strict=True)) <= (how == "proportional")
    assert sum(map(len, found)) <= sum(SIZES)


def test_the_seed_and_the_epoch_decide_the_order() -> None:
    assert drawn("proportional", (1, 1, 6)) == drawn("proportional", (1, 1, 6)) != drawn("proportional", (1, 1, 6), 1)
    examples = Examples({"sentence": column([[i] for i in range(149)])}, sets=SETS)
    config = SimcseConfig(batch_size=8, sets="proportional", epochs=2)
    batches = list(shuffled_epochs(examples, config, 0))
    first, second = ([b.numbers.tolist() for b in batches if b.epoch == epoch] for epoch in (0, 1))
    assert first != second
    assert sorted(i for batch in first for i in batch) == sorted(i for batch in second for i in batch)
    joined = shuffled_epochs(examples, replace(config, sets="joined"), 0)
    assert any(len({SETS[i] for i in batch}) > 1 for batch in joined)


def test_no_text_twice_within_the_batches_of_a_set() -> None:
    texts = np.arange(149)[:, None] % 10
    batches = list(one_set_each(np.arange(149), SETS, "proportional", None, 8, np.random.default_rng(0), texts))
    assert len(batches) > 15
    assert all(len(set(texts[batch].ravel().tolist())) == len(batch) for batch in batches)


def two_sets(folder: Path) -> str:
    """Pairs; a set's rows begin with its name."""
    words = ["red", "green", "blue", "round", "flat", "small", "large", "old", "new", "good"]
    rng = np.random.default_rng(0)
    for name, n in (("a", 60), ("b", 20)):
        rows = [f"{name} {' '.join(rng.choice(words, 4))} {i},{' '.join(rng.choice(words, 4))} {i}" for i in range(n)]
        (folder / f"{name}.csv").write_text("\n".join(["anchor,positive", *rows]))
    return f"{folder}/a.csv+{folder}/b.csv"


def plan(folder: str, mined: bool) -> list[list[int]]:
    """The batches of a trial on `two_sets`, as each of its workers draws them."""
    spec = spec_of("pairs", folder, seed=3, sets="proportional", set_weights=[1, 2])
    mine = {"count": 1, "range": [0, 50], "margin": 0.02, "encoder": None} if mined else None
    data = {**spec.data, "train": f"{folder}/a.csv+{folder}/b.csv", "parser": None, "mine": mine}
    inputs, method = load_inputs(replace(spec, data=data), World().device), load_method("pairs")
    config = build(method.config, spec.params)
    examples = inputs.prepared(method, config, 3).examples
    words = inputs.tools.tokenise(["a", "b"])
    first = [int(examples.columns["anchor"][i][0]) for i in range(len(examples))]
    assert examples.sets is not None
    assert first == [int(words[number][0]) for number in examples.sets.tolist()]
    return [batch.numbers.tolist() for batch in method.plan(examples, config, 3)]


@pytest.mark.costly
@pytest.mark.parametrize("mined", [False, True])
def test_every_process_draws_the_same_batches(mined: bool, tmp_path: Path) -> None:
    two_sets(tmp_path)
    code = f"from test_training_sets import plan; print(plan({str(tmp_path)!r}, {mined}))"
    others = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, text=True, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    ]  # fmt: skip
    assert others == [str(plan(str(tmp_path), mined))] * 2


@pytest.mark.costly
@pytest.mark.parametrize("how", ["proportional", "round_robin"])
def test_a_trial_on_two_sets_resumes_as_undisturbed(how: str, tmp_path: Path) -> None:
    def spec(name: str) -> TrialSpec:
        params = {"max_examples": None, "epochs": 3, "eval_examples": 16, "sets": how, "set_weights": [1, 2]}
        made = spec_of("pairs", tmp_path / name, seed=3, **params)
        return replace(made, data={**made.data, "train": two_sets(tmp_path), "parser": None})

    warm = ProcessCache()
    whole = session(spec("whole"), warm)[0]
    assert whole.stop == "completed", whole.traceback
    paused = session(spec("cut"), warm, ["go", "pause"])[0]
    assert paused.stop == "paused"
    assert 0 < paused.examples < whole.examples
    assert session(spec("cut"), warm)[0].examples == whole.examples
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(first[key], second[key]) for key in first)
