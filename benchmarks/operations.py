"""Useful operations of a training step, a multiply and an add being two, and the rate that a device multiplies at.

Useful is what a side computes for tokens, not for padding: linear layers, attention over a sentence's own tokens, the
similarities of a batch; forward, and twice that backward. What flash attention or checkpointing computes again, norms,
dropout, the optimiser are not counted.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

PRODUCTS, REPEATS = 10, 5
SIZE = {"cuda": 8192, "cpu": 1024}


def step_operations(config: Any, lengths: NDArray[np.int64], batch: int, last_first_only: bool) -> float:
    """Of an unsupervised SimCSE step with [CLS] pooling and no head on a BERT-like encoder, on average.

    Args:
        config: of the encoder. lengths: (n,) tokens that sentences are cut to, of all that may come.
        batch: sentences of a step, each of them encoded twice.
        last_first_only: the last layer has keys and values of every token, the rest of it of [CLS] only.
    """
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    sentences, tokens, pairs = (2.0 * batch * float(mean) for mean in (1, lengths.mean(), (lengths**2.0).mean()))
    key_value, rest = 2 * width**2, 2 * width**2 + 2 * width * inner  # multiplications a token; rest: query, out, MLP
    whole = tokens * (key_value + rest) + 2 * pairs * width
    last = tokens * key_value + sentences * rest + 2 * tokens * width if last_first_only else whole
    return float(3 * 2 * ((layers - 1) * whole + last + batch**2 * width))


def matmul_rate(kind: str, dtype: torch.dtype) -> float:
    """Operations per second of large square products on the device: the best of some blocks, after a warm-up."""
    size = SIZE[kind]
    a, out = torch.randn(size, size).to(kind, dtype), torch.empty(size, size, device=kind, dtype=dtype)

    def block() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, a, out=out)
        synchronise(kind)

    block()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        block()
        best = min(best, time.perf_counter() - began)
    return PRODUCTS * 2 * size**3 / best


def synchronise(kind: str) -> None:
    """Wait until the device has computed all that it was handed."""
    if kind == "cuda":
        torch.cuda.synchronize()
