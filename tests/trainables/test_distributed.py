"""Two gloo workers give the gradient of one device on the joined batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import toy
from torch import multiprocessing

from trainables.contract.config import build
from trainables.data.tokens import TokenColumn
from trainables.encoders.load import load_encoder
from trainables.encoders.words_in_use import WordsInUse
from trainables.methods.method import Batch, Examples, load_method
from trainables.methods.simcse.config import SimcseConfig
from trainables.methods.simcse.method import loss, views
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World
from trainables.training.gradient_cache import encode_in_pieces
from trainables.training.loop import Training
from trainables.training.setup import TrainingSetup

pytestmark = pytest.mark.costly

CONFIG = SimcseConfig(dropout=0.0)
BATCH = Batch(np.arange(21))  # odd: the shares differ
BASELINES = ("esimcse", "whitening", "diffcse")  # with more than a shared loss and a head
PARTLY = {  # of the encoder is trained: adapters, or the rows of the words in use
    "adapters": {"lora.rank": 4, "head": "mlp_bn"},
    "adapters in pieces": {"lora.rank": 4, "micro_batch": 4},
    "words in use": {},
}


def gradients(world: World, micro_batch: int = len(BATCH)) -> dict[str, torch.Tensor]:
    network = toy.ToyNetwork(CONFIG, seed=0)
    whole = views(toy.examples(), BATCH, CONFIG, np.random.default_rng(0))
    mine = world.share(len(BATCH))
    share = {role: rows[mine] for role, rows in whole.items()}
    pooled, carry = encode_in_pieces(network.encode, share, micro_batch, world.device)
    loss(
        network.project({role: world.gather(v, world.shares(len(BATCH))) for role, v in pooled.items()}), CONFIG
    ).backward()
    carry()
    world.reduce_gradients(network)
    return {name: p.grad for name, p in network.named_parameters()}


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    world = World(rank, 2)
    rows = [toy.examples().columns["sentence"][i] for i in range(7)]
    network = toy.ToyNetwork(CONFIG, seed=0)
    result = {
        "gradients": gradients(world),
        "in pieces": gradients(world, micro_batch=4),
        "embedded": world.sharded(network.embed)(rows),
        "agreed": world.agree("prune" if rank == 0 else None),
    }
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_no_worker_is_without_an_example(tmp_path, monkeypatch):
    """Of 64 sentences in batches of 31 two are left at an epoch's end, which three workers cannot share."""
    monkeypatch.setattr(Training, "_resume", lambda _: 0)
    sizes = []
    for world in (World(), World(2, 3)):
        config = SimcseConfig(batch_size=31, epochs=2)
        setup = TrainingSetup(
            method=toy.METHOD, config=config, network=toy.ToyNetwork(config, 0), examples=toy.examples(), evaluate=None,
            seed=0, files=TrialFiles(str(tmp_path)),
        )  # fmt: skip
        sizes.append([len(batch) for batch in Training(setup, world, pausing=lambda: False).batches])
    assert min(sizes[0]) < 3 <= min(sizes[1])
    assert sizes[1] == [size for size in sizes[0] if size >= 3]


def test_two_workers_equal_one_device(tmp_path):
    multiprocessing.spawn(worker, args=(str(tmp_path),), nprocs=2)
    expected = gradients(World())
    rows = [toy.examples().columns["sentence"][i] for i in range(7)]
    for rank in (0, 1):
        result = torch.load(tmp_path / f"{rank}.pt")
        for name, gradient in expected.items():
            for way in ("gradients", "in pieces"):
                difference = (result[way][name] - gradient).norm() / gradient.norm().clamp_min(1e-3)
                assert difference < 1e-5, (way, name)
        assert torch.allclose(result["embedded"], toy.ToyNetwork(CONFIG, seed=0).embed(rows))
        assert result["agreed"] == "prune"


def test_fewer_texts_than_workers_are_embedded_by_all():
    """Of one text the second of two workers would embed none, which no encoder does."""
    rows = [toy.examples().columns["sentence"][i] for i in range(2)]
    for world in (World(0, 3), World(2, 3)):
        embed = toy.ToyNetwork(CONFIG, seed=0).embed
        assert torch.equal(world.sharded(embed)(rows), embed(rows))


def two_steps(method_name: str, world: World, case: str = "") -> dict[str, torch.Tensor]:
    """Parameters' gradients of the second step and buffers after it, as the loop makes a step."""
    method = load_method(method_name)
    values = {"dropout": 0.0, "batch_size": len(BATCH)} if method.loss is not None else {}
    config = build(method.declaration.config, values | PARTLY.get(case, {}))
    network = method.network(config, load_encoder("builtin:tiny"), 0)
    network.train()
    if case == "words in use":
        network.keep_words([np.arange(10, 70)])
        assert any(isinstance(part, WordsInUse) for part in network.modules())
    texts = [np.arange(10 + i, 16 + i + i % 4, dtype=np.int32) for i in range(2 * len(BATCH))]
    starts = np.cumsum([0, *map(len, texts)])
    examples = Examples({"sentence": TokenColumn(np.concatenate(texts), starts)})
    for step in range(2):
        rng = np.random.default_rng(step)
        whole = method.views(examples, Batch(np.arange(len(BATCH)) + step * len(BATCH)), config, rng)
        mine = world.share(len(BATCH))
        share = {role: rows[mine] for role, rows in whole.items()}
        network.zero_grad()
        with torch.set_grad_enabled(method.loss is not None):
            pooled, carry = network.encode(share), lambda: None
            if config.micro_batch:
                pooled, carry = encode_in_pieces(network.encode, share, config.micro_batch, world.device)
            z = network.project({role: world.gather(v, world.shares(len(BATCH))) for role, v in pooled.items()})
            if method.loss is not None:
                total, own = method.loss(z, config), network.own_loss(share, pooled, rng)
                (total if own is None else total + own / world.size).backward()
                carry()
                world.reduce_gradients(network)
                with torch.no_grad():  # so that what follows the weights has something to follow
                    for p in network.parameters():
                        p -= 0.01 * (p.grad if p.grad is not None else 0)
        network.after_step()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return found | {name: b.clone() for name, b in network.named_buffers()}


def baseline_worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save({name: two_steps(name, World(rank, 2)) for name in BASELINES}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_workers_with_a_queue_with_sums_and_with_a_discriminator(tmp_path):
    """ESimCSE's momentum queue and whitening's sums are those of one device; DiffCSE's own term is over what a worker
    has drawn, so there the workers agree with each other."""
    multiprocessing.spawn(baseline_worker, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name in BASELINES:
        expected = first["diffcse"] if name == "diffcse" else two_steps(name, World())
        assert expected
        for result in (first[name], second[name]):
            assert result.keys() == expected.keys()
            for key, value in expected.items():
                difference = (result[key].double() - value.double()).norm() / value.double().norm().clamp_min(1e-3)
                assert difference < 1e-4, (name, key)
    assert int(first["esimcse"]["queued"]) == 2 * len(BATCH)
    assert int(first["whitening"]["seen"]) == 2 * len(BATCH)


def partly_worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save({case: two_steps("simcse", World(rank, 2), case) for case in PARTLY}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_workers_with_adapters_and_with_words_in_use(tmp_path):
    multiprocessing.spawn(partly_worker, args=(str(tmp_path),), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for case in PARTLY:
        expected = two_steps("simcse", World(), case)
        trained = [key for key in expected if "lora_A" in key or "table.weight" in key]
        assert trained
        assert all(float(expected[key].norm()) > 0 for key in trained)
        for result in results:
            assert result[case].keys() == expected.keys()
            for key, value in expected.items():
                apart = (result[case][key].double() - value.double()).norm()
                assert apart < 1e-4 * value.double().norm().clamp_min(1e-3), (case, key)


def test_shares_cover_the_batch():
    for n in (2, 7, 64):
        for size in (1, 2, 3):
            parts = [range(n)[World(rank, size).share(n)] for rank in range(size)]
            assert [i for part in parts for i in part] == list(range(n))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
