"""Scoring an encoder on dev or test sets: every distinct sentence is encoded once, over all sets (methods 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.trial import QUERIES_SUFFIX
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
from trainables.evaluation.retrieval import RankedTexts, measure, number_texts

Embed = Callable[[Sequence[Tokens]], Tensor]  # sequences -> (n, D) vectors in the same order, no gradient
POSITIVE_SCORE, HIGHEST_SCORE = 4.0, 5.0  # STS-B pairs above 4 of 5 are the positives of alignment (methods 7.5)

SUITES = {
    "en": ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"),
    "zh": ("atec", "bq", "lcqmc", "pawsx", "stsb"),
}


@dataclass(frozen=True)
class TokenPairs:
    """One pair set, ready to be scored.

    first, second: (n,) numbers of the pairs' sentences in the list of distinct sentences.
    gold: (n,). gold_ranks: (n,) its standardised ranks, so that an evaluation ranks the cosines only.
    subset: (n,) names, or None. graded: scores on STS-B's scale, which ends at 5.
    """

    name: str
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    gold: NDArray[np.float64]
    gold_ranks: NDArray[np.float64]
    subset: list[str] | None

    @property
    def graded(self) -> bool:
        return bool(POSITIVE_SCORE < self.gold.max() <= HIGHEST_SCORE) and len(np.unique(self.gold)) > 2


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
        `<set>_ndcg10_dev` and the other retrieval measures in [0, 1].
    similarities: `<set>_dev` -> (n,) float32 cosines in the order of the pairs; `<set>_ndcg10_queries`, ... -> (q,) the
        measure of each query.
    """

    metrics: dict[str, float]
    similarities: dict[str, NDArray[np.float32]]


def test_suite(language: str) -> tuple[str, ...]:
    """Names of the test sets of a language: the seven English ones (7.1), the five Chinese ones (7.3).

    Raises: ValueError for another language.
    """
    if language not in SUITES:
        raise ValueError(f"language: expected one of {', '.join(SUITES)}, got {language!r}")
    return SUITES[language]


def prepare_sets(
    sets: Sequence[Pairs],
    tokenise: Callable[[Sequence[str]], TokenColumn],
    retrieval: Sequence[Retrieval] = (),
    prompts: Mapping[str, str] | None = None,
) -> PreparedSets:
    """Tokenise the distinct sentences of all sets once and number those of the pairs, documents and queries.

    Args: prompts: what is put before every query (pairs are two) and document.
    Raises: ValueError if two sets have one name.
    """
    names = [pairs.name for pairs in sets] + [one.name for one in retrieval]
    if len(set(names)) < len(names):
        raise ValueError(f"expected dev sets with different names, got {', '.join(names)}")
    query, document = ((prompts or {}).get(kind, "") for kind in PROMPTS)
    sides = [query + text for pairs in sets for side in (pairs.first, pairs.second) for text in side]
    for one in retrieval:
        sides += [query + text for text in one.queries] + [document + text for text in one.documents]
    texts = list(dict.fromkeys(sides))
    column = tokenise(texts)
    order = np.argsort(np.diff(column.starts), kind="stable")
    position = np.empty(len(texts), dtype=np.int64)
    position[order] = np.arange(len(texts))
    number = dict(zip(texts, position.tolist(), strict=True))

    def numbers(side: list[str], prompt: str = query) -> NDArray[np.int64]:
        return np.fromiter((number[prompt + text] for text in side), dtype=np.int64, count=len(side))

    return PreparedSets(
        column.take(order),
        tuple(
            TokenPairs(p.name, numbers(p.first), numbers(p.second), p.gold, standardised(ranks(p.gold)), p.subset)
            for p in sets
        ),
        tuple(number_texts(one, numbers(one.queries), numbers(one.documents, document)) for one in retrieval),
    )


def evaluate(embed: Embed, prepared: PreparedSets, split: str = "dev") -> Evaluated:
    """Spearman of every pair set, measures of every retrieval set, alignment and uniformity of the first graded set.

    Args:
        embed: called once with all distinct sentences, shortest first; it cuts them into chunks itself.
        split: ending of the metric names. On "test" the sets with parts also get `<set>_test_mean` and `_wmean` (7.1).
    """
    vectors = embed(prepared.sentences).detach().float()
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
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
    return Evaluated(metrics | _geometry(unit, prepared.sets), similarities)


def _spearman(cosine: NDArray[np.float32], gold_ranks: NDArray[np.float64]) -> float:
    if np.isnan(cosine).any() or np.ptp(cosine) < NO_SPREAD:  # a correlation would be one with rounding errors
        return float("nan")
    return float(standardised(ranks(cosine)) @ gold_ranks)


def _geometry(unit: Tensor, sets: Sequence[TokenPairs]) -> dict[str, float]:
    graded = next((pairs for pairs in sets if pairs.graded), None)
    if graded is None:
        return {}
    positive = graded.gold > POSITIVE_SCORE
    sentences = np.unique(np.concatenate((graded.first, graded.second)))
    if unit.is_cuda:
        return _geometry_there(unit, graded.first[positive], graded.second[positive], uniformity_sample(sentences))
    x = unit[torch.from_numpy(sentences).to(unit.device)].cpu().numpy()
    first, second = (x[np.searchsorted(sentences, side[positive])] for side in (graded.first, graded.second))
    return {"alignment": alignment(first, second), "uniformity": uniformity(x)}


def _geometry_there(
    unit: Tensor, first: NDArray[np.int64], second: NDArray[np.int64], sample: NDArray[np.int64]
) -> dict[str, float]:
    """`alignment` and `uniformity` on the vectors' own device: two numbers come back, not the vectors.

    Args: first, second: rows of the positives. sample: rows that uniformity is taken on.
    """
    rows = (torch.from_numpy(numbers).to(unit.device) for numbers in (first, second, sample))
    a, b, x = (unit[numbers].double() for numbers in rows)  # neither autocast nor TF32 rounds float64
    squares = x.square().sum(1)
    kernel = torch.exp(-2 * (squares[:, None] + squares - 2 * (x @ x.T)).clamp_min(0)).fill_diagonal_(0)
    both = torch.stack([(a - b).square().sum(1).mean(), torch.log(kernel.sum() / (len(x) * (len(x) - 1)))])
    return dict(zip(("alignment", "uniformity"), both.tolist(), strict=True))
