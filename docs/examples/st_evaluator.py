"""Evaluators of sentence-transformers as a dev evaluation: `plugins: [st_evaluator.py]`, metric `triplets_dev`.

`Encoded` is what they need of a model. Replace `evaluators` by your own; the folder is the one of `data.evaluations`.
"""

from __future__ import annotations

from types import SimpleNamespace

from trainables.contract import DevEvaluation


class Encoded:
    """The network in training, as sentence-transformers' evaluators ask for it."""

    similarity_fn_name, device, prompts = "cosine", "cpu", {}

    def __init__(self, embed):
        self.embed = embed
        self.model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)

    def encode(self, texts, *, convert_to_tensor=False, **_):
        import torch

        vectors = self.embed([texts] if isinstance(texts, str) else list(texts))
        vectors = vectors[0] if isinstance(texts, str) else vectors
        return torch.from_numpy(vectors) if convert_to_tensor else vectors

    encode_query = encode_document = encode

    def similarity(self, a, b):
        from sentence_transformers.util import cos_sim

        return cos_sim(a, b)

    def similarity_pairwise(self, a, b):
        from sentence_transformers.util import pairwise_cos_sim

        return pairwise_cos_sim(a, b)


def evaluators(folder):
    """Name of the metric -> evaluator. Here: anchor, positive and negative by line, separated by tabs."""
    from sentence_transformers.evaluation import TripletEvaluator

    rows = [line.split("\t")[:3] for line in (folder / "triplets.tsv").read_text(encoding="utf-8").splitlines()]
    return {"triplets": TripletEvaluator(*zip(*rows, strict=True))}


def evaluate(embed, folder):
    values = {}
    for name, evaluator in evaluators(folder).items():
        found = evaluator(Encoded(embed))
        values[name] = float(found[evaluator.primary_metric] if isinstance(found, dict) else found)
    return values


EVALUATION = DevEvaluation(name="triplets", metrics=("triplets",), evaluate=evaluate)
