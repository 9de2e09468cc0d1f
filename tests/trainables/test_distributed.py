"""Two gloo workers give the gradient of one device on the joined batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import toy
from torch import multiprocessing

from trainables.methods.method import Batch
from trainables.methods.simcse.config import SimcseConfig
from trainables.methods.simcse.method import loss, views
from trainables.training.distributed import World
from trainables.training.gradient_cache import encode_in_pieces

pytestmark = pytest.mark.costly

CONFIG = SimcseConfig(dropout=0.0)
BATCH = Batch(np.arange(21))  # odd: the shares differ


def gradients(world: World, micro_batch: int = len(BATCH)) -> dict[str, torch.Tensor]:
    network = toy.ToyNetwork(CONFIG, seed=0)
    whole = views(toy.examples(), BATCH, CONFIG, np.random.default_rng(0))
    mine = world.share(len(BATCH))
    share = {role: rows[mine] for role, rows in whole.items()}
    pooled, carry = encode_in_pieces(network.encode, share, micro_batch, world.device)
    loss(network.project({role: world.gather(v) for role, v in pooled.items()}), CONFIG).backward()
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


def test_shares_cover_the_batch():
    for n in (2, 7, 64):
        for size in (1, 2, 3):
            parts = [range(n)[World(rank, size).share(n)] for rank in range(size)]
            assert [i for part in parts for i in part] == list(range(n))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
