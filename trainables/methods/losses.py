"""Contrastive losses: tensors in, one scalar out. No model, no device choice, no process group.

The cosine of two rows is a.b / (max(|a|, 1e-8) max(|b|, 1e-8)) (methods 1.1). Half-precision inputs are scored in
float32 and autocast is switched off inside, because a logit is a cosine divided by about 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_FLOOR = 1e-8


def info_nce(anchor: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """In-batch InfoNCE, one way, mean over anchors (SimCSE Sec. 3, Eq. 4).

    Args:
        anchor: (N, D), any norm.
        positive: (N, D); row i belongs to anchor i, the other rows are its negatives.
        temperature: tau > 0, divides the cosine.
    Returns: () scalar >= 0; log N when all rows coincide.
    Raises: ValueError if shapes differ or the temperature is not a positive number.
    """
    _check(temperature, anchor=anchor, positive=positive)
    return own_column(cosines(anchor, positive) / temperature)


def info_nce_hard(
    anchor: Tensor, positive: Tensor, negative: Tensor, temperature: float, hard_negative_weight: float = 0.0
) -> Tensor:
    """InfoNCE over 2N candidates, all positives and all hard negatives (SimCSE Sec. 4, Eq. 5).

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (N, D), or (kN, D) where anchors have k hard negatives: row i of each N belongs to anchor i.
        temperature: tau > 0.
        hard_negative_weight: w = ln(alpha), added to the logits of the own hard negatives after the division by tau.
    Returns: () scalar >= 0.
    Raises: ValueError as `info_nce`, or if the weight is not finite.
    """
    _check_negatives(temperature, anchor, positive, negative)
    if not math.isfinite(hard_negative_weight):
        raise ValueError(f"hard_negative_weight: expected a finite number, got {hard_negative_weight!r}")
    logits = cosines(anchor, torch.cat([positive, negative])) / temperature
    if hard_negative_weight:
        count = len(anchor)
        rows = torch.arange(len(negative), device=logits.device)
        own = torch.zeros_like(logits)
        own[rows % count, rows + count] = hard_negative_weight
        logits = logits + own
    return own_column(logits)


def info_nce_both_rows(anchor: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Anchors and positives are both rows; the columns are all 3N sentences but the row itself (methods 2.2).

    Args:
        anchor: (N, D).
        positive: (N, D); the target of an anchor is its positive and the other way round.
        negative: (N, D), or (kN, D) with k hard negatives each.
        temperature: tau > 0.
    Returns: () scalar, mean over 2N rows of (2 + k)N - 1 candidates.
    Raises: ValueError as `info_nce`.
    """
    _check_negatives(temperature, anchor, positive, negative)
    rows = torch.cat([anchor, positive])
    return _partner_column(rows, torch.cat([rows, negative]), temperature)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Symmetric NT-Xent over the 2N views, 2N - 2 negatives each (SimCLR Eq. 1; methods 1.5, D04).

    Args:
        first: (N, D).
        second: (N, D); rows i of both are the two views of example i.
        temperature: tau > 0.
    Returns: () scalar >= 0; log(2N - 1) when all rows coincide.
    Raises: ValueError as `info_nce`.
    """
    _check(temperature, first=first, second=second)
    views = torch.cat([first, second])
    return _partner_column(views, views, temperature)


def info_nce_margin(
    anchor: Tensor, positive: Tensor, negation: Tensor, temperature: float, margin: float, scope: str = "own"
) -> Tensor:
    """InfoNCE with negations as relaxed negatives (SDA Eq. 4, D23, D24).

    The margin is subtracted from a negation's cosine before the division by the temperature.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negation: (N, D).
        temperature: tau > 0.
        margin: delta >= 0, in units of the cosine.
        scope: "own" = an anchor sees its own negation only (N + 1 candidates); "all" = every negation (2N).
    Returns: () scalar >= 0.
    Raises: ValueError as `info_nce`, for a negative margin or an unknown scope.
    """
    _check(temperature, anchor=anchor, positive=positive, negation=negation)
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin: expected a number >= 0, got {margin!r}")
    if scope not in ("own", "all"):
        raise ValueError(f"scope: expected one of own, all, got {scope!r}")
    positives = cosines(anchor, positive)
    if scope == "all":
        negations = cosines(anchor, negation)
    else:
        negations = (_unit(anchor) * _unit(negation)).sum(-1, keepdim=True)
    return own_column(torch.cat([positives, negations - margin], dim=1) / temperature)


def multiple_negatives(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor | None,
    temperature: float,
    direction: str = "one_way",
    excluded: Tensor | None = None,
    margin: float | None = None,
    guide: Tensor | None = None,
) -> Tensor:
    """InfoNCE of pairs, MultipleNegativesRankingLoss of sentence-transformers; false negatives may be left out.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (kN, D), hard negatives as in `info_nce_hard`; None = none.
        temperature: tau > 0.
        direction: "one_way" = an anchor finds its positive; "both" = the mean of that and of a positive that finds its
            anchor among all anchors (MultipleNegativesSymmetricRankingLoss).
        excluded: (N, (1 + k)N) bool, candidates that are no negatives of an anchor, see `same_text`; its own positive
            always counts.
        margin: candidates whose cosine is above the positive's plus the margin are no negatives, either (GISTEmbed,
            arXiv:2402.16829); None = all are.
        guide: (N, (1 + k)N) cosines that the margin is applied to, of a frozen encoder; None = of these vectors.
    Returns: () scalar >= 0.
    Raises: ValueError as `info_nce_hard`, or for an unknown direction.
    """
    if direction not in ("one_way", "both"):
        raise ValueError(f"direction: expected one of one_way, both, got {direction!r}")
    _check(temperature, anchor=anchor, positive=positive)
    if negative is not None:
        _check_negatives(temperature, anchor, positive, negative)
    cosine, count = cosines(anchor, positive if negative is None else torch.cat([positive, negative])), len(anchor)
    guide = cosine if guide is None else guide
    loss = own_column(_without(cosine, excluded, margin, guide) / temperature)
    if direction == "one_way":
        return loss
    back = _without(
        cosine[:, :count].T, None if excluded is None else excluded[:, :count].T, margin, guide[:, :count].T
    )
    return (loss + own_column(back / temperature)) / 2


def _without(cosine: Tensor, excluded: Tensor | None, margin: float | None, guide: Tensor) -> Tensor:
    """(N, M) cosines, -inf where a column is no negative of a row, by either rule; column i is row i's positive."""
    out = torch.zeros_like(cosine, dtype=torch.bool) if excluded is None else excluded
    if margin is not None:
        out = out | (guide > guide.diagonal()[:, None] + margin)
    own = torch.eye(*cosine.shape, dtype=torch.bool, device=cosine.device)
    return cosine.masked_fill(out & ~own, -math.inf)


def matryoshka(
    loss: Callable[[Mapping[str, Tensor]], Tensor], vectors: Mapping[str, Tensor], widths: Sequence[int]
) -> Tensor:
    """Sum of a loss over the vectors cut to each width and normalised again (MatryoshkaLoss, arXiv:2205.13147).

    Args:
        loss: of vectors by role. vectors: role -> (N, D), any norm. widths: each at most D; all weigh the same.
    Returns: () scalar.
    Raises: ValueError for a width above D.
    """
    if (most := min(v.shape[1] for v in vectors.values())) < max(widths):
        raise ValueError(f"widths: expected at most {most}, got {max(widths)}")
    return torch.stack([loss({role: _unit(v[:, :width]) for role, v in vectors.items()}) for width in widths]).sum()


def same_text(anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Tensor:
    """Candidates that are no negatives of an anchor, since their texts are equal.

    Args: anchor, positive: (N,) numbers, equal for equal texts; negative: (kN,) of hard negatives, if any.
    Returns: (N, (1 + k)N) bool: the candidate is the anchor's own text or its positive's, or the positive of an anchor
        of the same text.
    """
    candidates = positive if negative is None else torch.cat([positive, negative])
    same = (candidates == positive[:, None]) | (candidates == anchor[:, None])
    same[:, : len(anchor)] |= anchor == anchor[:, None]
    return same


def cosent(first: Tensor, second: Tensor, score: Tensor, temperature: float) -> Tensor:
    """Of two pairs the one with the higher score is to have the higher cosine (CoSENT, doi:10.1109/TASLP.2024.3402087).

    Args:
        first: (N, D).
        second: (N, D); rows i of both are a pair.
        score: (N,) of the pairs, any scale, higher = more similar; only their order counts.
        temperature: tau > 0.
    Returns: () log(1 + sum of exp((cos_i - cos_j) / tau) over score_i < score_j); 0 where all scores are equal.
    Raises: ValueError as `info_nce`, or if there is not one score a pair.
    """
    return _in_order(_cosine_of_pairs(first, second, score, temperature), score, temperature)


def angle(first: Tensor, second: Tensor, score: Tensor, temperature: float) -> Tensor:
    """`cosent` of the angle in complex space in place of the cosine (AnglE, arXiv:2309.12871, Eq. 7).

    A vector's first half are real parts, its second half imaginary ones; an odd D is padded by a zero.

    Args, returns, raises: as `cosent`.
    """
    cosine = _cosine_of_pairs(first, second, score, temperature)
    (a, b), (c, d) = (F.pad(_unit(v), (0, v.shape[1] % 2)).chunk(2, dim=1) for v in (first, second))
    return _in_order((cosine + (b * c - a * d).sum(-1)).abs(), score, temperature)


def cosine_regression(first: Tensor, second: Tensor, score: Tensor) -> Tensor:
    """Mean squared difference of a pair's cosine from its score, on the cosine's scale (Sentence-BERT, Sec. 3).

    Args: as `cosent`, without a temperature.
    """
    cosine = _cosine_of_pairs(first, second, score)
    return F.mse_loss(cosine, score.to(cosine.dtype))


def _cosine_of_pairs(first: Tensor, second: Tensor, score: Tensor, temperature: float = 1.0) -> Tensor:
    _check(temperature, first=first, second=second)
    if score.shape != first.shape[:1]:
        raise ValueError(f"score: expected shape ({len(first)},), one a pair, got {tuple(score.shape)}")
    return (_unit(first) * _unit(second)).sum(-1)


def _in_order(similarity: Tensor, score: Tensor, temperature: float) -> Tensor:
    """log(1 + sum of exp((s_i - s_j) / tau) over score_i < score_j) of (N,) similarities."""
    differences = (similarity[:, None] - similarity) / temperature
    wrong = differences.masked_fill(score[:, None] >= score, -math.inf)
    return torch.cat([wrong.new_zeros(1), wrong.flatten()]).logsumexp(0)


def grouped_cosine(q1: Tensor, z1: Tensor, q2: Tensor, z2: Tensor, group_size: int) -> Tensor:
    """Negative-free grouped loss: mean over pieces of -1/2 [cos(q1, sg(z2)) + cos(q2, sg(z1))] (GCLSR, methods 6.5).

    Args:
        q1: (N, D) predictions of the first view; q2: of the second.
        z1: (N, D) projections of the first view; z2: of the second. No gradient flows into them (sg).
        group_size: values per piece; divides D; D itself means no groups (D48).
    Returns: () scalar in [-1, 1]; -1 when the predictions equal the other view's projections.
    Raises: ValueError if shapes differ or group_size does not divide D.
    """
    _check(1.0, q1=q1, z1=z1, q2=q2, z2=z2)
    width = q1.shape[1]
    if group_size < 1 or width % group_size:
        raise ValueError(f"group_size: expected a divisor of {width}, got {group_size}")
    q1, z1, q2, z2 = (_unit(t.reshape(-1, group_size)) for t in (q1, z1.detach(), q2, z2.detach()))
    return -0.5 * ((q1 * z2).sum(-1) + (q2 * z1).sum(-1)).mean()


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x, dim=-1, eps=NORM_FLOOR)


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """(N, M) cosines of rows (N, D) with columns (M, D), in float32 or float64."""
    with torch.autocast(rows.device.type, enabled=False):
        return _unit(rows) @ _unit(columns).T


def own_column(logits: Tensor) -> Tensor:
    """Mean cross-entropy of (N, M >= N) logits whose row i has its positive in column i."""
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def _partner_column(rows: Tensor, columns: Tensor, temperature: float) -> Tensor:
    """Cross-entropy where row i is column i too and is left out; halves of `rows` are each other's targets."""
    logits = cosines(rows, columns) / temperature
    index = torch.arange(len(rows), device=logits.device)
    itself = torch.zeros_like(logits, dtype=torch.bool)
    itself[index, index] = True
    return F.cross_entropy(logits.masked_fill(itself, -math.inf), index.roll(len(rows) // 2))


def _check_negatives(temperature: float, anchor: Tensor, positive: Tensor, negative: Tensor) -> None:
    _check(temperature, anchor=anchor, positive=positive)
    if negative.ndim != 2 or not len(negative) or len(negative) % len(anchor):
        raise ValueError(f"negative: expected a multiple of anchor's {len(anchor)} rows, got {tuple(negative.shape)}")
    _check(temperature, anchor=anchor, negative=negative[: len(anchor)])


def _check(temperature: float, **vectors: Tensor) -> None:
    (name, first), *others = vectors.items()
    if first.ndim != 2 or not len(first):
        raise ValueError(f"{name}: expected shape (N, D) with N >= 1, got {tuple(first.shape)}")
    for other, tensor in others:
        if tensor.shape != first.shape:
            raise ValueError(f"{other}: expected shape {tuple(first.shape)} as {name}, got {tuple(tensor.shape)}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature: expected a number > 0, got {temperature!r}")
