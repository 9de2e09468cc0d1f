"""Batches without a repeated text: sentence-transformers' property, repeatable, resumable, for every method."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_tools import column
from test_methods import session, spec_of, weights

from trainables.contract.config import EncoderConfig, build, hyperparameters
from trainables.contract.registry import method_names
from trainables.methods.batches import cut, text_numbers
from trainables.methods.method import Examples, load_method, shuffled_epochs
from trainables.methods.selfccl.method import paced_epochs, paced_steps
from trainables.methods.simcse.config import SimcseConfig
from trainables.training.method_trial import load_inputs
from trainables.training.trial import ProcessCache

OF_ENCODERS = [name for name in method_names() if issubclass(load_method(name).config, EncoderConfig)]


def repeated(n: int, distinct: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Anchors of which each text stands several times, and positives, some of which are anchors of other rows."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, distinct, (2, n))
    return [f"t{i}" for i in draws[0]], [f"t{i}" if i < distinct // 10 else f"p{i}" for i in draws[1]]


def rows_of(texts: tuple[list[str], list[str]]) -> np.ndarray:
    return np.stack([text_numbers(one, len(one)) for one in texts], axis=1)


@pytest.mark.parametrize(("n", "distinct", "size"), [(1000, 400, 16), (1000, 60, 16), (333, 1000, 64), (50, 5, 8)])
def test_no_text_twice_as_in_sentence_transformers(n: int, distinct: int, size: int) -> None:
    sampler = pytest.importorskip("sentence_transformers.base.sampler").NoDuplicatesBatchSampler
    datasets = pytest.importorskip("datasets")
    texts = repeated(n, distinct)
    found = [batch.tolist() for batch in cut(np.random.default_rng(0).permutation(n), size, rows_of(texts))]
    table = datasets.Dataset.from_dict({"anchor": texts[0], "positive": texts[1]})
    theirs = list(sampler(table, size, drop_last=False, generator=torch.Generator(), seed=0))
    for batches in (found, theirs):
        for batch in batches:
            held = [{texts[0][i], texts[1][i]} for i in batch]
            assert sum(map(len, held)) == len(set().union(*held))
        flat = list(itertools.chain.from_iterable(batches))
        assert len(flat) == len(set(flat)) == n
    full = [sum(len(batch) == size for batch in batches) for batches in (found, theirs)]
    assert abs(full[0] - full[1]) <= 1
    if distinct > 5:  # else the repeated texts decide how many batches there are, and chance which
        assert abs(len(found) - len(theirs)) <= max(1, 0.02 * len(theirs))


def test_without_repeated_texts_the_batches_are_the_shuffled_ones() -> None:
    order = np.random.default_rng(0).permutation(100)
    alone = [batch.tolist() for batch in cut(order, 16)]
    assert [batch.tolist() for batch in cut(order, 16, np.arange(200).reshape(100, 2))] == alone


def test_equal_tokens_are_equal_texts() -> None:
    """Of methods that know their texts by tokens only."""
    examples = Examples({"sentence": column([[1, 2], [3], [1, 2], [4], [1, 2], [3]])})
    batches = {
        how: [b.numbers.tolist() for b in shuffled_epochs(examples, SimcseConfig(batch_size=3, batches=how), 0)]
        for how in ("shuffled", "no_duplicates")
    }
    assert sorted(map(len, batches["shuffled"])) == [3, 3]
    kinds = [0, 1, 0, 3, 0, 1]
    for batch in batches["no_duplicates"]:
        assert len({kinds[i] for i in batch}) == len(batch)
    assert sum(map(len, batches["no_duplicates"])) == 5  # the sixth would be alone in its batch: it has no negative


@pytest.mark.costly
@pytest.mark.parametrize("name", OF_ENCODERS)
def test_distinct_texts_of_equal_length_fill_the_batches(name: str) -> None:
    """Only texts are compared: sequences of another kind may be equal."""
    spec = spec_of(name, batches="no_duplicates")
    method, inputs = load_method(name), load_inputs(spec, torch.device("cpu"))
    texts, held, rows = inputs.corpus.columns, set[str](), list[int]()
    lengths = np.diff(inputs.tools.tokenise(next(iter(texts.values()))).starts)
    for i in np.flatnonzero(lengths == np.bincount(lengths).argmax()).tolist():
        own = {column[i] for role, column in texts.items() if role != "score"}
        if held.isdisjoint(own):
            rows.append(i)
            held |= own
    config = build(method.config, spec.params)
    chosen = {role: [column[i] for i in rows] for role, column in texts.items()}
    examples = method.prepare(chosen, config, 0, inputs.tools)
    sizes = [len(batch) for batch in method.plan(examples, config, 0)]
    full = len(rows) // config.batch_size - 1  # edited texts, too, may be equal, which the last batches show
    assert full > 2
    assert sizes[:full] == [config.batch_size] * full


def test_selfccl_batches_without_repeated_texts() -> None:
    texts = rows_of(repeated(200, 60))
    order = np.arange(200)
    epochs = [batch for _, batch in paced_epochs(order, 16, 3, 1.0, texts, equal_steps=False)]
    steps = list(paced_steps(order, 16, 9, 1.0, np.random.default_rng(0), texts))
    assert len(epochs) > 10
    assert len(steps) == 9
    for batch in (*epochs, *steps):
        held = [{*texts[i]} for i in batch]
        assert sum(map(len, held)) == len(set().union(*held))


@pytest.mark.costly
@pytest.mark.usefixtures("narrow_projector")
@pytest.mark.parametrize("name", [name for name in OF_ENCODERS if name in ("simcse", "simcse_sup", "edacse", "pairs")])
def test_a_trial_without_duplicates_resumes_as_undisturbed(name: str, tmp_path: Path) -> None:
    assert "batches" in hyperparameters(load_method(name).config)
    warm, params = ProcessCache(), {"batches": "no_duplicates"}
    whole = session(spec_of(name, tmp_path / "whole", seed=3, **params), warm)[0]
    assert whole.stop == "completed", whole.traceback
    paused = session(spec_of(name, tmp_path / "cut", seed=3, **params), warm, ["pause"])[0]
    assert paused.stop == "paused"
    session(spec_of(name, tmp_path / "cut", seed=3, **params), warm)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", OF_ENCODERS)
def test_every_encoder_method_takes_the_choice(name: str) -> None:
    assert build(load_method(name).config, {"batches": "no_duplicates"}).batches == "no_duplicates"  # type: ignore[attr-defined]
