"""Test sets scored by vectors of lower precision, as sentence_transformers.quantize_embeddings makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.evaluation.scoring import PreparedSets, normalised_rows, scored

PRECISIONS = ("int8", "binary")
LEVELS = 255


def int8(vectors: NDArray[np.float32], corpus: NDArray[np.float32]) -> NDArray[np.int8]:
    """(n, D) whole numbers in [-128, 127]: each dimension in 255 steps from the corpus's least to its largest value.

    Args: vectors: (n, D); corpus: (m, D), whose ranges calibrate; what lies outside of them is clipped.
    """
    start = corpus.min(0)
    step = (corpus.max(0) - start) / LEVELS
    step = np.where(step == 0, 1, step)
    numbers: NDArray[np.int8] = (np.clip(np.floor((vectors - start) / step), 0, LEVELS) - 128).astype(np.int8)
    return numbers


def signs(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """(n, D) of 1 and -1, the bits of `binary`: two rows' product is D less twice their Hamming distance."""
    return np.where(vectors > 0, 1, -1).astype(np.int8)


def quantised_scores(
    vectors: Tensor, prepared: PreparedSets, precision: str
) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
    """Metrics and similarities of test sets (`scoring.scored`): cosines of `int8`, Hamming distances of `binary`.

    Vectors are normalised first. int8 is calibrated on a retrieval set's documents, or the sentences of a set of pairs.

    Args: vectors: (n, D) of the prepared sentences. precision: one of PRECISIONS.
    """
    unit = normalised_rows(vectors).cpu().numpy()
    corpora = [(replace(prepared, sets=(p,), retrieval=()), np.union1d(p.first, p.second)) for p in prepared.sets]
    corpora += [(replace(prepared, sets=(), retrieval=(r,)), r.texts) for r in prepared.retrieval]
    metrics: dict[str, float] = {}
    similarities: dict[str, NDArray[np.float32]] = {}
    for one, corpus in corpora:
        if precision == "int8":
            rows = normalised_rows(torch.from_numpy(int8(unit, unit[corpus])).float())
        else:  # of equal norm as they are: whole numbers keep ties
            rows = torch.from_numpy(signs(unit)).float()
        values, arrays = scored(rows, one, "test")
        metrics |= values
        similarities |= arrays
    return metrics, similarities
