"""A batch encoded in pieces has the gradient of the whole, whatever the method, its head and its draws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_methods import spec_of

from search.space import SpaceError, space_from
from trainables.contract.registry import method_names
from trainables.methods.method import load_method
from trainables.training.distributed import USED, World, encode_in_pieces, largest_piece
from trainables.training.loop import Training
from trainables.training.trial import ProcessCache, run_trial

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("narrow_projector")]

SIZE = 3  # of batches of 8: the last piece is smaller
OWN = {"diffcse": {"difference_weight": 0.0}, "consert": {"dropout": 0.1}}
TRAINED = [name for name in method_names() if load_method(name).loss is not None]


@pytest.fixture(scope="module")
def warm():
    return ProcessCache()


def run(spec, warm, decision="go"):
    seen = []
    return run_trial(spec, lambda evaluation: seen.append(evaluation) or decision, cache=warm), seen


def first_gradients(monkeypatch, spec, warm):
    """The gradients of a trial's first step, by parameter."""
    seen: list[dict[str, torch.Tensor]] = []

    def kept(_, network):
        seen.append({n: p.grad.double() for n, p in network.named_parameters() if p.grad is not None})

    spec = dataclasses.replace(spec, params={**spec.params, "max_examples": 8})  # a step
    with monkeypatch.context() as patch:
        patch.setattr(World, "reduce_gradients", kept)
        outcome, _ = run(spec, warm)
    assert outcome.stop == "completed", outcome.traceback
    return seen[0]


def assert_equal(ours, theirs, tolerance=1e-5):
    assert ours.keys() == theirs.keys()
    total = torch.cat([g.flatten() for g in theirs.values()]).norm()
    assert total > 0
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).norm() <= tolerance * max(total, gradient.norm()), name


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_in_pieces_with_equal_draws(name, warm, tmp_path, monkeypatch):
    """Against one graph over the same pieces, so that dropout, cutoff and augmentation draw the same."""

    def one_graph(self, share):
        rows = max(map(len, share.values()))
        parts = [self.network.encode({r: v[at : at + SIZE] for r, v in share.items()}) for at in range(0, rows, SIZE)]
        return {role: torch.cat([part[role] for part in parts]) for role in parts[0]}, lambda: None

    own = OWN.get(name, {})
    ours = first_gradients(monkeypatch, spec_of(name, tmp_path / "ours", micro_batch=SIZE, **own), warm)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_vectors", one_graph)
        theirs = first_gradients(monkeypatch, spec_of(name, tmp_path / "theirs", **own), warm)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("head", ["mlp_bn", "none"])
def test_without_dropout_the_pieces_are_the_whole_batch(head, warm, tmp_path, monkeypatch):
    ours, theirs = (
        first_gradients(monkeypatch, spec_of("simcse", tmp_path / str(size), dropout=0.0, head=head, **size), warm)
        for size in ({"micro_batch": 1}, {})
    )
    assert_equal(ours, theirs)


def test_only_one_piece_has_a_graph():
    weight = torch.ones(4, requires_grad=True)
    graphs = []

    def encode(views):
        graphs.append((torch.is_grad_enabled(), len(views["anchor"])))
        noise = torch.rand(len(views["anchor"]), 4)
        return {"anchor": noise * weight, "fixed": noise}

    rows = [np.arange(3)] * 7
    torch.manual_seed(0)
    vectors, accumulate = encode_in_pieces(encode, {"anchor": rows}, 3, World().device)
    drawn = torch.rand(1)
    (vectors["anchor"] ** 2).sum().backward()
    accumulate()
    after = torch.rand(1)
    assert graphs == [(False, 3), (False, 3), (False, 1), (True, 3), (True, 3), (True, 1)]
    torch.manual_seed(0)
    noise = torch.cat([torch.rand(3, 4), torch.rand(3, 4), torch.rand(1, 4)])
    assert torch.equal(vectors["anchor"], noise)
    assert torch.allclose(weight.grad, 2 * (noise**2).sum(0))
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize(("found", "piece"), [(2, 2), (100, 8)])
def test_auto_takes_what_the_memory_holds(found, piece, warm, tmp_path, monkeypatch):
    """Of a batch of 8, logged with the first evaluation; the gradient is that of the same number written out."""
    calls = []
    monkeypatch.setattr("trainables.training.loop.largest_piece", lambda *given: calls.append(given) or found)
    spec = spec_of("simcse", tmp_path / "auto", micro_batch="auto")
    ours = first_gradients(monkeypatch, spec, warm)
    given = {} if piece == 8 else {"micro_batch": piece}
    assert_equal(ours, first_gradients(monkeypatch, spec_of("simcse", tmp_path / "number", **given), warm), 1e-7)
    outcome, (first, second) = run(dataclasses.replace(spec, folder=str(tmp_path / "whole")), warm)
    assert outcome.stop == "completed"
    assert (first.metrics["micro_batch"], second.metrics.get("micro_batch")) == (piece, None)
    assert len(calls) == 2  # once a trial


def test_resumed_trial_retains_the_piece_of_auto(warm, tmp_path, monkeypatch):
    pieces = iter([3, 5])
    monkeypatch.setattr("trainables.training.loop.largest_piece", lambda *_: next(pieces))
    spec = spec_of("simcse", tmp_path, micro_batch="auto")
    seen = run(spec, warm, "pause")[1] + run(spec, warm)[1]
    assert [evaluation.metrics.get("micro_batch") for evaluation in seen] == [3, None]
    assert list(pieces) == [5]


def test_memory_of_a_piece_excludes_shared_weights():
    """Each example saves 400 bytes; the weights, saved once, are no example's. No generator is moved."""
    weight = torch.ones(100, requires_grad=True)

    def encode(views):
        torch.rand(3)
        rows = torch.stack([torch.full((100,), float(row[0])) for row in views["anchor"]])
        return {"anchor": (rows.split(1)[0] * 0 + (rows * weight).exp()).sum(1)}

    views = {"anchor": [(1, 2)] * 32}
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    sizes = [largest_piece(encode, views, room / USED, torch.device("cpu")) for room in (8_000, 16_000, 1)]
    assert sizes == [10, 20, 1]
    assert torch.equal(torch.rand(1), drawn)


@pytest.mark.parametrize(
    ("params", "train", "message"),
    [
        ({"mlm_weight": 0.1}, {"micro_batch": 8}, "micro_batch: .*mlm_weight"),
        ({"checkpointing": True}, {"micro_batch": "auto"}, "micro_batch: auto"),
        ({}, {"micro_batch": 0}, "train.micro_batch: .* >= 1 or auto or null, got 0"),
        ({}, {"micro_batch": "most"}, "train.micro_batch: .*got 'most'"),
    ],
)
def test_impossible_micro_batch_is_refused(params, train, message):
    space = {
        "name": "x", "method": "simcse", "encoder": "builtin:tiny",
        "data": {"train": "builtin", "dev": ["builtin"], "language": "en"}, "metric": {"name": "builtin_dev"},
        "params": {"learning_rate": {"choice": [1e-5, 1e-4]}, **params}, "search": {"trials": 2}, "train": train,
    }  # fmt: skip
    with pytest.raises(SpaceError, match=message):
        space_from(space)
