"""Retrieval sets: their files, their measures in a trial, and every mistake in one line (values: tests/goldens)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from test_evaluate import Encoder, tokenise

from trainables.contract.errors import DataError
from trainables.contract.trial import TrialSpec
from trainables.data.checks import check_data
from trainables.data.retrieval import Retrieval, check_retrieval, is_retrieval, load_retrieval
from trainables.data.sets import load_corpus
from trainables.evaluation import scoring as retrieval
from trainables.evaluation import scoring as sts
from trainables.training.trial import run_trial

DOCUMENTS = [("d1", "", "a cat"), ("d2", "Dogs", "a dog"), ("d3", "", "a cow"), ("q1", "", "a kitten")]
QUERIES = [("q1", "a kitten"), ("q2", "a puppy"), ("q3", "unjudged")]
JUDGED = [("q1", "d1", 2), ("q1", "q1", 1), ("q2", "d2", 1), ("q2", "d3", 0)]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    return written(tmp_path / "animals", DOCUMENTS, QUERIES, JUDGED)


def written(folder, documents, queries, judged):
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": i, "title": title, "text": text}) for i, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in queries))
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
    (folder / "qrels" / "dev.tsv").write_text("\n".join(rows) + "\n")
    return folder


def test_a_folder_is_read(beir: Path) -> None:
    data = load_retrieval(str(beir))
    assert (data.name, data.document_ids, data.query_ids) == ("animals", ["d1", "d2", "d3", "q1"], ["q1", "q2"])
    assert data.documents[:2] == ["a cat", "Dogs a dog"]
    assert data.grades == [{"d1": 2, "q1": 1}, {"d2": 1, "d3": 0}]
    check_retrieval(str(beir))
    before = data.revision
    (beir / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n")
    assert load_retrieval(str(beir)).revision != before


def test_parquet_parts_as_the_hub_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "NanoX"
    tables = {
        "corpus": {"_id": ["a", "b"], "text": ["x", "y"]},
        "queries": {"_id": ["q"], "text": ["x?"]},
        "qrels": {"query-id": ["q"], "corpus-id": ["a"]},
    }
    for part, columns in tables.items():
        (folder / part).mkdir(parents=True)
        parquet.write_table(pa.table(columns), folder / part / "train-00000-of-00001.parquet")
    assert load_retrieval(str(folder)).grades == [{"a": 1}]
    parquet.write_table(pa.table(tables["qrels"]), folder / "qrels" / "test-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"expected dev.tsv or dev\*.parquet, got test-00000"):
        load_retrieval(str(folder))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', "corpus.jsonl: line 2: id 'd1'"),
        ("corpus.jsonl", '{"_id": "d1"}\n', "corpus.jsonl: line 1: expected a field text with text, got _id"),
        ("corpus.jsonl", "", "expected documents and judged queries, got 0 and 2"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\nxyz\n', "queries.jsonl: line 2: not JSON"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n', r"dev.tsv: line 4: query 'q2' is not in queries"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\thigh\n", "line 2: expected a whole number as score"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n", "line 2: expected 3 fields, got 2"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n", "no query has a relevant document"),
    ],
)
def test_errors_name_file_and_line(beir: Path, file: str, text: str, message: str) -> None:
    (beir / file).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_retrieval(str(beir))
    assert "\n" not in str(caught.value)


def test_preflight_names_what_is_missing(beir: Path, tmp_path: Path) -> None:
    (beir / "queries.jsonl").unlink()
    data = {"train": "builtin", "dev": [str(beir), str(tmp_path / "none"), "hub:a/b@main"], "language": "en"}
    with pytest.raises(DataError) as caught:
        check_data({"method": "simcse", "data": data})
    lines = str(caught.value).splitlines()
    assert [("expected queries.jsonl" in lines[0], "does not exist" in lines[1]), len(lines)] == [(True, True), 3]
    assert "expected hub:owner/name@commit" in lines[2]
    assert not is_retrieval("my/pairs.tsv")
    assert not is_retrieval("stsb")


def evaluated(data: Retrieval, encoder: Encoder) -> dict[str, float]:
    return sts.evaluate(encoder, sts.prepare_sets([], tokenise, [data])).metrics


def test_texts_are_encoded_once_and_queries_skip_themselves(beir: Path) -> None:
    encoder = Encoder()
    metrics = evaluated(load_retrieval(str(beir)), encoder)
    seen = [tuple(row) for row in encoder.seen[0]]
    assert len(encoder.seen) == 1
    assert len(set(seen)) == len(seen) == 5
    assert metrics["animals_recall10_dev"] == 1
    assert set(metrics) == {f"animals_{m}_dev" for m in ("ndcg10", "mrr10", "recall10", "recall100")}


def test_queries_and_documents_have_prompts_of_their_own(beir: Path) -> None:
    encoder, data = Encoder(), load_retrieval(str(beir))
    prepared = sts.prepare_sets([], tokenise, [data], {"query": "Q ", "document": "D "})
    sts.evaluate(encoder, prepared)
    seen = sorted("".join(map(chr, row)) for row in encoder.seen[0])
    assert seen == ["D Dogs a dog", "D a cat", "D a cow", "D a kitten", "Q a kitten", "Q a puppy"]
    assert prepared.retrieval[0].own.tolist()[1] == -1
    assert prepared.retrieval[0].own[0] >= 0  # its own document, whatever stands before either


def test_collapsed_or_broken_vectors_have_no_value(beir: Path) -> None:
    data = load_retrieval(str(beir))
    for value in (1.0, math.nan):
        metrics = evaluated(data, lambda rows, value=value: torch.full((len(rows), 4), value))
        assert all(map(math.isnan, metrics.values())), value  # ids alone would rank


def test_search_is_exact_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(3)
    queries, texts = torch.randn(70, 8, generator=rng), torch.randn(900, 8, generator=rng)
    texts[450:] = texts[:450]
    monkeypatch.setattr(retrieval, "BLOCK", 64 * 130)
    monkeypatch.setattr(retrieval, "QUERIES_AT_ONCE", 64)
    values, found = retrieval.search(queries, texts, 50)
    products = (queries.double() @ texts.double().T).numpy()
    best = -np.sort(-products, axis=1)[:, :50]
    np.testing.assert_allclose(values, best, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(products, found.numpy(), 1), best, atol=1e-5)
    assert all(len(set(row)) == 50 for row in found.tolist())


@pytest.mark.costly
def test_a_trial_selects_on_retrieval(tmp_path: Path) -> None:
    rows = list(zip(*load_corpus("builtin", "en", "triplets").columns.values(), strict=True))[:60]
    folder = written(
        tmp_path / "pairs",
        [(f"d{i}", "", text) for i, text in enumerate(dict.fromkeys(p for _, p, _ in rows))],
        [(f"q{i}", a) for i, (a, _, _) in enumerate(rows)],
        [(f"q{i}", f"d{list(dict.fromkeys(p for _, p, _ in rows)).index(p)}", 1) for i, (_, p, _) in enumerate(rows)],
    )
    metric = "mean(builtin_dev,pairs_ndcg10_dev)"
    spec = TrialSpec(
        method="simcse",
        encoder="builtin:tiny",
        data={"train": "builtin", "dev": ["builtin", str(folder)], "language": "en"},
        metric=metric,
        params={"max_examples": 128, "eval_examples": 64, "batch_size": 32, "precision": "fp32"},
        folder=str(tmp_path / "trial"),
    )
    found = []
    outcome = run_trial(spec, lambda evaluation: found.append(evaluation) or "go")
    assert outcome.stop == "completed", outcome.traceback
    m = found[-1].metrics
    assert found[-1].value == pytest.approx((m["builtin_dev"] + m["pairs_ndcg10_dev"]) / 2)
    with np.load(tmp_path / "trial" / "best" / "similarities.npz") as stored:
        best = max(found, key=lambda e: e.value).metrics
        assert stored["pairs_ndcg10_queries"].shape == (60,)
        assert stored["pairs_ndcg10_queries"].mean() == pytest.approx(best["pairs_ndcg10_dev"], abs=1e-6)
