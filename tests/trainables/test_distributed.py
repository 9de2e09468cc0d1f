"""Two gloo workers give the gradient of one device on the joined batch."""

from __future__ import annotations

import time
from datetime import timedelta

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
from trainables.methods.method import Batch, Examples, load_method, loss_of
from trainables.methods.simcse.config import SimcseConfig
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World, encode_in_pieces
from trainables.training.loop import Training

pytestmark = pytest.mark.costly

N = 21  # examples in a batch: odd, so that the shares differ
CASES = {  # of methods: those with more than a shared loss and a head
    "head": ("simcse", {"head": "mlp_bn"}),
    "in pieces": ("simcse", {"head": "mlp_bn", "micro_batch": 4}),
    "adapters": ("simcse", {"lora.rank": 4, "head": "mlp_bn"}),
    "adapters in pieces": ("simcse", {"lora.rank": 4, "micro_batch": 4}),
    "words in use": ("simcse", {}),
    "momentum queue": ("esimcse", {}),
    "sums": ("whitening", {}),
    "discriminator": ("diffcse", {}),
    "pairs": ("pairs", {"false_negatives": "same_text", "direction": "both"}),
    "pairs in pieces": ("pairs", {"false_negatives": "margin", "margin": -0.01, "micro_batch": 4}),
    "pairs of two widths in pieces": ("pairs", {"matryoshka": [64, 16], "micro_batch": 4}),
    "scored pairs": ("scored_pairs", {"loss": "cosent"}),
    "scored pairs in pieces": ("scored_pairs", {"loss": "angle", "micro_batch": 4}),
    "scored pairs by cosine": ("scored_pairs", {"loss": "cosine", "micro_batch": 4}),
}
OF_PAIRS = tuple(case for case in CASES if "pairs" in case)


def rows(n: int) -> list[np.ndarray]:
    return [toy.examples().columns["sentence"][i] for i in range(n)]


def of_pairs(texts: list[np.ndarray], scored: bool) -> Examples:
    """Every text with the next one; a third of the anchors are equal."""
    other = [np.roll(text, 1) + 3 for text in texts]
    columns = {
        role: TokenColumn(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
        for role, rows in (("anchor", texts), ("positive", other), ("negative", other[::-1]))
    }
    if scored:
        score = np.arange(len(texts), dtype=np.float32) % 5 / 4
        return Examples({"first": columns["anchor"], "second": columns["positive"]}, numbers={"score": score})
    numbers = {f"text of {role}": np.arange(len(texts)) // (3 if role == "anchor" else 1) for role in columns}
    return Examples(columns, numbers=numbers)


def two_steps(case: str, world: World) -> dict[str, torch.Tensor]:
    """Parameters' gradients of the second step and buffers after it, as the loop makes a step."""
    name, params = CASES[case]
    method = load_method(name)
    trained = method.loss is not None
    config = build(method.declaration.config, ({"dropout": 0.0, "batch_size": N} if trained else {}) | params)
    network = method.network(config, load_encoder("builtin:tiny"), 0)
    network.train()
    if case == "words in use":
        network.keep_words([np.arange(10, 70)])
        assert any(isinstance(part, WordsInUse) for part in network.modules())
    texts = [np.arange(10 + i, 16 + i + i % 4, dtype=np.int32) for i in range(2 * N)]
    column = TokenColumn(np.concatenate(texts), np.cumsum([0, *map(len, texts)]))
    examples = Examples({"sentence": column})
    if case in OF_PAIRS:
        examples = of_pairs(texts, name == "scored_pairs")
    for step in range(2):
        rng = np.random.default_rng(step)
        whole = method.views(examples, Batch(np.arange(N) + step * N), config, rng)
        share = {role: views[world.share(N)] for role, views in whole.items()}
        network.zero_grad()
        with torch.set_grad_enabled(trained):
            pooled, accumulate = network.encode(share) if not config.micro_batch else {}, lambda: None
            if config.micro_batch:
                pooled, accumulate = encode_in_pieces(network.encode, share, config.micro_batch, world.device)
            z = network.project({role: world.gather(v, world.shares(N)) for role, v in pooled.items()})
            if trained:
                known = Batch(np.arange(N) + step * N).numbers_by_name(examples, world.device)
                total, own = loss_of(method, z, known, config), network.own_loss(share, pooled, rng)
                (total if own is None else total + own / world.size).backward()
                accumulate()
                world.reduce_gradients(network)
                with torch.no_grad():  # so that what follows the weights has something to follow
                    for p in network.parameters():
                        p -= 0.01 * (p.grad if p.grad is not None else 0)
        network.after_step()
    found = {key: p.grad for key, p in network.named_parameters() if p.grad is not None}
    return found | {key: b.clone() for key, b in network.named_buffers()}


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    world = World(rank, 2)
    found = {case: two_steps(case, world) for case in CASES}
    found["embedded"] = world.sharded(toy.ToyNetwork(SimcseConfig(), seed=0).embed)(rows(7))
    found["decision"] = world.broadcast("prune" if rank == 0 else None)
    dist.destroy_process_group()
    found |= impatient(rank, folder)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def impatient(rank: int, folder: str) -> dict[str, object]:
    """Rank 0 scores for longer than a collective of the default group may take."""
    brief = timedelta(seconds=1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/brief", rank=rank, world_size=2, timeout=brief)
    world = World(rank, 2, patient=dist.new_group(backend="gloo", timeout=timedelta(days=1)))
    embedded: list[int] = []

    def embed(sequences):
        embedded.append(len(sequences))
        return toy.ToyNetwork(SimcseConfig(), seed=0).embed(sequences)

    def score(embed):
        vectors = embed(rows(7))
        time.sleep(3)
        return {"rank": rank, "vectors": vectors, "few": embed(rows(1))}

    return {"scored": world.by_one(score, embed), "shares": embedded}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    multiprocessing.spawn(worker, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_workers_equal_one_device(case, results):
    """DiffCSE's own term is over what a worker has drawn, so there the workers agree with each other."""
    expected = results[0][case] if case == "discriminator" else two_steps(case, World())
    moved = [key for key in expected if "lora_A" in key or "table.weight" in key or key in ("queued", "seen")]
    assert bool(moved) == (case not in ("head", "in pieces", "discriminator", *OF_PAIRS))
    assert all(float(expected[key].double().norm()) > 0 for key in moved)
    for result in results:
        assert result[case].keys() == expected.keys()
        for key, value in expected.items():
            difference = (result[case][key].double() - value.double()).norm() / value.double().norm().clamp_min(1e-3)
            assert difference < 1e-4, key


@pytest.mark.parametrize("case", OF_PAIRS)
def test_pieces_and_workers_give_the_whole_batch_gradient(case, results, monkeypatch):
    """To 1e-5 of the gradient's norm, against one graph on one device."""
    name, params = CASES[case]
    monkeypatch.setitem(CASES, case, (name, {k: v for k, v in params.items() if k != "micro_batch"}))
    expected = two_steps(case, World())
    norm = torch.cat([g.flatten().double() for g in expected.values()]).norm()
    assert norm > 0
    for found in (*(result[case] for result in results),):
        for key, value in expected.items():
            assert (found[key].double() - value.double()).norm() < 1e-5 * norm, key


def test_workers_share_embedding_and_decision(results):
    expected = toy.ToyNetwork(SimcseConfig(), seed=0).embed(rows(7))
    for result in results:
        assert torch.allclose(result["embedded"], expected)
        assert result["decision"] == "prune"


def test_one_worker_scores_what_all_embed(results):
    """However long it takes: other workers wait in a group of their own."""
    expected = toy.ToyNetwork(SimcseConfig(), seed=0).embed(rows(7))
    for result in results:
        assert result["scored"]["rank"] == 0
        assert torch.allclose(result["scored"]["vectors"], expected)
        assert torch.allclose(result["scored"]["few"], expected[:1])
    assert [result["shares"] for result in results] == [[4, 1], [3, 1]]


def test_fewer_texts_than_workers_are_embedded_by_all():
    """Of one text the second of two workers would embed none, which no encoder does."""
    embed = toy.ToyNetwork(SimcseConfig(), seed=0).embed
    for world in (World(0, 3), World(2, 3)):
        assert torch.equal(world.sharded(embed)(rows(2)), embed(rows(2)))


def test_no_worker_is_without_an_example(tmp_path, monkeypatch):
    """Of 64 sentences in batches of 31 two are left at an epoch's end, which three workers cannot share."""
    monkeypatch.setattr(Training, "_resume", lambda _: 0)
    sizes = []
    for world in (World(), World(2, 3)):
        config = SimcseConfig(batch_size=31, epochs=2)
        training = Training(
            method=toy.METHOD, config=config, network=toy.ToyNetwork(config, 0), examples=toy.examples(), evaluate=None,
            seed=0, files=TrialFiles(str(tmp_path)), world=world,
        )  # fmt: skip
        sizes.append([len(batch) for batch in training.batches])
    assert min(sizes[0]) < 3 <= min(sizes[1])
    assert sizes[1] == [size for size in sizes[0] if size >= 3]


def test_batch_smaller_than_the_group_is_reported(tmp_path):
    config = SimcseConfig(batch_size=2)
    with pytest.raises(ValueError, match=r"batch_size: expected at least 3, one .* of the workers, got 2"):
        Training(
            method=toy.METHOD, config=config, network=toy.ToyNetwork(config, 0), examples=toy.examples(), evaluate=None,
            seed=0, files=TrialFiles(str(tmp_path)), world=World(0, 3),
        )  # fmt: skip


def test_shares_cover_the_batch():
    for n in (2, 7, 64):
        for size in (1, 2, 3):
            parts = [range(n)[World(rank, size).share(n)] for rank in range(size)]
            assert [i for part in parts for i in part] == list(range(n))
            assert [len(part) for part in parts] == World(0, size).shares(n)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
