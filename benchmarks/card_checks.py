"""Tests for a card that need no pytest: `benchmarks.card` runs them on any device, the suite on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trainables.encoders.load import LoadedEncoder

TOLERANCES = {"fp32": 1e-4, "bf16": 0.05}  # of the norm of what the padded pass gives in float32


def packed_is_padded(loaded: LoadedEncoder, device: torch.device) -> dict[str, float]:
    """How far packed vectors and gradients are from those of the padded pass in float32, by precision.

    Sentences are shorter and longer than the tiny families' windows.

    Returns: the larger of the two relative distances for each of TOLERANCES.
    """
    import torch

    from trainables.encoders.forward import packed_encoder, padded_states
    from trainables.encoders.load import make_model
    from trainables.encoders.packing import pack

    rng = np.random.default_rng(0)
    model: Any = make_model(loaded, 0.0).to(device).eval()
    way = packed_encoder(model)
    assert way is not None
    sentences = [rng.integers(5, 20, n).astype(np.int32) for n in (4, 14, 1, 9, 4)]
    packed = pack(sentences, 32, loaded.prefix, loaded.suffix, device)
    parameters = [p for name, p in model.named_parameters() if "pooler" not in name]

    def flat(states: Tensor) -> tuple[Tensor, Tensor]:
        seed = torch.cos(torch.arange(states.numel(), device=device)).view(states.shape)
        gradients = torch.autograd.grad((states * seed).sum(), parameters, allow_unused=True)
        return states.detach().float(), torch.cat([g.flatten() for g in gradients if g is not None])

    expected = flat(padded_states(model, packed, (2,))[2])
    found = {}
    for precision in TOLERANCES:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            states = way.states(packed, (2,))[2]
        found[precision] = max(float((a - b).norm() / b.norm()) for a, b in zip(flat(states), expected, strict=True))
    return found


def trained(
    folder: Path, encoder: Path, device: torch.device, stop_at: int = 0, **params: Any
) -> tuple[Any, list[Any]]:
    """A small trial on the builtin data, paused at `stop_at` examples: (its outcome, its evaluations)."""
    from trainables.contract.trial import TrialSpec
    from trainables.training.distributed import World
    from trainables.training.trial import run_trial

    seen: list[Any] = []

    def report(evaluation: Any) -> Any:
        seen.append(evaluation)
        return "pause" if evaluation.examples == stop_at else "go"

    spec = TrialSpec(
        method="simcse", encoder=str(encoder), data={"train": "builtin", "dev": ["builtin"], "language": "en"},
        metric="builtin_dev", folder=str(folder),
        params={"batch_size": 16, "max_examples": 128, "eval_examples": 64, **params},
    )  # fmt: skip
    return run_trial(spec, report, World(device=device)), seen


def resumes(folder: Path, encoder: Path, device: torch.device, precision: str) -> None:
    """A paused and resumed trial has the losses of one that ran through. Raises: AssertionError."""
    whole = trained(folder / "whole", encoder, device, precision=precision)[1]
    before = trained(folder / "cut", encoder, device, stop_at=64, precision=precision)[1]
    outcome, after = trained(folder / "cut", encoder, device, precision=precision)
    assert outcome.stop == "completed", outcome.reason
    for part, straight in zip([*before, *after], whole, strict=True):
        ours, theirs = part.metrics["loss"], straight.metrics["loss"]
        assert abs(ours - theirs) <= 1e-4 * abs(theirs), f"loss {ours} after a resume, {theirs} without"


def survives_lack_of_memory(folder: Path, encoder: Path, device: torch.device) -> None:
    """After a trial that runs out of a card's memory the next one trains. Raises: AssertionError."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6, device)
    try:
        stop = trained(folder / "first", encoder, device)[0].stop
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert stop == "failed:oom", stop
    assert (stop := trained(folder / "second", encoder, device)[0].stop) == "completed", stop


def all_checks(folder: Path, encoder: Path, device: torch.device) -> Iterator[tuple[str, str]]:
    """Every check on this device: its name and "passed", or what went wrong in one line."""
    from benchmarks.tiny_encoders import FAMILIES, save_tiny
    from trainables.encoders.load import load_encoder

    def packed(model_type: str) -> None:
        family = next(f for f in FAMILIES if f.model_type == model_type)
        loaded = load_encoder(str(save_tiny(family, folder / model_type)))
        for precision, distance in packed_is_padded(loaded, device).items():
            assert distance <= TOLERANCES[precision], f"{precision}: differs by {distance:.1e}"

    checks: dict[str, Callable[[], None]] = {
        f"packed is padded, {model_type}": partial(packed, model_type)
        for model_type in ("bert", "modernbert", "qwen3", "gemma3_text", "roberta", "mpnet", "llama")
    }
    for precision in ("auto", "fp32"):
        checks[f"resumed, {precision}"] = partial(resumes, folder / f"resumed-{precision}", encoder, device, precision)
    if device.type == "cuda":
        checks["next trial after one out of memory"] = partial(survives_lack_of_memory, folder / "oom", encoder, device)
    for name, check in checks.items():
        try:
            check()
            yield name, "passed"
        except Exception as error:
            yield name, f"failed: {type(error).__name__}: {error}".splitlines()[0]
