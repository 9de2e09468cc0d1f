"""Packed batches behind transformers' attention interface, against the library's padded pass; the packing check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import tiny
from torch import Tensor
from toy_encoders import SHAPE, model_of
from transformers import DebertaV2Config, DebertaV2Model

from trainables.encoders import attention, forward
from trainables.encoders.forward import Interface, packed_encoder, packing_note, padded_states
from trainables.encoders.load import make_model
from trainables.encoders.packing import Packed, pack

FAMILIES = (
    "modernbert",
    "albert",
    "data2vec-text",
    "mistral",
    "qwen3",
    "gemma3_text",
)  # windows, positions, few heads  # windows, positions, few heads
LAYERS = (0, 1, 2)


def batch() -> Packed:
    """Sentences shorter and longer than the families' windows."""
    rng = np.random.default_rng(0)
    return pack([rng.integers(5, 20, n).astype(np.int32) for n in (4, 14, 1, 9, 4)], 32, (0,), (2,))


def weighted(states: dict[int, Tensor]) -> Tensor:
    return torch.stack([(s * torch.cos(torch.arange(s.numel()).view(s.shape))).sum() for s in states.values()]).sum()


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_and_all_gradients_equal_the_padded_pass(family: str, both_ways: bool) -> None:
    loaded = tiny(family)
    assert loaded.packing_note == ""
    if both_ways and not loaded.facts.bidirectional:
        pytest.skip("an encoder sees both ways anyway")
    model: Any = make_model(loaded, 0.1, bidirectional=both_ways).eval()
    encoder = packed_encoder(model)
    assert isinstance(encoder, Interface)
    parameters = [p for name, p in model.named_parameters() if "pooler" not in name]
    ours, theirs = encoder.states(batch(), LAYERS), padded_states(model, batch(), LAYERS)
    for number in LAYERS:
        assert (ours[number] - theirs[number]).abs().max() <= 1e-5 * max(
            1.0, float(theirs[number].detach().abs().max())
        )
    gradients = [torch.autograd.grad(weighted(states), parameters, allow_unused=True) for states in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None) is (b is None)
        assert a is None or (a - b).abs().max() <= 1e-5 * max(1.0, float(b.abs().max()))
    assert model.config._attn_implementation == "sdpa"  # as it was


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_bf16_agrees_with_float32_up_to_rounding(family: str) -> None:
    """Rotated queries are float32 there, whatever the precision of the layers."""
    model: Any = make_model(tiny(family), 0.0).train()
    encoder = packed_encoder(model)
    assert isinstance(encoder, Interface)
    parameters = [p for name, p in model.named_parameters() if "pooler" not in name]
    exact = encoder.states(batch(), (2,))
    with torch.autocast("cpu", torch.bfloat16):
        low = encoder.states(batch(), (2,))
    gradients = [torch.autograd.grad(weighted(states), parameters, allow_unused=True) for states in (low, exact)]
    pairs = [(low[2], exact[2]), *((a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)]
    assert len(pairs) > 10
    for a, b in pairs:
        assert float((a - b).detach().norm()) <= 0.05 * float(b.detach().norm())


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_attention_dropout_is_p(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    original = attention.keep_noise

    def watched(*args: Any) -> Tensor:
        drawn.append(original(*args))
        return drawn[-1]

    monkeypatch.setattr(attention, "keep_noise", watched)
    model: Any = make_model(tiny(family), 0.4).train()
    encoder = packed_encoder(model)
    assert isinstance(encoder, Interface)
    with torch.no_grad():
        first, second = (encoder.states(batch(), (2,))[2] for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-3)
    assert len(drawn) == 2 * 2  # a layer, a pass
    share = torch.cat(drawn).eq(0).float()
    assert abs(float(share.mean()) - 0.4) <= 6 * (0.24 / len(share)) ** 0.5


def test_an_unsupported_attention_is_padded() -> None:
    assert tiny("gemma2").packing_note == "the packing check failed with NotImplementedError: batches are padded"
    assert "packed and padded passes differ by" in tiny("lfm2").packing_note  # its convolutions run across sentences
    query = torch.randn(1, 2, 5, 4)
    with pytest.raises(NotImplementedError, match="softcap"):
        forward.packed_attention(None, query, query, query, None, softcap=30.0, packed_sentences=batch())


def test_an_unknown_family_is_padded_with_a_note() -> None:
    model = DebertaV2Model(DebertaV2Config(vocab_size=19, **SHAPE)).eval()
    assert packing_note(model, (2,), (3,)) == "packing does not support the family deberta-v2: batches are padded"


def test_a_failed_check_means_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bert")
    assert packing_note(model, (2,), (3,)) == ""
    original = forward.trunk_of

    def wrong(model: Any) -> Any:
        trunk = original(model)
        assert trunk is not None
        return type(trunk)(**{**vars(trunk), "first_position": 1})

    monkeypatch.setattr(forward, "trunk_of", wrong)
    assert "packed and padded passes differ by" in packing_note(model, (2,), (3,))
    monkeypatch.setattr(forward, "trunk_of", lambda m: type(original(m))(**{**vars(original(m)), "heads": 5}))
    assert "the packing check failed with RuntimeError: batches are padded" in packing_note(model, (2,), (3,))


@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (False, None)])
def test_decoders_hand_one_type_and_causality_to_flash_attention(
    causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast rotations leave queries and keys in float32."""
    given: list[Any] = []

    def flash(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        given.append((q.dtype, k.dtype, v.dtype, rest[2:]))
        return v.flatten(1)

    monkeypatch.setattr(attention, "few_launches", lambda _: True)
    monkeypatch.setattr(attention, "flash_fits", lambda *_, **__: True)
    monkeypatch.setattr(attention, "_flash", flash)
    q, k = (torch.randn(len(batch().ids), 2, 8) for _ in range(2))
    attention.attend_masked(q, k, q.bfloat16(), batch(), 0.0, causal, window)
    masks = (causal, window) if causal else ()
    assert given == [(torch.bfloat16, torch.bfloat16, torch.bfloat16, masks)]
