"""Exact search and its measures, without the encoding: 100,000 documents of 384 dimensions, 1,000 queries."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import torch

from trainables.data.retrieval import Retrieval
from trainables.evaluation.scoring import measure, number_texts

DOCUMENTS, QUERIES, DIMENSIONS = 100_000, 1_000, 384


def run(runs: int) -> dict[str, Any]:
    """Seconds of `runs` times, and what it adds to the process's peak memory. Random vectors, three answers a query."""
    rng = np.random.default_rng(0)
    ids, names = [f"d{i}" for i in range(DOCUMENTS)], [f"q{i}" for i in range(QUERIES)]
    grades = [{ids[j]: 1 for j in rng.choice(DOCUMENTS, 3, replace=False)} for _ in names]
    data = Retrieval("x", ids, ids, names, names, grades, "r")
    ranked = number_texts(data, np.arange(DOCUMENTS, DOCUMENTS + QUERIES), np.arange(DOCUMENTS))
    vectors = torch.randn(DOCUMENTS + QUERIES, DIMENSIONS, generator=torch.Generator().manual_seed(0))
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    before, rows = _peak_mib(), []
    for _ in range(runs):
        began = time.perf_counter()
        measure(unit, ranked)
        rows.append({"seconds": time.perf_counter() - began, "threads": torch.get_num_threads()})
    return {"rows": rows, "added_peak_mib": _peak_mib() - before}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
