"""The baselines: every formula against plain loops, every augmentation against its paper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainables.contract.config import build, hyperparameters, values
from trainables.contract.registry import declared
from trainables.encoders.load import load_encoder
from trainables.encoders.packing import pack
from trainables.methods.baselines import arccse, consert, diffcse, esimcse, mirror_bert, sncse, whitening
from trainables.methods.losses import nt_xent
from trainables.methods.method import Batch, Examples, load_method, sampled
from trainables.training.method_trial import load_inputs

TOKENS = np.arange(20, 40, dtype=np.int32)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return load_encoder("builtin:tiny")


def config_of(name: str, **values: Any) -> Any:
    return build(declared(name).config, values)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cos(a: Tensor, b: Tensor) -> float:
    a, b = a.tolist(), b.tolist()
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def softmax_loss(logits: list[float], target: int) -> float:
    return math.log(sum(map(math.exp, logits))) - logits[target]


def simcse(z: dict[str, Tensor], tau: float) -> float:
    n = len(z["anchor"])
    return sum(
        softmax_loss([cos(z["anchor"][i], z["positive"][j]) / tau for j in range(n)], i) for i in range(n)
    ) / n  # fmt: skip


def roles(*names: str) -> dict[str, Tensor]:
    return {name: vectors(4, 3, seed=i) for i, name in enumerate(names)}


# ------------------------------------------------------------------ losses
def test_esimcse_has_the_queue_in_the_denominator() -> None:
    z, tau = roles("anchor", "positive") | {"queue": vectors(5, 3, seed=9)}, 0.3
    expected = 0.0
    for i, anchor in enumerate(z["anchor"]):
        expected += softmax_loss([cos(anchor, c) / tau for c in [*z["positive"], *z["queue"]]], i) / 4
    config = config_of("esimcse", temperature=tau)
    assert esimcse.loss(z, config).item() == pytest.approx(expected)
    assert esimcse.loss(z | {"queue": z["queue"][:0]}, config).item() == pytest.approx(simcse(z, tau))


def test_arccse_adds_the_margin_to_the_positives_angle() -> None:
    z, tau, m = roles("anchor", "positive", "whole", "masked", "masked more"), 0.4, math.radians(25)
    n, pairs, triplets = 4, 0.0, 0.0
    for i in range(n):
        logits = [cos(z["anchor"][i], z["positive"][j]) / tau for j in range(n)]
        logits[i] = math.cos(min(math.pi, math.acos(logits[i] * tau) + m)) / tau
        pairs += softmax_loss(logits, i) / n
        far, near = cos(z["whole"][i], z["masked more"][i]), cos(z["whole"][i], z["masked"][i])
        triplets += max(0.0, far - near + 0.1) / n
    config = config_of("arccse", temperature=tau, margin_degrees=25.0, triplet_weight=0.7, triplet_margin=0.1)
    assert arccse.loss(z, config).item() == pytest.approx(pairs + 0.7 * triplets)
    assert triplets > 0
    without = config_of("arccse", temperature=tau, margin_degrees=0.0, triplet_weight=0.0)
    assert arccse.loss(z, without).item() == pytest.approx(simcse(z, tau))


def test_the_angular_margin_has_a_slope_where_the_views_coincide() -> None:
    anchor = vectors(3, 4).requires_grad_()
    arccse.arc_con(anchor, anchor.detach().clone(), 0.05, math.radians(10)).backward()
    assert anchor.grad is not None
    assert torch.isfinite(anchor.grad).all()


def test_sncse_keeps_the_soft_negative_in_a_band() -> None:
    z, tau, alpha, beta = roles("anchor", "positive", "negation"), 0.3, 0.1, 0.3
    bml, sides = 0.0, set()
    for a, p, q in zip(*z.values(), strict=True):
        d = cos(a, q) - cos(a, p)
        bml += (max(0.0, d + alpha) + max(0.0, -d - beta)) / 4
        sides.add(d + alpha > 0)
    assert sides == {True, False}
    config = config_of("sncse", temperature=tau, alpha=alpha, beta=beta, soft_weight=0.5)
    assert sncse.loss(z, config).item() == pytest.approx(simcse(z, tau) + 0.5 * bml)


@pytest.mark.parametrize("module", [consert, mirror_bert])
def test_both_views_meet_in_nt_xent(module: Any) -> None:
    z = roles("anchor", "positive")
    config = config_of(module.__name__.rsplit(".", 1)[1], temperature=0.2)
    assert module.loss(z, config) == nt_xent(z["anchor"], z["positive"], 0.2)


def test_what_has_no_effect_is_declared() -> None:
    names = ("momentum", "token_cutoff", "feature_cutoff")

    def unused(name: str, **given: Any) -> dict[str, Any]:
        config = config_of(name, **given)
        return {key: why for key, why in config.unused(values(config)).items() if name == "whitening" or key in names}

    assert unused("whitening") == unused("esimcse") == {}
    assert unused("whitening", pooling="cls_before_pooler") == {"include_prompt": ("pooling", "cls_before_pooler")}
    assert unused("esimcse", queue_batches=0.0) == {"momentum": ("queue_batches", 0)}
    assert unused("consert") == {"token_cutoff": ("first_view", "feature_cutoff")}
    assert unused("consert", first_view="shuffle", second_view="token_cutoff").keys() == {"feature_cutoff"}
    assert unused("consert", first_view="token_cutoff", second_view="feature_cutoff") == {}
    assert unused("consert", first_view="none").keys() == {"token_cutoff", "feature_cutoff"}


# ------------------------------------------------------------------ augmentations
def test_repetition_doubles_some_tokens_in_place() -> None:
    rng, lengths = np.random.default_rng(0), set()
    for _ in range(300):
        found = esimcse.repeated(TOKENS, 0.32, rng).tolist()
        assert list(dict.fromkeys(found)) == TOKENS.tolist()
        assert sorted(found) == found
        assert max(found.count(t) for t in found) <= 2
        lengths.add(len(found) - len(TOKENS))
    assert lengths == set(range(7))  # 0 .. floor(0.32 * 20)
    assert {len(esimcse.repeated(TOKENS[:2], 0.1, rng)) for _ in range(100)} == {2, 3, 4}  # at least 2 may be
    assert len(esimcse.repeated(TOKENS, 0.0, rng)) == 20
    assert len(esimcse.repeated(TOKENS[:0], 0.32, rng)) == 0


def test_a_span_of_characters_is_masked() -> None:
    rng, text, starts = np.random.default_rng(0), "abcdefghijklmnopqrstuvwxyz0123456789", set()
    for _ in range(500):
        left, right = mirror_bert.masked(text, 5, 30, "[MASK]", rng).split(" [MASK] ")
        assert text.startswith(left)
        assert text.endswith(right)
        assert len(left) + len(right) == len(text) - 5
        starts.add(len(left))
    assert starts == set(range(31))
    assert mirror_bert.masked(text[:29], 5, 30, "[MASK]", rng) == text[:29]
    assert mirror_bert.masked(text, 0, 30, "[MASK]", rng) == text


def test_the_larger_mask_holds_the_smaller() -> None:
    rng, places = np.random.default_rng(0), set()
    for _ in range(300):
        nearer, farther = (np.flatnonzero(m == 4) for m in arccse.nested_masks(TOKENS, 0.2, 0.4, 4, rng))
        assert (len(nearer), len(farther)) == (4, 8)
        assert np.ptp(farther) == 7
        assert np.ptp(nearer) == 3
        assert set(nearer) <= set(farther)
        places.add((farther[0], nearer[0] - farther[0]))
    assert {start for start, _ in places} == set(range(13))
    assert {within for _, within in places} == set(range(5))
    assert TOKENS.tolist() == list(range(20, 40))


def test_shuffling_moves_what_remains() -> None:
    rng = np.random.default_rng(0)
    found = consert.shuffled(TOKENS, 12, rng)
    assert sorted(found) == TOKENS[:10].tolist()
    assert found.tolist() != sorted(found)


def test_cutoffs_cut_the_share_that_they_say() -> None:
    packed = pack([TOKENS[:3], TOKENS[:8], TOKENS[:8]], 16, (1,), (2,))
    noise = torch.rand(len(packed.ids), generator=torch.Generator().manual_seed(0))
    cut = consert.token_cutoff(noise, packed, 0.3)
    for start, length in zip(packed.starts, packed.lengths, strict=True):
        own = slice(int(start), int(start + length))
        smallest = sorted(noise[own].tolist())[: math.floor(0.3 * length)]
        assert [v in smallest for v in noise[own].tolist()] == cut[own].tolist()
    features = consert.feature_cutoff(torch.rand(3, 10, generator=torch.Generator().manual_seed(0)), 0.25)
    assert features.sum(1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["token_cutoff", "feature_cutoff"])
def test_a_cut_view_differs_and_the_other_does_not(tiny: Any, kind: str, packed: bool) -> None:
    source = tiny if packed else replace(tiny, packing_note="for comparison")
    config = config_of("consert", first_view=kind, second_view="none", token_cutoff=0.5)
    network = consert.ConsertNetwork(config, source, 0).train()
    rows = [TOKENS[:n] for n in (9, 4, 6)]
    torch.manual_seed(1)
    z = network.encode({"anchor": rows, "positive": rows})
    plain = network.eval().embed(rows)
    torch.testing.assert_close(z["positive"], plain, atol=1e-5, rtol=0)
    assert (z["anchor"] - plain).abs().amax(1).min() > 1e-3


# ------------------------------------------------------------------ networks
def test_whitened_vectors_have_unit_covariance(tiny: Any) -> None:
    config = config_of("whitening", pooling="avg")
    network: Any = whitening.WhiteningNetwork(config, tiny, 0).train()
    rng = np.random.default_rng(0)
    rows = [rng.integers(10, 200, rng.integers(3, 12)).astype(np.int32) for _ in range(400)]
    for start in range(0, 400, 100):
        network.project(network.encode({"anchor": rows[start : start + 100]}))
    found = network.eval().embed(rows).double()
    assert found.mean(0).abs().max() < 1e-3
    n, width = found.shape
    for i in range(width - 1):  # averages of layer-normed tokens sum to 0: the last direction has no variance
        for j in range(i + 1):
            product = float((found[:, i] * found[:, j]).sum()) / n
            assert product == pytest.approx(float(i == j), abs=1e-2)
    narrow: Any = whitening.WhiteningNetwork(config_of("whitening", pooling="avg", dimensions=5), tiny, 0).train()
    narrow.project(narrow.encode({"anchor": rows}))
    torch.testing.assert_close(narrow.embed(rows).abs(), found[:, :5].float().abs(), atol=2e-2, rtol=0)


def test_directions_without_variance_are_left_out() -> None:
    weight, bias = whitening.kernel(torch.tensor([1.0, 2.0]), torch.tensor([[4.0, 0.0], [0.0, 0.0]]), 2)
    assert weight.abs().tolist() == [[0.5, 0.0], [0.0, 0.0]]
    assert (weight @ torch.tensor([1.0, 2.0], dtype=torch.float64) + bias).tolist() == [0.0, 0.0]


def test_the_momentum_network_follows_and_its_queue_is_fifo(tiny: Any) -> None:
    config = config_of("esimcse", momentum=0.9, batch_size=2, queue_batches=1.5)
    network: Any = esimcse.MomentumNetwork(config, tiny, 0).train()
    words = "encoder.embeddings.word_embeddings.weight"
    followed = start = network.slow.state_dict()[words].clone()
    queue: list[Tensor] = []  # newest first
    for step in (1, 2, 3):
        rows = [TOKENS[step : step + 5], TOKENS[step : step + 7]]
        z = network.project(network.encode({"anchor": rows, "positive": rows}))
        assert len(z["queue"]) == len(queue)
        assert all(torch.equal(a, b) for a, b in zip(z["queue"], queue, strict=True))
        queue = [*network.newest.clone(), *queue][:3]
        with torch.no_grad():
            network.encoder.get_input_embeddings().weight.add_(1.0)
        network.after_step()
        followed = 0.9 * followed + 0.1 * (start + step)
    torch.testing.assert_close(network.slow.state_dict()[words], followed)
    assert not any(p.requires_grad for p in network.slow.parameters())
    resumed: Any = esimcse.MomentumNetwork(config, tiny, 1).train()
    resumed.load_state_dict(network.state_dict())
    assert torch.equal(resumed.project(resumed.encode({"anchor": rows, "positive": rows}))["queue"], torch.stack(queue))


def test_without_a_queue_there_is_no_second_network(tiny: Any) -> None:
    network: Any = esimcse.MomentumNetwork(config_of("esimcse", queue_batches=0.0), tiny, 0).train()
    assert network.slow is None
    rows = [TOKENS[:4], TOKENS[:6]]
    assert len(network.project(network.encode({"anchor": rows, "positive": rows}))["queue"]) == 0
    network.after_step()


@pytest.mark.parametrize("is_packed", [True, False])
def test_the_discriminator_sees_replaced_tokens_and_the_sentences_vector(tiny: Any, is_packed: bool) -> None:
    source = tiny if is_packed else replace(tiny, packing_note="for comparison")
    network: Any = diffcse.DiffcseNetwork(config_of("diffcse", dropout=0.0, mask_share=0.5), source, 0).train()
    rows = [TOKENS[:n] for n in (9, 4, 6)]
    packed = network._pack(rows)
    filled = network.filled_in(packed, np.random.default_rng(0))
    special = np.r_[packed.starts, packed.starts + packed.lengths - 1]
    assert torch.equal(filled[special], packed.ids[special])
    replaced = filled != packed.ids
    assert 0 < replaced.sum() <= 0.8 * (~np.isin(np.arange(len(filled)), special)).sum()
    h = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found = network.detection(packed, filled, h).item()
    logits = []  # plain: sentence by sentence, the library's own forward pass on input embeddings
    for i, (start, length) in enumerate(zip(packed.starts, packed.lengths, strict=True)):
        ids = filled[int(start) : int(start + length)][None]
        hook = network.discriminator.embeddings.register_forward_hook(
            lambda _, __, x, i=i: torch.cat([h[i][None, None], x[:, 1:]], dim=1)
        )
        with torch.no_grad():
            logits += list(network.detector(network.discriminator(input_ids=ids).last_hidden_state[0]))
        hook.remove()
    expected = [softmax_loss(two.tolist(), int(r)) for two, r in zip(logits, replaced, strict=True)]
    assert found == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    views = {"anchor": rows, "positive": rows}
    network.own_loss(views, pooled := network.encode(views), np.random.default_rng(0)).backward()
    assert network.encoder.get_input_embeddings().weight.grad.abs().sum() > 0  # through the sentence's vector
    assert all(p.grad is None for p in network.generator.parameters())
    assert set(pooled) == {"anchor", "positive"}


def test_the_triplet_is_encoded_without_dropout(tiny: Any) -> None:
    network: Any = arccse.ArccseNetwork(config_of("arccse", dropout=0.3), tiny, 0).train()
    rows = [TOKENS[:n] for n in (9, 4, 6)]
    z = network.encode(dict.fromkeys((*arccse.PAIR, *arccse.TRIPLET), rows))
    plain = network.eval().embed(rows)
    torch.testing.assert_close(z["whole"], plain)
    torch.testing.assert_close(z["masked"], plain)
    assert (z["anchor"] - z["positive"]).abs().max() > 1e-2
    assert network.dropout == 0.3


# ------------------------------------------------------------------ examples and settings
def test_every_epoch_masks_other_spans() -> None:
    from test_methods import spec_of

    tools = load_inputs(spec_of("mirror_bert"), torch.device("cpu")).tools
    texts = {"sentence": ["the quick brown fox jumps over the lazy dog again and again"] * 3}
    config = config_of("mirror_bert", epochs=2)
    examples = mirror_bert.prepare(texts, config, 0, tools)
    first, second = (
        mirror_bert.views(examples, Batch(np.arange(3), epoch), config, np.random.default_rng(0)) for epoch in (0, 1)
    )
    assert [t.tolist() for t in first["positive"]] != [t.tolist() for t in second["positive"]]
    mask = tools.tokenise(["[MASK]"])[0][0]
    assert all((t == mask).sum() == 1 for t in [*first["positive"], *second["positive"]])
    assert not any((t == mask).any() for t in first["anchor"])


def test_sncse_negates_by_our_rule() -> None:
    from test_methods import spec_of

    inputs = load_inputs(spec_of("sncse"), torch.device("cpu"))
    examples = sncse.prepare(inputs.corpus.columns, config_of("sncse"), 0, inputs.tools)
    assert isinstance(examples, Examples)
    assert examples.facts["coverage_neg"] > 0.9


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("arccse", {"masked": 0.4, "masked_more": 0.3}, "masked_more"),
        ("sncse", {"alpha": 0.4, "beta": 0.2}, "beta"),
        ("diffcse", {"head_at": "train_and_test", "pooling": "avg"}, "head_at"),
    ],
)
def test_values_that_do_not_go_together(name: str, values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: [^;]*$"):
        config_of(name, **values)


def test_whitening_has_nothing_to_tune_that_trains() -> None:
    assert not {"learning_rate", "dropout", "temperature"} & set(hyperparameters(declared("whitening").config))
    method = load_method("whitening")
    assert (method.loss, method.optimiser) == (None, None)


def test_a_loss_without_an_optimiser_is_refused() -> None:
    with pytest.raises(ValueError, match="expected both a loss and an optimiser"):
        replace(load_method("simcse"), optimiser=None)


def test_only_the_sample_of_mirror_bert_is_masked_and_tokenised() -> None:
    from test_methods import spec_of

    tools = load_inputs(spec_of("mirror_bert"), torch.device("cpu")).tools
    texts = {"sentence": [f"sentence number {n} of a corpus that is long enough to be masked" for n in range(500)]}
    config = config_of("mirror_bert", epochs=2, sample_size=10)
    tools = replace(tools, seen=[])
    examples = mirror_bert.prepare(texts, config, 0, tools)
    assert [len(column) for column in tools.seen or ()][-2:] == [10, 10]
    used = sampled(500, config, 0)
    for column in (examples.columns[f"masked {epoch}"] for epoch in range(2)):
        assert np.flatnonzero(np.diff(column.starts)).tolist() == used.tolist()
    views = mirror_bert.views(examples, Batch(used, 1), config, np.random.default_rng(0))
    assert [len(views["positive"]), *map(len, views["positive"])].count(0) == 0
