"""(h) Several trials training on one card against the peer on the whole card, and their share of its matmul rate.

Unsupervised SimCSE, batch 64, the sentences of (a), a BERT-base shape on a GPU (a mini shape where there is none, so
that the script itself is tried). Ours: 1, 2, 4 ... processes, each a trial in the real loop, on one device at the same
time; their steps per second are summed. The peer: sentence-transformers' trainer in one process, in bf16 where the
device has it. Packed against padded on the same device is `python -m benchmarks packing`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import make_encoder, write_sentences

BATCH, WARM_UP = 64, 5
STEPS = {"cuda": 100, "cpu": 8}
TRIALS = {"cuda": (1, 2, 4, 8), "cpu": (1, 2)}
PEER = "import sys; from benchmarks.gpu import peer; peer(*sys.argv[1:])"


def run(runs: int) -> dict[str, Any]:
    """Medians of summed steps per second over `runs` alternated rounds; ratio to the peer's of the same round."""
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    rate = matmul_rate(kind)
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(Path(folder) / "encoder", "base" if kind == "cuda" else "mini")
        sentences = write_sentences(Path(folder) / "sentences.txt")
        work = step_operations(encoder, sentences)
        rounds = []
        for _ in range(runs):
            theirs = timed_peer(encoder, sentences)
            rounds.append((theirs, {n: summed_steps(encoder, sentences, n, kind) for n in TRIALS[kind]}))
    rows = [{"side": "sentence-transformers", **_figures([t for t, _ in rounds], [1.0] * runs, work, rate)}]
    for n in TRIALS[kind]:
        ours = [mine[n] for _, mine in rounds]
        ratios = [mine[n] / theirs for theirs, mine in rounds]
        rows.append({"side": f"ours, {n} at once", **_figures(ours, ratios, work, rate)})
    return {"rows": rows, "device": kind, "matmul flop/s": rate, "flop of a step, packed": work}


def _figures(steps: list[float], ratios: list[float], work: float, rate: float) -> dict[str, float]:
    median = statistics.median(steps)
    return {
        "steps/s": round(median, 2),
        "ratio": round(statistics.median(ratios), 3),
        "share of matmul rate": round(median * work / rate, 3),
    }


def matmul_rate(kind: str, size: int | None = None) -> float:
    """Operations per second of a large bf16 matrix product on the device."""
    import torch

    size = size or (8192 if kind == "cuda" else 2048)
    a = torch.randn(size, size, dtype=torch.bfloat16, device=kind)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        a @ a
        if kind == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def step_operations(encoder: Path, sentences: Path) -> float:
    """Operations of a packed step's linear layers, forward and backward, on the mean number of tokens (2 views)."""
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(encoder)
    texts = sentences.read_text(encoding="utf-8").splitlines()
    ids = AutoTokenizer.from_pretrained(encoder)(texts, truncation=True, max_length=32)["input_ids"]
    tokens = 2 * BATCH * sum(map(len, ids)) / len(ids)
    layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    return float(3 * 2 * tokens * layer * config.num_hidden_layers)


def summed_steps(encoder: Path, sentences: Path, trials: int, kind: str) -> float:
    """Steps per second of `trials` trials that train side by side on one device, summed."""
    spawn = multiprocessing.get_context("spawn")
    barrier, queue = spawn.Barrier(trials), spawn.Queue()
    processes = [spawn.Process(target=_trial, args=(encoder, sentences, kind, barrier, queue)) for _ in range(trials)]
    for process in processes:
        process.start()
    slowest: float = max(queue.get(timeout=3600) for _ in processes)
    for process in processes:
        process.join()
    return trials * STEPS[kind] / slowest


def _trial(encoder: Path, sentences: Path, kind: str, barrier: Any, queue: Any) -> None:
    import torch

    from benchmarks.packing import training

    if kind == "cpu":
        torch.set_num_threads(1)
    one = training("simcse", "auto", encoder, sentences, False, torch.device(kind), max_length=32)

    def steps(n: int) -> None:
        for _ in range(n):
            one._step(one.batches[one.progress.step % len(one.batches)])
        if kind == "cuda":
            torch.cuda.synchronize()

    steps(WARM_UP)
    barrier.wait()
    started = time.perf_counter()
    steps(STEPS[kind])
    queue.put(time.perf_counter() - started)


def timed_peer(encoder: Path, sentences: Path) -> float:
    """Steps per second of the peer, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(encoder), str(sentences)], check=True, stdout=subprocess.PIPE, env=os.environ
    )
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def peer(encoder: str, sentences: str) -> None:
    """Train by the peer's documented recipe and print its steps per second, warm-up left out."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from transformers import TrainerCallback

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    transformer = models.Transformer(encoder, max_seq_length=32)
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=kind)
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if kind == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=BATCH,
            max_steps=WARM_UP + STEPS[kind],
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=kind == "cpu",
            bf16=kind == "cuda",
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
            loss=losses.MultipleNegativesRankingLoss(model, scale=20.0),
            callbacks=[Clock()],
        ).train()
    print(json.dumps((len(times) - WARM_UP) / (times[-1] - times[WARM_UP - 1])))
