"""How many kernels a training step would launch on a GPU, counted on the CPU (benchmarks/launches.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.launches import SHAPE, Launches, accelerator, step_launches
from trainables.encoders.attention import keep_noise

pytestmark = pytest.mark.costly


def test_the_hook_counts_what_computes_and_no_view() -> None:
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    with Launches() as counted:
        (x.view(2, 2, 6).transpose(0, 1).reshape(4, 6) @ w).t()[0].add_(1)
    assert counted.counts == {"clone": 1, "mm": 1, "add_": 1}


def test_dropout_and_attention_are_one_operator_each_way() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    seed = torch.ones(2, 3, 5, 4)
    with accelerator(), Launches() as counted:
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).backward(seed)
        F.dropout(q, 0.5)
    assert counted.counts["attention"] == counted.counts["attention_backward"] == counted.counts["native_dropout"] == 1
    assert counted.counts.total() == 3


def test_the_stand_in_for_attention_has_its_gradient() -> None:
    plain = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    seed = torch.randn(2, 3, 5, 4)
    F.scaled_dot_product_attention(*plain, attn_mask=mask[:, None, None]).backward(seed)
    ours = [t.detach().clone().requires_grad_() for t in plain]
    with accelerator():
        F.scaled_dot_product_attention(*ours, attn_mask=mask[:, None, None]).backward(seed)
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.slow
@pytest.mark.real_data
def test_a_packed_step_launches_no_more_than_it_did(real_data: Path, tmp_path: Path) -> None:  # noqa: ARG001  # skips without data
    """BERT-base's 12 layers, batch 64, bf16. Raise no number here; lower it with the next launch that goes."""
    sentences = write_lines(tmp_path / "stsb.txt", stsb_sentences())
    counts = step_launches(make_encoder(tmp_path / "encoder", SHAPE), sentences, padded=False)
    assert counts["attention"] == counts["attention_backward"] == 12, "the branch for accelerators was taken"
    assert counts["_fused_adamw_"] == 1
    assert counts["_to_copy"] <= 336
    assert counts.total() <= 1095


def test_nothing_of_the_accelerator_s_branches_stays() -> None:
    with accelerator():
        pass
    assert set(keep_noise((100,), 0.5, torch.ones(1)).tolist()) <= {0.0, 2.0}
    with Launches() as counted:
        F.dropout(torch.ones(8), 0.5)
    assert not counted.counts["native_dropout"]
