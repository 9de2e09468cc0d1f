"""A trial that trains only the rows of the words in use is the trial of the whole table, to the last digit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import session, spec_of, weights

from analysis.checkpoints.trained import load_trained
from trainables.encoders import words_in_use
from trainables.encoders.load import is_part
from trainables.encoders.network import SentenceNetwork
from trainables.encoders.words_in_use import WordsInUse, used_ids
from trainables.training.loop import Training
from trainables.training.method_trial import TrialInputs
from trainables.training.trial import ProcessCache

pytestmark = pytest.mark.costly
TABLE = "encoder.embeddings.word_embeddings"
OWN: dict[str, Any] = {
    "batch_size": 8, "max_examples": 40, "eval_examples": 16, "max_grad_norm": 0.5, "weight_decay": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def warm():
    """A warm process whose trials train on a few sentences, so that most of the vocabulary is not in use."""
    prepared = TrialInputs.prepared

    def few(self, method, config, seed):
        corpus = dataclasses.replace(self.corpus, columns={k: v[:40] for k, v in self.corpus.columns.items()})
        return prepared(dataclasses.replace(self, corpus=corpus), method, config, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialInputs, "prepared", few)
        yield ProcessCache()


@pytest.fixture
def small(monkeypatch):
    """The builtin encoder's table counts as large, so that `on` trains the rows in use; `off` trains all."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(words_in_use, "LARGE", 0.0 if on else 2.0)
        monkeypatch.setattr(words_in_use, "MOST_USED", 1.0)

    return switch


def losses(monkeypatch):
    """Where the loss of every step is stored."""
    found: list[float] = []
    step = Training._step

    def kept(self, batch):
        step(self, batch)
        found.append(float(self.losses[-1]))

    monkeypatch.setattr(Training, "_step", kept)
    return found


def whole(folder) -> dict[str, torch.Tensor]:
    """A checkpoint's weights as an export has them."""
    return dict(load_trained(str(folder)).network.state_dict())


@pytest.mark.parametrize("method", ["simcse", "esimcse", pytest.param("edacse", marks=pytest.mark.slow)])
def test_the_same_losses_and_weights_to_the_last_digit(method, small, monkeypatch, warm, tmp_path) -> None:
    steps = losses(monkeypatch)
    ends, rest = {}, {}
    for on in (True, False):
        small(on)
        outcome, seen = session(spec_of(method, tmp_path / str(on), **OWN), warm)
        assert outcome.stop == "completed", outcome.traceback
        ends[on] = [(e.value, e.metrics["loss"]) for e in seen], [*steps]
        rest[on] = whole(tmp_path / str(on))
        steps.clear()
    assert ends[True] == ends[False]
    assert len(ends[True][1]) == 5
    assert rest[True].keys() == rest[False].keys()
    assert all(torch.equal(rest[True][name], rest[False][name]) for name in rest[True])
    stored = weights(tmp_path / "True")
    rows, size = len(stored[f"{TABLE}.rows"]), len(weights(tmp_path / "False")[f"{TABLE}.weight"])
    assert len(stored[f"{TABLE}.table.weight"]) == rows < size
    assert is_part(stored)
    moved = (
        rest[True][f"{TABLE}.weight"]
        != load_trained(str(tmp_path / "True"), untrained=True).network.state_dict()[f"{TABLE}.weight"]
    )
    assert 0 < int(moved.any(1).sum()) < rows  # the dev sets' rows are there, and only training's move


def test_weight_decay_reaches_the_rows_that_are_not_there(small, warm, tmp_path) -> None:
    found = {}
    for on in (True, False):
        small(on)
        session(spec_of("simcse", tmp_path / str(on), **OWN | {"weight_decay": 0.1, "learning_rate": 1e-2}), warm)
        found[on] = whole(tmp_path / str(on))
    ours, theirs = (found[on].pop(f"{TABLE}.weight") for on in (True, False))
    assert all(torch.equal(found[True][name], found[False][name]) for name in found[True])
    rows = weights(tmp_path / "True")[f"{TABLE}.rows"]
    assert torch.equal(ours[rows], theirs[rows])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)  # rounded once, not at every step
    untrained = load_trained(str(tmp_path / "True"), untrained=True).network.state_dict()[f"{TABLE}.weight"]
    assert not torch.equal(theirs, untrained)


@pytest.mark.parametrize("method", ["simcse", pytest.param("esimcse", marks=pytest.mark.slow)])
def test_a_paused_trial_ends_as_an_undisturbed_one(method, small, warm, tmp_path) -> None:
    small(True)
    undisturbed, _ = session(spec_of(method, tmp_path / "whole", **OWN | {"weight_decay": 0.1}), warm)
    spec = spec_of(method, tmp_path / "paused", **OWN | {"weight_decay": 0.1})
    assert session(spec, warm, ["pause"])[0].stop == "paused"
    again, _ = session(spec, warm)
    assert again.best == undisturbed.best
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "paused")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("decay", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_tokens_that_were_not_prepared_bring_the_whole_table_back(decay, small, monkeypatch, warm, tmp_path) -> None:
    spec = spec_of("simcse", tmp_path / "off", **OWN | {"weight_decay": decay})
    small(False)
    _, off = session(spec, warm)
    known: list[bool] = []
    keep, covers = SentenceNetwork.keep_words, WordsInUse.covers

    def fewer(self, tokens):
        ids, times = np.unique(np.concatenate([np.asarray(t) for t in tokens[1:]]), return_counts=True)
        keep(self, [np.setdiff1d(np.concatenate(tokens), ids[times.argmax()])])  # a frequent word of the dev sets

    def counted(self, sentences):
        known.append(covers(self, sentences))
        return known[-1]

    monkeypatch.setattr(SentenceNetwork, "keep_words", fewer)
    monkeypatch.setattr(WordsInUse, "covers", counted)
    small(True)
    outcome, on = session(dataclasses.replace(spec, folder=str(tmp_path / "on")), warm)
    assert outcome.stop == "completed", outcome.traceback
    assert known[-1] is False
    assert [e.value for e in on] == [e.value for e in off]
    ours, theirs = whole(tmp_path / "on"), whole(tmp_path / "off")
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-6 if decay else 0, atol=0)
    assert len(weights(tmp_path / "on")[f"{TABLE}.rows"]) == len(theirs[f"{TABLE}.weight"])


def network(**own: Any) -> SentenceNetwork:
    from trainables.contract.config import EncoderConfig
    from trainables.encoders.load import load_encoder

    return SentenceNetwork(EncoderConfig(**own), load_encoder("builtin:tiny"), 0)


def test_words_of_evaluations_alone_are_those_of_the_encoder(small) -> None:
    small(True)
    part, all_of_it = network(), network()
    part.keep_words([np.arange(100, 120)])
    (words,) = (m for m in part.modules() if isinstance(m, WordsInUse))
    sentences = [np.array([100, 600, 101], np.int32), np.array([700, 600], np.int32), np.array([119], np.int32)]
    assert not words.covers(sentences)
    assert words.covers(sentences[2:])
    assert torch.equal(part.embed(sentences), all_of_it.embed(sentences))


def test_a_small_or_much_used_table_is_left_whole(monkeypatch) -> None:
    def rows(tokens: Any, **own: Any) -> int:
        one = network(**own)
        one.keep_words([np.asarray(tokens)])
        return len(one.encoder.get_input_embeddings().weight)

    size = len(network().encoder.get_input_embeddings().weight)
    monkeypatch.setattr(words_in_use, "LARGE", 0.0)
    assert rows(range(20)) < 40 < size
    assert rows(range(size)) == size
    assert rows(range(20), mlm_weight=0.1) == size
    monkeypatch.setattr(words_in_use, "LARGE", 1.0)
    assert rows(range(20)) == size


def test_used_ids() -> None:
    used = used_ids(8, [np.array([1, 3, -1, 99]), np.array([3, 7])], [0, 12])
    assert np.flatnonzero(used).tolist() == [0, 1, 3, 7]
