"""Scoring an encoder on dev or test sets: every distinct sentence is encoded once, over all sets (methods 7).

Pair sets have Spearman of the cosines. Retrieval sets have exact search and the measures that trec_eval computes
(through pytrec-eval: tests/goldens): documents rank by cosine, equal cosines by document id in descending byte order.
Gain is the grade, the discount log2(rank + 1); the ideal ranking counts every judged document. A query without a
relevant document counts 0. A document with the query's own id and text is excluded from its ranking (ArguAna, Quora,
as BEIR does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.trial import QUERIES_SUFFIX, RETRIEVAL_MEASURES
from trainables.data.retrieval import Retrieval
from trainables.data.sets import Pairs
from trainables.data.tokens import PROMPTS, TokenColumn, Tokens
from trainables.evaluation.metrics import (
    NO_SPREAD,
    SMALLEST_NORM,
    aggregate,
    alignment,
    ranks,
    standardised,
    uniformity,
    uniformity_sample,
)

Embed = Callable[[Sequence[Tokens]], Tensor]  # sequences -> (n, D) vectors in the same order, no gradient
Numbers = NDArray[np.int64]
POSITIVE_SCORE, HIGHEST_SCORE = 4.0, 5.0  # STS-B pairs above 4 of 5 are the positives of alignment (methods 7.5)
DEPTH = 100  # the deepest cut of a measure
BLOCK = 2**24  # cosines held at a time (64 MiB)
QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class TokenPairs:
    """One pair set, ready to be scored.

    first, second: (n,) numbers of the pairs' sentences in the list of distinct sentences.
    gold: (n,). gold_ranks: (n,) its standardised ranks, so that an evaluation ranks the cosines only.
    subset: (n,) names, or None. graded: scores on STS-B's scale, which ends at 5.
    """

    name: str
    first: Numbers
    second: Numbers
    gold: NDArray[np.float64]
    gold_ranks: NDArray[np.float64]
    subset: list[str] | None

    @property
    def graded(self) -> bool:
        return bool(POSITIVE_SCORE < self.gold.max() <= HIGHEST_SCORE) and len(np.unique(self.gold)) > 2


@dataclass(frozen=True)
class RankedTexts:
    """A retrieval set over a list of distinct sentences.

    queries: (q,) and texts: (t,) numbers of sentences; texts are the documents' distinct ones, each scored once, in the
    order of their first document. documents: per text, positions of its documents in the order of ties.
    grades: per query, position -> grade > 0. ideal: (q,) best possible DCG@10. relevant: (q,) relevant documents.
    own: (q,) position of the document that is the query itself, -1 = none.
    """

    name: str
    queries: Numbers
    texts: Numbers
    documents: list[list[int]]
    grades: Sequence[Mapping[int, int]]
    ideal: NDArray[np.float64]
    relevant: Numbers
    own: Numbers


@dataclass(frozen=True)
class PreparedSets:
    """Dev sets over one list of distinct sentences, shortest first; made once per (sets, tokenizer)."""

    sentences: list[Tokens]
    sets: tuple[TokenPairs, ...]
    retrieval: tuple[RankedTexts, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation.

    metrics: `<set>_dev` Spearman in [-1, 1] (NaN when the vectors are NaN or all the same), `alignment`, `uniformity`;
        `<set>_ndcg10_dev` and the other retrieval measures in [0, 1]. Of cut vectors all but the geometry, `@<width>`.
    similarities: `<set>_dev` -> (n,) float32 cosines in the order of the pairs; `<set>_ndcg10_queries`, ... -> (q,) the
        measure of each query.
    """

    metrics: dict[str, float]
    similarities: dict[str, NDArray[np.float32]]


def prepare_sets(
    sets: Sequence[Pairs],
    tokenise: Callable[[Sequence[str]], TokenColumn],
    retrieval: Sequence[Retrieval] = (),
    prompts: Mapping[str, str] | None = None,
) -> PreparedSets:
    """Tokenise the distinct sentences of all sets once and number those of the pairs, documents and queries.

    Args: prompts: prefixes of every query (both sides of a pair are queries) and document.
    Raises: ValueError if two sets have one name.
    """
    names = [*(one.name for one in sets), *(one.name for one in retrieval)]
    if len(set(names)) < len(names):
        raise ValueError(f"expected dev sets with different names, got {', '.join(names)}")
    query, document = ((prompts or {}).get(kind, "") for kind in PROMPTS)
    sides = [query + text for one in sets for side in (one.first, one.second) for text in side]
    for one in retrieval:
        sides += [query + text for text in one.queries] + [document + text for text in one.documents]
    texts = list(dict.fromkeys(sides))
    column = tokenise(texts)
    order = np.argsort(np.diff(column.starts), kind="stable")
    number = {texts[i]: n for n, i in enumerate(order.tolist())}

    def numbers(side: list[str], prompt: str = query) -> Numbers:
        return np.fromiter((number[prompt + text] for text in side), dtype=np.int64, count=len(side))

    pairs = (
        TokenPairs(p.name, numbers(p.first), numbers(p.second), p.gold, standardised(ranks(p.gold)), p.subset)
        for p in sets
    )
    ranked = (number_texts(one, numbers(one.queries), numbers(one.documents, document)) for one in retrieval)
    return PreparedSets(column.take(order), tuple(pairs), tuple(ranked))


def evaluate(embed: Embed, prepared: PreparedSets, split: str = "dev", widths: Iterable[int] = ()) -> Evaluated:
    """Spearman of every pair set, measures of every retrieval set, alignment and uniformity of the first graded set.

    Args:
        embed: called once with all distinct sentences, shortest first; splits them into batches itself.
        split: suffix of the metric names. On "test" the sets with parts also get `<set>_test_mean` and `_wmean` (7.1).
        widths: all is measured of vectors cut to each of these, too, under its name with `@<width>`.
    Raises: ValueError for a width above that of the vectors.
    """
    vectors = embed(prepared.sentences).detach().float()
    metrics, similarities = scored(normalised_rows(vectors), prepared, split)
    for width in widths:
        if width > vectors.shape[1]:
            raise ValueError(f"a metric @{width}: expected at most {vectors.shape[1]}, the width of the vectors")
        values, arrays = scored(normalised_rows(vectors[:, :width]), prepared, split)
        metrics |= {f"{name}@{width}": value for name, value in values.items()}
        similarities |= {f"{name}@{width}": array for name, array in arrays.items()}
    return Evaluated(metrics | _geometry(normalised_rows(vectors), prepared.sets), similarities)


def normalised_rows(vectors: Tensor) -> Tensor:
    """(n, D) vectors of norm 1; zeros stay zeros."""
    unit: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
    return unit


def scored(unit: Tensor, prepared: PreparedSets, split: str) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
    """The metrics and similarities of `Evaluated` but the geometry, by inner products of vectors (n, D)."""
    metrics: dict[str, float] = {}
    similarities: dict[str, NDArray[np.float32]] = {}
    for pairs in prepared.sets:
        first, second = (torch.from_numpy(side).to(unit.device) for side in (pairs.first, pairs.second))
        cosine: NDArray[np.float32] = (unit[first] * unit[second]).sum(1).cpu().numpy()
        key = f"{pairs.name}_{split}"
        similarities[key] = cosine
        metrics[key] = _spearman(cosine, pairs.gold_ranks)
        if split == "test" and pairs.subset is not None:
            scores = aggregate(cosine, pairs.gold, pairs.subset)
            metrics |= {f"{key}_{how}": scores[how] for how in ("mean", "wmean")}
    for ranked in prepared.retrieval:
        for name, values in measure(unit, ranked).items():
            metrics[f"{ranked.name}_{name}_{split}"] = float(values.mean())
            similarities[f"{ranked.name}_{name}{QUERIES_SUFFIX}"] = values.astype(np.float32)
    return metrics, similarities


def _spearman(cosine: NDArray[np.float32], gold_ranks: NDArray[np.float64]) -> float:
    if np.isnan(cosine).any() or np.ptp(cosine) < NO_SPREAD:  # ranks would be those of rounding errors
        return float("nan")
    return float(standardised(ranks(cosine)) @ gold_ranks)


def _geometry(unit: Tensor, sets: Sequence[TokenPairs]) -> dict[str, float]:
    graded = next((pairs for pairs in sets if pairs.graded), None)
    if graded is None:
        return {}
    positive = graded.gold > POSITIVE_SCORE
    sentences = np.unique(np.concatenate((graded.first, graded.second)))
    if unit.is_cuda:
        return _geometry_on_device(unit, graded.first[positive], graded.second[positive], uniformity_sample(sentences))
    x = unit[torch.from_numpy(sentences).to(unit.device)].cpu().numpy()
    first, second = (x[np.searchsorted(sentences, side[positive])] for side in (graded.first, graded.second))
    return {"alignment": alignment(first, second), "uniformity": uniformity(x)}


def _geometry_on_device(unit: Tensor, first: Numbers, second: Numbers, sample: Numbers) -> dict[str, float]:
    """`alignment` and `uniformity` on the vectors' device, which returns two numbers instead of the vectors.

    Args: first, second: rows of the positives. sample: rows for uniformity.
    """
    rows = (torch.from_numpy(numbers).to(unit.device) for numbers in (first, second, sample))
    a, b, x = (unit[numbers].double() for numbers in rows)  # neither autocast nor TF32 rounds float64
    squares = x.square().sum(1)
    kernel = torch.exp(-2 * (squares[:, None] + squares - 2 * (x @ x.T)).clamp_min(0)).fill_diagonal_(0)
    both = torch.stack([(a - b).square().sum(1).mean(), torch.log(kernel.sum() / (len(x) * (len(x) - 1)))])
    return dict(zip(("alignment", "uniformity"), both.tolist(), strict=True))


def number_texts(data: Retrieval, queries: Numbers, documents: Numbers) -> RankedTexts:
    """The set with its queries (q,) and documents (n,) as numbers of distinct sentences."""
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
    """The best columns of each row, best first, ties by column. `topk` alone orders ties arbitrarily."""
    depth = min(depth, scores.shape[1])
    values, columns = scores.topk(depth, sorted=False)
    more = (scores >= values.amin(1, keepdim=True)).sum(1) > depth
    if bool(more.any()):
        values[more], columns[more] = (x[:, :depth] for x in scores[more].sort(dim=1, descending=True, stable=True))
    columns, order = columns.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def _documents(scores: Sequence[float], texts: Sequence[int], documents: list[list[int]], own: int) -> list[int]:
    """Positions of the DEPTH best documents, best first; documents of texts with equal scores are sorted together."""
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
