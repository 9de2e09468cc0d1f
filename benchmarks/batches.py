"""What the host does for a batch before a GPU's first kernel, views (augmentation) and packing, and whether a thread
that makes the next batch while kernels are launched would save it.

Launching is stood in for by as many small operators as a step launches (`launches`). Views and packing in CPU time of
their thread; the two ways to order them in wall time, alternated. Copies to a card are not in it.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.packing import training

METHODS = ("simcse", "simcse_sup", "edacse", "selfccl", "consert", "esimcse", "mirror_bert", "arccse", "diffcse")
SIZES = (64, 512)
LAUNCHES, BATCHES = 595, 50
TABLES = ("positions", "first", "ends", "ends_of_first")  # what a step with flash attention reads


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` times 50 batches."""
    import torch

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(Path(folder) / "encoder", "tiny")
        sentences = write_lines(Path(folder) / "stsb.txt", stsb_sentences())
        for method in METHODS:
            for size in SIZES:
                one = training(method, "fp32", encoder, sentences, False, torch.device("cpu"), batch_size=size)
                rows.append({"method": method, "batch": size, **_case(one, runs * BATCHES)})
    return {"rows": rows}


def _case(one: Any, count: int) -> dict[str, float]:
    """Medians in milliseconds."""
    import torch

    small, asked, made = torch.zeros(8), Queue[int | None](1), Queue[tuple[float, float]](1)

    def launch() -> None:
        for _ in range(LAUNCHES):
            small.add(1)

    def beside() -> None:
        while (number := asked.get()) is not None:
            made.put(_batch(one, number))

    taken: dict[str, list[float]] = {"views": [], "packing": [], "launched": [], "then": [], "beside": []}
    thread = threading.Thread(target=beside)
    thread.start()
    for number in (i % len(one.batches) for i in range(count)):
        began = time.perf_counter()
        launch()
        launched = time.perf_counter()
        views, packing = _batch(one, number)
        then = time.perf_counter()
        asked.put(number)
        launch()
        made.get()
        ended = time.perf_counter()
        for name, seconds in zip(taken, (views, packing, launched - began, then - began, ended - then), strict=True):
            taken[name].append(1000 * seconds)
    asked.put(None)
    thread.join()
    return {f"{name} ms": round(statistics.median(values), 2) for name, values in taken.items()}


def _batch(one: Any, number: int) -> tuple[float, float]:
    """CPU seconds of a batch's views, and of what packs them."""
    began = time.thread_time()
    views = one.method.views(one.examples, one.batches[number], one.config, np.random.default_rng(number))
    made = time.thread_time()
    packed = one.network._pack([tokens for rows in views.values() for tokens in rows])
    for table in TABLES:
        getattr(packed, table)
    packed.restore(packed.ids[: len(packed)])
    return made - began, time.thread_time() - made
