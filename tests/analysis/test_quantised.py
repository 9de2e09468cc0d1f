"""Test scores of int8 and binary vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trained_trials import trial_folder

from analysis.checkpoints.quantised import PRECISIONS
from analysis.checkpoints.testing import score
from analysis.checkpoints.trained import load_trained
from trainables.data.retrieval import load_retrieval
from trainables.data.sets import load_pairs
from trainables.evaluation.metrics import spearman

pytestmark = pytest.mark.costly


@pytest.mark.parametrize("precision", PRECISIONS)
def test_quantised_scores_are_those_of_sentence_transformers_vectors(tmp_path: Path, precision: str) -> None:
    """Against quantize_embeddings with cosines of int8 and Hamming distances of packed bits, ties included."""
    from sentence_transformers.util.quantization import quantize_embeddings

    trained = load_trained(str(trial_folder(tmp_path / "t")))
    pairs, ranked = load_pairs("builtin", "test", "en"), load_retrieval("builtin_retrieval", "dev")
    scores, metrics, similarities = score(trained, [pairs, ranked], [precision])

    def quantised(texts: list[str], corpus: list[str]) -> np.ndarray:
        unit, of_corpus = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in map(trained.embed, (texts, corpus)))
        name = "int8" if precision == "int8" else "ubinary"
        return np.asarray(quantize_embeddings(unit, precision=name, calibration_embeddings=of_corpus))

    def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if precision == "binary":
            return -np.unpackbits(a ^ b, axis=-1).sum(-1).astype(float)
        x, y = (v.astype(np.float64) for v in (a, b))
        return (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)

    corpus = [*pairs.first, *pairs.second]
    mine = similarity(quantised(pairs.first, corpus), quantised(pairs.second, corpus))
    assert metrics[f"builtin_{precision}_test"] == pytest.approx(spearman(mine, pairs.gold), abs=1e-4)
    assert metrics[f"builtin_{precision}_test"] != metrics["builtin_test"]
    assert scores[f"builtin_{precision}"].low < scores[f"builtin_{precision}"].value

    documents = quantised(ranked.documents, ranked.documents)
    gains = []
    for query, relevant in zip(quantised(ranked.queries, ranked.documents), ranked.grades, strict=True):
        near = similarity(query[None], documents)
        order = sorted(range(len(near)), key=lambda i: ranked.document_ids[i].encode(), reverse=True)
        best = sorted(order, key=lambda i: -round(near[i], 6))[:10]
        gain = sum(relevant.get(ranked.document_ids[i], 0) / np.log2(rank + 2) for rank, i in enumerate(best))
        ideal = sum(g / np.log2(rank + 2) for rank, g in enumerate(sorted(relevant.values(), reverse=True)[:10]))
        gains.append(gain / ideal)
    name = f"{ranked.name}_ndcg10"
    assert metrics[f"{name}_{precision}_test"] == pytest.approx(np.mean(gains), abs=2e-3)
    assert list(metrics)[:2] == ["builtin_test", f"builtin_{precision}_test"]  # beside float32
    assert similarities.keys() == score(trained, [pairs, ranked])[2].keys()
