"""Hard negatives: which documents they are, and that sentence-transformers' miner finds the same."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from search.space import check_spaces, load_space
from trainables.contract.config import build
from trainables.contract.errors import DataError
from trainables.contract.trial import TrialSpec
from trainables.data.checks import check_data
from trainables.data.sets import load_corpus
from trainables.methods.method import load_method
from trainables.training.method_trial import load_inputs
from trainables.training.mining import mine, with_mined
from trainables.training.trial import run_trial


def example(seed: int, rows: int = 60) -> tuple[list[str], list[str], dict[str, torch.Tensor]]:
    """Pairs in which some anchors and positives come again, and a vector of every text."""
    rng = np.random.default_rng(seed)
    anchors = [f"q{rng.integers(i + 1) if rng.random() < 0.2 else i}" for i in range(rows)]
    positives = [f"d{rng.integers(i + 1) if rng.random() < 0.2 else i}" for i in range(rows)]
    pairs = dict.fromkeys(zip(anchors, positives, strict=True))
    anchors, positives = (list(side) for side in zip(*pairs, strict=True))
    base = torch.from_numpy(rng.normal(size=(2 * rows, 8)))
    number = {t: i for i, t in enumerate(dict.fromkeys([*anchors, *positives]))}
    vectors = {t: base[i] * 0.8 + (base[number[p]] if (p := f"d{t[1:]}") in number and t[0] == "q" else 0)
               for t, i in number.items()}  # fmt: skip
    return anchors, positives, {t: v.float() for t, v in vectors.items()}


class Encoder(torch.nn.Module):
    """What of a SentenceTransformer the miner calls."""

    def __init__(self, vectors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.vectors, self.device, self.prompts = vectors, torch.device("cpu"), {}

    def encode(self, texts: list[str], **_: Any) -> np.ndarray[Any, Any]:
        return torch.nn.functional.normalize(torch.stack([self.vectors[t] for t in texts])).numpy()

    encode_query = encode_document = encode

    def similarity(self, a: Any, b: Any) -> torch.Tensor:
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> torch.Tensor:
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "margin"), [((0, 10), None), ((3, 20), None), ((0, 30), 0.05), ((2, 40), 0.2)])
def test_negatives_are_those_of_sentence_transformers(seed: int, ranks: tuple[int, int], margin: float | None) -> None:
    datasets = pytest.importorskip("datasets")
    util = pytest.importorskip("sentence_transformers.util")
    anchors, positives, vectors = example(seed)
    theirs = util.mine_hard_negatives(
        datasets.Dataset.from_dict({"anchor": anchors, "positive": positives}), Encoder(vectors),
        range_min=ranks[0], range_max=ranks[1], absolute_margin=margin, num_negatives=3, output_format="n-tuple",
        verbose=False,
    )  # fmt: skip
    expected = {(row["anchor"], row["positive"]): [row[f"negative_{k}"] for k in (1, 2, 3)] for row in theirs}

    distinct, documents = list(dict.fromkeys(anchors)), list(dict.fromkeys(positives))
    answers: list[list[int]] = [[] for _ in distinct]
    for a, p in zip(anchors, positives, strict=True):
        answers[distinct.index(a)].append(documents.index(p))
    a, d = (torch.stack([vectors[t] for t in side]) for side in (distinct, documents))
    found = mine(3 * a, d / 7, answers, 3, ranks, margin)
    whole = {q: [documents[n] for n in row] for q, row in zip(distinct, found.negatives, strict=True) if row.min() >= 0}
    ours = {(a, p): whole[a] for a, p in zip(anchors, positives, strict=True) if a in whole}
    assert ours == expected
    assert len(ours) > 0
    assert (found.passed_over > 0) == (margin is not None)


def tools(vectors: dict[str, torch.Tensor]) -> Any:
    def embed(texts: list[str], config: object) -> np.ndarray[Any, Any]:
        del config
        return torch.stack([vectors[t] for t in texts]).numpy()

    return SimpleNamespace(
        device=torch.device("cpu"), tokenise=lambda texts, _: texts, embed=embed, cached=lambda *given: given[-1]()
    )


def test_columns_are_added_behind_those_that_are_there(caplog: pytest.LogCaptureFixture) -> None:
    anchors, positives, vectors = example(0)
    settings = {"count": 2, "range": (0, 20), "margin": None}
    with caplog.at_level(logging.WARNING):
        found, _ = with_mined({"anchor": anchors, "positive": positives}, settings, None, tools(vectors))
    assert list(found) == ["anchor", "positive", "negative", "negative_2"]
    assert {len(column) for column in found.values()} == {len(anchors)}
    assert not any(n in (a, p) for a, p, n in zip(anchors, positives, found["negative"], strict=True))
    assert f"data.mine: 2 hard negatives for {len(anchors)} rows, of ranks 0 to 20; a positive ranks first for" in (
        caplog.text
    )
    given = {"anchor": anchors, "positive": positives, "negative": ["n"] * len(anchors)}
    more, _ = with_mined(given, settings, None, tools(vectors))
    assert list(more) == ["anchor", "positive", "negative", "negative_2", "negative_3"]
    assert more["negative_2"] == found["negative"]


@pytest.mark.parametrize("margin", [None, -2.0])
def test_own_text_of_an_anchor_is_no_negative(margin: float | None) -> None:
    """In a chain each text is an anchor and another one's positive. Ranks are as without its document."""
    rng = np.random.default_rng(0)
    texts = [f"t{i}" for i in range(12)]
    vectors = {t: torch.from_numpy(rng.normal(size=8)).float() for t in texts}
    rows = {"anchor": texts, "positive": [*texts[1:], texts[0]]}
    found, _ = with_mined(rows, {"count": 2, "range": (0, 10), "margin": margin}, None, tools(vectors))
    for anchor, positive, *negatives in zip(*found.values(), strict=True):
        others = [t for t in texts if t not in (anchor, positive)]
        near = sorted(others, key=lambda t: -torch.cosine_similarity(vectors[anchor], vectors[t], dim=0).item())
        assert negatives == near[:2]


def test_a_positive_that_is_the_anchors_own_text_counts_as_positive() -> None:
    texts = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    found = mine(texts, texts, [[0], [1], [1]], 1, (0, 2), own=np.array([0, 1, 2]))
    assert found.first.tolist() == [True, True, True]
    assert found.negatives[:, 0].tolist() == [1, 2, 0]


def test_rows_with_too_few_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    anchors, positives, vectors = example(1)
    texts = {"anchor": anchors, "positive": positives}
    with caplog.at_level(logging.WARNING):
        found, rows = with_mined(texts, {"count": 3, "range": (0, 60), "margin": 0.4}, None, tools(vectors))
    assert 2 * len(found["anchor"]) >= len(anchors) > len(found["anchor"])
    assert found["anchor"] == [anchors[row] for row in rows]
    assert f"; {len(anchors) - len(found['anchor'])} rows have fewer and are left out" in caplog.text
    with pytest.raises(DataError, match=r"data\.mine: 0 of \d+ rows have 3 hard negatives in range 0 to 60; expected"):
        with_mined(texts, {"count": 3, "range": (0, 60), "margin": 1.9}, None, tools(vectors))


@pytest.mark.parametrize("method", ["pairs", "simcse_sup"])
def test_a_trial_trains_on_mined_negatives(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    triplets = load_corpus("builtin", "en", "triplets").columns
    rows = list(zip(triplets["anchor"][:200], triplets["positive"][:200], strict=True))
    train = tmp_path / "pairs.tsv"
    train.write_text("anchor\tpositive\n" + "".join(f"{a}\t{p}\n" for a, p in rows))
    mine = {"count": 2, "range": (1, 30), "margin": None, "encoder": None}
    data = {"train": str(train), "dev": ["builtin"], "language": "en", "mine": mine}
    params = {"max_examples": 64, "batch_size": 16}
    spec = TrialSpec(
        method=method, encoder="builtin:tiny", data=data, metric="builtin_dev", params=params, folder=str(tmp_path)
    )
    assert check_data({"method": method, "data": data, "metric": "builtin_dev"}) == []
    with caplog.at_level(logging.WARNING):
        outcome = run_trial(spec, lambda _: "go")
    assert outcome.stop == "completed", outcome.reason
    assert "data.mine: 2 hard negatives for 200 rows" in caplog.text
    inputs = load_inputs(spec, torch.device("cpu"))
    code = load_method(method)
    examples = inputs.prepared(code, build(code.config, params), 0).examples
    assert list(examples.columns) == ["anchor", "positive", "negative", "negative_2"]
    texts = {inputs.tools.tokenise([p])[0].tobytes() for _, p in rows}
    assert {examples.columns["negative"][i].tobytes() for i in range(200)} <= texts


@pytest.mark.parametrize(
    ("method", "mine", "expected"),
    [
        ("simcse", "{count: 4}", "data.mine: method simcse trains on sentences, which have no hard negatives"),
        ("pairs", "{cuont: 4}", "data.mine.cuont: unknown; did you mean 'count'?"),
        ("pairs", "{count: 0}", "data.mine.count: expected a whole number >= 1"),
        ("pairs", "{count: 4, range: [10, 12]}", "data.mine.range: expected two ranks from 0 with 4 (count) between"),
        ("pairs", "{range: [-1, 12]}", "data.mine.range: expected two ranks from 0"),
        ("pairs", "{range: 10}", "data.mine.range: expected"),
        ("pairs", "{margin: high}", "data.mine.margin: expected"),
        ("pairs", "4", "data.mine: expected a mapping with count, range, margin, encoder, got a number"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_key(method: str, mine: str, expected: str, tmp_path: Path) -> None:
    train = tmp_path / "pairs.tsv"
    train.write_text("anchor\tpositive\na b\tc d\ne f\tg h\n")
    space = tmp_path / "mine.yaml"
    space.write_text(
        f"method: {method}\nencoder: builtin:tiny\npreset: none\ndata:\n  train: builtin\n  dev: [builtin]\n"
        f"  mine: {mine}\nmetric: {{name: builtin_dev}}\nparams: {{learning_rate: {{choice: [1.0e-5, 2.0e-5]}}}}\n"
        "search: {trials: 2}\n"
    )
    (checked,) = check_spaces([str(space)])
    assert [line for line in checked.problems if line.startswith(f"{space}:7: {expected}")], checked.problems
    assert len(checked.problems) == 1


def test_a_space_with_mining_is_stored_and_read_again(tmp_path: Path) -> None:
    space = tmp_path / "mine.yaml"
    space.write_text(
        "method: pairs\nencoder: builtin:tiny\npreset: none\n"
        "data: {train: builtin, dev: [builtin], mine: {range: [10, 60], margin: 0.05}}\nmetric: {name: builtin_dev}\n"
        "params: {learning_rate: {choice: [1.0e-5, 2.0e-5]}}\nsearch: {trials: 2}\n"
    )
    loaded = load_space(space)
    assert loaded.data.mine == {"count": 4, "range": (10, 60), "margin": 0.05, "encoder": None}
    stored = tmp_path / "stored.yaml"
    stored.write_text(loaded.to_yaml())
    assert load_space(stored).resolved() == loaded.resolved()
