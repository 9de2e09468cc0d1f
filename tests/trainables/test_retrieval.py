"""Retrieval sets: their files, their measures in a trial, and every mistake in one line (values: tests/goldens)."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
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
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', "corpus.jsonl:2: id 'd1'"),
        ("corpus.jsonl", '{"_id": "d1"}\n', "corpus.jsonl:1: expected a field text with text, got _id"),
        ("corpus.jsonl", "", "expected documents and judged queries, got 0 and 2"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\nxyz\n', "queries.jsonl:2: not JSON"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n', r"dev.tsv:4: query 'q2' is not in queries"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\thigh\n", "dev.tsv:2: expected a whole number as score"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n", "dev.tsv:2: expected 3 fields, got 2"),
        ("qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n", "no query has a relevant document"),
    ],
)
def test_errors_name_file_and_line(beir: Path, file: str, text: str, message: str) -> None:
    (beir / file).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_retrieval(str(beir))
    assert "\n" not in str(caught.value)


HEAD = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("judgements", "grades"),
    [
        (HEAD + "q1\td1\t1.0\nq1\td2\t0\n", {"d1": 1, "d2": 0}),
        (HEAD + '"q1"\t"d1"\t"2"\n', {"d1": 2}),
        (HEAD + "q1\td1\t1\r\n\r\nq1\td1\t1\r\n", {"d1": 1}),
        ("\ufeff" + HEAD + "q1\td1\t3\n\n\n", {"d1": 3}),
        ("qid\tdocid\trelevance\nq1\td1\t1\n", {"d1": 1}),
        ("corpus-id\tquery-id\nd1\tq1\n", {"d1": 1}),
        ("corpus-id\tscore\tquery-id\tnote\nd1\t2e0\tq1\tx\n", {"d1": 2}),
    ],
)
def test_judgements_are_read_as_by_beir(beir: Path, judgements: str, grades: dict[str, int]) -> None:
    (beir / "qrels" / "dev.tsv").write_bytes(judgements.encode())
    assert check_retrieval(str(beir)) == ""
    assert load_retrieval(str(beir)).grades == [grades]


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        (HEAD + "q1\td1\t1\nq1\td2\t1\nq1\td1\t0\n", r"dev.tsv:4: query 'q1', document 'd1': score 0, but 1 at .*:2$"),
        (HEAD + "q1\td1\t1\nq9\td1\t1\n", "dev.tsv:3: query 'q9' is not in queries"),
        (HEAD + "q1\td8\t1\nq1\td9\t0\n", "no relevant document is in corpus .*dev.tsv:2: 'd8'"),
        (HEAD + "q1\td1\t0.5\n", "dev.tsv:2: expected a whole number as score, got '0.5'"),
        (HEAD + "q1\td1\tinf\n", "dev.tsv:2: expected a whole number as score, got 'inf'"),
        (HEAD + "q1\td1\t1e30\n", "dev.tsv:2: expected a whole number as score, got '1e30'"),
        (HEAD + "q1\td1\t\n", "dev.tsv:2: expected a whole number as score, got ''"),
        (HEAD + 'q1\t"d1\t1\nq1\td2\t1\n', "dev.tsv:3: .*is a quotation mark missing"),
        (HEAD + 'q1\t"d1\t1\nq1\td2"\t1\n', "dev.tsv:3: a field of several lines"),
        ("q1\td1\t1\nq2\td2\t1\n", "dev.tsv:1: expected a header .*, got a judgement"),
        ("q1 0 d1 1\n", "expected documents and judged queries"),
        (HEAD.replace("\t", ","), "expected documents and judged queries"),
        (HEAD.replace("\t", ",") + "q1,d1,1\n", "dev.tsv:2: expected a field corpus-id"),
    ],
)
def test_judgements_that_do_not_match_are_named_before_a_search(beir: Path, judgements: str, message: str) -> None:
    (beir / "qrels" / "dev.tsv").write_text(judgements)
    for read in (check_retrieval, load_retrieval):
        with pytest.raises(DataError, match=message):
            read(str(beir))


def test_replaced_and_missing_texts_are_counted(beir: Path) -> None:
    lines = (beir / "corpus.jsonl").read_text().splitlines()
    lines[1:1] = [
        r'{"_id": "x1", "title": NaN, "text": "half \ud83d"}',
        r'{"_id": "x2", "title": null, "text": "\udc00"}',
    ]
    (beir / "corpus.jsonl").write_text("\n".join(lines))
    with (beir / "qrels" / "dev.tsv").open("a") as file:
        file.write("q1\tgone\t1\n")
    note = check_retrieval(str(beir))
    assert f"{beir / 'corpus.jsonl'}:2: half of a surrogate pair, which is no character; 2 texts have U+FFFD" in note
    assert f"1 judged documents are not in the corpus (first {beir / 'qrels' / 'dev.tsv'}:6: 'gone')" in note
    assert load_retrieval(str(beir)).documents[1:3] == ["half \ufffd", "\ufffd"]


def test_of_a_large_set_the_beginning_is_checked(beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainables.data.retrieval.CHECKED", 100.0)
    assert check_retrieval(str(beir)).startswith("animals: checked the first 0 MB of corpus, queries")
    (beir / "corpus.jsonl").write_text('{"_id": 1.5, "text": "a"}\n' + "x" * 200)
    with pytest.raises(DataError, match=r"corpus.jsonl:1: expected a field _id or id with text, got _id: 1.5"):
        check_retrieval(str(beir))


INSERTED = (b"\0", b"\xff\xfe", b'"', b"\t", b"\r", b"\n", b"\xed\xa0\xbd", b"\\")
LINES = (b"NaN\n", b"[1]\n", b"null\n", b"[" * 100_000, b'{"_id": ' + b"9" * 5000 + b', "text": "x"}\n')
WRITTEN, TYPED = (b'"a', b'"q1"', b'"text": "a', b"\t1"), (b"NaN", b"[]", b"true", b"{}", b"\t1e400")


def damaged(folder: Path, seed: int) -> None:
    """One part of a set, gzipped or of Parquet in some, with one fault of a kind and at a place that the seed gives."""
    draw = random.Random(seed)
    name = draw.choice(("corpus.jsonl", "queries.jsonl", "qrels/dev.tsv"))
    path = folder / name
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    at, cut = draw.randrange(len(lines)), draw.randrange(len(data))
    faults = {
        "cut": data[:cut],
        "byte": data[:cut] + bytes([draw.randrange(256)]) + data[cut + 1 :],
        "inserted": data[:cut] + draw.choice(INSERTED) + data[cut:],
        "line twice": b"".join([*lines[: at + 1], *lines[at:]]),
        "line lost": b"".join([*lines[:at], *lines[at + 1 :]]),
        "value": b"".join([*lines[:at], draw.choice(LINES), *lines[at:]]),
        "typed": data.replace(draw.choice(WRITTEN), draw.choice(TYPED)),
        "utf-16": data.decode().encode("utf-16"),
        "latin-1": data.replace(b"a", b"\xe9"),
        "one carriage return": data.replace(b"\n", b"\r"),
    }  # fmt: skip
    content = faults[draw.choice(sorted(faults))]
    if name != "qrels/dev.tsv" and seed % 5 == 0:  # cut or changed after packing
        path.unlink()
        packed = bytearray(gzip.compress(content))
        packed = packed[: draw.randrange(len(packed))] if seed % 2 else packed
        packed[draw.randrange(len(packed)) if packed else 0 :][:1] = b"x"
        path.with_suffix(".jsonl.gz").write_bytes(packed)
    elif name != "qrels/dev.tsv" and seed % 5 == 1:
        path.unlink()
        (folder / path.stem).mkdir()
        stream = io.BytesIO()
        rows = {
            "_id": ["d1", "d2"],
            "text": draw.choice((["a", "b"], ["a", None], [["a"], ["b"]], [1.5, 2.5], [b"\xff", b"b"])),
        }
        parquet.write_table(pa.table(rows), stream)
        whole = bytearray(stream.getvalue())
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        (folder / path.stem / "train.parquet").write_bytes(whole if seed % 3 else whole[: draw.randrange(len(whole))])
    else:
        path.write_bytes(content)


def fault_of(read, folder: Path):
    try:
        return read(str(folder)), ""
    except DataError as error:
        return None, str(error)


def test_damaged_sets_are_refused_or_read_as_they_are(tmp_path: Path) -> None:
    read = 0
    for seed in range(300):
        folder = written(tmp_path / f"set{seed}", DOCUMENTS, QUERIES, JUDGED)
        damaged(folder, seed)
        _, fault = fault_of(check_retrieval, folder)
        data, again = fault_of(load_retrieval, folder)
        assert fault == again, seed  # none is met first inside a trial
        if data is None:
            assert "\n" not in fault, seed
            assert str(folder) in fault, seed
            continue
        read += 1
        assert len(evaluated(data, Encoder())) == 4
        if (corpus := folder / "corpus.jsonl").is_file():
            rows = [json.loads(line) for line in corpus.read_bytes().split(b"\n") if line.strip()]
            assert data.documents == [" ".join(filter(None, (row.get("title"), row["text"]))) for row in rows], seed
    assert 20 < read < 200  # faults are neither all refused nor all harmless


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
