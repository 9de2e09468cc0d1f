"""GCLSR: batches, optimiser and schedule, changed sentences; its network, augmentation and attention."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fake_tools import FakeTools
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from trainables.contract.config import build
from trainables.contract.errors import DataError
from trainables.contract.registry import declared
from trainables.contract.trial import TrialSpec
from trainables.data.tokens import TokenColumn
from trainables.encoders.word_vectors import WordVectors, unknown_id, unknown_vectors
from trainables.methods.gclsr import method as gclsr
from trainables.methods.gclsr.config import GclsrConfig, back_translations
from trainables.methods.gclsr.network import (
    MASKED_SCORE,
    OPERATIONS,
    GclsrNetwork,
    Layout,
    TextCNN,
    augment,
    softmax_attention,
)
from trainables.methods.losses import grouped_cosine
from trainables.methods.method import Batch, Examples, all_columns
from trainables.methods.sda.edits import eda
from trainables.training.method_trial import inputs_key, load_inputs

CONFIG = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, batch_size=8, epochs=4, warmup_epochs=1)


def examples(n: int) -> Examples:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, n)
    flat = rng.integers(-3, 20, lengths.sum()).astype(np.int32)
    return Examples({"sentence": TokenColumn(flat, np.concatenate([[0], np.cumsum(lengths)]))})


def vectors() -> WordVectors:
    matrix = np.random.default_rng(1).standard_normal((20, 10)).astype(np.float32)
    return WordVectors(tuple(map(str, range(20))), matrix)


def test_a_smaller_last_batch_is_dropped_unless_alone() -> None:
    assert [len(b) for b in gclsr.plan(examples(30), CONFIG, 0)] == [8] * 3 * 4
    assert [len(b) for b in gclsr.plan(examples(32), CONFIG, 0)] == [8] * 4 * 4
    assert [len(b) for b in gclsr.plan(examples(5), CONFIG, 0)] == [5] * 4
    assert [len(b) for b in gclsr.plan(examples(30), replace(CONFIG, sample_size=10), 0)] == [8] * 4


def test_num_groups_is_another_way_to_say_group_size() -> None:
    draw = torch.Generator().manual_seed(0)
    z = {name: torch.randn(3, 4096, generator=draw) for name in ("q1", "z1", "q2", "z2")}
    by_size = gclsr.loss(z, replace(CONFIG, group_size=16))
    assert by_size == grouped_cosine(z["q1"], z["z1"], z["q2"], z["z2"], 16)
    assert by_size == gclsr.loss(z, replace(CONFIG, group_size=4, num_groups=256))
    assert by_size != gclsr.loss(z, replace(CONFIG, group_size=4))


def schedule(config: GclsrConfig, steps: int) -> list[tuple[float, float, float]]:
    """(base rate, predictor rate, momentum) at which each optimiser step runs."""
    network = nn.ModuleDict({"backbone": nn.Linear(1, 1), "predictor": nn.Linear(1, 1)})
    sgd, rates = gclsr.optimiser(network, config, steps, 1)
    seen = []
    for _ in range(steps):
        base, predictor = sgd.param_groups
        assert base["momentum"] == predictor["momentum"]
        seen.append((base["lr"], predictor["lr"], base["momentum"]))
        sgd.step()
        rates.step()
    return seen


def test_the_schedule_of_a_run_and_of_one_cut_short() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(CONFIG, 16)
    assert seen[0] == (peak, peak, 0.9)  # the public loop's first step
    assert seen[1] == (0.0, 1.0, 0.9)
    assert seen[4] == (peak, 1.0, 0.9)
    assert seen[5] == (peak, 1.0, 0.8)
    assert 0 < seen[15][0] < seen[14][0] < peak
    assert [momentum for _, _, momentum in schedule(CONFIG, 8)] == [0.9] * 3 + [0.8] * 5
    together = schedule(replace(CONFIG, predictor_lr=None), 16)
    assert all(base == predictor for base, predictor, _ in together)


def test_no_warmup_and_no_momentum() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(replace(CONFIG, warmup_epochs=0, momentum=0.0, momentum_after_warmup=0.8), 16)
    assert [momentum for _, _, momentum in seen] == [0.0] + [0.8] * 15
    assert seen[1][0] == peak
    assert schedule(replace(CONFIG, momentum_after_warmup=0.0), 16)[-1][2] == 0.0


def test_every_parameter_is_in_one_group_with_decay() -> None:
    network = GclsrNetwork(CONFIG, vectors(), 0)
    sgd, _ = gclsr.optimiser(network, CONFIG, 16, 4)
    counts = {group["name"]: len(group["params"]) for group in sgd.param_groups}
    assert counts == {"base": 2 * 2 + 3 * 4, "predictor": 2 + 2 + 2}
    assert sum(counts.values()) == len(list(network.parameters()))
    assert all(g["weight_decay"] == 0.001 and g["nesterov"] for g in sgd.param_groups)


# ------------------------------------------------------------ sentences
WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "at"),
    *("ten", "past", "noon", "on", "its", "way", "home", "again", "today"),
]
SYNONYMS = {"quick": ["fast"], "dog": ["hound", "cur"]}
TEXTS = {"sentence": ["a b c", "b c d", "c d e"]}


def synonyms(word: str) -> list[str]:
    return SYNONYMS.get(word, [])


def test_eda_does_one_of_four_things() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(2000):
        found = eda(WORDS, Random(seed), 0.1, synonyms)
        changed = Counter(found) - Counter(WORDS), Counter(WORDS) - Counter(found)
        extra, gone = (sum(c.values()) for c in changed)
        if len(found) == len(WORDS) + 1:
            assert set(changed[0]) <= {"fast", "hound", "cur"}
            kinds["insertion"] += 1
        elif len(found) == len(WORDS) and extra == gone > 0:
            assert set(changed[1]) <= set(SYNONYMS)
            kinds["synonym"] += 1
        elif sorted(found) == sorted(WORDS) and found != WORDS:
            assert sum(a != b for a, b in zip(found, WORDS, strict=True)) == 2
            kinds["swap"] += 1
        elif extra == 0 and gone:
            kinds["deletion"] += 1
        else:
            assert found == WORDS  # two equal words swapped, or nothing left out: 0.9^19
            kinds["none"] += 1
    assert all(400 < kinds[k] < 600 for k in ("insertion", "synonym", "swap"))  # 500 expected, sd 19
    assert kinds["deletion"] > 350
    assert {len(eda(["a"], Random(seed), 0.9, synonyms)) for seed in range(50)} == {1}
    assert all(eda(["a", "b"], Random(seed), 0.99, synonyms) for seed in range(50))


def test_back_translations_come_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "back.tsv"
    file.write_text("sentence\ttranslation\na b c\tc b a a\nx\ty\n", encoding="utf-8")
    config = build(GclsrConfig, {"sentence_augmentation": "back_translation", "back_translations": str(file)})
    examples = gclsr.prepare(TEXTS, config, 0, FakeTools())
    assert examples.facts == {"sentence_augmentation_share": 1 / 3}
    views = all_columns(examples, Batch(np.array([0, 1])), config, np.random.default_rng(0))
    assert [len(row) for row in views["augmented"]] == [4, 3]
    with pytest.raises(DataError, match="has none of the training sentences"):
        gclsr.prepare({"sentence": ["other"]}, config, 0, FakeTools())
    with pytest.raises(DataError, match="no such file: missing"):
        back_translations("missing.tsv")
    file.write_text("sentence\tback\na\tb\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected columns sentence and translation, got no translation"):
        declared("gclsr").preflight(
            {"params": {"sentence_augmentation": "back_translation", "back_translations": str(file)}}
        )


def test_back_translations_and_outside_texts_have_word_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a", "cat", "sleeps", "dog", "runs", "the", "feline", "naps"]
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {n} 1 0 2\n" for n, word in enumerate(words)))
    (tmp_path / "train.txt").write_text("a cat sleeps\nthe dog runs\n")
    (tmp_path / "back.tsv").write_text("sentence\ttranslation\na cat sleeps\tthe feline naps\n")
    spec = TrialSpec(
        method="gclsr", encoder=str(tmp_path / "vectors.txt"), metric="builtin_dev", folder="unused",
        data={"train": str(tmp_path / "train.txt"), "dev": ["builtin"], "language": "en"},
    )  # fmt: skip
    plain = load_inputs(spec, torch.device("cpu"))
    assert isinstance(plain.source, WordVectors)
    assert {*plain.source.words} == {"a", "cat", "sleeps", "dog", "runs", "the"}
    made = {"sentence_augmentation": "back_translation", "back_translations": str(tmp_path / "back.tsv")}
    changed = replace(spec, params=made)
    inputs = load_inputs(changed, torch.device("cpu"))
    examples = gclsr.prepare(inputs.corpus.columns, build(GclsrConfig, made), 0, inputs.tools)
    assert (examples.columns["augmented"][0] >= 0).all()
    assert inputs_key(changed) != inputs_key(spec)
    monkeypatch.setattr("trainables.training.method_trial.evaluation_named", lambda name: name)
    outside = load_inputs(replace(spec, data={**spec.data, "evaluations": {"topics": None}}), torch.device("cpu"))
    assert isinstance(outside.source, WordVectors)
    assert {*outside.source.words} == {*words}


def test_eda_needs_words_between_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chinese as it is usually written is one word to it: it would change nothing."""
    monkeypatch.setattr(gclsr, "wordnet", lambda _: synonyms)
    config, desk = build(GclsrConfig, {"sentence_augmentation": "eda"}), FakeTools("zh")
    whole, apart = ["一个男人在弹吉他。", "今天天气很好 today", "两只狗"], ["一个 男人 在 弹 吉他", "两 只 狗", ""]
    with pytest.raises(DataError, match=r"^params.sentence_augmentation: eda changes words with blanks between"):
        gclsr.prepare({"sentence": whole}, config, 0, desk)
    assert gclsr.prepare({"sentence": apart * 9}, config, 0, desk).facts["sentence_augmentation_share"] > 0


def test_the_second_view_is_of_the_changed_sentence() -> None:
    config = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, augmentation="none", self_attention=False)
    network = GclsrNetwork(config, vectors(), 0).train()
    rows = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
    other = [np.array([5, 6], np.int32), np.array([4, 7, 8], np.int32)]
    z, changed = network.encode({"sentence": rows, "augmented": other}), network.encode({"sentence": other})
    torch.testing.assert_close(z["second"], changed["first"])
    torch.testing.assert_close(z["first"], network.encode({"sentence": rows})["second"])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"sentence_augmentation": "back_translation"}, "back_translations"),
        ({"attention_form": "bert", "self_attention": False}, "attention_form"),
        ({"attention_form": "bert", "attention_at_eval": True}, "attention_form"),
    ],
)
def test_values_that_do_not_go_together(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: [^;]*$"):
        build(GclsrConfig, values)


# ------------------------------------------------------------ the network
DIM, LONGEST = 7, 12
NETWORK = GclsrConfig(filters=5, region_sizes=(1, 3, 12), max_words=LONGEST, batch_size=4)
VECTORS = WordVectors(tuple("abcdefghij"), np.random.default_rng(0).standard_normal((10, DIM)).astype(np.float32))


def sentences(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 10, n).astype(np.int32) for n in lengths]


def padded(rows: list[np.ndarray], padding: Tensor) -> Tensor:
    """(B, LONGEST, DIM) word vectors of known words, padding vectors behind them."""
    x = padding.repeat(len(rows), LONGEST, 1)
    for i, row in enumerate(rows):
        x[i, : len(row)] = torch.from_numpy(VECTORS.matrix)[row[:LONGEST].astype(np.int64)]
    return x


def dense(convs: torch.nn.ModuleList, x: Tensor) -> Tensor:
    """The public code's way: a convolution over all positions, ReLU, maximum."""
    return torch.cat([F.relu(conv(x.unsqueeze(1))).squeeze(3).amax(2) for conv in convs], dim=1)


@pytest.mark.parametrize("lengths", [[3, 1, 12, 7], [1, 1], [12, 11, 10], [2, 3]])
def test_the_sparse_convolution_and_its_gradients_equal_the_dense_one(lengths: list[int]) -> None:
    torch.manual_seed(0)
    network = TextCNN(DIM, (1, 3, 5, 12), 6).double()
    padding = torch.randn(DIM, dtype=torch.float64)
    x = torch.randn(len(lengths), LONGEST, DIM, dtype=torch.float64)
    for i, n in enumerate(lengths):
        x[i, n:] = padding
    layout = Layout.of(np.array(lengths), LONGEST)
    weights = torch.randn(len(lengths), 24, dtype=torch.float64)

    expected = dense(network.convs, x)
    (expected * weights).sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    got = network(x[layout.sentence, layout.position], padding, layout)
    (got * weights).sum().backward()
    assert_close(got, expected)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert_close(parameter.grad, gradient)


def test_a_layout_orders_words_by_position() -> None:
    layout = Layout.of(np.array([2, 3, 1]), LONGEST)
    assert layout.position.tolist() == [0, 0, 0, 1, 1, 2]
    assert layout.sentence.tolist() == [0, 1, 2, 0, 1, 1]
    assert layout.first == (0, 3, 5, 6)
    rows = [np.array(r, np.int32) for r in ([1, 2], [3, 4, 5], [6])]
    assert layout.arrange(rows).tolist() == [1, 3, 6, 2, 4, 5]


def test_evaluation_keeps_padding_vectors_and_leaves_out_attention() -> None:
    network = GclsrNetwork(NETWORK, VECTORS, seed=3).eval()
    rows = sentences([5, 1, 12, 20] * 80)  # more than one chunk; 20 words are cut to 12
    got = network.embed(rows)
    assert_close(got, dense(network.backbone.convs, padded(rows, network.padding)).detach())
    assert not got.requires_grad
    assert_close(network.embed(rows[::-1]), got.flip(0))


def test_attention_at_evaluation_equals_the_score_matrix() -> None:
    config = GclsrConfig(filters=5, region_sizes=(1, 3), max_words=LONGEST, attention_at_eval=True)
    network = GclsrNetwork(config, VECTORS, seed=3)
    rows = sentences([5, 1, 12])
    x = padded(rows, network.padding)
    mask = torch.arange(LONGEST) < torch.tensor([len(r) for r in rows])[:, None]
    scores = torch.where(mask[:, :, None] & mask[:, None, :], x @ x.transpose(1, 2) / DIM**0.5, MASKED_SCORE)
    assert_close(network.embed(rows), dense(network.backbone.convs, scores.sum(2, keepdim=True) * x).detach())


def test_training_views_are_two_draws() -> None:
    network = GclsrNetwork(NETWORK, VECTORS, seed=3).train()
    views = {"sentence": sentences([4, 6, 2])}
    torch.manual_seed(1)
    pooled = network.encode(views)
    assert list(pooled) == ["first", "second"]
    assert pooled["first"].shape == (3, 15)
    assert not torch.equal(pooled["first"], pooled["second"])
    torch.manual_seed(1)
    assert torch.equal(network.encode(views)["second"], pooled["second"])
    plain = GclsrNetwork(GclsrConfig(**{**vars(NETWORK), "augmentation": "none"}), VECTORS, seed=3)
    pooled = plain.encode(views)
    assert torch.equal(pooled["first"], pooled["second"])
    z = network.project(pooled)
    assert {name: tuple(v.shape) for name, v in z.items()} == dict.fromkeys(("z1", "z2", "q1", "q2"), (3, 4096))
    assert torch.equal(z["q1"], z["q2"])  # equal views, batch statistics of each view alone


def test_unknown_words_keep_their_vector_unless_resampled_in_training() -> None:
    rows = [np.array([unknown_id("x"), 0, unknown_id("y")], np.int32), np.array([unknown_id("x")], np.int32)]
    options = {**vars(NETWORK), "region_sizes": (1,), "augmentation": "none", "self_attention": False}
    fixed = GclsrNetwork(GclsrConfig(**options), VECTORS, seed=3)
    vectors = torch.from_numpy(unknown_vectors(np.array([unknown_id("x")]), 3, DIM))
    expected = dense(fixed.backbone.convs, torch.cat([vectors, fixed.padding[None].repeat(11, 1)])[None])
    assert_close(fixed.encode({"sentence": rows})["first"][1:], expected)
    resampled = GclsrNetwork(GclsrConfig(**{**options, "oov": "resample"}), VECTORS, seed=3)
    pooled = resampled.encode({"sentence": rows})
    assert not torch.equal(pooled["first"], pooled["second"])
    assert_close(resampled.embed(rows), fixed.embed(rows))


def test_a_checkpoint_holds_what_another_vocabulary_and_seed_would_change() -> None:
    trained = GclsrNetwork(NETWORK, VECTORS, seed=3)
    state = trained.state_dict()
    assert "vectors" not in state
    more = WordVectors(("z", *VECTORS.words), np.concatenate([np.ones((1, DIM), np.float32), VECTORS.matrix]))
    loaded = GclsrNetwork(NETWORK, more, seed=8)
    loaded.load_state_dict(state)
    text = [2, unknown_id("x"), 5]
    got = loaded.embed([np.array([i + 1 if i >= 0 else i for i in text], np.int32)])
    assert_close(got, trained.embed([np.array(text, np.int32)]))


# ------------------------------------------------------------ augmentation and attention
PROBABILITIES = {"gwn": 0.5, "ifft": 0.1, "rbn": 0.2, "rzs": 0.2}
WIDTH = 300


def only(name: str) -> dict[str, float]:
    return {operation: float(operation == name) for operation in OPERATIONS}


def word_vectors(n: int) -> torch.Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(5)) + 0.2


def augmented(n: int, p: float, probabilities: dict[str, float], formulas: str = "code", seed: int = 0) -> torch.Tensor:
    w = word_vectors(n)
    torch.manual_seed(seed)
    return augment(w, p, probabilities, formulas)


def test_words_change_with_probability_p_and_draws_follow_the_generator() -> None:
    w, n = word_vectors(4000), 4000
    changed = (augmented(n, 0.3, PROBABILITIES) != w).any(1)
    assert abs(int(changed.sum()) - 1200) < 150  # five standard deviations
    assert not (augmented(n, 0.0, PROBABILITIES) != w).any()
    assert (augmented(n, 1.0, PROBABILITIES) != w).any(1).all()
    assert torch.equal(augmented(n, 0.3, PROBABILITIES), augmented(n, 0.3, PROBABILITIES))
    assert not torch.equal(augmented(n, 0.3, PROBABILITIES, seed=1), augmented(n, 0.3, PROBABILITIES))
    assert torch.equal(w, word_vectors(4000))


def test_gaussian_noise_has_a_ratio_of_6_to_11_decibels() -> None:
    w = word_vectors(2000)
    snr = -10 * ((augmented(2000, 1.0, only("gwn")) - w).square().mean(1) / w.square().mean(1)).log10()
    assert float(snr.min()) > 4.3  # 300 components give the ratio with a standard deviation of 0.35
    assert float(snr.max()) < 12.7
    assert float(snr.mean()) == pytest.approx(8.5, abs=0.25)


def test_zero_setting_draws_its_spans_as_the_public_code() -> None:
    zeros = augmented(3000, 1.0, only("rzs")) == 0
    counts = zeros.sum(1).float()
    assert not zeros[:, -1].any()  # starts end at 299 - length
    assert zeros[:, 0].any()
    # 17 spans on average, of 1 or (half of the words, 1 draw in 11) 2 components, a few of them overlapping
    expected = 17 * (1 + 0.5 * 0.1 / 1.1)
    expected -= expected**2 / (2 * WIDTH)
    assert float(counts.mean()) == pytest.approx(expected, abs=0.15)
    assert counts.max() <= 38


def test_the_papers_formulas() -> None:
    w = word_vectors(2000)
    assert float((augmented(2000, 1.0, only("gwn"), "paper") - w).std()) == pytest.approx(0.1, rel=0.01)
    assert torch.equal(augmented(2000, 1.0, only("ifft"), "paper"), w)
    shift = augmented(2000, 1.0, only("rbn"), "paper") - w
    assert float(shift.min()) > -1e-6
    assert float(shift.max()) < 0.1 + 1e-6
    assert float(shift.mean()) == pytest.approx(0.05, rel=0.01)
    dropped = augmented(2000, 1.0, only("rzs"), "paper")
    assert float((dropped == 0).float().mean()) == pytest.approx(0.1, rel=0.02)
    assert_close(dropped[dropped != 0], (w / 0.9)[dropped != 0])


def test_softmax_attention_is_within_each_sentence() -> None:
    torch.manual_seed(0)
    lengths, width = torch.tensor([3, 1, 2]), 4
    sentence, position = torch.tensor([0, 1, 2, 0, 2, 0]), torch.tensor([0, 0, 0, 1, 1, 2])  # by position, as `Layout`
    words = torch.randn(6, width, dtype=torch.float64)
    found = softmax_attention(words, sentence, position, lengths)
    for i in range(6):
        mates = [j for j in range(6) if sentence[j] == sentence[i]]
        scores = [math.exp(float(words[i] @ words[j]) / math.sqrt(width)) for j in mates]
        expected = sum(s / sum(scores) * words[j] for s, j in zip(scores, mates, strict=True))
        torch.testing.assert_close(found[i], expected)
