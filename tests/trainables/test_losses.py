"""Each loss against its formula in plain loops (values and gradients), and its closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainables.contract.config import build
from trainables.methods import losses
from trainables.methods.simcse.config import SimcseSupConfig
from trainables.methods.simcse.method import supervised_loss


def cos(a: Tensor, b: Tensor) -> Tensor:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def softmax_loss(logits: list[Tensor], target: int) -> Tensor:
    return -torch.log(torch.exp(logits[target]) / sum(torch.exp(s) for s in logits))


def mean(values: list[Tensor]) -> Tensor:
    return sum(values) / len(values)


def oracle_info_nce(a: Tensor, p: Tensor, tau: float) -> Tensor:
    return mean([softmax_loss([cos(a[i], p[j]) / tau for j in range(len(p))], i) for i in range(len(a))])


def oracle_hard(a: Tensor, p: Tensor, *kinds: Tensor, tau: float, w: float = 0.0) -> Tensor:
    """kinds: hard negatives; all are candidates, the own ones weighted."""
    rows = []
    for i in range(len(a)):
        logits = [cos(a[i], p[j]) / tau for j in range(len(p))]
        for q in kinds:
            logits += [cos(a[i], q[j]) / tau + (w if i == j else 0.0) for j in range(len(q))]
        rows.append(softmax_loss(logits, i))
    return mean(rows)


def oracle_partner(rows: list[Tensor], columns: list[Tensor], tau: float) -> Tensor:
    n, found = len(rows) // 2, []
    for i in range(len(rows)):
        others = [j for j in range(len(columns)) if j != i]
        found.append(softmax_loss([cos(rows[i], columns[j]) / tau for j in others], others.index((i + n) % (2 * n))))
    return mean(found)


def oracle_margin(a: Tensor, p: Tensor, n: Tensor, tau: float, delta: float, scope: str) -> Tensor:
    rows = []
    for i in range(len(a)):
        negations = [i] if scope == "own" else range(len(n))
        logits = [cos(a[i], p[j]) / tau for j in range(len(p))] + [(cos(a[i], n[j]) - delta) / tau for j in negations]
        rows.append(softmax_loss(logits, i))
    return mean(rows)


def oracle_grouped(q1: Tensor, z1: Tensor, q2: Tensor, z2: Tensor, size: int) -> Tensor:
    pieces = []
    for i in range(len(q1)):
        for g in range(0, q1.shape[1], size):
            s = slice(g, g + size)
            pieces.append(-(cos(q1[i, s], z2[i, s].detach()) + cos(q2[i, s], z1[i, s].detach())) / 2)
    return mean(pieces)


CASES: dict[str, tuple[int, Callable[..., Tensor], Callable[..., Tensor]]] = {
    "info_nce": (2, lambda *v: losses.info_nce(*v, 0.05), lambda *v: oracle_info_nce(*v, 0.05)),
    "hard": (3, lambda *v: losses.info_nce_hard(*v, 0.1), lambda *v: oracle_hard(*v, tau=0.1)),
    "hard_of_two": (
        4,
        lambda a, p, q, r: losses.info_nce_hard(a, p, torch.cat([q, r]), 0.1, -0.7),
        lambda *v: oracle_hard(*v, tau=0.1, w=-0.7),
    ),
    "both_rows_of_two": (
        4,
        lambda a, p, q, r: losses.info_nce_both_rows(a, p, torch.cat([q, r]), 0.1),
        lambda a, p, q, r: oracle_partner([*a, *p], [*a, *p, *q, *r], 0.1),
    ),
    "hard_weighted": (3, lambda *v: losses.info_nce_hard(*v, 0.1, -0.7), lambda *v: oracle_hard(*v, tau=0.1, w=-0.7)),
    "nt_xent": (2, lambda *v: losses.nt_xent(*v, 0.3), lambda a, b: oracle_partner([*a, *b], [*a, *b], 0.3)),
    "both_rows": (
        3,
        lambda *v: losses.info_nce_both_rows(*v, 0.3),
        lambda a, p, q: oracle_partner([*a, *p], [*a, *p, *q], 0.3),
    ),
    "margin_own": (
        3,
        lambda *v: losses.info_nce_margin(*v, 0.05, 0.3),
        lambda *v: oracle_margin(*v, 0.05, 0.3, "own"),
    ),
    "margin_all": (
        3,
        lambda *v: losses.info_nce_margin(*v, 0.05, 0.3, "all"),
        lambda *v: oracle_margin(*v, 0.05, 0.3, "all"),
    ),
    "grouped": (4, lambda *v: losses.grouped_cosine(*v, 2), lambda *v: oracle_grouped(*v, 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [1, 4])
def test_equals_the_formula(name: str, n: int) -> None:
    count, loss, oracle = CASES[name]
    generator = torch.Generator().manual_seed(n)
    first = [torch.randn(n, 6, dtype=torch.float64, generator=generator).mul_(3).requires_grad_() for _ in range(count)]
    second = [v.detach().clone().requires_grad_() for v in first]
    ours, theirs = loss(*first), oracle(*second)
    ours.backward()
    theirs.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    for a, b in zip(first, second, strict=True):
        expected = torch.zeros_like(b) if b.grad is None else b.grad
        got = torch.zeros_like(a) if a.grad is None else a.grad
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_collapse_gives_the_log_of_the_candidates() -> None:
    same = torch.ones(5, 3, dtype=torch.float64)
    assert losses.info_nce(same, same, 0.05).item() == pytest.approx(math.log(5))
    assert losses.info_nce_hard(same, same, same, 0.05).item() == pytest.approx(math.log(10))
    assert losses.nt_xent(same, same, 0.05).item() == pytest.approx(math.log(9))
    assert losses.info_nce_both_rows(same, same, same, 0.05).item() == pytest.approx(math.log(14))
    assert losses.info_nce_margin(same, same, same, 0.05, 0.0).item() == pytest.approx(math.log(6))
    assert losses.grouped_cosine(same, same, same, same, 3).item() == pytest.approx(-1.0)


def test_extreme_temperature_and_zero_rows_stay_finite() -> None:
    a = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    b = torch.zeros(4, 8, requires_grad=True)
    loss = losses.info_nce(a, b, 0.001) + losses.info_nce_hard(b, a, a.flip(0), 0.001)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()


def test_half_precision_and_autocast_are_scored_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(6, 16, generator=generator), torch.randn(6, 16, generator=generator)
    expected = losses.info_nce(a.bfloat16().float(), b.bfloat16().float(), 0.05)
    torch.testing.assert_close(losses.info_nce(a.bfloat16(), b.bfloat16(), 0.05), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = losses.info_nce(a, b, 0.05)
    torch.testing.assert_close(inside, losses.info_nce(a, b, 0.05))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: losses.info_nce(x, x[:2], 0.05), r"positive: expected shape \(3, 4\) as anchor, got \(2, 4\)"),
        (lambda x: losses.info_nce(x[0], x[0], 0.05), r"anchor: expected shape \(N, D\) with N >= 1, got \(4,\)"),
        (lambda x: losses.info_nce(x, x, 0.0), r"temperature: expected a number > 0, got 0.0"),
        (lambda x: losses.nt_xent(x, x, math.nan), r"temperature: expected a number > 0, got nan"),
        (lambda x: losses.info_nce_hard(x, x, x[:2], 1.0), r"negative: expected a multiple of anchor's 3 rows, got"),
        (lambda x: losses.info_nce_hard(x, x, x[:, :2], 1.0), r"negative: expected shape \(3, 4\) as anchor"),
        (lambda x: losses.info_nce_hard(x, x, x, 1.0, math.inf), r"hard_negative_weight: expected a finite number"),
        (lambda x: losses.info_nce_margin(x, x, x, 1.0, -0.1), r"margin: expected a number >= 0, got -0.1"),
        (lambda x: losses.info_nce_margin(x, x, x, 1.0, 0.1, "some"), r"scope: expected one of own, all, got 'some'"),
        (lambda x: losses.grouped_cosine(x, x, x, x, 3), r"group_size: expected a divisor of 4, got 3"),
    ],
)
def test_bad_input_is_named(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))


def test_supervised_simcse_without_hard_negatives_is_info_nce() -> None:
    z = {r: torch.randn(5, 7, dtype=torch.float64) for r in ("anchor", "positive", "negative")}
    config = build(SimcseSupConfig, {"loss_form": "in_batch", "temperature": 0.3})
    assert supervised_loss(z, config) == losses.info_nce(z["anchor"], z["positive"], 0.3)
