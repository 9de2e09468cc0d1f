"""The packed forward pass of BERT-like encoders against the library's padded one; what it launches on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from launches import Launches, accelerator
from torch import Tensor, nn
from toy_encoders import FAMILIES, SHAPE, model_of, sentences
from transformers import BertConfig, BertModel

from trainables.encoders import attention
from trainables.encoders.forward import padded_states
from trainables.encoders.packing import pack
from trainables.encoders.trunk import Trunk, joined, trunk_of


def weighted(states: dict[int, Tensor]) -> Tensor:
    return torch.stack([(s * torch.cos(torch.arange(s.numel()).view(s.shape))).sum() for s in states.values()]).sum()


def assert_same_gradients(ours: Tensor, theirs: Tensor, parameters: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    gradients = [torch.autograd.grad(total, parameters) for total in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def taken_apart(family: str, double: bool = False) -> tuple[Any, Trunk, list[Tensor]]:
    """A model, its trunk, and the parameters that a packed pass uses."""
    model = model_of(family).double() if double else model_of(family)
    trunk = trunk_of(model)
    assert trunk is not None
    return model, trunk, [p for name, p in model.named_parameters() if "pooler" not in name]


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_all_gradients_equal_the_padded_pass(family: str) -> None:
    model, trunk, parameters = taken_apart(family)
    packed = pack(sentences(), 16, [2], [3])
    ours, theirs = trunk.states(packed, (0, 1, 3)), padded_states(model, packed, (0, 1, 3))
    for number in theirs:
        torch.testing.assert_close(ours[number], theirs[number], rtol=0, atol=1e-5)
    assert_same_gradients(weighted(ours), weighted(theirs), parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_first_tokens_only_gives_the_same_vectors_and_gradients(family: str) -> None:
    _, trunk, parameters = taken_apart(family)
    packed = pack(sentences(), 16, [2], [3])
    full = trunk.states(packed, (3,))[3].index_select(0, packed.first)
    short = trunk.states(packed, (3,), first_tokens_only=True)[3]
    torch.testing.assert_close(short, full, rtol=0, atol=1e-5)
    assert_same_gradients(weighted({3: short}), weighted({3: full}), parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_sits_where_the_library_has_it(family: str) -> None:
    """Spread of the states of 400 copies per sentence agrees with the library's training mode.

    Over six seeds the ratios stayed within 0.05 of 1; without one of the hidden dropouts one moves by 0.1 or more.
    (Dropout of the attention probabilities is tested in test_packing.)
    """
    model, trunk, _ = taken_apart(family)
    for part in model.train().modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.2
    packed = pack([s for s in sentences((2, 5, 9)) for _ in range(400)], 16, [2], [3])
    torch.manual_seed(0)
    with torch.no_grad():
        ours, theirs = trunk.states(packed, (0, 3), 0.2), padded_states(model, packed, (0, 3))
    for number in (0, 3):
        for g in packed.groups:
            rows = slice(g.token, g.token + g.count * g.length)
            a, b = (states[number][rows].view(g.count, g.length, -1).var(0).mean() for states in (ours, theirs))
            assert float(a / b) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_accelerator_branch_computes_the_same(
    family: str, first_tokens_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projections in one product, a padded grid, dropout as an operator of its own: vectors and all gradients."""
    _, trunk, parameters = taken_apart(family, double=True)
    packed = pack(sentences(), 16, [2], [3])
    here = trunk.states(packed, (3,), first_tokens_only=first_tokens_only)
    monkeypatch.setattr(attention, "few_launches", lambda _: True)
    there = trunk.states(packed, (3,), first_tokens_only=first_tokens_only)
    torch.testing.assert_close(there[3], here[3], rtol=0, atol=1e-12)
    assert_same_gradients(weighted(there), weighted(here), parameters, 1e-11)


@pytest.mark.parametrize("first_tokens_only", [False, True])
def test_flash_attention_is_called_as_its_operator_wants(
    first_tokens_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device PyTorch checks the call and the shapes of everything, forward and backward, without a GPU."""
    packed = pack(sentences(), 16, [2], [3], "meta")
    monkeypatch.setattr(attention, "flash_fits", lambda *_, **__: True)
    shapes = ((len(packed), 32), (len(packed.ids), 64)) if first_tokens_only else ((len(packed.ids), 96),)
    given = [torch.empty(s, dtype=torch.bfloat16, device="meta", requires_grad=True) for s in shapes]
    with Launches() as counted:
        context = (attention.attend if first_tokens_only else attention.attend_joint)(*given, packed, 4, 0.1)
        context.sum().backward()
    assert counted.counts["_flash_attention_forward"] == counted.counts["_flash_attention_backward"] == 1
    assert context.shape == (shapes[0][0], 32)
    for tensor in given:
        assert tensor.grad is not None
        assert (tensor.grad.shape, tensor.grad.dtype) == (tensor.shape, torch.bfloat16)


def layers(*outs: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(3, out) for out in outs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_joined_weights_are_those_of_concatenation_and_cast(dtype: torch.dtype) -> None:
    query, key, value, out = every = layers(3, 3, 2, 4)
    groups = [[query, key, value], [out]]
    ours = [part for pair in joined(groups, dtype) for part in pair]
    theirs = [torch.cat([getattr(x, kind) for x in group]).to(dtype) for group in groups for kind in ("weight", "bias")]
    gradients = []
    for parts in (ours, theirs):
        total = torch.stack([(p * torch.arange(p.numel(), dtype=dtype).view_as(p)).sum() for p in parts]).sum()
        gradients.append(torch.autograd.grad(total, [p for layer in every for p in layer.parameters()]))
    assert all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(ours, theirs, strict=True))
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(*gradients, strict=True))


def test_joined_parameters_that_are_frozen_or_unused_have_no_gradient() -> None:
    query, key, out = layers(3, 3, 4)
    key.requires_grad_(False)
    (weight, _), _ = joined([[query, key], [out]], torch.bfloat16)
    weight.sum().backward()
    assert query.weight.grad is not None
    assert [p.grad for p in (query.bias, *key.parameters(), *out.parameters())] == [None] * 5


def test_a_layer_alone_in_its_own_type_is_not_copied() -> None:
    (out,) = layers(4)
    ((weight, bias),) = joined([[out]], torch.float32)
    assert weight is out.weight
    assert bias is out.bias


@pytest.mark.parametrize(
    ("lower", "most"),
    [(torch.bfloat16, 41), (None, 46)],  # casts of activations fall away in float32, flash attention too
)
def test_a_block_launches_no_more_than_it_did(lower: torch.dtype | None, most: int) -> None:
    """One more layer, forward and backward; what the step launches beside its layers is left out."""

    def launches(layers: int) -> Counter[str]:
        trunk = trunk_of(BertModel(BertConfig(**(SHAPE | {"num_hidden_layers": layers}), vocab_size=20)))
        assert trunk is not None
        packed = pack(sentences(), 16, [2], [3])
        with accelerator(), Launches() as counted, torch.autocast("cpu", lower, enabled=lower is not None):
            trunk.states(packed, (layers,), dropout=0.1)[layers].sum().backward()
        found: Counter[str] = counted.counts
        return found

    block = launches(3) - launches(2)
    assert block["_foreach_copy_"] == (2 if lower else 1), "weights are joined and cast at once"
    assert block.total() <= most, block


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


def test_flash_attention_failing_with_dropout_is_not_used_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the backward of heads wider than 192 on cards of compute capability 8.6; checking moves no generator."""
    asked = torch.device("cpu"), torch.bfloat16, 8
    with accelerator():
        right = attention._flash

        def narrow(q: Any, k: Any, v: Any, packed: Any, dropout: float, *rest: Any) -> Any:
            if dropout:
                torch.rand(1)
                raise RuntimeError("FlashAttention backward for head dim > 192 requires A100")
            return right(q, k, v, packed, dropout, *rest)

        assert attention.flash_drops(*asked)
        monkeypatch.setattr(attention, "_flash", narrow)
        before = torch.get_rng_state()
        assert attention.flash_agrees(*asked)
        assert not attention.flash_drops(*asked)
        assert torch.equal(before, torch.get_rng_state())
    assert "with dropout, heads of 8 on cpu failed (FlashAttention backward" in caplog.text


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_is_part_of_the_check_for_flash_attention(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(attention, "flash_fits", lambda *_, drops=False: asked.append(drops) or False)
    packed = pack(sentences(), 16, [2], [3])
    with patch.object(attention, "few_launches", lambda _: True):
        attention.attend_fused(*(torch.ones(len(packed.ids), n) for n in (16, 32)), packed, 2, dropout)
        attention.attend_joint(torch.ones(len(packed.ids), 48), packed, 2, dropout)
    assert asked == [dropout > 0] * 2


def test_other_families_are_left_alone() -> None:
    model = model_of("bert")
    model.config.model_type = "unheard-of"
    assert trunk_of(model) is None
