"""`matryoshka`: the sum of a loss over widths equals sentence-transformers'; every method on an encoder trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from test_methods import spec_of
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.registry import declared, method_names
from trainables.methods.losses import angle, cosent, cosine_regression, matryoshka, multiple_negatives
from trainables.training.trial import ProcessCache, run_trial

WIDTHS = (8, 6, 2)
TEMPERATURE = 0.05


def ranked(z: Mapping[str, Tensor]) -> Tensor:
    return multiple_negatives(z["a"], z["b"], z.get("c"), TEMPERATURE)


LOSSES = {
    "MultipleNegativesRankingLoss": lambda z, _: ranked(z),
    "MultipleNegativesSymmetricRankingLoss": lambda z, _: multiple_negatives(z["a"], z["b"], None, TEMPERATURE, "both"),
    "CoSENTLoss": lambda z, y: cosent(z["a"], z["b"], y, TEMPERATURE),
    "AnglELoss": lambda z, y: angle(z["a"], z["b"], y, TEMPERATURE),
    "CosineSimilarityLoss": lambda z, y: cosine_regression(z["a"], z["b"], y),
}


class Given(nn.Module):
    """A model that returns the vectors that it is given."""

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        return WIDTHS[0]


@pytest.mark.parametrize("name", LOSSES)
def test_sum_over_widths_equals_sentence_transformers(name: str) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    draw = torch.Generator().manual_seed(1)
    count = 3 if "NegativesRanking" in name else 2
    theirs = [torch.randn(7, 8, dtype=torch.float64, generator=draw).requires_grad_() for _ in range(count)]
    ours = [v.detach().clone().requires_grad_() for v in theirs]
    score = torch.rand(7, generator=draw)
    model = Given()
    loss = losses.MatryoshkaLoss(model, getattr(losses, name)(model), WIDTHS)
    expected = loss([{"vectors": v} for v in theirs], score)
    expected.backward()
    got = matryoshka(lambda z: LOSSES[name](z, score), dict(zip("abc", ours, strict=False)), WIDTHS)
    got.backward()
    assert got.item() == pytest.approx(expected.item(), abs=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_a_width_above_the_vectors_is_no_width() -> None:
    with pytest.raises(ValueError, match="widths: expected at most 4, got 8"):
        matryoshka(ranked, {role: torch.ones(3, 4) for role in "ab"}, WIDTHS)


@pytest.fixture(scope="module")
def warm() -> ProcessCache:
    return ProcessCache()


def trained(name: str, folder: Path, warm: ProcessCache, **params: Any) -> dict[str, float]:
    head = {"head": "none", "head_at": "train_only"}
    seen: list[Any] = []
    spec = spec_of(name, folder, **({"max_examples": 8} | head | params))
    outcome = run_trial(spec, lambda evaluation: seen.append(evaluation) or "go", cache=warm)
    assert outcome.stop == "completed", outcome.reason
    return dict(seen[-1].metrics)


@pytest.mark.costly
@pytest.mark.usefixtures("narrow_projector")
@pytest.mark.parametrize("name", [n for n in method_names() if issubclass(declared(n).config, EncoderConfig)])
def test_every_method_on_an_encoder_trains_on_widths(name: str, tmp_path: Path, warm: ProcessCache) -> None:
    """The whole vectors' term alone is the loss without widths; a second width adds its own."""
    plain, one, two = (
        trained(name, tmp_path / str(i), warm, dropout=0.0, matryoshka=widths)
        for i, widths in enumerate((None, [64], [64, 16]))
    )
    assert one["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert two["loss"] > one["loss"] + 1e-3
    assert not [metric for metric in plain if "@" in metric]
    assert two.keys() - one.keys() == {"builtin_dev@16"}
    assert one["builtin_dev@64"] == one["builtin_dev"]
