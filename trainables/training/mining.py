"""Hard negatives for pairs, found by the untouched encoder: `data.mine` of a space.

Each anchor gets the positives of other anchors that are most similar to it, from a range of ranks, as NV-Retriever
(arXiv:2407.15831) and `sentence_transformers.util.mine_hard_negatives` choose them. Unlike theirs, a document with the
anchor's own text is no negative. Search is exact and in blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.errors import DataError
from trainables.contract.trial import phase
from trainables.data.tokens import Texts
from trainables.evaluation.metrics import SMALLEST_NORM
from trainables.evaluation.scoring import search
from trainables.methods.method import TextTools

log = logging.getLogger(__name__)

ANCHORS_AT_ONCE = 1024


@dataclass(frozen=True)
class Mined:
    """negatives: (q, count) numbers of documents, -1 from where an anchor has no more. first: (q,) whether a positive
    ranks first. passed_over: candidates that were too close to the positive."""

    negatives: NDArray[np.int64]
    first: NDArray[np.bool_]
    passed_over: int


def mine(
    anchors: Tensor, documents: Tensor, answers: Sequence[Sequence[int]], count: int,
    ranks: tuple[int, int], margin: float | None = None, own: NDArray[np.int64] | None = None,
) -> Mined:  # fmt: skip
    """The hard negatives of every anchor, most similar first.

    Args:
        anchors: (q, D), documents: (d, D); norms do not matter.
        answers: per anchor, its positives among the documents: no negatives of its own.
        count: of negatives per anchor.
        ranks: [low, high), from 0, among the `high` + most positives nearest documents, after positives and too close
            ones are removed.
        margin: a negative's cosine is at most the least similar positive's less this; None = any cosine.
        own: (q,) the document with the anchor's own text, -1 = none. It is no candidate, unless it is a positive.
    """
    anchors, documents = (v.float() / v.float().norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
                          for v in (anchors, documents))  # fmt: skip
    low, high = ranks
    depth = high + max(map(len, answers))
    negatives = np.full((len(anchors), count), -1, dtype=np.int64)
    first, passed_over = np.zeros(len(anchors), dtype=bool), 0
    for start in range(0, len(anchors), ANCHORS_AT_ONCE):
        phase("mining hard negatives", start, len(anchors))
        some = anchors[start : start + ANCHORS_AT_ONCE]
        scores, found = (part.numpy() for part in search(some, documents, depth + 1))  # one more: the anchor's own text
        for row, positives in enumerate(answers[start : start + ANCHORS_AT_ONCE]):
            same = -1 if own is None else int(own[start + row])
            other = (found[row] != same) | (same in positives)
            near, cosine = found[row][other][:depth], scores[row][other][:depth]
            positive = np.isin(near, positives)
            far = np.full(len(positive), True)
            if margin is not None:
                limit = float((documents[list(positives)] @ some[row]).min())
                far = cosine + margin <= limit
            kept = near[~positive & far][:high][low : low + count]
            negatives[start + row, : len(kept)] = kept
            first[start + row] = positive[0]
            passed_over += int((~positive & ~far).sum())
    return Mined(negatives, first, passed_over)


def with_mined(
    texts: Texts, settings: Mapping[str, Any], config: Any, tools: TextTools
) -> tuple[Texts, NDArray[np.int64]]:
    """Pairs with further columns of hard negatives, found once per content.

    Args:
        texts: "anchor", "positive" and maybe negatives, which stay in front.
        settings: of `data.mine`: count, range and margin.
        config: by whose pooling the untouched encoder embeds. tools: its encoder and prompts.
    Returns: the rows that have all negatives, and their numbers.
    Raises: DataError if fewer than half of the rows have them.
    """
    pairs = list(zip(texts["anchor"], texts["positive"], strict=True))
    anchors, documents = ({t: i for i, t in enumerate(dict.fromkeys(side))} for side in zip(*pairs, strict=True))
    answers: list[list[int]] = [[] for _ in anchors]
    for anchor, positive in dict.fromkeys(pairs):
        answers[anchors[anchor]].append(documents[positive])
    vectors = [
        torch.from_numpy(np.array(tools.embed(tools.tokenise(list(side), kind), config))).to(tools.device)
        for side, kind in ((anchors, "query"), (documents, "document"))
    ]
    count, margin = settings["count"], settings["margin"]
    low, high = settings["range"]
    own = np.array([documents.get(anchor, -1) for anchor in anchors])
    found = tools.cached(
        "mined", [*(v.cpu().numpy() for v in vectors), answers, own, count, low, high, margin],
        lambda: mine(vectors[0], vectors[1], answers, count, (low, high), margin, own),
    )  # fmt: skip
    of_rows = found.negatives[[anchors[anchor] for anchor, _ in pairs]]
    whole = np.flatnonzero((of_rows >= 0).all(1))
    close = f"; {found.passed_over:,} candidates were within {margin:g} of the positive" if margin is not None else ""
    lost = f"; {len(pairs) - len(whole):,} rows have fewer and are left out" if len(whole) < len(pairs) else ""
    log.warning(
        f"data.mine: {count} hard negatives for {len(whole):,} rows, of ranks {low} to {high}; a positive ranks first "
        f"for {found.first.mean():.0%} of the anchors{close}{lost}"
    )
    if 2 * len(whole) < len(pairs):
        raise DataError(
            f"data.mine: {len(whole)} of {len(pairs)} rows have {count} hard negatives in range {low} to {high}; "
            "expected at least half; widen the range, or lower count or margin"
        )
    names = list(documents)
    there = [role for role in texts if role not in ("anchor", "positive")]
    result = {role: [texts[role][i] for i in whole.tolist()] for role in texts}
    for k in range(count):
        number = len(there) + k + 1
        role = "negative" if number == 1 else f"negative_{number}"
        result[role] = [names[of_rows[i, k]] for i in whole]
    return result, whole
