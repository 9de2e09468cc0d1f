"""LoRA adapters, frozen layers, learning rates by layer, recomputed layers: of every method on an encoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import session, spec_of, weights
from tiny_families import tiny
from torch import nn

from analysis.checkpoints.trained import load_trained
from search.space import SpaceError, space_from
from trainables.contract.config import EncoderConfig
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import EncoderError
from trainables.encoders import trunk
from trainables.encoders.adapters import blocks, depths, has_weights_above
from trainables.encoders.facts import adapted, unfit
from trainables.encoders.forward import packed_encoder, padded_states
from trainables.encoders.load import trained_model
from trainables.encoders.network import SentenceNetwork
from trainables.encoders.packing import pack
from trainables.methods.optimiser import adamw
from trainables.training import method_trial as inputs
from trainables.training.loop import Training
from trainables.training.trial import ProcessCache

pytestmark = pytest.mark.costly
LORA: dict[str, Any] = {"lora.rank": 4, "lora.alpha": 8, "learning_rate": 1e-2}
TAKEN_APART, BEHIND_INTERFACE = ("bert", "mpnet", "distilbert"), ("modernbert", "qwen3", "gpt2")
BLOCKS = {
    "bert": "encoder.layer.", "distilbert": "transformer.layer.", "qwen3": "layers.", "gpt2": "h.",
    "modernbert": "layers.", "opt": "decoder.layers.",
}  # fmt: skip


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


BATCH = [np.arange(5, 12, dtype=np.int32), np.arange(6, 9, dtype=np.int32)]


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize("family", TAKEN_APART + BEHIND_INTERFACE)
def test_packed_batches_honour_every_adapter_as_padded_ones_do(family: str, targets: str) -> None:
    loaded = tiny(family)
    assert loaded.packing_note == ""
    model: Any = trained_model(loaded, config(lora_targets=targets), seed=0).double().eval()
    layer, rng = model.config.num_hidden_layers, np.random.default_rng(0)
    batch = pack([rng.integers(5, 20, n).astype(np.int32) for n in (4, 9, 1, 4)], 16, (0,), (2,))
    encoder: Any = packed_encoder(model)
    before = encoder.states(batch, (layer,))[layer].detach()
    adapters = at_work(model)
    ours, theirs = encoder.states(batch, (layer,))[layer], padded_states(model, batch, (layer,))[layer]
    assert (ours - theirs).abs().max() <= 1e-9 * max(1.0, float(theirs.detach().abs().max()))
    assert (ours.detach() - before).abs().max() > 1e-2
    weights = torch.cos(torch.arange(ours.numel())).view(ours.shape)
    gradients = [torch.autograd.grad((s * weights).sum(), list(adapters.values())) for s in (ours, theirs)]
    for name, a, b in zip(adapters, *gradients, strict=True):
        assert (a - b).abs().max() <= 1e-9 * max(1.0, float(b.abs().max())), name
        assert a.abs().max() > 0, name


def test_keys_alone_and_values_alone_are_adapted() -> None:
    for name in ("key", "value"):
        model: Any = trained_model(tiny("bert"), config(lora_targets=name), seed=0).eval()
        batch = pack(BATCH, 16, (0,), (2,))
        at_work(model)
        ours, theirs = packed_encoder(model).states(batch, (2,))[2], padded_states(model, batch, (2,))[2]  # type: ignore[union-attr]
        assert (ours - theirs).abs().max() <= 1e-5


def test_the_last_layer_with_first_tokens_only() -> None:
    network: Any = SentenceNetwork(config(pooling="cls"), tiny("bert"), 0).eval()
    at_work(network.encoder)
    ours = network.embed(BATCH)
    network._packed_encoder = None
    assert (network.embed(BATCH) - ours).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_adapters_have_dropout_of_their_own(family: str) -> None:
    model: Any = trained_model(tiny(family), config(lora_dropout=0.5), seed=0)
    at_work(model)
    for training in (True, False):
        model.train(training)
        first, second = (packed_encoder(model).states(pack(BATCH, 16, (0,), (2,)), (2,))[2] for _ in range(2))  # type: ignore[union-attr]
        assert torch.equal(first, second) is not training


def test_a_trial_trains_and_stores_adapters_and_head_only(warm, tmp_path) -> None:
    full, _ = session(spec_of("simcse", tmp_path / "full"), warm)
    outcome, seen = session(spec_of("simcse", tmp_path / "lora", **LORA), warm)
    assert outcome.stop == full.stop == "completed", outcome.traceback
    stored = weights(tmp_path / "lora")
    assert {name.partition(".")[0] for name in stored} == {"encoder", "head"}
    assert all(".lora_" in name for name in stored if name.startswith("encoder."))
    assert any(value.abs().max() > 0 for name, value in stored.items() if ".lora_B." in name)
    (source,) = {id(i.source): i.source for i in warm._objects["inputs"].values()}.values()
    untouched = inputs.load_source(TRANSFORMER, source.source, "en").model.state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in source.model.state_dict().items())
    assert seen[-1].metrics["loss"] > 0


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
    whole, seen = session(spec_of(method, tmp_path / "whole", seed=3, **own), warm)
    assert whole.stop == "completed", whole.traceback
    spec = spec_of(method, tmp_path / "paused", seed=3, **own)
    assert session(spec, warm, ["pause"])[0].stop == "paused"
    again, rest = session(spec, ProcessCache() if method == "simcse" else warm)
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
    _, seen = session(spec, warm)
    assert types[0] == {torch.bfloat16}
    monkeypatch.setattr(
        "trainables.encoders.network.share_frozen_weights", lambda *_: None
    )  # weights stay float32, cast in every step
    _, there = session(dataclasses.replace(spec, folder=str(tmp_path / "cast")), warm)
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


@pytest.mark.parametrize("family", BLOCKS)
def test_freezing_reaches_embeddings_and_the_first_blocks(family: str) -> None:
    def trained(n: int | None) -> set[str]:
        model = trained_model(tiny(family), EncoderConfig(freeze=n), 0)
        return {name for name, p in model.named_parameters() if p.requires_grad}

    every = trained(None)
    first, second = ({name for name in every if name.startswith(f"{BLOCKS[family]}{n}.")} for n in (0, 1))
    embeddings, above = every - trained(0), trained(2)
    assert first
    assert second
    assert any("wte" in name or "embed" in name for name in embeddings)
    assert not embeddings & (first | second)
    assert trained(1) == every - embeddings - first
    assert above == every - embeddings - first - second
    assert not any("embed" in name or "wte" in name for name in above)
    assert bool(above) or family in ("bert", "distilbert")  # the last norm


def test_a_trial_leaves_frozen_layers_alone(warm, tmp_path) -> None:
    outcome, _ = session(spec_of("simcse", tmp_path, freeze=1, learning_rate=1e-3), warm)
    assert outcome.stop == "completed", outcome.traceback
    after = weights(tmp_path)
    before = load_trained(str(tmp_path), untrained=True).network.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert {n for n in before if "embeddings" in n or ".layer.0." in n} <= same
    assert any(".layer.1." in name for name in before.keys() - same)


@pytest.mark.parametrize("head", ["linear_tanh", "none"])
def test_learning_rates_by_layer(head: str) -> None:
    config = EncoderConfig(layer_decay=0.5, learning_rate=8e-4, head=head, pooling="cls")
    network = SentenceNetwork(config, tiny("bert"), 0)
    optimiser, scheduler = adamw(network, config, 10, 10)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    for name, p in network.named_parameters():
        place = "embed" if "embeddings" in name else "0" if ".layer.0." in name else "top"
        assert rates[id(p)] == pytest.approx({"embed": 2e-4, "0": 4e-4, "top": 8e-4}[place]), name
    assert scheduler.get_last_lr()[0] == 8e-4  # what is logged


def test_a_trial_with_layer_decay_is_resumed(warm, tmp_path) -> None:
    own: dict[str, Any] = {"layer_decay": 0.7, "learning_rate": 1e-3}
    session(spec_of("simcse", tmp_path / "whole", **own), warm)
    spec = spec_of("simcse", tmp_path / "paused", **own)
    assert session(spec, warm, ["pause"])[0].stop == "paused"
    session(spec, warm)
    session(spec_of("simcse", tmp_path / "plain", learning_rate=1e-3), warm)
    one, other, plain = (weights(tmp_path / name) for name in ("whole", "paused", "plain"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], plain[name]) for name in one)


def test_layers_computed_again_give_the_same_numbers(warm, tmp_path, monkeypatch) -> None:
    again: list[Any] = []
    checkpoint = trunk.checkpoint
    monkeypatch.setattr(trunk, "checkpoint", lambda *given, **how: again.append(1) or checkpoint(*given, **how))
    found = []
    for on in (True, False):
        own: dict[str, Any] = {"checkpointing": on, "dropout": 0.2, "lora.rank": 2}
        found.append(session(spec_of("simcse", tmp_path / str(on), **own), warm)[1])
        assert len(again) == 2 * 2  # layers of two steps; none more without
    assert [e.metrics["loss"] for e in found[0]] == [e.metrics["loss"] for e in found[1]]
    one, other = weights(tmp_path / "True"), weights(tmp_path / "False")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", ["qwen3", "deberta-v2"])
def test_recomputed_layers_of_the_library_give_the_same_gradients(family: str) -> None:
    gradients, calls = [], []
    for on in (True, False):
        own = EncoderConfig(checkpointing=on, pooling=tiny(family).facts.pooling, head="none", dropout=0.2)
        network = SentenceNetwork(own, tiny(family), 0).train()
        ran: list[int] = []
        for block in blocks(network.encoder):
            linear = next(m for m in block.modules() if isinstance(m, nn.Linear))
            linear.register_forward_hook(lambda *_, ran=ran: ran.append(1))
        torch.manual_seed(0)
        network.encode({"anchor": BATCH})["anchor"].square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
        calls.append(len(ran))
    assert calls[0] == 2 * calls[1]
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(g, gradients[1][name]) for name, g in gradients[0].items())


def test_what_an_encoder_cannot_do_is_refused_by_name() -> None:
    albert, bert = tiny("albert").facts, tiny("bert").facts
    asked = {"freeze": [None, 0, 3], "layer_decay": [1.0, 0.9], "checkpointing": [True]}
    assert unfit(bert, "here", asked) == [("freeze", "expected at most 2 for here, got 3")]
    assert unfit(albert, "here", {**asked, "checkpointing": [False]}) == [
        ("freeze", "expected at most 0 for here, got 3: the layers of albert share their weights"),
        ("layer_decay", "expected 1 for here, got 0.9: the layers of albert share their weights"),
    ]
    lacking = type(bert)(**{**vars(bert), "checkpointing": False})
    assert unfit(lacking, "here", {"checkpointing": [True]}) == [
        ("checkpointing", "expected false for here: transformers does not have it for bert")
    ]


def test_freezing_all_layers_leaves_something_to_train() -> None:
    frozen = {"freeze": [None, 2], "pooling": ["cls", "avg"], "head": ["none"], "mlm_weight": [0.0]}
    line = "expected at most 1 for here, got 2: no weight above the layers of bert would be trained, nor a head"
    facts = {name: tiny(name).facts for name in ("bert", "xlnet", "deberta-v2", "modernbert", "megatron-bert", "lfm2")}
    assert unfit(facts["bert"], "here", frozen) == [("freeze", line)]
    assert [name for name, known in facts.items() if unfit(known, "here", frozen | {"pooling": ["avg"]})] == [
        "bert", "xlnet", "deberta-v2",
    ]  # fmt: skip
    assert all(known.above for name, known in facts.items() if name in ("modernbert", "megatron-bert", "lfm2"))
    for trained in ({"head": ["none", "mlp_bn"]}, {"pooling": ["avg", "pretrained_pooler"]}, {"mlm_weight": [0.0, 0.1]},
                    {"freeze": [1]}):  # fmt: skip
        assert unfit(facts["bert"], "here", frozen | trained) == []
    assert unfit(facts["bert"], "here", frozen | {"pooling": ["avg"], "head": ["linear_tanh"]})  # avg has no head
    with pytest.raises(EncoderError, match="freeze: expected at most 1"):
        SentenceNetwork(EncoderConfig(pooling="avg", freeze=2), tiny("bert"), 0)


def test_what_deberta_has_beside_its_blocks_is_frozen_with_them() -> None:
    """v3 normalises its relative positions; v2 has a convolution beside the first block."""
    from transformers import DebertaV2Config, DebertaV2Model

    own = {"relative_attention": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3, "pos_att_type": ["c2p"]}
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = DebertaV2Model(DebertaV2Config(vocab_size=9, max_position_embeddings=16, **shape, **own))
    found = depths(model)
    beside = {n: found[id(p)] for n, p in model.named_parameters() if n.startswith("encoder.") and "layer." not in n}
    assert set(beside) == {
        "encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias",
        *(f"encoder.conv.{part}.{kind}" for part in ("conv", "LayerNorm") for kind in ("weight", "bias")),
    }  # fmt: skip
    assert beside == {name: 1 if "conv" in name else 0 for name in beside}
    assert not has_weights_above(model)


def test_adapters_and_frozen_layers_do_not_go_together() -> None:
    params = {"lora": {"rank": 4}, "freeze": 1, "temperature": {"choice": [0.05, 0.1]}}
    with pytest.raises(SpaceError, match=r"params\.freeze: does not go with lora\.rank above 0"):
        space_from({
            "method": "simcse", "encoder": "builtin:tiny", "data": {"train": "builtin", "dev": ["builtin"]},
            "metric": {"name": "builtin_dev"}, "params": params, "search": {"sampler": "grid"},
        })  # fmt: skip
