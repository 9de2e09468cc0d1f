"""How many kernels a training step would launch on a GPU, counted on the CPU (benchmarks/launches.py)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from toy_encoders import SHAPE as TOY
from toy_encoders import sentences
from transformers import BertConfig, BertModel

from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.launches import SHAPE, Launches, accelerator, step_launches
from trainables.encoders import attention
from trainables.encoders.attention import attend_fused, few_launches, flash_fits
from trainables.encoders.packing import pack
from trainables.encoders.trunk import trunk_of

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
    assert counts["flash"] == counts["flash_backward"] == 12, "the branch for accelerators was taken"
    assert counts["_fused_adamw_"] == 1
    assert counts["_to_copy"] <= 78
    assert counts.total() <= 595


@pytest.mark.parametrize(
    ("lower", "most"),
    [(torch.bfloat16, 41), (None, 46)],  # casts of activations fall away in float32, flash attention too
)
def test_a_block_launches_no_more_than_it_did(lower: torch.dtype | None, most: int) -> None:
    """One more layer, forward and backward; what the step launches beside its layers is left out."""

    def launches(layers: int) -> Counter[str]:
        trunk = trunk_of(BertModel(BertConfig(**(TOY | {"num_hidden_layers": layers}), vocab_size=20)))
        assert trunk is not None
        packed = pack(sentences(), 16, [2], [3])
        with accelerator(), Launches() as counted, torch.autocast("cpu", lower, enabled=lower is not None):
            trunk.states(packed, (layers,), dropout=0.1)[layers].sum().backward()
        found: Counter[str] = counted.counts
        return found

    block = launches(3) - launches(2)
    assert block["_foreach_copy_"] == (2 if lower else 1), "weights are joined and cast at once"
    assert block.total() <= most, block


@pytest.mark.parametrize("all_tokens", [True, False])
def test_the_stand_in_for_flash_attention_has_its_gradient(all_tokens: bool) -> None:
    packed, generator = pack(sentences(), 16, [2], [3]), torch.Generator().manual_seed(0)
    shapes = (len(packed.ids) if all_tokens else len(packed), 8), (len(packed.ids), 16)
    plain = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    ours = [t.detach().bfloat16().requires_grad_() for t in plain]
    seed = torch.randn(shapes[0], generator=generator)
    attend_fused(*plain, packed, 2).backward(seed)
    with accelerator(), Launches() as counted:
        attend_fused(*ours, packed, 2).backward(seed.bfloat16())
    assert counted.counts["flash"] == counted.counts["flash_backward"] == 1
    for a, b in zip(plain, ours, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(b.grad.float(), a.grad, rtol=0, atol=0.05)  # type: ignore[union-attr]


def test_flash_attention_that_fails_or_errs_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    asked = torch.device("cpu"), torch.bfloat16, 8
    assert not attention.flash_agrees(*asked)  # a CPU has no such kernel
    assert "flash attention of torch.bfloat16 heads of 8 on cpu failed" in caplog.text
    with accelerator():
        before = torch.get_rng_state()
        assert attention.flash_agrees(*asked)
        assert torch.equal(before, torch.get_rng_state())
        right = attention._flash
        with patch.object(attention, "_flash", lambda q, *rest: right(1.5 * q, *rest)):
            assert not attention.flash_agrees(*asked)
    assert "differs by" in caplog.text


def test_nothing_of_the_accelerator_s_branches_stays() -> None:
    with accelerator():
        pass
    assert not few_launches(torch.device("cpu"))
    assert not flash_fits(torch.device("cpu"), torch.bfloat16, 64)
    with Launches() as counted:
        F.dropout(torch.ones(8), 0.5)
    assert not counted.counts["native_dropout"]
