"""What only a GPU shows; skipped by name where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_methods import spec_of
from tiny_families import tiny
from torch import Tensor, multiprocessing

from benchmarks.card_checks import TOLERANCES, packed_is_padded
from benchmarks.inputs import make_encoder
from benchmarks.tiny_encoders import FAMILIES
from trainables.contract.errors import EncoderError
from trainables.training.distributed import World
from trainables.training.trial import run_trial

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.costly,
    pytest.mark.usefixtures("narrow_projector"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def trial(folder: Path, world: World | None = None, stop_at: int = 0, encoder: str = "", **params: Any) -> Any:
    """A small SimCSE trial: (its outcome, its evaluations); at `stop_at` training examples it is paused."""
    spec = spec_of("simcse", folder, **params)
    seen: list[Any] = []

    def report(evaluation: Any) -> Any:
        seen.append(evaluation)
        return "pause" if evaluation.examples == stop_at else "go"

    return run_trial(replace(spec, encoder=encoder or spec.encoder), report, world or World(device=DEVICE)), seen


def first_gradients(folder: Path, world: World) -> Tensor:
    """All gradients of the first step of a trial without dropout, as one vector."""
    found: list[Tensor] = []
    reduce = World.reduce_gradients

    def reduced(self: World, network: Any) -> None:
        reduce(self, network)
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        found.append(torch.cat([g.double().cpu().flatten() for g in gradients]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "reduce_gradients", reduced)
        outcome, _ = trial(folder, world, dropout=0.0, max_examples=8)
    assert outcome.stop == "completed", outcome.traceback
    return found[0]


def assert_close(a: Tensor, b: Tensor, tolerance: float) -> None:
    assert float(b.norm()) > 0
    assert float((a - b).norm()) <= tolerance * float(b.norm())


@pytest.mark.parametrize("family", [f.model_type for f in FAMILIES])
def test_packed_is_padded(family: str) -> None:
    try:
        loaded = tiny(family)
    except EncoderError as refused:
        pytest.skip(str(refused))
    if loaded.packing_note:
        pytest.skip(loaded.packing_note)
    for precision, distance in packed_is_padded(loaded, DEVICE).items():
        assert distance <= TOLERANCES[precision], precision


def test_the_first_step_is_the_cpu_s(tmp_path: Path) -> None:
    ours, theirs = (first_gradients(tmp_path / d.type, World(device=d)) for d in (DEVICE, torch.device("cpu")))
    assert_close(ours, theirs, 1e-4)


def test_a_resumed_trial_goes_on_with_its_draws(tmp_path: Path) -> None:
    whole = trial(tmp_path / "whole", max_examples=32)[1]
    before = trial(tmp_path / "cut", max_examples=32, stop_at=16)[1]
    outcome, after = trial(tmp_path / "cut", max_examples=32)
    assert outcome.stop == "completed"
    assert [e.resumed_from for e in after] == [16, 16]
    for part, straight in zip([*before, *after], whole, strict=True):
        assert part.metrics["loss"] == pytest.approx(straight.metrics["loss"], rel=1e-4)
        assert part.value == pytest.approx(straight.value, abs=1e-3)


@pytest.mark.real_data
def test_after_a_trial_without_memory_the_next_one_trains(tmp_path: Path, real_data: Path) -> None:  # noqa: ARG001
    encoder = str(make_encoder(tmp_path / "encoder"))  # of 44 MB: more than what lies free in blocks of the cache
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        assert trial(tmp_path / "first", encoder=encoder)[0].stop == "failed:oom"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trial(tmp_path / "second", encoder=encoder)[0].stop == "completed"


def beside(rank: int, folder: str) -> None:
    torch.cuda.set_per_process_memory_fraction(0.3)
    outcome, _ = trial(Path(folder) / str(rank), max_examples=64)
    torch.save((outcome.stop, outcome.best), f"{folder}/{rank}.pt")


def test_two_trials_share_a_gpu(tmp_path: Path) -> None:
    multiprocessing.spawn(beside, args=(str(tmp_path),), nprocs=2)
    (first, best), (second, other) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first == second == "completed"
    assert best == pytest.approx(other, abs=1e-3)


def by_nccl(rank: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    gradients = first_gradients(Path(folder) / "trial", World(rank, 2, torch.device("cuda", rank)))
    torch.save(gradients, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_workers_by_nccl_equal_one(tmp_path: Path) -> None:
    multiprocessing.spawn(by_nccl, args=(str(tmp_path),), nprocs=2)
    one = first_gradients(tmp_path / "one", World(device=DEVICE))
    for rank in (0, 1):
        assert_close(torch.load(tmp_path / f"{rank}.pt"), one, 1e-4)
