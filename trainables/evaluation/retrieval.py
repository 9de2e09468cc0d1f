"""Exact search and the field's retrieval measures as trec_eval computes them (through pytrec-eval: tests/goldens).

Documents rank by cosine; equal cosines rank by document id in descending byte order, trec_eval's rule. Gain is the
grade, the discount log2(rank + 1); the ideal knows every judged document. A query without a relevant document counts 0.
A document with the query's own id and text is left out of its ranking (ArguAna, Quora, as BEIR does).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.trial import RETRIEVAL_MEASURES
from trainables.data.retrieval import Retrieval
from trainables.evaluation.metrics import NO_SPREAD

DEPTH = 100  # the deepest cut of a measure
BLOCK = 2**24  # cosines held at a time (64 MiB)
QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class RankedTexts:
    """A retrieval set over a list of distinct sentences.

    queries: (q,) and texts: (t,) numbers of sentences; texts are the documents' distinct ones, each scored once, in the
    order of their first document. documents: per text, positions of its documents in the order of ties.
    grades: per query, position -> grade > 0. ideal: (q,) best possible DCG@10. relevant: (q,) number of relevant ones.
    own: (q,) position of the document that is the query itself, -1 = none.
    """

    name: str
    queries: NDArray[np.int64]
    texts: NDArray[np.int64]
    documents: list[list[int]]
    grades: Sequence[Mapping[int, int]]
    ideal: NDArray[np.float64]
    relevant: NDArray[np.int64]
    own: NDArray[np.int64]


def number_texts(data: Retrieval, queries: NDArray[np.int64], documents: NDArray[np.int64]) -> RankedTexts:
    """The set with its texts as numbers of distinct sentences, (q,) and (n,)."""
    order = sorted(range(len(data.documents)), key=lambda i: data.document_ids[i].encode(), reverse=True)
    position = {data.document_ids[i]: rank for rank, i in enumerate(order)}
    of_text: dict[int, list[int]] = {}
    for rank, i in enumerate(order):
        of_text.setdefault(int(documents[i]), []).append(rank)
    grades, ideal, relevant, own = [], [], [], []
    for name, query, judged in zip(data.query_ids, data.queries, data.grades, strict=True):
        twin = position.get(name, -1)
        same = twin >= 0 and data.documents[order[twin]] == query
        own.append(twin if same else -1)
        good = {document: grade for document, grade in judged.items() if grade > 0 and not (same and document == name)}
        grades.append({position[document]: grade for document, grade in good.items() if document in position})
        ideal.append(_dcg(enumerate(sorted(good.values(), reverse=True)[:10], start=1)))
        relevant.append(len(good))
    return RankedTexts(
        data.name,
        queries,
        np.fromiter(of_text, dtype=np.int64, count=len(of_text)),
        list(of_text.values()),
        grades,
        np.array(ideal),
        np.array(relevant, dtype=np.int64),
        np.array(own, dtype=np.int64),
    )


def measure(unit: Tensor, data: RankedTexts) -> dict[str, NDArray[np.float64]]:
    """`ndcg10`, `mrr10`, `recall10`, `recall100` -> (q,) in [0, 1]; all NaN where the vectors are NaN or all the same.

    Args: unit: (n, D) vectors of norm 1 of the distinct sentences.
    """
    texts = unit[torch.from_numpy(data.texts).to(unit.device)]
    if not bool(torch.isfinite(unit).all()) or float((texts.amax(0) - texts.amin(0)).amax()) < NO_SPREAD:
        return {name: np.full(len(data.queries), math.nan) for name in RETRIEVAL_MEASURES}  # ids alone would rank
    queries = unit[torch.from_numpy(data.queries).to(unit.device)]
    scores, found = search(queries, texts, DEPTH + 1)  # one more: a query's own document may be among them
    rows = [
        _of_query(_documents(s, f, data.documents, own), grades, ideal, relevant)
        for s, f, own, grades, ideal, relevant in zip(
            scores.tolist(), found.tolist(), data.own.tolist(), data.grades, data.ideal, data.relevant, strict=True
        )
    ]
    return dict(zip(RETRIEVAL_MEASURES, np.array(rows).T, strict=True))


@torch.no_grad()
def search(queries: Tensor, texts: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The `depth` best texts of each query by inner product, exactly, in blocks of at most BLOCK products.

    Args: queries: (q, D); texts: (t, D).
    Returns: products and positions, (q, min(depth, t)); equal products in the order of the texts.
    """
    parts = [_search(chunk, texts, depth) for chunk in torch.split(queries, QUERIES_AT_ONCE)]
    return torch.cat([p[0] for p in parts]).cpu(), torch.cat([p[1] for p in parts]).cpu()


def _search(queries: Tensor, texts: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    best = queries.new_empty((len(queries), 0))
    at = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
    step = max(depth, BLOCK // len(queries))
    with torch.autocast(queries.device.type, enabled=False):  # products in float32 whatever the network computes in
        for start in range(0, len(texts), step):
            block = queries @ texts[start : start + step].T
            values, columns = _top(block, depth)
            best, at = torch.cat((best, values), 1), torch.cat((at, columns + start), 1)
            best, columns = _top(best, depth)  # equal ones stand in the order of the texts, here too
            at = at.gather(1, columns)
    return best, at


def _top(scores: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The best columns of each row, best first, the earlier of equals first. `topk` alone picks any of equals."""
    depth = min(depth, scores.shape[1])
    values, columns = scores.topk(depth, sorted=False)
    more = (scores >= values.amin(1, keepdim=True)).sum(1) > depth
    if bool(more.any()):
        values[more], columns[more] = (x[:, :depth] for x in scores[more].sort(dim=1, descending=True, stable=True))
    columns, order = columns.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def _documents(scores: Sequence[float], texts: Sequence[int], documents: list[list[int]], own: int) -> list[int]:
    """Positions of the DEPTH best documents. The best documents belong to the best texts, texts of equal score mix."""
    found: list[int] = []
    level: list[int] = []
    last = math.nan
    for score, text in zip(scores, texts, strict=True):
        if score != last:
            found += sorted(level)
            if len(found) > DEPTH:
                break
            level, last = [], score
        level += documents[text]
    else:
        found += sorted(level)
    return [position for position in found if position != own][:DEPTH]


def _of_query(ranked: Sequence[int], grades: Mapping[int, int], ideal: float, relevant: int) -> tuple[float, ...]:
    hits = [(rank, grades[document]) for rank, document in enumerate(ranked, start=1) if document in grades]
    top = [(rank, grade) for rank, grade in hits if rank <= 10]
    if not relevant:
        return (0.0,) * len(RETRIEVAL_MEASURES)
    return _dcg(top) / ideal, 1 / top[0][0] if top else 0.0, len(top) / relevant, len(hits) / relevant


def _dcg(ranked: Iterable[tuple[int, int]]) -> float:
    return sum(grade / math.log2(rank + 1) for rank, grade in ranked)
