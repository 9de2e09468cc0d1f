"""`scored_pairs`: its losses equal sentence-transformers', scores on any scale, what is no scored pair."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_tools import FakeTools
from test_methods import spec_of

from trainables.contract.config import build
from trainables.contract.errors import DataError
from trainables.data.checks import check_data
from trainables.data.scores import score_scale
from trainables.data.sets import load_corpus
from trainables.methods.losses import angle, cosent, cosine_regression
from trainables.methods.method import Batch, load_method
from trainables.methods.scored_pairs.config import ScoredPairsConfig
from trainables.training.trial import ProcessCache, run_trial

TEMPERATURE = 0.05
LOSSES = {
    "CoSENTLoss": lambda a, b, y: cosent(a, b, y, TEMPERATURE),
    "AnglELoss": lambda a, b, y: angle(a, b, y, TEMPERATURE),
    "CosineSimilarityLoss": cosine_regression,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("width", "scores"), [(6, "spread"), (7, "binary"), (6, "equal")])
def test_loss_and_gradient_equal_sentence_transformers(name: str, width: int, scores: str) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    draw = torch.Generator().manual_seed(width)
    first = [torch.randn(11, width, dtype=torch.float64, generator=draw).mul_(2).requires_grad_() for _ in range(2)]
    second = [v.detach().clone().requires_grad_() for v in first]
    drawn = torch.rand(11, generator=draw)
    score = {"spread": drawn, "binary": drawn.round(), "equal": torch.ones(11)}[scores]
    expected = getattr(losses, name)(torch.nn.Identity()).compute_loss_from_embeddings(first, score)
    expected.backward()
    got = LOSSES[name](*second, score)
    got.backward()
    assert got.item() == pytest.approx(expected.item(), abs=1e-6)
    for a, b in zip(second, first, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-6)


def test_one_score_a_pair() -> None:
    with pytest.raises(ValueError, match=r"score: expected shape \(3,\), one a pair, got \(2,\)"):
        cosent(torch.ones(3, 2), torch.ones(3, 2), torch.ones(2), 0.05)


@pytest.mark.parametrize(
    ("scores", "scale", "targets"),
    [
        ([0, 1, 0.25], (0, 1), [0, 1, 0.25]),
        ([-0.5, 1, 0], (-1, 1), [-0.5, 1, 0]),
        ([0.2, 5, 2.5], (0, 5), [0.04, 1, 0.5]),
        ([1, 5, 3], (1, 5), [0, 1, 0.5]),
        ([0, 100, 50], (0, 100), [0, 1, 0.5]),
        ([-1, 7, 3], (-1, 7), [0, 1, 0.5]),
    ],
)
def test_scale_of_scores(scores: list[float], scale: tuple[float, float], targets: list[float], tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(f"a {s}\tb {s}\t{s}\n" for s in scores))
    corpus = load_corpus(str(path), "en", "scored_pairs")
    assert corpus.note == (
        f"{path}: scores from {min(scores):g} to {max(scores):g}, read on a scale of {scale[0]:g} to {scale[1]:g}"
    )
    assert score_scale(corpus.columns["score"]) == scale
    method = load_method("scored_pairs")
    examples = method.prepare(corpus.columns, ScoredPairsConfig(), 0, FakeTools())  # type: ignore[arg-type]
    assert examples.numbers["score"] == pytest.approx(np.array(targets), abs=1e-7)
    assert (examples.facts["score_scale_low"], examples.facts["score_scale_high"]) == scale


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2,score\na,b,much\nc,d,1\n", r"mine.csv:2: expected a number as score, got 'much'"),
        ("sentence1,sentence2,score\na,b,1\nc,d,1\n", r"expected at least two pairs with different scores, got 2"),
        ("query,answer,score\na,b,1\nc,d,2\n", r"mine.csv: expected a column sentence1 \(first\), got query"),
    ],
)
def test_what_are_no_scored_pairs_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text)
    data = {"train": str(tmp_path / "mine.csv"), "dev": ["builtin"], "language": "en"}
    with pytest.raises(DataError, match=message) as error:
        check_data({"method": "scored_pairs", "data": data, "metric": "builtin_dev"})
    assert len(str(error.value).splitlines()) == 1


def test_scale_is_printed_and_different_scales_do_not_join(tmp_path: Path) -> None:
    for name, top in (("a", 5), ("b", 1)):
        (tmp_path / f"{name}.csv").write_text(f"sentence1,sentence2,score\na,b,0\nc,d,{top}\n")
    a, b = (str(tmp_path / f"{name}.csv") for name in "ab")
    spec = {"method": "scored_pairs", "data": {"train": a, "dev": ["builtin"], "language": "en"}}
    assert check_data({**spec, "metric": "builtin_dev"}) == [f"{a}: scores from 0 to 5, read on a scale of 0 to 5"]
    assert len(load_corpus(f"{a}+{a}", "en", "scored_pairs")) == 4
    with pytest.raises(DataError, match=r"b.csv: expected scores on the scale of .*a.csv, 0 to 5, got 0 to 1"):
        load_corpus(f"{a}+{b}", "en", "scored_pairs")


@pytest.mark.parametrize("loss", ["cosent", "angle", "cosine"])
def test_the_loss_decides(loss: str) -> None:
    method, config = load_method("scored_pairs"), build(ScoredPairsConfig, {"loss": loss})
    texts = {"first": ["a", "b", "c"], "second": ["d", "e", "f"], "score": ["0", "5", "3"]}
    examples = method.prepare(texts, config, 0, FakeTools())  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(0)
    z: dict[str, Any] = {role: torch.randn(3, 4, generator=draw) for role in ("first", "second")}
    z |= Batch(np.arange(3)).numbers_by_name(examples, torch.device("cpu"))
    name = {"cosent": "CoSENTLoss", "angle": "AnglELoss", "cosine": "CosineSimilarityLoss"}[loss]
    assert method.loss is not None
    assert method.loss(z, config) == LOSSES[name](z["first"], z["second"], torch.tensor([0, 1, 0.6]))


@pytest.mark.costly
@pytest.mark.parametrize("loss", ["cosent", "angle", "cosine"])
def test_training_on_scores_raises_the_correlation(loss: str, tmp_path: Path) -> None:
    own = {"loss": loss, "batch_size": 32, "max_examples": 1600, "eval_examples": 1600, "learning_rate": 1e-3}
    seen: list[Any] = []
    spec = dataclasses.replace(spec_of("scored_pairs", tmp_path, **own))
    outcome = run_trial(spec, lambda e: seen.append(e) or "go", cache=ProcessCache())  # type: ignore[func-returns-value]
    assert outcome.stop == "completed", outcome.traceback
    assert seen[-1].value > seen[0].metrics["untrained_builtin_dev"] + 0.05
