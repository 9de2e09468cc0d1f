"""LoRA: adapters that train, on packed and padded batches alike, beside weights that nobody changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import life, spec_of, weights
from tiny_families import tiny

from trainables.contract.config import EncoderConfig
from trainables.encoders.facts import adapted, unfit
from trainables.encoders.forward import packed_encoder, padded_states
from trainables.encoders.load import trained_model
from trainables.encoders.network import SentenceNetwork
from trainables.encoders.packing import pack
from trainables.training import inputs
from trainables.training.loop import Training
from trainables.training.trial import ProcessCache

pytest.importorskip("peft", reason="LoRA needs peft")
pytestmark = pytest.mark.costly

LORA: dict[str, Any] = {"lora.rank": 4, "lora.alpha": 8, "learning_rate": 1e-2}
TAKEN_APART, BEHIND_INTERFACE = ("bert", "mpnet", "distilbert"), ("modernbert", "qwen3", "gpt2")


@pytest.fixture(scope="module")
def warm():
    return ProcessCache()


def config(**own: Any) -> EncoderConfig:
    return EncoderConfig(**{"lora_rank": 4, "pooling": "avg", "dropout": 0.0, "max_length": 16, "head": "none", **own})


def at_work(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The adapters, changed so that they add something; peft starts them at 0."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in found)
    draws = torch.Generator().manual_seed(0)
    for p in found.values():
        p.data.copy_(torch.randn(p.shape, generator=draws) * 0.1)
    return found


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize("family", TAKEN_APART + BEHIND_INTERFACE)
def test_packed_batches_honour_every_adapter_as_padded_ones_do(family: str, targets: str) -> None:
    loaded = tiny(family)
    assert loaded.packing_note == ""
    model: Any = trained_model(loaded, config(lora_targets=targets), seed=0).double().eval()
    layer, rng = (model.config.num_hidden_layers,), np.random.default_rng(0)
    batch = pack([rng.integers(5, 20, n).astype(np.int32) for n in (4, 9, 1, 4)], 16, (0,), (2,))
    way: Any = packed_encoder(model)
    before = way.states(batch, layer)[layer[0]].detach()
    adapters = at_work(model)
    gradients, states = [], []
    for found in (way.states(batch, layer), padded_states(model, batch, layer)):
        states.append(found[layer[0]])
        total = (states[-1] * torch.cos(torch.arange(states[-1].numel()).view(states[-1].shape))).sum()
        gradients.append(torch.autograd.grad(total, list(adapters.values())))
    assert (states[0] - states[1]).abs().max() <= 1e-9 * max(1.0, float(states[1].detach().abs().max()))
    assert (states[0].detach() - before).abs().max() > 1e-2
    for name, ours, theirs in zip(adapters, *gradients, strict=True):
        assert (ours - theirs).abs().max() <= 1e-9 * max(1.0, float(theirs.abs().max())), name
        assert ours.abs().max() > 0, name


def test_keys_alone_and_values_alone_are_adapted() -> None:
    for name in ("key", "value"):
        model: Any = trained_model(tiny("bert"), config(lora_targets=name), seed=0).eval()
        batch = pack([np.arange(5, 12, dtype=np.int32), np.arange(6, 9, dtype=np.int32)], 16, (0,), (2,))
        at_work(model)
        ours, theirs = packed_encoder(model).states(batch, (2,))[2], padded_states(model, batch, (2,))[2]  # type: ignore[union-attr]
        assert (ours - theirs).abs().max() <= 1e-5


def test_the_last_layer_with_first_tokens_only() -> None:
    loaded = tiny("bert")
    whole: Any = SentenceNetwork(config(pooling="cls"), loaded, 0).eval()
    at_work(whole.encoder)
    sentences = [np.arange(5, 12, dtype=np.int32), np.arange(6, 9, dtype=np.int32)]
    ours = whole.embed(sentences)
    whole._packed_encoder = None
    assert (whole.embed(sentences) - ours).abs().max() <= 1e-5


def test_dropout_of_the_adapters_is_theirs() -> None:
    batch = pack([np.arange(5, 12, dtype=np.int32)], 16, (0,), (2,))
    for family in ("bert", "qwen3"):
        model: Any = trained_model(tiny(family), config(lora_dropout=0.5), seed=0).train()
        at_work(model)
        first, second = (packed_encoder(model).states(batch, (2,))[2] for _ in range(2))  # type: ignore[union-attr]
        assert not torch.equal(first, second)
        model.eval()
        first, second = (packed_encoder(model).states(batch, (2,))[2] for _ in range(2))  # type: ignore[union-attr]
        assert torch.equal(first, second)


def test_a_trial_trains_and_stores_adapters_and_head_only(warm, tmp_path) -> None:
    full, _ = life(spec_of("simcse", tmp_path / "full"), warm)
    outcome, seen = life(spec_of("simcse", tmp_path / "lora", **LORA), warm)
    assert outcome.stop == full.stop == "completed", outcome.traceback
    stored = weights(tmp_path / "lora")
    assert {name.partition(".")[0] for name in stored} == {"encoder", "head"}
    assert all(".lora_" in name for name in stored if name.startswith("encoder."))
    assert any(value.abs().max() > 0 for name, value in stored.items() if ".lora_B." in name)
    (source,) = {id(i.source): i.source for i in warm._kept["inputs"].values()}.values()
    untouched = inputs.load_source(source_family(), source.source, "en").model.state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in source.model.state_dict().items())
    assert seen[-1].metrics["loss"] > 0


def source_family() -> Any:
    from trainables.contract.declaration import TRANSFORMER

    return TRANSFORMER


def test_trials_of_a_process_share_the_frozen_weights() -> None:
    loaded = tiny("bert")
    first, second = (SentenceNetwork(config(), loaded, seed) for seed in (0, 1))
    for network in (first, second):
        network.move_to_device(torch.device("cpu"), bf16=False)
    theirs = dict(second.named_parameters())
    given = {p.data_ptr() for p in loaded.model.parameters()}
    frozen = {name: p for name, p in first.named_parameters() if not p.requires_grad}
    assert len(frozen) > 20
    for name, p in frozen.items():
        assert p.data_ptr() == theirs[name].data_ptr()
        assert p.data_ptr() in given
    assert all(p.requires_grad for p in loaded.model.parameters())  # another trial may train all of it
    assert not torch.equal(*(next(v for n, v in net.named_parameters() if ".lora_A" in n) for net in (first, second)))


@pytest.mark.parametrize(
    "method", ["simcse", *(pytest.param(m, marks=pytest.mark.slow) for m in ("esimcse", "diffcse"))]
)
def test_a_paused_trial_ends_as_an_undisturbed_one(method, warm, tmp_path) -> None:
    own = LORA | {"lora.dropout": 0.2}
    whole, seen = life(spec_of(method, tmp_path / "whole", seed=3, **own), warm)
    assert whole.stop == "completed", whole.traceback
    spec = spec_of(method, tmp_path / "paused", seed=3, **own)
    assert life(spec, warm, ["pause"])[0].stop == "paused"
    again, rest = life(spec, ProcessCache() if method == "simcse" else warm)
    assert rest[0].resumed_from == 8
    assert (again.best, rest[-1].metrics["loss"]) == (whole.best, seen[-1].metrics["loss"])
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "paused")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_base_in_bf16_gives_the_numbers_of_autocast(warm, tmp_path, monkeypatch) -> None:
    spec = spec_of("simcse", tmp_path / "bf16", **LORA | {"precision": "bf16"})
    types = []
    step = Training._step

    def watched(self, batch):
        types.append({p.dtype for name, p in self.network.named_parameters() if name.endswith("base_layer.weight")})
        step(self, batch)

    monkeypatch.setattr(Training, "_step", watched)
    _, seen = life(spec, warm)
    assert types[0] == {torch.bfloat16}
    monkeypatch.setattr(
        "trainables.encoders.network.share_frozen_weights", lambda *_: None
    )  # weights stay float32, cast in every step
    _, there = life(dataclasses.replace(spec, folder=str(tmp_path / "cast")), warm)
    assert types[-1] == {torch.float32}
    assert [e.value for e in seen] == [e.value for e in there]
    assert [e.metrics["loss"] for e in seen] == [e.metrics["loss"] for e in there]


def test_targets() -> None:
    linear = (
        "encoder.layer.attention.self.query",
        "encoder.layer.attention.output.dense",
        "encoder.layer.output.dense",
    )
    assert adapted(linear, "all-linear") == {"all-linear": list(linear)}
    assert adapted(linear, "attention")["attention"] == list(linear[:2])
    assert adapted(linear, "query, layer.output.dense") == {"query": [linear[0]], "layer.output.dense": [linear[2]]}
    assert adapted(linear, "uery") == {"uery": []}
    assert adapted(linear, "") == {"": []}


def test_a_name_without_layers_and_a_missing_peft_are_refused(monkeypatch) -> None:
    facts = tiny("bert").facts
    asked = {"lora.rank": [0, 8], "lora.targets": ["all-linear", "query,nowhere"]}
    assert unfit(facts, "here", asked) == [
        ("lora.targets", "'nowhere' names no linear layer of here (bert); its own: query, key, value, dense")
    ]
    assert unfit(facts, "here", {**asked, "lora.rank": [0]}) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert unfit(facts, "here", {"lora.rank": [8]}) == [
        ("lora.rank", 'needs peft, which is not installed: pip install "contrastive-search[lora]"')
    ]
