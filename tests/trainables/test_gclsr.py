"""GCLSR: dropped batches, groups, optimiser and schedule, and that training improves the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from trainables.data.tokens import TokenColumn
from trainables.encoders.word_vectors import WordVectors
from trainables.methods.gclsr import method as gclsr
from trainables.methods.gclsr.config import GclsrConfig
from trainables.methods.losses import grouped_cosine
from trainables.methods.method import Batch, Examples

CONFIG = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, batch_size=8, epochs=4, warmup_epochs=1)


def examples(n: int) -> Examples:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, n)
    flat = rng.integers(-3, 20, lengths.sum()).astype(np.int32)
    return Examples({"sentence": TokenColumn(flat, np.concatenate([[0], np.cumsum(lengths)]))})


def vectors() -> WordVectors:
    matrix = np.random.default_rng(1).standard_normal((20, 10)).astype(np.float32)
    return WordVectors(tuple(map(str, range(20))), matrix)


def test_a_smaller_last_batch_is_dropped_unless_alone() -> None:
    assert [len(b) for b in gclsr.plan(examples(30), CONFIG, 0)] == [8] * 3 * 4
    assert [len(b) for b in gclsr.plan(examples(32), CONFIG, 0)] == [8] * 4 * 4
    assert [len(b) for b in gclsr.plan(examples(5), CONFIG, 0)] == [5] * 4
    assert [len(b) for b in gclsr.plan(examples(30), replace(CONFIG, sample_size=10), 0)] == [8] * 4


def test_num_groups_is_another_way_to_say_group_size() -> None:
    draw = torch.Generator().manual_seed(0)
    z = {name: torch.randn(3, 4096, generator=draw) for name in ("q1", "z1", "q2", "z2")}
    by_size = gclsr.loss(z, replace(CONFIG, group_size=16))
    assert by_size == grouped_cosine(z["q1"], z["z1"], z["q2"], z["z2"], 16)
    assert by_size == gclsr.loss(z, replace(CONFIG, group_size=4, num_groups=256))
    assert by_size != gclsr.loss(z, replace(CONFIG, group_size=4))


def schedule(config: GclsrConfig, steps: int) -> list[tuple[float, float, float]]:
    """(base rate, predictor rate, momentum) at which each optimiser step runs."""
    network = nn.ModuleDict({"backbone": nn.Linear(1, 1), "predictor": nn.Linear(1, 1)})
    sgd, rates = gclsr.optimiser(network, config, steps, 1)
    seen = []
    for _ in range(steps):
        base, predictor = sgd.param_groups
        assert base["momentum"] == predictor["momentum"]
        seen.append((base["lr"], predictor["lr"], base["momentum"]))
        sgd.step()
        rates.step()
    return seen


def test_the_schedule_of_a_run_and_of_one_cut_short() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(CONFIG, 16)
    assert seen[0] == (peak, peak, 0.9)  # the public loop's first step
    assert seen[1] == (0.0, 1.0, 0.9)
    assert seen[4] == (peak, 1.0, 0.9)
    assert seen[5] == (peak, 1.0, 0.8)
    assert 0 < seen[15][0] < seen[14][0] < peak
    assert [momentum for _, _, momentum in schedule(CONFIG, 8)] == [0.9] * 3 + [0.8] * 5
    together = schedule(replace(CONFIG, predictor_lr=None), 16)
    assert all(base == predictor for base, predictor, _ in together)


def test_no_warmup_and_no_momentum() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(replace(CONFIG, warmup_epochs=0, momentum=0.0, momentum_after_warmup=0.8), 16)
    assert [momentum for _, _, momentum in seen] == [0.0] + [0.8] * 15
    assert seen[1][0] == peak
    assert schedule(replace(CONFIG, momentum_after_warmup=0.0), 16)[-1][2] == 0.0


def test_every_parameter_is_in_one_group_with_decay() -> None:
    network = gclsr.network(CONFIG, vectors(), 0)
    sgd, _ = gclsr.optimiser(network, CONFIG, 16, 4)
    counts = {group["name"]: len(group["params"]) for group in sgd.param_groups}
    assert counts == {"base": 2 * 2 + 3 * 4, "predictor": 2 + 2 + 2}
    assert sum(counts.values()) == len(list(network.parameters()))
    assert all(g["weight_decay"] == 0.001 and g["nesterov"] for g in sgd.param_groups)


def test_a_schedule_goes_on_where_it_was_saved() -> None:
    network = nn.ModuleDict({"backbone": nn.Linear(1, 1), "predictor": nn.Linear(1, 1)})
    whole = schedule(CONFIG, 16)
    sgd, rates = gclsr.optimiser(network, CONFIG, 16, 4)
    for _ in range(6):
        sgd.step()
        rates.step()
    saved = sgd.state_dict(), rates.state_dict()
    sgd, rates = gclsr.optimiser(network, CONFIG, 16, 4)
    sgd.load_state_dict(saved[0])
    rates.load_state_dict(saved[1])
    for base, predictor, momentum in whole[6:]:
        assert (sgd.param_groups[0]["lr"], sgd.param_groups[1]["lr"]) == (base, predictor)
        assert sgd.param_groups[0]["momentum"] == momentum
        sgd.step()
        rates.step()


@pytest.mark.costly
def test_training_lowers_the_loss_of_the_same_sentences() -> None:
    torch.manual_seed(0)
    data, network = examples(8), gclsr.network(CONFIG, vectors(), 0).train()
    sgd, rates = gclsr.optimiser(network, CONFIG, 5, 1)
    before = [p.detach().clone() for p in network.backbone.parameters()]
    losses = []
    for _ in range(5):
        views = gclsr.views(data, Batch(np.arange(8)), CONFIG, np.random.default_rng(0))
        loss = gclsr.loss(network.project(network.encode(views)), CONFIG)
        loss.backward()
        sgd.step()
        rates.step()
        sgd.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(0, abs=0.1)
    assert losses[-1] < losses[0] - 0.1
    assert all(not torch.equal(p, q) for p, q in zip(network.backbone.parameters(), before, strict=True))
