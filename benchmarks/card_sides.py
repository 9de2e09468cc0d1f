"""The sides of `benchmarks.card`: ours and sentence-transformers' step, its children, and how both are timed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_LENGTH, WARM_UP = 32, 5


def timed(step: Callable[[], object], device: Any, steps: int, runs: int) -> float:
    """Milliseconds of a step: the median of `runs` blocks between two waits for the device, warmed up."""
    import torch

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for _ in range(min(WARM_UP, steps)):
        step()
    blocks = []
    for _ in range(runs):
        began = wait()
        for _ in range(steps):
            step()
        blocks.append((wait() - began) / steps)
    return 1000 * statistics.median(blocks)


def stepper(one: Any) -> Callable[[], None]:
    """The next step of a trial at every call."""
    return lambda: one._step(one.batches[one.progress.step])


def peer_step(encoder: Path, sentences: Path, batch: int, device: Any, compiled: bool = False) -> Callable[[], None]:
    """The peer's step. Compiled: every batch padded to the same length, so that it is compiled once."""
    import torch
    from sentence_transformers import SentenceTransformer, losses, models
    from transformers import get_linear_schedule_with_warmup

    from trainables.training.machine import in_bf16

    transformer = models.Transformer(
        str(encoder), max_seq_length=MAX_LENGTH, model_kwargs={"attn_implementation": "sdpa"}
    )
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=str(device)).train()
    loss = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    bf16 = in_bf16("auto", model, device)
    texts = sentences.read_text(encoding="utf-8").splitlines()
    options = {"truncation": True, "max_length": MAX_LENGTH, "padding": "max_length", "return_tensors": "pt"}
    table = model.tokenizer(texts, **options)
    ids, mask = table["input_ids"], table["attention_mask"]
    if device.type == "cuda":
        ids, mask = ids.pin_memory(), mask.pin_memory()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    schedule = get_linear_schedule_with_warmup(optimiser, 0, 100_000)
    if compiled:
        model.forward = torch.compile(model.forward)
    begin = 0

    def step() -> None:
        nonlocal begin
        rows = slice(begin, begin + batch)
        begin = (begin + batch) % (len(texts) - batch + 1)
        longest = MAX_LENGTH if compiled else int(mask[rows].sum(1).max())
        one = {
            name: values[rows, :longest].to(device, non_blocking=True)
            for name, values in (("input_ids", ids), ("attention_mask", mask))
        }
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            value = loss([dict(one), dict(one)], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()

    return step


def child(given: str) -> None:
    """One of several trials at once: prints "ready", waits for a line, prints its seconds and GB."""
    import torch

    from benchmarks.packing import training

    case = json.loads(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    one = training(
        "simcse", "auto", Path(case["encoder"]), Path(case["sentences"]), False, device, dev="builtin",
        batch_size=case["batch"], max_length=MAX_LENGTH, head="none", epochs=100, max_examples=case["batch"] * 1000,
    )  # fmt: skip
    step = stepper(one)
    for _ in range(WARM_UP):
        step()
    timed(step, device, 1, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for _ in range(case["steps"]):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    memory = torch.cuda.max_memory_reserved(device) / 1e9 if device.type == "cuda" else 0.0
    print(json.dumps({"seconds": seconds, "memory": memory}), flush=True)


def compiled(given: str) -> None:
    """Print the milliseconds of a compiled peer's step."""
    import torch

    case = json.loads(given)
    device = torch.device("cuda")
    step = peer_step(Path(case["encoder"]), Path(case["sentences"]), case["batch"], device, compiled=True)
    print(timed(step, device, case["steps"], case["runs"]))
