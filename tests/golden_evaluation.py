"""Reference cases of evaluation: SentEval's STS and transfer scores, alignment and uniformity, retrieval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainables.data.retrieval import Retrieval
from trainables.evaluation import scoring as retrieval
from trainables.evaluation.metrics import aggregate, alignment, cosines, pearson, percent, spearman, uniformity
from trainables.evaluation.transfer import Score, dev_then_test, folds_then_test, nested_folds, pair_features

EXACT = 1e-8


def check_senteval_sts_all(golden: dict[str, Any]) -> None:
    for case in golden["cases"]:
        expected, parts = case["expected"], case["subsets"]
        cosine = {n: cosines(np.array(p["emb_a"]), np.array(p["emb_b"])) for n, p in parts.items()}
        gold = {n: np.array(p["gold"]) for n, p in parts.items()}
        for name in parts:
            assert spearman(cosine[name], gold[name]) == pytest.approx(expected[name]["spearman"], abs=EXACT)
            assert pearson(cosine[name], gold[name]) == pytest.approx(expected[name]["pearson"], abs=EXACT)
            assert len(gold[name]) == expected[name]["nsamples"]
        subset = [name for name in parts for _ in gold[name]]
        joined = aggregate(np.concatenate(list(cosine.values())), np.concatenate(list(gold.values())), subset)
        assert joined == pytest.approx(expected["all"]["spearman"], abs=EXACT)
        assert percent(joined["all"]) == float(expected["reported_score"])  # stored as printed


def check_senteval_transfer_logreg(golden: dict[str, Any]) -> None:
    for case in golden["cases"]:
        score = _transfer_score(case)
        assert (score.dev, score.test) == (case["devacc"], case["acc"]), case["name"]
        assert score.f1 == case.get("f1"), case["name"]


def _transfer_score(case: dict[str, Any]) -> Score:
    data = {k: np.array(v) for k, v in case.items() if isinstance(v, list)}
    grid, seed = case["C_grid"], case["seed"]
    if case["name"] == "nested_kfold_binary":
        return nested_folds(data["X"], data["y"], case["kfold"], grid, seed)
    if case["name"] == "pair_features":
        x = [pair_features(data[f"{part}_a"], data[f"{part}_b"]) for part in ("train", "test")]
        return folds_then_test((x[0], data["y_train"]), (x[1], data["y_test"]), case["kfold"], grid, seed, with_f1=True)
    train, test = ((data[f"X_{part}"], data[f"y_{part}"]) for part in ("train", "test"))
    if case["name"] == "train_dev_test":
        return dev_then_test(train, (data["X_dev"], data["y_dev"]), test, grid, seed)
    assert case["name"] == "kfold_then_test_6class"
    return folds_then_test(train, test, case["kfold"], grid, seed)


def check_align_uniform(golden: dict[str, Any]) -> None:
    for case in golden["cases"]:
        x, y = np.array(case["x"]), np.array(case["y"])
        found = {
            "align_alpha2": alignment(x, y),
            "align_alpha1": alignment(x, y, power=1),
            "uniform_t2_x": uniformity(x),
            "uniform_t2_xy": uniformity(np.concatenate((x, y))),
            "uniform_t3_x": uniformity(x, t=3),
        }
        assert found == pytest.approx({k: case[k] for k in found}, abs=EXACT)


def check_retrieval_pytrec_eval(golden: dict[str, Any]) -> None:
    """Products of whole numbers are exact, so ties are ties: pytrec-eval's values to 1e-9, in blocks of any size."""
    for case in golden["cases"]:
        texts, queries = (list(map(str, case[part])) for part in ("documents", "queries"))
        grades = [case["qrels"][name] for name in case["query_ids"]]
        data = Retrieval("x", case["document_ids"], texts, case["query_ids"], queries, grades, "r")
        vectors = dict(zip(texts + queries, case["documents"] + case["queries"], strict=True))
        number = {text: i for i, text in enumerate(vectors)}
        ranked = retrieval.number_texts(data, *(np.array([number[t] for t in side]) for side in (queries, texts)))
        for block in (retrieval.BLOCK, 1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(retrieval, "BLOCK", block)
                found = retrieval.measure(torch.tensor(list(vectors.values()), dtype=torch.float32), ranked)
            for name, values in case["expected"].items():
                np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9, err_msg=f"{case['name']}: {name}")
