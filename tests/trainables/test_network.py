"""SentenceNetwork: roles, poolings, heads, evaluation, the MLM term, packed and padded batches."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy_encoders import FAMILIES, SHAPE, save, sentences, tokenizer_of
from transformers import BertConfig, BertForMaskedLM

from trainables.contract.config import POOLINGS, EncoderConfig
from trainables.contract.errors import EncoderError
from trainables.encoders.heads import MlmHead, make_head
from trainables.encoders.load import LoadedEncoder, load_encoder
from trainables.encoders.network import SentenceNetwork, average, mask_tokens, wanted_states
from trainables.encoders.packing import pack
from trainables.methods.simcse.config import SimcseConfig


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedEncoder]:
    return {f: load_encoder(str(save(f, tmp_path_factory.mktemp(f)))) for f in FAMILIES}


def network_of(loaded: LoadedEncoder, **params: Any) -> SentenceNetwork:
    return SentenceNetwork(SimcseConfig(**{"dropout": 0.0, "max_length": 16, **params}), loaded, seed=1)


def alone(loaded: LoadedEncoder, tokens: np.ndarray, pooling: str) -> torch.Tensor:
    """One sentence through the library's model, pooled by the definitions of methods 1.3."""
    ids = torch.tensor([[*loaded.prefix, *tokens.tolist(), *loaded.suffix]])
    with torch.no_grad():
        out = loaded.model(input_ids=ids, output_hidden_states=True)
    h = [state[0] for state in out.hidden_states]
    return {
        "cls": lambda: h[-1][0],
        "cls_before_pooler": lambda: h[-1][0],
        "last": lambda: h[-1][-1],
        "avg": lambda: h[-1].mean(0),
        "avg_first_last": lambda: ((h[1] + h[-1]) / 2).mean(0),
        "avg_top2": lambda: ((h[-2] + h[-1]) / 2).mean(0),
        "pretrained_pooler": lambda: out.pooler_output[0],
    }[pooling]()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_each_sentence_alone(
    loaded: dict[str, LoadedEncoder], family: str, pooling: str, packed: bool
) -> None:
    source = loaded[family] if packed else replace(loaded[family], packing_note="for this test")
    if family == "distilbert" and pooling == "pretrained_pooler":
        with pytest.raises(EncoderError, match="has none"):
            network_of(source, pooling=pooling)
        return
    network = network_of(source, pooling=pooling)
    assert (network._packed_encoder is not None) is packed
    given = sentences()
    expected = torch.stack([alone(source, tokens, pooling) for tokens in given])
    torch.testing.assert_close(network.embed(given), expected, rtol=0, atol=1e-5)
    network.train()
    views = network.encode({"anchor": given[:3], "positive": given[3:]})
    torch.testing.assert_close(torch.cat([views["anchor"], views["positive"]]), expected, rtol=0, atol=1e-5)
    assert [len(v) for v in views.values()] == [3, 5]


def test_copies_of_a_sentence_get_their_own_dropout(loaded: dict[str, LoadedEncoder]) -> None:
    network = network_of(loaded["bert"], dropout=0.3).train()
    given = sentences()
    torch.manual_seed(0)
    first = network.encode({"anchor": given, "positive": given})
    assert (first["anchor"] - first["positive"]).abs().amax(1).min() > 1e-3
    torch.manual_seed(0)
    again = network.encode({"anchor": given, "positive": given})
    assert torch.equal(first["anchor"], again["anchor"])
    before = network.embed(given)
    assert network.training
    assert torch.equal(before, network.embed(given))


def test_embed_encodes_once_in_chunks_and_keeps_the_order(
    loaded: dict[str, LoadedEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(loaded["bert"])
    given = [*sentences(), *sentences((3, 15, 20, 6), 1), sentences()[2], sentences()[0]]
    whole = network.embed(given)
    assert whole.dtype == torch.float32
    assert not whole.requires_grad
    sizes: list[int] = []
    original = network._evaluated

    def counted(some: Any) -> torch.Tensor:
        sizes.append(len(some))
        return original(some)

    monkeypatch.setattr("trainables.encoders.network.TOKENS_AT_ONCE", {"cpu": 20})
    monkeypatch.setattr(network, "_evaluated", counted)
    torch.testing.assert_close(network.embed(given), whole, rtol=0, atol=1e-5)
    assert sum(sizes) == len({s.tobytes() for s in given}) == len(given) - 2
    assert len(sizes) > 3
    assert torch.equal(whole[2], whole[-2])


@pytest.mark.parametrize("head_at", ["train_only", "train_and_test"])
@pytest.mark.parametrize("head", ["linear_tanh", "mlp_bn", "none"])
def test_heads_in_training_and_at_test(loaded: dict[str, LoadedEncoder], head: str, head_at: str) -> None:
    network = network_of(loaded["bert"], head=head, head_at=head_at).train()
    raw = network_of(loaded["bert"], head="none").embed(sentences())
    projected = network.project({"a": raw[:4], "b": raw[4:]})
    joint = raw if network.head is None else copy.deepcopy(network.head).train()(raw)
    torch.testing.assert_close(torch.cat([projected["a"], projected["b"]]), joint)
    network.eval()
    expected = raw if head == "none" or head_at == "train_only" else network.head(raw)  # type: ignore[misc]
    torch.testing.assert_close(network.embed(sentences()), expected, rtol=0, atol=1e-5)
    assert network_of(loaded["bert"], pooling="avg", head=head).head is None


def test_bfloat16_autocast_trains(loaded: dict[str, LoadedEncoder]) -> None:
    for family in FAMILIES:
        network = network_of(loaded[family], dropout=0.1, mlm_weight=0.1).train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = network.encode({"a": sentences()})["a"]
            term = network.mlm_loss({"a": sentences()}, np.random.default_rng(0))
        assert vectors.dtype == torch.float32
        (vectors.square().sum() + term).backward()
        gradients = [p.grad for p in network.encoder.parameters()]
        assert all(g is not None and torch.isfinite(g).all() for g in gradients)
    plain, network = network_of(loaded["bert"], dropout=0.0).embed(sentences()), network_of(loaded["bert"], dropout=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (network.embed(sentences()) - plain).abs().max() < 0.1


def test_weights_come_back(tmp_path: Path) -> None:
    network = network_of(load_encoder(str(save("bert", tmp_path))), head="mlp_bn", head_at="train_and_test")
    given, kept = sentences(), copy.deepcopy(network.state_dict())
    before = network.embed(given)
    parameters = [id(p) for p in network.parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    assert not torch.equal(network.embed(given), before)
    network.load_state_dict(kept)
    assert torch.equal(network.embed(given), before)
    assert [id(p) for p in network.parameters()] == parameters
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        with torch.no_grad():
            twin.encoder.get_input_embeddings().weight.mul_(2)
        assert torch.equal(network.embed(given), before)
        assert not torch.equal(twin.embed(given), before)  # the copy's packed pass uses the copy's weights


def test_seed_decides_the_new_weights(loaded: dict[str, LoadedEncoder]) -> None:
    config = SimcseConfig(mlm_weight=0.1)
    first, again, other = (SentenceNetwork(config, loaded["bert"], seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    differ = {k.split(".")[0] for k in first if not torch.equal(first[k], other[k])}
    assert differ == {"head", "mlm_head"}


def test_limits_are_named(loaded: dict[str, LoadedEncoder]) -> None:
    with pytest.raises(EncoderError, match=r"max_length: expected at most 40 for .*, got 41"):
        network_of(loaded["bert"], max_length=41)
    with pytest.raises(EncoderError, match=r"max_length: expected at most 38 for .*, got 39"):
        network_of(loaded["roberta"], max_length=39)
    no_mask = replace(loaded["bert"], facts=replace(loaded["bert"].facts, mask_token=False))
    with pytest.raises(EncoderError, match="has no mask token"):
        network_of(no_mask, mlm_weight=0.1)
    with pytest.raises(ValueError, match="mlm_loss: expected mlm_weight > 0"):
        network_of(loaded["bert"]).mlm_loss({"a": sentences()}, np.random.default_rng(0))


def test_masking_follows_bert() -> None:
    ids = np.full(200_000, 9)
    candidates = np.arange(0, len(ids), 2)
    found = mask_tokens(torch.from_numpy(ids), candidates, 0.15, 4, 1000, np.random.default_rng(0))
    masked, chosen = (tensor.numpy() for tensor in found)
    assert set(chosen) <= set(candidates)
    assert (ids == 9).all()
    untouched = np.ones(len(ids), bool)
    untouched[chosen] = False
    assert (masked[untouched] == 9).all()
    # Shares of 100,000 and 15,000 draws, six standard deviations.
    assert len(chosen) / len(candidates) == pytest.approx(0.15, abs=0.007)
    assert (masked[chosen] == 4).mean() == pytest.approx(0.8 + 0.0001, abs=0.02)
    assert (masked[chosen] == 9).mean() == pytest.approx(0.1 + 0.0001, abs=0.015)


@pytest.mark.parametrize("packed", [True, False])
def test_mlm_term_equals_the_library(packed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=19, **SHAPE)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    loaded = load_encoder(str(tmp_path))
    network = network_of(loaded if packed else replace(loaded, packing_note="for this test"), mlm_weight=0.1).train()
    given = sentences()
    got = network.mlm_loss({"a": given[:5], "b": given[5:]}, np.random.default_rng(3))
    batch = network._pack(given)
    body = np.array([t for s, n in zip(batch.starts, batch.lengths, strict=True) for t in range(s + 1, s + n - 1)])
    masked, chosen = mask_tokens(batch.ids, body, 0.15, 4, 19, np.random.default_rng(3))
    assert len(chosen) > 2
    labels = torch.full_like(batch.ids, -100)
    labels[chosen] = batch.ids[chosen]
    expected = model(input_ids=batch.pad(masked), attention_mask=batch.mask.long(), labels=batch.pad(labels, -100)).loss
    assert got.item() == pytest.approx(expected.item(), abs=1e-5)
    got.backward()
    assert network.mlm_head is not None
    assert network.mlm_head.dense.weight.grad.abs().max() > 0


def test_mlm_term_is_zero_when_nothing_is_masked(loaded: dict[str, LoadedEncoder]) -> None:
    network = network_of(loaded["bert"], mlm_weight=0.1, mlm_probability=1e-9)
    loss = network.mlm_loss({"a": sentences()}, np.random.default_rng(0))
    loss.backward()
    assert loss.item() == 0.0


def test_linear_tanh_is_its_formula() -> None:
    head = make_head("linear_tanh", 8, seed=1)
    assert head is not None
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    weight, bias = head.parameters()
    torch.testing.assert_close(head(x), torch.tanh(x @ weight.T + bias))


def test_mlp_bn_is_diffcse_projector() -> None:
    head = make_head("mlp_bn", 8, seed=1)
    assert head is not None
    assert [tuple(p.shape) for p in head.parameters()] == [(16, 8), (16,), (16,), (8, 16)]
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    first, scale, shift, second = head.parameters()

    def normal(v: torch.Tensor) -> torch.Tensor:
        return (v - v.mean(0)) / (v.var(0, unbiased=False) + 1e-5).sqrt()

    expected = normal(torch.relu(normal(x @ first.T) * scale + shift) @ second.T)
    torch.testing.assert_close(head(x), expected, rtol=1e-4, atol=1e-5)


def test_heads_none_and_unknown() -> None:
    assert make_head("none", 8, seed=0) is None
    with pytest.raises(ValueError, match="expected one of linear_tanh, mlp_bn, none, got 'mlp'"):
        make_head("mlp", 8, seed=0)


def test_mlm_head_takes_what_the_checkpoint_has() -> None:
    pretrained = {"dense.weight": torch.eye(4), "dense.bias": torch.ones(4), "bias": torch.arange(6.0)}
    head = MlmHead(4, (6, 4), pretrained, seed=0)
    decoder = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = F.layer_norm(F.gelu(x + 1), (4,), eps=1e-12) @ decoder.T + torch.arange(6.0)
    torch.testing.assert_close(head(x, decoder), expected)


def test_states_of_every_pooling() -> None:
    several = {"avg_first_last": (1, 12), "avg_top2": (11, 12)}
    assert {p: wanted_states(p, 12) for p in POOLINGS} == {p: several.get(p, (12,)) for p in POOLINGS}
    with pytest.raises(ValueError, match=r"pooling: expected one of cls, .*, got 'max'"):
        wanted_states("max", 12)


@pytest.mark.parametrize("numbers", [(3,), (1, 3)])
def test_average_is_over_layers_and_own_tokens(numbers: tuple[int, ...]) -> None:
    packed = pack([np.zeros(n, np.int32) for n in (4, 0, 2)], 16, [1], [2])
    generator = torch.Generator().manual_seed(0)
    states = {n: torch.randn(len(packed.ids), 5, dtype=torch.float64, generator=generator) for n in numbers}
    got = average(states, packed)
    for i, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
        rows = [state[t] for state in states.values() for t in range(start, start + length)]
        torch.testing.assert_close(got[i], sum(rows) / len(rows))


def test_half_precision_states_are_summed_in_float32() -> None:
    packed = pack([np.zeros(300, np.int32)], 302, [1], [2])
    states = torch.ones(302, 2, dtype=torch.bfloat16)  # a bfloat16 sum of ones stops growing at 256
    assert torch.equal(average({3: states}, packed), torch.ones(1, 2))


def test_evaluations_cut_texts_where_training_of_the_encoder_did(tmp_path: Path) -> None:
    """`eval_max_length`, else the folder's max_seq_length, else all positions; and what an export would write."""
    save("bert", tmp_path)
    text = sentences((30,))[0]

    def length_read(asked: int | None = None) -> int:
        network = SentenceNetwork(EncoderConfig(eval_max_length=asked), load_encoder(str(tmp_path)), 0)
        whole, *cut = network.embed([text, *(text[: n - 2] for n in range(4, 33))])  # the last one is the whole text
        read = next(n for n, vector in enumerate(cut, start=4) if torch.allclose(vector, whole, atol=1e-6))
        assert read == min(network.longest, 32)
        return network.longest

    assert (length_read(), length_read(16)) == (SHAPE["max_position_embeddings"], 16)
    (tmp_path / "modules.json").write_text('[{"type": "a.Transformer"}]')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    assert (length_read(), length_read(16)) == (9, 16)
    with pytest.raises(EncoderError, match=r"eval_max_length: expected at most 40 for .*, got 41"):
        length_read(41)
