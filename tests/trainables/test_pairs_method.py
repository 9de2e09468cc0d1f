"""`pairs`: its losses equal sentence-transformers', false negatives by text, files with and without hard negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_tools import FakeTools
from test_methods import spec_of
from torch import Tensor

from trainables.contract.config import build
from trainables.contract.errors import DataError
from trainables.data.sets import load_corpus
from trainables.encoders.builtin_encoder import encoder_folder
from trainables.methods.losses import cosines, multiple_negatives, same_text
from trainables.methods.method import Batch, load_method
from trainables.methods.pairs.config import PairsConfig
from trainables.training.method_trial import load_inputs
from trainables.training.trial import ProcessCache, run_trial

SCALE = 20.0
Peer = Callable[[Any, Sequence[Tensor]], Tensor]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of sentence-transformers: its losses ask for one, and score the vectors that they are given."""
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(encoder_folder("en", tmp_path_factory.mktemp("cache"))), device="cpu")


def ranking(**options: Any) -> Peer:
    def call(model: Any, vectors: Sequence[Tensor]) -> Tensor:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        loss = MultipleNegativesRankingLoss(model, SCALE, **options)
        return loss.compute_loss_from_embeddings(list(vectors), torch.empty(0))

    return call


def guided(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Vectors of a guide that sees the texts otherwise, of another width."""
    draw = torch.Generator().manual_seed(9)
    return [torch.randn(len(v), 5, generator=draw) for v in vectors]


def gist(margin: float, guide: bool = False) -> Peer:
    def call(model: Any, vectors: Sequence[Tensor]) -> Tensor:
        from sentence_transformers.sentence_transformer.losses import CachedGISTEmbedLoss

        own = {"contrast_anchors": False, "contrast_positives": False}
        loss = CachedGISTEmbedLoss(model, model, temperature=1 / SCALE, margin=-margin, **own)
        decides = guided(vectors) if guide else [v.detach() for v in vectors]
        return loss.calculate_loss([[v] for v in vectors], [[v] for v in decides])

    return call


def symmetric(model: Any, vectors: Sequence[Tensor]) -> Tensor:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesSymmetricRankingLoss

    return MultipleNegativesSymmetricRankingLoss(model, SCALE).compute_loss_from_embeddings(
        list(vectors), torch.empty(0)
    )


BOTH = ranking(directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction")


@pytest.mark.costly
@pytest.mark.parametrize("negatives", [0, 1, 2])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (ranking(), {}),
        (BOTH, {"direction": "both"}),
        (symmetric, {"direction": "both"}),
        (gist(0.0), {"margin": 0.0}),
        (gist(-0.1), {"margin": -0.1}),
        (gist(0.1), {"margin": 0.1}),
        (gist(0.1, guide=True), {"margin": 0.1, "guide": True}),
        (gist(-0.2, guide=True), {"margin": -0.2, "guide": True}),
    ],
)
def test_loss_and_gradient_equal_sentence_transformers(
    theirs: Peer, ours: dict[str, Any], negatives: int, peer: Any
) -> None:
    draw = torch.Generator().manual_seed(negatives)
    first = [torch.randn(9, 6, generator=draw).requires_grad_() for _ in range(2 + negatives)]
    second = [v.detach().clone().requires_grad_() for v in first]
    expected = theirs(peer, first)
    expected.backward()
    hard = torch.cat(second[2:]) if negatives else None
    if "guide" in ours:
        anchor, *others = guided(first)
        ours = ours | {"guide": cosines(anchor, torch.cat(others))}
    got = multiple_negatives(second[0], second[1], hard, 1 / SCALE, **ours)
    got.backward()
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    for a, b in zip(second, first, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    if "margin" in ours:  # the margin leaves something out
        assert abs(got.item() - multiple_negatives(second[0], second[1], hard, 1 / SCALE).item()) > 1e-3


@pytest.mark.costly
def test_a_guide_embeds_the_texts_once_and_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guide with another tokenizer; a second process finds its vectors."""
    guide = str(encoder_folder("zh", tmp_path / "guide"))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    params = {"false_negatives": "margin", "margin": -0.05, "max_examples": 64, "batch_size": 32, "dropout": 0.0}
    losses = {}
    for name, own in (("itself", {}), ("guide", {"guide": guide})):
        spec = spec_of("pairs", tmp_path / name, **params, **own)
        seen: list[Any] = []
        outcome = run_trial(spec, lambda evaluation, seen=seen: seen.append(evaluation) or "go", cache=ProcessCache())
        assert outcome.stop == "completed", outcome.reason
        losses[name] = seen[0].metrics["loss"]
    assert abs(losses["itself"] - losses["guide"]) > 1e-3

    method = load_method("pairs")
    config = build(PairsConfig, spec.params)
    other = load_inputs(dataclasses.replace(spec, encoder=guide), torch.device("cpu"))
    expected = other.tools.embed(other.tools.tokenise(other.corpus.columns["anchor"], "query"), config)
    monkeypatch.setattr("trainables.methods.method.plain_encoder", lambda *_: pytest.fail("embedded again"))
    examples = load_inputs(spec, torch.device("cpu")).prepared(method, config, 0).examples
    np.testing.assert_array_equal(examples.numbers["guide of anchor"], expected)


def test_texts_of_an_anchor_are_none_of_its_negatives() -> None:
    """Against plain loops over the texts."""
    a, p = ["x", "y", "x", "z"], ["1", "2", "3", "1"]
    n = ["2", "9", "y", "1"]
    found = same_text(*(torch.tensor([hash(t) for t in texts]) for texts in (a, p, n)))
    for i in range(4):
        for j in range(8):
            text, own = (p + n)[j], j < 4 and a[j] == a[i]
            assert bool(found[i, j]) == (text in (a[i], p[i]) or own), (i, j)


def encoded(examples: Any, batch: Batch, width: int = 4) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    vectors = {role: torch.randn(len(batch), width, generator=draw) for role in examples.columns}
    return vectors | batch.numbers_by_name(examples, torch.device("cpu"))


def test_repeated_texts_cost_nothing_with_same_text() -> None:
    """One query with two passages, and a passage of two queries: the loss is that of the batch without them."""
    method = load_method("pairs")
    texts = {"anchor": ["a", "a", "b", "c"], "positive": ["1", "2", "3", "3"]}
    config = build(PairsConfig, {"false_negatives": "same_text"})
    examples = method.prepare(texts, config, 0, FakeTools())  # type: ignore[arg-type]
    z = encoded(examples, Batch(np.arange(4)))
    assert method.loss is not None
    logits = torch.nn.functional.cosine_similarity(z["anchor"][:, None], z["positive"][None], dim=-1) / 0.05
    candidates = {0: [0, 2, 3], 1: [1, 2, 3], 2: [2, 0, 1], 3: [3, 0, 1]}
    expected = [-torch.log_softmax(logits[i, columns], 0)[0] for i, columns in candidates.items()]
    assert method.loss(z, config).item() == pytest.approx(torch.stack(expected).mean().item(), abs=1e-6)
    assert method.loss(z, build(PairsConfig, {})).item() > method.loss(z, config).item()


@pytest.mark.parametrize(("used", "roles"), [(None, 4), (0, 2), (1, 3), (5, 4)])
def test_hard_negatives_used_of_a_row(used: int | None, roles: int) -> None:
    method, config = load_method("pairs"), build(PairsConfig, {"hard_negatives": used, "false_negatives": "same_text"})
    texts = {role: [f"{role} {i}" for i in range(3)] for role in ("anchor", "positive", "negative", "negative_2")}
    examples = method.prepare(texts, config, 0, FakeTools())  # type: ignore[arg-type]
    views = method.views(examples, Batch(np.arange(3)), config, np.random.default_rng(0))
    assert list(views) == list(texts)[:roles]
    z = encoded(examples, Batch(np.arange(3)))
    seen = {name: v for name, v in z.items() if name in views or name not in texts}
    assert method.loss is not None
    assert torch.isfinite(method.loss(seen, config))


@pytest.mark.parametrize(
    ("header", "rows", "columns", "roles"),
    [
        ("anchor,positive", ["a,b", "c,d"], None, ["anchor", "positive"]),
        ("query,answer", ["a,b", "c,d"], {"anchor": "query", "positive": "answer"}, ["anchor", "positive"]),
        ("question,answer,source", ["a,b,s", "c,d,t"], None, ["anchor", "positive"]),
        ("question,answer", ["a,b", "c,d"], None, ["anchor", "positive"]),
        ("sentence1,sentence2", ["a,b", "c,d"], None, ["anchor", "positive"]),
        ("query,passage,neg_1,neg_2", ["a,b,c,d", "e,f,g,h"], None, ["anchor", "positive", "negative", "negative_2"]),
        ("query,passage,neg_1", ["a,b,c", "e,f,g"], {"negative": "neg_1"}, ["anchor", "positive", "negative"]),
        ("anchor,positive,negative", ["a,b,c", "d,e,f"], None, ["anchor", "positive", "negative"]),
        ("sent0,sent1,hard_neg", ["a,b,c", "d,e,f"], None, ["anchor", "positive", "negative"]),
        ("anchor,positive,negative", ["a,b,", "d,e,", "g,h,i"], None, ["anchor", "positive"]),
        ("anchor,positive,negative_1,negative_2", ["a,b,c,d", "e,f,g,h"], None,
         ["anchor", "positive", "negative", "negative_2"]),
    ],
)  # fmt: skip
def test_pairs_are_read_with_the_negatives_that_there_are(
    header: str, rows: list[str], columns: dict[str, str] | None, roles: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    corpus = load_corpus(str(path), "en", "pairs", columns)
    assert list(corpus.columns) == roles
    assert len(corpus) == len(rows)


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("p.csv", "query,reply\na,b\nc,d\n", None, r"p.csv: expected a column positive or sent1"),
        ("p.csv", "question,answer,passage\na,b,c\nd,e,f\n", None, r"a column positive or sent1 .*, got question, an"),
        ("p.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n", None, r"expected a column anchor or sent0"),
        ("p.csv", "anchor,positive\na,b\nc,d\n", {"negative": "wrong"}, r"expected a column wrong \(negative\)"),
        ("p.csv", "anchor,positive\na,\nc,\nd,e\n", None, r"p.csv:2: a text of the pair is missing in 2 of 3 rows"),
        ("p.txt", "a\nb\n", None, r"p.txt: expected a table with anchor and positive, got one sentence a line"),
    ],
)
def test_what_are_no_pairs_is_one_line(
    name: str, text: str, columns: dict[str, str] | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_corpus(str(tmp_path / name), "en", "pairs", columns)
